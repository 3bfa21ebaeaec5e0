"""Laplace's approximation on GPMIL is the paper's."""

import numpy as np
import pytest
from milzoo.datasets import simulate, simulate_instances
from milzoo.inference import laplace
from milzoo.models import GPMIL, RBF
from scipy.special import expit, logsumexp


@pytest.fixture(scope="module")
def bags():
    """Twelve bags of one to four instances of two features."""
    design = simulate_instances(12, range(1, 5), num_features=2, seed=0)
    model = GPMIL(RBF(4.0, 1.0), design.instances[:5], mean=-1.0)
    return simulate(model, design, seed=3)[0]


def paper_of(kernel, bag_index, labels, mean):
    """Newton's method of the paper in f at the training instances: mode, and posterior covariance.

    For Y = ±1 the log likelihood of a bag is log σ(Y s), s = log Σ e^{f_n}; its gradient is
    r p with r = T − σ(s) and p the soft-max of f, its Hessian r (diag p − ppᵀ) − σ(1 − σ) ppᵀ.
    """
    f = np.full(len(kernel), mean)
    for _ in range(100):
        gradient, curvature = np.zeros(len(f)), np.zeros((len(f), len(f)))
        for b, label in enumerate(labels):
            own = bag_index == b
            total = logsumexp(f[own])
            share, rest = np.exp(f[own] - total), label - expit(total)
            gradient[own] = rest * share
            outer = np.outer(share, share)
            curvature[np.ix_(own, own)] = rest * (np.diag(share) - outer) - outer * (
                expit(total) * expit(-total)
            )
        # (K⁻¹ − H) step = g − K⁻¹(f − μ0)
        precision = np.linalg.solve(kernel, np.eye(len(f))) - curvature
        f = f + np.linalg.solve(precision, gradient - np.linalg.solve(kernel, f - mean))
    return f, np.linalg.solve(precision, np.eye(len(f)))


@pytest.mark.in_ci
def test_laplace_is_that_of_the_paper(bags):
    """With u = f − μ0 at all instances, whose residual sd is 0.002: the jitter."""
    model = GPMIL.for_bags(bags, None, variance=4.0, length_scale=1.0, mean=-1.0)
    approximation = laplace(model, bags, seed=0).approximation
    instances = model.inducing_points
    squares = ((instances[:, None] - instances) ** 2).sum(axis=2)
    kernel = 4.0 * (np.exp(-squares / 2) + 1e-6 * np.eye(len(squares)))
    order = np.lexsort(bags.instances.T[::-1])
    assert np.array_equal(bags.instances[order], instances)
    mode, covariance = paper_of(kernel, bags.bag_index[order], bags.labels, -1.0)
    cholesky = np.linalg.cholesky(kernel)
    np.testing.assert_allclose(-1.0 + cholesky @ approximation.mean, mode, atol=1e-4)
    root = cholesky @ approximation.scale_tril
    np.testing.assert_allclose(root @ root.T, covariance, atol=1e-4)
