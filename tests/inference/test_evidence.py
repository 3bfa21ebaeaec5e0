"""Log evidence against exact values: conjugate models, grids, and repeated bridges."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from milzoo.datasets import Bags, simulate, simulate_instances
from milzoo.inference import (
    ImportanceResampled,
    coordinate_ascent,
    gibbs,
    grid,
    laplace,
    log_evidence,
    maximum_a_posteriori,
    nuts,
)
from milzoo.inference.evidence import bridged_evidence
from milzoo.models import DPMIL, RBF, VGPMIL, Gaussian
from milzoo.models.vwsgp import VWSGP
from numpyro.distributions import LogNormal
from scipy.special import betaln, gammaln, logsumexp

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


@pytest.fixture(scope="module")
def few_instances():
    """Two negative bags and two positive ones, and a mixture on a line for them."""
    instances = np.array([[-2.0], [-1.7], [0.9], [1.4], [-1.8], [0.3]])
    bags = Bags.from_arrays(instances, np.array([0, 0, 1, 2, 2, 3]), labels=[0, 0, 1, 1])
    return DPMIL(np.zeros(1), np.full(1, 0.25), 8.0, mean_strength=0.2, max_components=2), bags


@pytest.mark.in_ci
def test_a_bridge_has_the_evidence_of_all_clusterings(few_instances):
    """Clusters have no names: `gibbs` visits both orders, which one Gaussian spans."""
    model, bags = few_instances
    found = bridged_evidence(gibbs(model, bags, seed=0, num_samples=2000), seed=0)
    expected = log_sum_over_clusterings(model, bags)
    assert found.error < 0.03
    assert found.value == pytest.approx(expected, abs=4.9 * found.error)


def log_sum_over_clusterings(model, bags):
    """log Σ p(T, r, z, X) over instance labels r and clusters z of K = 2, parameters summed out."""
    labels, bag_index = np.asarray(bags.labels), np.asarray(bags.bag_index)
    sizes, values = np.bincount(bag_index), np.asarray(bags.instances)[:, 0]
    of_bags = len(labels) * np.log(0.5)  # τ = ½
    of_labelling = -np.log(2.0 ** sizes[labels == 1] - 1).sum()
    terms = []
    for instance_labels in product((0, 1), repeat=len(values)):
        some = np.bincount(bag_index, weights=instance_labels) > 0
        if (some == labels).all():
            of_classes = [values[np.equal(instance_labels, klass)] for klass in (0, 1)]
            terms.append(sum(log_evidence_of_class(model, own) for own in of_classes))
    return of_bags + of_labelling + logsumexp(terms)


def log_evidence_of_class(model, values):
    """log Σ_z p(z) Π_k p(x of cluster k): v ~ Beta(1, α) breaks the stick in two."""
    terms = []
    for clusters in product((False, True), repeat=len(values)):
        is_second = np.array(clusters, bool)
        second, number = int(is_second.sum()), len(values)
        of_sticks = betaln(1 + number - second, model.concentration + second)
        of_sticks -= betaln(1, model.concentration)
        pair = values[~is_second], values[is_second]
        terms.append(of_sticks + sum(log_evidence_of_cluster(model, own) for own in pair))
    return logsumexp(terms)


def log_evidence_of_cluster(model, values):
    """Of x ~ N(μ, 1/Λ), μ ~ N(0, 1/(β0 Λ)) and Λ ~ Gamma(ν0/2, 1/(2 W0))."""
    number, strength = len(values), model.mean_strength
    shape, rate = model.degrees_of_freedom / 2, 1 / (2 * model.scale[0])
    mean = values.mean() if number else 0.0
    deviations = ((values - mean) ** 2).sum()
    new_shape = shape + number / 2
    new_rate = rate + deviations / 2 + strength * number * mean**2 / (2 * (strength + number))
    return (
        -number / 2 * np.log(2 * np.pi)
        + (np.log(strength) - np.log(strength + number)) / 2
        + gammaln(new_shape)
        - gammaln(shape)
        + shape * np.log(rate)
        - new_shape * np.log(new_rate)
    )


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
