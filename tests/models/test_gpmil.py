"""GPMIL against the paper's formula, integrals over latent values, and the exact process."""

from dataclasses import replace

import jax
import numpy as np
import numpyro.distributions as dist
import pytest
from milzoo.datasets import Bags, simulate
from milzoo.inference.runtime.densities import log_joint
from milzoo.models import GPMIL, RBF
from scipy.special import expit, log_expit, logsumexp
from scipy.stats import multivariate_normal, norm


@pytest.fixture(scope="module")
def model(process):
    return GPMIL(process.kernel, process.points, mean=process.mean)


@pytest.fixture(scope="module")
def bags(four_bags):
    return four_bags


@pytest.fixture(scope="module")
def draws(draws_of_four_bags):
    return draws_of_four_bags


@pytest.fixture(scope="module")
def marginal_draws(draws):
    return {"inducing_value": draws["inducing_value"]}


def log_likelihood(latent, bags):
    """Equation of the paper: P(T_b | f) = 1/(1 + (Σ e^{f_n})^{−Y}), Y = ±1; (..., N) to (...,)."""
    signs = 2 * np.asarray(bags.labels) - 1
    total = [logsumexp(latent[..., bags.bag_index == b], axis=-1) for b in range(len(signs))]
    return log_expit(signs * np.stack(total, axis=-1)).sum(axis=-1)


def test_the_program_has_the_density_of_the_paper(model, bags, draws, process):
    expected = []
    for u, f in zip(*draws.values(), strict=True):
        mean, scale = process.given(u, bags.instances)
        expected.append(
            process.log_prior(u) + norm(mean, scale).logpdf(f).sum() + log_likelihood(f, bags)
        )
    np.testing.assert_allclose(log_joint(model, "full", draws, bags), expected, rtol=1e-9)
    np.testing.assert_allclose(log_joint(model, "augmented", draws, bags), expected, rtol=1e-9)


@pytest.mark.in_ci
def test_the_marginal_program_integrates_latent_values_out(model, bags, marginal_draws, process):
    """A bag of one and one of two, on grids of f."""
    small = bags.select([0, 1])
    z = np.linspace(-8.0, 8.0, 121)
    log_weights = norm.logpdf(z) - logsumexp(norm.logpdf(z))
    expected = []
    for u in marginal_draws["inducing_value"]:
        mean, scale = process.given(u, small.instances)
        f = mean + scale * np.stack(np.meshgrid(z, z, z, indexing="ij"), axis=-1)
        weight = sum(np.meshgrid(log_weights, log_weights, log_weights, indexing="ij"))
        expected.append(process.log_prior(u) + logsumexp(weight + log_likelihood(f, small)))
    found = log_joint(model, "marginal", marginal_draws, small)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.in_ci
def test_points_at_all_instances_give_the_exact_process(bags, process):
    """With u = f at the distinct instances, the density is N(f; μ0, K) Π P(T_b | f)."""
    model = GPMIL.for_bags(bags, None, variance=2.0, length_scale=1.3, mean=-0.7)
    order = np.lexsort(bags.instances.T[::-1])
    np.testing.assert_array_equal(model.inducing_points, bags.instances[order])
    random = np.random.default_rng(3)
    f = random.normal(-0.7, 1.5, size=(4, 7))
    kernel = process.covariance(bags.instances, bags.instances) + 2e-6 * np.eye(7)
    prior = multivariate_normal(np.full(7, -0.7), kernel)
    expected = prior.logpdf(f) + log_likelihood(f, bags)
    found = log_joint(model, "marginal", {"inducing_value": f[:, order] + 0.7}, bags)
    # The jitter leaves each f_n an sd of 0.0014 around u, whose effect on log P is of its square.
    np.testing.assert_allclose(found, expected, atol=1e-3)


@pytest.mark.in_ci
def test_predictions_are_means_over_latent_values(model, bags, marginal_draws, process):
    """Eleven probabilities of five draws at 4.5 standard errors: a false alarm in 4e-4; seeded."""
    predicted = model.predict(marginal_draws, replace(bags, labels=None))
    random = np.random.default_rng(4)
    for s, u in enumerate(marginal_draws["inducing_value"]):
        mean, scale = process.given(u, bags.instances)
        f = mean + scale * random.normal(size=(40_000, 7))
        instance = expit(f)
        bag = np.stack([expit(logsumexp(f[:, bags.bag_index == b], axis=1)) for b in range(4)], 1)
        for found, drawn in (
            (predicted["instance_probability"][s], instance),
            (predicted["bag_probability"][s], bag),
        ):
            error = drawn.std(axis=0) / np.sqrt(len(drawn))
            assert (np.abs(found - drawn.mean(axis=0)) < 4.5 * error + 1e-9).all()


def test_a_bag_of_one_is_its_instance(model, bags, marginal_draws):
    predicted = model.predict(marginal_draws, bags)
    for b, n in ((1, 2), (3, 6)):
        np.testing.assert_allclose(
            predicted["bag_probability"][:, b],
            predicted["instance_probability"][:, n],
            rtol=1e-6,
        )


@pytest.mark.slow
def test_latent_values_are_drawn_back_given_labels(model, bags, marginal_draws, process):
    """Against weighted draws of the prior: seven means at 4.5 errors, a false alarm in 5e-5."""
    u = marginal_draws["inducing_value"][:1]
    repeated = {"inducing_value": np.repeat(u, 8000, axis=0)}
    completed = model.complete(repeated, bags, seed=0)
    mean, scale = process.given(u[0], bags.instances)
    f = mean + scale * np.random.default_rng(5).normal(size=(200_000, 7))
    weight = np.exp(log_likelihood(f, bags))
    weight /= weight.sum()
    expected = weight @ f
    error = np.sqrt(completed["latent"].var(axis=0) / 8000 + weight**2 @ (f - expected) ** 2)
    assert (np.abs(completed["latent"].mean(axis=0) - expected) < 4.5 * error).all()
    assert (np.abs(mean - expected) > 4.5 * error).any()  # power: labels tell something


@pytest.mark.slow
def test_hyperparameters_with_priors_are_sites(model, bags, marginal_draws):
    other = replace(model, kernel=RBF(dist.LogNormal(0.0, 0.5), 1.3), mean=dist.Normal(-1.0, 1.0))
    assert other.latent_sites == ("inducing_value", "variance", "mean")
    sites = marginal_draws | {"variance": np.full(5, 2.0), "mean": np.full(5, -0.7)}
    priors = dist.LogNormal(0.0, 0.5).log_prob(2.0) + dist.Normal(-1.0, 1.0).log_prob(-0.7)
    expected = log_joint(model, "marginal", marginal_draws, bags) + float(priors)
    np.testing.assert_allclose(log_joint(other, "marginal", sites, bags), expected, rtol=1e-6)
    for name, probability in model.predict(marginal_draws, bags).items():
        np.testing.assert_allclose(other.predict(sites, bags)[name], probability, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("fraction", [0.2, 0.7])
def test_the_default_mean_gives_bags_their_base_rate(fraction):
    """Over 400 prior draws of forty bags of one to sixty instances; 0.04 is three errors."""
    random = np.random.default_rng(6)
    sizes = random.integers(1, 60, 40)
    labels = (np.arange(40) < 40 * fraction).astype(int)
    some = Bags.from_list([random.normal(size=(size, 2)) for size in sizes], labels=labels)
    model = GPMIL.for_bags(some, 10, seed=0)
    with jax.enable_x64(True):
        cholesky = np.asarray(model.inducing_cholesky())
    u = (cholesky @ random.normal(size=(10, 400))).T
    found = model.predict({"inducing_value": u}, some)["bag_probability"].mean()
    assert abs(found - fraction) < 0.04


def test_the_published_mean_is_zero(bags):
    model = GPMIL.as_published(replace(bags, labels=None), 3)
    assert model.mean == 0.0
    assert (model.kernel.variance, model.kernel.length_scale) == (0.5, 2**0.5)


@pytest.mark.in_ci
def test_long_bags_are_positive_under_a_mean_of_zero(process):
    """n/(n + 1) without variance, as documented."""
    model = GPMIL(RBF(1e-8, 1.0), process.points)
    long = Bags.from_list([np.zeros((size, 2)) for size in (1, 3, 99)])
    found = model.predict({"inducing_value": np.zeros((1, 3))}, long)["bag_probability"]
    np.testing.assert_allclose(found[0], [0.5, 0.75, 0.99], rtol=1e-6)


def test_labels_can_be_simulated(model, bags):
    drawn, sites = simulate(model, bags, seed=0)
    assert drawn.labels.shape == (4,)
    assert sites["inducing_value"].shape == (3,) and sites["latent"].shape == (7,)


def test_bad_input_is_refused(model, bags, marginal_draws):
    with pytest.raises(ValueError, match="GPMIL mean is nan; expected a finite number"):
        replace(model, mean=np.nan)
    with pytest.raises(ValueError, match="bags have no labels; mean_by_base_rate"):
        GPMIL.for_bags(replace(bags, labels=None), 3)
    with pytest.raises(ValueError, match="bags have no labels; complete"):
        model.complete(marginal_draws, replace(bags, labels=None), seed=0)
    wide = Bags.from_list([np.zeros((2, 3))])
    with pytest.raises(ValueError, match="bags have 3 features, but the inducing points of this"):
        model.predict(marginal_draws, wide)
