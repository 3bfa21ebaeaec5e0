"""Pictures: figures of comparisons, bags, clusters and surfaces, and figures with a slider."""
