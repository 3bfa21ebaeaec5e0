"""Building blocks of models: likelihoods, kernels, label distributions and sums over bags."""
