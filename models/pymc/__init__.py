"""PyMC programs of the models, to check the NumPyro programs and to compare speeds."""
