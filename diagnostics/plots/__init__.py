"""Pictures: Matplotlib figures of comparisons, bags, clusters and surfaces."""
