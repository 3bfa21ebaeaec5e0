"""The same models in PyMC, to check the NumPyro programs and to race against them."""
