"""Numbers: how far off a posterior is, how good its predictions are, whether its chains mixed."""
