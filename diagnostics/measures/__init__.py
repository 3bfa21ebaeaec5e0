"""Numbers: errors of a posterior, scores of its predictions, convergence of its chains."""
