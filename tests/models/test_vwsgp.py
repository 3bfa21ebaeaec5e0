"""VWSGP's programs against dense Gaussian algebra, quadrature and each other.

Monte-Carlo checks are seeded; at most 60 numbers are looked at, with 5 standard errors: a false
alarm in 4e-5 of all seeds.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from milzoo.datasets import Bags
from milzoo.inference import coordinate_ascent
from milzoo.inference.prediction import TargetPrediction
from milzoo.inference.runtime.densities import log_likelihood
from milzoo.models import (
    RBF,
    VWSGP,
    Gaussian,
    Logistic,
    NegativeBinomial,
    Probit,
    StudentT,
)
from milzoo.models.model import Model
from milzoo.models.parts.polya_gamma import PolyaGamma
from numpyro import handlers
from numpyro.infer import Predictive
from numpyro.infer.util import log_density
from scipy import integrate, stats
from scipy.special import expit, logsumexp

OF_LABELS = [Logistic(), Probit(0.7)]
OF_TARGETS = [Gaussian(0.6), StudentT(5.0, 0.8), NegativeBinomial(3)]
TARGETS = np.array([0.0, 3.0, 1.0, 2.0])  # real numbers, and counts
with_labels = pytest.mark.parametrize("likelihood", OF_LABELS, ids=lambda one: one.name)
with_targets = pytest.mark.parametrize("likelihood", OF_TARGETS, ids=lambda one: one.name)
with_every_likelihood = pytest.mark.parametrize(
    "likelihood", OF_LABELS + OF_TARGETS, ids=lambda one: one.name
)


@pytest.fixture(autouse=True)
def _in_64_bit():
    with jax.enable_x64(True):
        yield


def small_bags(sizes=(1, 4, 2, 7), labels=(1, 0, 0, 1), seed=0):
    instances = np.random.default_rng(seed).normal(size=(sum(sizes), 2))
    return Bags.from_arrays(instances, np.repeat(np.arange(len(sizes)), sizes), list(labels))


def small_model(**fields):
    points = np.random.default_rng(9).normal(size=(3, 2))
    return VWSGP(RBF(1.4, 0.9), points, **fields)


def dense_bag_latent(model, bags):
    """K_ZZ, and a_b, k̄_b by inverse matrices and a loop over the bags."""
    kernel, points, x = model.kernel, model.inducing_points, bags.instances

    def covariance(left, right):
        distance = ((left[:, None] - right[None]) ** 2).sum(-1)
        return kernel.variance * np.exp(-distance / (2 * kernel.length_scale**2))

    K_ZZ = covariance(points, points) + model.jitter * kernel.variance * np.eye(len(points))
    A = covariance(x, points) @ np.linalg.inv(K_ZZ)
    residual = kernel.variance - np.sum(A * covariance(x, points), axis=1)
    in_bag = [bags.bag_index == b for b in range(bags.num_bags)]
    return (
        K_ZZ,
        np.array([A[rows].sum(axis=0) for rows in in_bag]),
        np.array([residual[rows].sum() for rows in in_bag]),
    )


def joint(program, bags, **sites):
    return float(log_density(program, (bags,), {}, sites)[0])


def label_probability(model, latent):
    if isinstance(model.likelihood, Logistic):
        return expit(latent)
    return stats.norm.cdf(latent / np.sqrt(1 + model.likelihood.noise))


def observed_probability(likelihood, observed, latent):
    """p(T | s) or p(Y | s) in SciPy."""
    match likelihood:
        case Logistic():
            return expit(np.where(observed == 1, latent, -latent))
        case Probit(noise=noise):
            sign = np.where(observed == 1, 1, -1)
            return stats.norm.cdf(sign * latent / np.sqrt(1 + noise))
        case Gaussian(noise=noise):
            return stats.norm.pdf(observed, latent, np.sqrt(noise))
        case StudentT(degrees_of_freedom=degrees, scale=scale):
            return stats.t.pdf(observed, degrees, latent, scale)
        case NegativeBinomial(total_count=total):
            return stats.nbinom.pmf(observed, total, expit(-latent))


def observed_of(likelihood, bags):
    return bags.labels if likelihood.observed_part == "labels" else bags.targets


def observed_bags():
    return small_bags().with_targets(TARGETS)


def test_it_keeps_the_protocol_of_models():
    assert isinstance(small_model(), Model)


def _in_blocks_of(length, monkeypatch):
    if length is not None:
        monkeypatch.setattr("milzoo.models.numerics.products._ROWS", length)
        monkeypatch.setattr("milzoo.models.numerics.products._AT_ONCE", 1)
        monkeypatch.setattr("milzoo.models.parts.sparse_gp._WITHOUT_LOOP", 0)
    jax.clear_caches()


@pytest.mark.in_ci
@pytest.mark.slow_but_first
@pytest.mark.parametrize("length", [1, 3, 5, 14, 4096, None])
def test_bag_sums_are_those_of_a_loop(length, monkeypatch):
    """In blocks of several lengths, and with no blocks."""
    _in_blocks_of(length, monkeypatch)
    bags, model = small_bags(), small_model()
    K_ZZ, weights, variance = dense_bag_latent(model, bags)
    accumulated = model.accumulated(bags)
    u = np.array([0.3, -1.0, 2.0])
    np.testing.assert_allclose(accumulated.mean(jnp.asarray(u)), weights @ u, rtol=1e-9)
    np.testing.assert_allclose(accumulated.residual_variance, variance, rtol=1e-9)
    np.testing.assert_allclose(accumulated.cholesky @ accumulated.cholesky.T, K_ZZ, rtol=1e-12)


@pytest.mark.parametrize("length", [5, None])
def test_bag_sums_have_derivatives_by_the_kernel(length, monkeypatch):
    _in_blocks_of(length, monkeypatch)
    bags, model = small_bags(), small_model()

    def total(log_length_scale):
        changed = model.with_hyperparameters({"length_scale": jnp.exp(log_length_scale)})
        by_bag = changed.accumulated(bags)
        return jnp.sum(jnp.cos(by_bag.projection)) + jnp.sum(by_bag.residual_variance)

    step = 1e-5
    difference = (total(0.1 + step) - total(0.1 - step)) / (2 * step)
    np.testing.assert_allclose(jax.grad(total)(0.1), difference, rtol=1e-6)


@pytest.mark.slow_but_first
@with_every_likelihood
def test_full_program_has_the_density_written_by_hand(likelihood):
    bags, model = observed_bags(), small_model(likelihood=likelihood)
    K_ZZ, weights, variance = dense_bag_latent(model, bags)
    u, s = np.array([0.3, -1.0, 0.5]), np.array([0.4, -0.2, 1.0, 2.0])
    found = joint(model, bags, inducing_value=jnp.asarray(u), bag_latent=jnp.asarray(s))
    expected = stats.multivariate_normal(cov=K_ZZ).logpdf(u)
    expected += stats.norm(weights @ u, np.sqrt(variance)).logpdf(s).sum()
    expected += np.log(observed_probability(likelihood, observed_of(likelihood, bags), s)).sum()
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.slow_but_first
@with_every_likelihood
@pytest.mark.parametrize("variance", [1.4, 60.0])
def test_integral_over_the_evidence_is_the_marginal_program(likelihood, variance):
    bags = observed_bags()
    model = small_model(likelihood=likelihood).with_hyperparameters({"variance": variance})
    K_ZZ, weights, residual = dense_bag_latent(model, bags)
    u = np.linalg.cholesky(K_ZZ) @ np.array([0.3, -1.0, 0.5])
    expected = stats.multivariate_normal(cov=K_ZZ).logpdf(u)
    observed = observed_of(likelihood, bags)
    for mean, scale, one in zip(weights @ u, np.sqrt(residual), observed, strict=True):

        def integrand(z, mean=mean, scale=scale, one=one):
            return stats.norm.pdf(z) * observed_probability(likelihood, one, mean + scale * z)

        points = np.clip([-mean / scale, (one - mean) / scale], -11, 11)
        expected += np.log(integrate.quad(integrand, -12, 12, points=points, limit=400)[0])
    found = joint(model.marginal(), bags, inducing_value=jnp.asarray(u))
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.slow
def test_integrating_an_augmentation_leaves_the_full_program():
    bags, model = small_bags(sizes=(2, 1), labels=(1, 0)), small_model()
    sites = {"inducing_value": jnp.array([0.3, -1.0, 0.5]), "bag_latent": jnp.array([0.8, -2.0])}
    omega, other = np.geomspace(1e-4, 20, 401), 0.1
    values = [
        joint(model.augmented(), bags, augmentation=jnp.array([one, other]), **sites)
        for one in omega
    ]
    found = np.log(integrate.simpson(np.exp(values) * omega, x=np.log(omega)))
    expected = joint(model, bags, **sites) + float(PolyaGamma(1, -2.0).log_prob(other))
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.slow_but_first
@with_labels
def test_predictions_equal_dense_monte_carlo_over_new_latent_values(likelihood):
    bags, model = small_bags(), small_model(likelihood=likelihood)
    _, weights, residual = dense_bag_latent(model, bags)
    u = np.array([[0.3, -1.0, 0.5], [2.0, 0.1, -0.4]])
    found = model.predict({"inducing_value": u}, bags)
    noise = np.random.default_rng(0).normal(size=(200_000, 1, bags.num_bags))
    latent = u @ weights.T + np.sqrt(residual) * noise
    draws = label_probability(model, latent)
    error = draws.std(axis=0) / np.sqrt(len(noise))
    assert (np.abs(found["bag_probability"] - draws.mean(axis=0)) < 5 * error).all()
    # The first bag holds one instance: alone, that is the same bag.
    np.testing.assert_allclose(
        found["instance_probability"][:, 0], found["bag_probability"][:, 0], rtol=1e-7
    )


@pytest.mark.slow
def test_predictions_with_priors_equal_those_draw_by_draw():
    bags = small_bags()
    model = small_model().with_hyperparameters({"variance": dist.LogNormal(0.0, 1.0)})
    draws = {
        "inducing_value": np.random.default_rng(0).normal(size=(3, 3)),
        "variance": np.array([0.5, 1.0, 30.0]),
    }
    found = model.predict(draws, bags)
    for i, variance in enumerate(draws["variance"]):
        fixed = model.with_hyperparameters({"variance": float(variance)})
        expected = fixed.predict({"inducing_value": draws["inducing_value"][i : i + 1]}, bags)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name][i], value[0], atol=1e-7)


@pytest.mark.slow_but_first
@with_every_likelihood
def test_completed_latent_values_have_the_moments_of_quadrature(likelihood):
    bags, model = observed_bags(), small_model(likelihood=likelihood)
    _, weights, residual = dense_bag_latent(model, bags)
    u = np.array([0.3, -1.0, 0.5])
    draws = {"inducing_value": np.tile(u, (20_000, 1))}
    latent = model.complete(draws, bags, seed=0)["bag_latent"]
    z = np.linspace(-10, 10, 4001)
    for b, one in enumerate(observed_of(likelihood, bags)):
        s = weights[b] @ u + np.sqrt(residual[b]) * z
        weight = stats.norm.pdf(z) * observed_probability(likelihood, one, s)
        mean = weight @ s / weight.sum()
        deviation = np.sqrt(weight @ (s - mean) ** 2 / weight.sum())
        assert abs(latent[:, b].mean() - mean) < 5 * deviation / np.sqrt(20_000)
        assert abs(latent[:, b].std() - deviation) < 5 * deviation / np.sqrt(20_000)


@with_labels
def test_order_of_instances_and_bags_changes_nothing(likelihood):
    bags, model = small_bags(), small_model(likelihood=likelihood)
    u = jnp.array([0.3, -1.0, 0.5])
    order = np.random.default_rng(0).permutation(len(bags.instances))
    permuted = Bags.from_arrays(
        bags.instances[order],
        bags.bag_index[order],
        bags.labels[list(dict.fromkeys(bags.bag_index[order]))],
    )
    before, after = (joint(model.marginal(), one, inducing_value=u) for one in (bags, permuted))
    np.testing.assert_allclose(after, before, rtol=1e-10)


def test_a_bag_of_one_is_sparse_gp_classification():
    bags = small_bags(sizes=(1,) * 6, labels=(1, 0, 0, 1, 1, 0))
    model = small_model()
    u = jnp.array([0.3, -1.0, 0.5])
    conditional = model.conditional(bags)
    mean, scale = np.asarray(conditional.mean(u)), np.asarray(conditional.residual_scale)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    signs = 2 * np.asarray(bags.labels) - 1
    values = np.log(expit(signs[:, None] * (mean[:, None] + scale[:, None] * nodes)))
    expected = logsumexp(values, b=weights / weights.sum(), axis=1).sum()
    sites = {"inducing_value": u}
    found = joint(model.marginal(), bags, **sites)
    unlabelled = handlers.substitute(handlers.seed(model.marginal(), 0), sites)
    prior = handlers.trace(unlabelled).get_trace(bags)["inducing_value"]["fn"].log_prob(u)
    np.testing.assert_allclose(found, float(prior) + expected, atol=1e-6)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"likelihood": "probit"},
            r"likelihood is 'probit'; expected a likelihood of milzoo\.models, one of Logistic\(\)",
        ),
        ({"jitter": -1.0}, r"jitter is -1\.0; expected a finite number of at least 0"),
    ],
    ids=["likelihood", "jitter"],
)
def test_fields_out_of_range_are_refused_by_name(fields, message, without_type_checks):
    with pytest.raises(ValueError, match=f"VWSGP {message}"):
        small_model(**fields)


def test_what_cannot_be_done_is_refused(without_type_checks):
    bags, model = small_bags(), small_model()
    with pytest.raises(ValueError, match="accumulation is 'sum'; expected one of joint, indep"):
        model.predict({"inducing_value": np.zeros((1, 3))}, bags, accumulation="sum")
    wide = Bags.from_arrays(np.zeros((2, 5)), [0, 1], [0, 1])
    with pytest.raises(ValueError, match="bags have 5 features, but the inducing points"):
        model.predict({"inducing_value": np.zeros((1, 3))}, wide)
    unlabelled = Bags.from_arrays(bags.instances, bags.bag_index)
    with pytest.raises(ValueError, match="bags have no labels; complete"):
        model.complete({"inducing_value": np.zeros((1, 3))}, unlabelled, seed=0)


# ------------------------------------------------------------------ targets


@pytest.fixture
def regression():
    """A model of targets with its bags, and the moments by dense algebra."""
    bags = small_bags().with_targets([0.4, -1.0, 0.3, 2.0])
    model = small_model(likelihood=Gaussian(0.6))
    return model, bags, dense_bag_latent(model, bags)


def test_programs_of_targets_have_the_densities_written_by_hand(regression):
    model, bags, (K_ZZ, weights, variance) = regression
    u, s = np.array([0.3, -1.0, 0.5]), np.array([0.4, -0.2, 1.0, 2.0])
    prior = stats.multivariate_normal(cov=K_ZZ).logpdf(u)
    found = joint(model.marginal(), bags, inducing_value=jnp.asarray(u))
    given_u = stats.norm(weights @ u, np.sqrt(variance + 0.6)).logpdf(bags.targets).sum()
    np.testing.assert_allclose(found, prior + given_u, rtol=1e-10)
    found = joint(model, bags, inducing_value=jnp.asarray(u), bag_latent=jnp.asarray(s))
    given_s = stats.norm(weights @ u, np.sqrt(variance)).logpdf(s).sum()
    given_s += stats.norm(s, np.sqrt(0.6)).logpdf(bags.targets).sum()
    np.testing.assert_allclose(found, prior + given_s, rtol=1e-10)


def test_predicted_targets_are_those_of_dense_algebra(regression):
    model, bags, (_, weights, variance) = regression
    u = np.array([[0.3, -1.0, 0.5], [2.0, 0.1, -0.4]])
    found = model.predict({"inducing_value": u}, bags)
    np.testing.assert_allclose(found["bag_mean"], u @ weights.T, rtol=1e-8)
    np.testing.assert_allclose(found["bag_scale"][0], np.sqrt(variance + 0.6), rtol=1e-8)
    totals = np.add.reduceat(found["instance_mean"], bags.starts, axis=1)
    np.testing.assert_allclose(totals, u @ weights.T, rtol=1e-8)
    of_bags = np.add.reduceat(found["instance_scale"] ** 2, bags.starts, axis=1)[0]
    np.testing.assert_allclose(of_bags, variance, rtol=1e-8)


def test_completed_latents_have_dense_gaussian_moments(regression):
    model, bags, (_, weights, variance) = regression
    u = np.array([0.3, -1.0, 0.5])
    draws = {"inducing_value": np.tile(u, (20_000, 1))}
    latent = model.complete(draws, bags, seed=0)["bag_latent"]
    precision = 1 / variance + 1 / 0.6
    mean = (weights @ u / variance + bags.targets / 0.6) / precision
    deviation = 1 / np.sqrt(precision)
    assert (np.abs(latent.mean(axis=0) - mean) < 5 * deviation / np.sqrt(20_000)).all()
    error = np.abs(latent.std(axis=0) - deviation)
    assert (error < 5 * deviation / np.sqrt(2 * 20_000)).all()


def conditional_distribution(likelihood, latent):
    """The distribution of Y given s, in SciPy."""
    match likelihood:
        case Gaussian(noise=noise):
            return stats.norm(latent, np.sqrt(noise))
        case StudentT(degrees_of_freedom=degrees, scale=scale):
            return stats.t(degrees, latent, scale)
        case NegativeBinomial(total_count=total):
            return stats.nbinom(total, expit(-latent))


@pytest.mark.slow_but_first
@with_targets
def test_predicted_targets_have_the_moments_of_quadrature(likelihood):
    bags, model = observed_bags(), small_model(likelihood=likelihood)
    _, weights, residual = dense_bag_latent(model, bags)
    u = np.array([0.3, -1.0, 0.5])
    prediction = TargetPrediction.of(model, {"inducing_value": np.tile(u, (20_000, 1))}, bags)
    is_below = prediction.replicated(0) <= 1.0
    z = np.linspace(-20, 20, 8001)  # e^{2s} moves the mass of the Gaussian
    weight = stats.norm.pdf(z) * (z[1] - z[0])
    for b in range(bags.num_bags):
        target = conditional_distribution(likelihood, weights[b] @ u + np.sqrt(residual[b]) * z)
        mean = weight @ target.mean()
        variance = weight @ (target.var() + (target.mean() - mean) ** 2)
        np.testing.assert_allclose(prediction.bag_mean[0, b], mean, rtol=1e-8)
        np.testing.assert_allclose(prediction.bag_scale[0, b], np.sqrt(variance), rtol=1e-8)
        chance = weight @ target.cdf(1.0)
        error = np.sqrt(chance * (1 - chance) / len(is_below))
        assert abs(is_below[:, b].mean() - chance) < 5 * error


@pytest.mark.parametrize("degrees", [0.8, 2.0])
def test_targets_without_moments_are_predicted_by_their_centre(degrees):
    bags, model = observed_bags(), small_model(likelihood=StudentT(degrees, 0.8))
    prediction = coordinate_ascent(model, bags, seed=0).predict(bags)
    assert np.isinf(prediction.bag_scale).all()
    _, weights, _ = dense_bag_latent(model, bags)
    u = np.array([0.3, -1.0, 0.5])
    found = TargetPrediction.of(model, {"inducing_value": np.tile(u, (1000, 1))}, bags)
    np.testing.assert_allclose(found.bag_mean[0], weights @ u, rtol=1e-9)
    share_below = (found.replicated(0) < weights @ u).mean(axis=0)
    assert (np.abs(share_below - 0.5) < 5 * 0.5 / np.sqrt(1000)).all()


@pytest.mark.slow_but_first
@with_targets
def test_log_density_of_targets_is_the_marginal_one(likelihood):
    bags, model = observed_bags(), small_model(likelihood=likelihood)
    u = np.random.default_rng(0).normal(size=(3, 3))
    found = TargetPrediction.of(model, {"inducing_value": u}, bags).log_density(bags.targets)
    by_draw = log_likelihood(model, "marginal", {"inducing_value": u}, bags)
    np.testing.assert_allclose(found, logsumexp(by_draw, axis=0) - np.log(3), rtol=1e-8)


def test_scales_with_a_prior_enter_predictions_by_draw():
    bags = observed_bags()
    model = small_model(likelihood=StudentT(5.0, dist.LogNormal(0.0, 1.0)))
    assert set(model.latent_sites) == {"inducing_value", "noise_scale"}
    u = np.array([[0.3, -1.0, 0.5]] * 2)
    draws = {"inducing_value": u, "noise_scale": np.array([0.5, 4.0])}
    found = TargetPrediction.of(model, draws, bags).latent.log_density(bags.targets)
    for i, scale in enumerate((0.5, 4.0)):
        one = small_model(likelihood=StudentT(5.0, scale))
        alone = TargetPrediction.of(one, {"inducing_value": u[:1]}, bags)
        np.testing.assert_allclose(found[i], alone.log_density(bags.targets), rtol=1e-8)


def test_noise_with_a_prior_enters_the_predictions():
    bags = small_bags().with_targets(np.zeros(4))
    model = small_model(likelihood=Gaussian(dist.LogNormal(0.0, 1.0)))
    assert set(model.latent_sites) == {"inducing_value", "noise"}
    u = np.array([[0.3, -1.0, 0.5]] * 2)
    found = model.predict({"inducing_value": u, "noise": np.array([0.5, 4.0])}, bags)
    expected = [small_model(likelihood=Gaussian(noise)) for noise in (0.5, 4.0)]
    for i, one in enumerate(expected):
        other = one.predict({"inducing_value": u[:1]}, bags)
        np.testing.assert_allclose(found["bag_scale"][i], other["bag_scale"][0], rtol=1e-10)


# ------------------------------------------------------------------ the paper's predictor


@pytest.mark.slow_but_first
@pytest.mark.parametrize("likelihood", [*OF_LABELS, Gaussian(0.6)], ids=lambda one: one.name)
def test_independent_instances_are_the_papers_sampler(likelihood):
    bags, model = small_bags(), small_model(likelihood=likelihood)
    random = np.random.default_rng(0)
    root = np.tril(random.normal(size=(3, 3)))
    draws = np.array([0.5, -1.0, 0.2]) + random.normal(size=(4000, 3)) @ root.T
    found = model.predict({"inducing_value": draws}, bags, accumulation="independent_instances")
    # f*_n ~ N(A_n m, A_n S A_nᵀ + k̃_n), one instance at a time, summed over the bag.
    alone = Bags.from_arrays(bags.instances, np.arange(bags.num_instances))
    _, weights, residual = dense_bag_latent(model, alone)
    mean, covariance = draws.mean(axis=0), np.cov(draws.T, ddof=0)
    variance = np.sum((weights @ covariance) * weights, axis=1) + residual
    noise = random.normal(size=(100_000, bags.num_instances))
    latent = np.add.reduceat(weights @ mean + np.sqrt(variance) * noise, bags.starts, axis=1)
    if isinstance(likelihood, Gaussian):
        sampled, predicted = latent, found["bag_mean"][0]
        sd = np.sqrt(latent.var(axis=0) + likelihood.noise)
        np.testing.assert_allclose(found["bag_scale"][0], sd, rtol=5 / np.sqrt(2e5))
    else:
        sampled = label_probability(model, latent)
        predicted = found["bag_probability"][0]
    error = sampled.std(axis=0) / np.sqrt(len(noise))
    assert (np.abs(predicted - sampled.mean(axis=0)) < 5 * error).all()


def test_both_accumulations_predict_single_instances_alike():
    bags, model = small_bags(sizes=(1,) * 4), small_model()
    draws = {"inducing_value": np.tile([0.3, -1.0, 0.5], (3, 1))}
    joint_, alone = (
        model.predict(draws, bags, accumulation=one)["bag_probability"]
        for one in ("joint", "independent_instances")
    )
    np.testing.assert_allclose(joint_[0], alone[0], rtol=1e-7)


# ------------------------------------------------------------------ 32 bit


@pytest.mark.slow
@with_every_likelihood
def test_all_programs_work_in_32_bit(likelihood):
    bags = observed_bags()
    model, values = small_model(likelihood=likelihood), np.random.default_rng(0).normal(size=3)

    def density(program, u):
        return log_density(program, (bags,), {}, {"inducing_value": u})[0]

    def value_and_gradient():
        return jax.value_and_grad(lambda u: density(model.marginal(), u))(jnp.asarray(values))

    exact = value_and_gradient()
    with jax.enable_x64(False):
        rough = value_and_gradient()
        draws = Predictive(model, num_samples=3)(jax.random.key(0), bags)
        added = Predictive(model.augmented(), num_samples=3)(jax.random.key(0), bags)
    assert rough[0].dtype == draws["bag_latent"].dtype == np.float32
    assert all(np.isfinite(site).all() for site in added.values())
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-3), rough, exact)


def test_an_unknown_type_of_numbers_is_refused(without_type_checks):
    with pytest.raises(ValueError, match="dtype is 'float16'; expected 'float64' or 'float32'"):
        small_model().accumulated(small_bags(), dtype="float16")


def test_independent_instances_have_the_moments_of_the_draws():
    random = np.random.default_rng(0)
    bags = Bags.from_arrays(random.normal(size=(7, 2)), [0, 1, 1, 1, 2, 2, 2])
    model = VWSGP(RBF(1.4, 0.9), random.normal(size=(3, 2)), likelihood=Gaussian(0.6))
    draws = random.normal(size=(3, 3))
    found = model.predict({"inducing_value": draws}, bags, accumulation="independent_instances")
    alone = model.predict({"inducing_value": draws}, bags)
    of_instances = alone["instance_mean"].var(axis=0) + alone["instance_scale"][0] ** 2
    variance = np.add.reduceat(of_instances, bags.starts) + 0.6
    np.testing.assert_allclose(found["bag_scale"][0], np.sqrt(variance), rtol=1e-8)
    totals = np.add.reduceat(alone["instance_mean"].mean(axis=0), bags.starts)
    np.testing.assert_allclose(found["bag_mean"][0], totals, rtol=1e-8)
