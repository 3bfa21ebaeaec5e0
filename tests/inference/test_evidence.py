"""Log evidence against exact values: conjugate models, grids, and repeated bridges."""

from dataclasses import replace

import numpy as np
import pytest
from milzoo.datasets import simulate, simulate_instances
from milzoo.inference import (
    ImportanceResampled,
    coordinate_ascent,
    grid,
    laplace,
    log_evidence,
    maximum_a_posteriori,
    nuts,
)
from milzoo.models import DPMIL, RBF, VGPMIL, Gaussian
from milzoo.models.vwsgp import VWSGP
from numpyro.distributions import LogNormal

INDUCING_POINTS = np.array([[-0.8, 0.3], [0.7, 0.8], [0.4, -0.9]])
DESIGN = simulate_instances(16, range(1, 5), num_features=2, seed=3)
GAUSSIAN = VWSGP(RBF(4.0, 1.0), INDUCING_POINTS, likelihood=Gaussian(0.5))
TWO = VGPMIL(RBF(4.0, 1.3), INDUCING_POINTS[:2], mean=-0.8)


@pytest.fixture(scope="module")
def targets():
    return simulate(GAUSSIAN, DESIGN, seed=1)[0]


@pytest.fixture(scope="module")
def labels():
    return simulate(TWO, DESIGN, seed=1)[0]


@pytest.fixture(scope="module")
def chains(labels):
    return nuts(TWO, labels, seed=0, num_warmup=500, num_samples=2000)


def test_a_conjugate_posterior_has_the_exact_evidence(targets):
    exact = coordinate_ascent(GAUSSIAN, targets, seed=0)
    found = log_evidence(exact, seed=1)
    assert found.value == pytest.approx(exact.elbo[-1], abs=1e-6)
    assert found.error == 0.0 and found.khat == -np.inf


@pytest.mark.in_ci
def test_a_bridge_from_chains_has_the_conjugate_evidence(targets):
    exact = coordinate_ascent(GAUSSIAN, targets, seed=0).elbo[-1]
    found = log_evidence(nuts(GAUSSIAN, targets, seed=0), seed=1)
    assert found.method == "bridge sampling"
    assert found.error < 0.03
    assert found.value == pytest.approx(exact, abs=4.9 * found.error)


@pytest.mark.in_ci
def test_bridges_and_weights_have_the_evidence_of_a_grid(labels, chains):
    exact = grid(TWO, labels, seed=0).elbo[-1]
    for posterior in (chains, laplace(TWO, labels, seed=0)):
        found = log_evidence(posterior, seed=2)
        assert found.error < 0.03
        assert found.value == pytest.approx(exact, abs=4.9 * found.error)


@pytest.mark.slow
def test_a_sampled_hyperparameter_is_integrated_out(labels):
    """The Jacobian of what is unconstrained is in it: a prior on the variance, by quadrature."""
    prior = LogNormal(1.0, 0.5)
    model = replace(TWO, kernel=replace(TWO.kernel, variance=prior))
    found = log_evidence(nuts(model, labels, seed=0, num_samples=2000), seed=1)
    nodes, weights = np.polynomial.hermite_e.hermegauss(9)
    values = [
        grid(replace(TWO, kernel=replace(TWO.kernel, variance=np.exp(1.0 + 0.5 * z))), labels,
             seed=0).elbo[-1]
        for z in nodes
    ]  # fmt: skip
    exact = np.log(np.sum(weights / weights.sum() * np.exp(np.array(values))))
    assert found.error < 0.05
    assert found.value == pytest.approx(exact, abs=4.9 * found.error + 1e-3)


@pytest.mark.slow
def test_the_error_of_a_bridge_holds_over_replicates(labels):
    exact = grid(TWO, labels, seed=0).elbo[-1]
    z = []
    for seed in range(40):
        chain = nuts(TWO, labels, seed=seed, num_warmup=300, num_samples=250)
        found = log_evidence(chain, seed=seed)
        z.append((found.value - exact) / found.error)
    # 4.5 standard errors of a root mean square of 40.
    assert np.sqrt(np.mean(np.square(z))) == pytest.approx(1.0, abs=4.5 / np.sqrt(80))


@pytest.mark.slow
def test_weights_that_do_not_work_have_an_infinite_error(labels):
    narrow = laplace(TWO, labels, seed=0)
    shrunk = replace(narrow.approximation, scale_tril=0.3 * narrow.approximation.scale_tril)
    found = log_evidence(replace(narrow, approximation=shrunk), seed=0)
    assert found.khat > 0.7 and found.error == np.inf


@pytest.mark.slow
def test_posteriors_without_an_evidence_say_why(labels, chains):
    with pytest.raises(ValueError, match="has no density"):
        log_evidence(maximum_a_posteriori(TWO, labels, seed=0), seed=0)
    proposal = laplace(TWO, labels, seed=0)
    resampled = ImportanceResampled(proposal.approximation, 1000)
    with pytest.raises(ValueError, match="has no density"):
        log_evidence(replace(proposal, approximation=resampled), seed=0)
    mixture = DPMIL.for_bags(labels, 3)
    with pytest.raises(ValueError, match="sites are not identified"):
        log_evidence(replace(chains, model=mixture), seed=0)
