"""Products, quadrature and optimisers: numerical methods that know no model."""
