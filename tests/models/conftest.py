"""A small problem of a Gaussian process over instances, with its distributions in plain NumPy."""

import numpy as np
import pytest
from milzoo.datasets import Bags
from milzoo.models import RBF
from scipy.stats import multivariate_normal


class InstanceProcess:
    """u ~ N(0, K_ZZ) and f_n | u ~ N(μ0 + A_n u, k̃_n), by dense linear algebra."""

    variance, length_scale, mean = 2.0, 1.3, -0.7
    points = np.array([[-1.0, 0.5], [0.4, -0.3], [1.2, 1.0]])
    kernel = RBF(variance, length_scale)

    def covariance(self, one, other):
        squares = ((one[:, None] - other) ** 2).sum(axis=2)
        return self.variance * np.exp(-squares / (2 * self.length_scale**2))

    def _within(self):
        return self.covariance(self.points, self.points) + 1e-6 * self.variance * np.eye(3)

    def log_prior(self, inducing_value):
        return multivariate_normal(np.zeros(3), self._within()).logpdf(inducing_value)

    def given(self, inducing_value, instances):
        """Mean and sd of f_n | u."""
        across = self.covariance(self.points, instances)
        weights = np.linalg.solve(self._within(), across)
        explained = (across * weights).sum(axis=0)
        return self.mean + weights.T @ inducing_value, np.sqrt(self.variance - explained)


@pytest.fixture(scope="session")
def process():
    return InstanceProcess()


@pytest.fixture(scope="session")
def four_bags():
    """Four bags of two, one, three and one instances, in two dimensions."""
    random = np.random.default_rng(0)
    parts = [random.normal(size=(size, 2)) for size in (2, 1, 3, 1)]
    return Bags.from_list(parts, labels=[1, 0, 1, 1])


@pytest.fixture(scope="session")
def draws_of_four_bags():
    random = np.random.default_rng(1)
    return {
        "inducing_value": random.normal(0.0, 1.5, size=(5, 3)),
        "latent": random.normal(-0.7, 1.5, size=(5, 7)),
    }
