"""VGPMIL's three programs, its predictions and completions against plain NumPy, sums and draws.

Monte-Carlo comparisons are seeded and stay within 4.5 standard errors; there are about 130 looks,
each with a false-alarm rate of 7e-6 over all seeds. They are not redrawn until they pass.
"""

import itertools
import re
import warnings
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from milzoo.datasets import Bags, simulate_instances
from milzoo.models import RBF, VGPMIL, GammaScaleMixture, PolyaGammaScaleMixture, ScaleMixture
from milzoo.models.numerics.quadrature import logistic_rule
from milzoo.models.vgpmil import _scale_mixture_integrals
from numpyro import handlers
from numpyro.infer import Predictive
from numpyro.infer.util import log_density
from scipy import stats
from scipy.special import expit, log_expit, logsumexp

STANDARD_ERRORS = 4.5
SCALE_MIXTURES = [PolyaGammaScaleMixture(), GammaScaleMixture(alpha=1.0, beta=2.5)]
both_scale_mixtures = pytest.mark.parametrize(
    "scale_mixture", SCALE_MIXTURES, ids=["sech", "gamma"]
)


@pytest.fixture(autouse=True)
def _in_64_bit():
    with jax.enable_x64(True):
        yield


def quiet_bags(tables, labels):
    """Bags that may have labels of one class only, which `Bags` warns of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return Bags.from_list(tables, np.array(labels))


def small_bags(sizes=(1, 2, 3, 2, 4), labels=(1, 0, 1, 1, 0), seed=0):
    random = np.random.default_rng(seed)
    return quiet_bags([random.normal(size=(size, 2)) for size in sizes], labels)


def small_model(**fields):
    inducing_points = np.random.default_rng(9).normal(size=(3, 2))
    defaults = {"mean": 0.3, "sharpness": 20.0, "jitter": 1e-4}
    return VGPMIL(RBF(1.7, 1.1), inducing_points, **(defaults | fields))


def some_inducing_values(model, seed=4):
    return jnp.asarray(np.random.default_rng(seed).normal(size=len(model.inducing_points)))


def joint(program, bags, **sites):
    return float(log_density(program, (bags,), {}, jax.tree.map(jnp.asarray, sites))[0])


def label_log_probability(program, bags, **sites):
    """log P(T_b | sites) of each bag."""
    substituted = handlers.substitute(handlers.seed(program, 0), jax.tree.map(jnp.asarray, sites))
    site = handlers.trace(substituted).get_trace(bags)["bag_label"]
    return np.asarray(site["fn"].log_prob(site["value"]))


def dense_latent_given_inducing_values(model, bags, inducing_value):
    """K_ZZ, the means μ0 + A u and the variances k̃, by the book."""
    X, Z, v = bags.instances, model.inducing_points, model.kernel.variance

    def covariance(left, right):
        squared_distance = ((left[:, None] - right[None]) ** 2).sum(-1)
        return v * np.exp(-squared_distance / (2 * model.kernel.length_scale**2))

    K_ZZ = covariance(Z, Z) + model.jitter * v * np.eye(len(Z))
    K_XZ = covariance(X, Z)
    A = np.linalg.solve(K_ZZ, K_XZ.T).T
    return K_ZZ, model.mean + A @ inducing_value, v - (A * K_XZ).sum(axis=1)


def log_label_given_labels(bag_label, instance_labels, sharpness):
    """log P(T_b | y_b) = log H^{[T_b = max y_b]}/(H + 1); labels of instances on the last axis."""
    agrees = instance_labels.max(axis=-1) == bag_label
    return np.where(agrees, np.log(sharpness), 0.0) - np.log(sharpness + 1)


def log_label_given_latent(bag_label, latent, sharpness):
    """log P(T_b | f_b) by summing over all labels of the bag; instances on the last axis."""
    patterns = np.array(list(itertools.product([0, 1], repeat=latent.shape[-1])))
    signed = latent[..., None, :] * (2 * patterns - 1)
    return logsumexp(
        log_expit(signed).sum(axis=-1) + log_label_given_labels(bag_label, patterns, sharpness),
        axis=-1,
    )


def log_reweighting(scale_mixture, latent):
    """log ψ(f)/φ(f), φ the hyperbolic secant: 0 for the logistic model."""
    if isinstance(scale_mixture, PolyaGammaScaleMixture):
        return np.zeros(latent.shape)
    beta = scale_mixture.beta
    log_psi = scale_mixture.alpha * (np.log(beta) - np.log(beta + latent**2 / 2))
    return log_psi + np.logaddexp(latent / 2, -latent / 2)


def rows(bags, b):
    return bags.bag_index == b


def assert_within_errors(found, expected, standard_error):
    z = np.abs((np.asarray(found) - expected) / standard_error)
    assert z.max() < STANDARD_ERRORS, z


# ------------------------------------------------------------------------ the paper's program
@pytest.mark.slow
@both_scale_mixtures
def test_full_program_has_the_density_written_by_hand(scale_mixture):
    bags, model = small_bags(), small_model(scale_mixture=scale_mixture)
    u = some_inducing_values(model)
    K_ZZ, mean, variance = dense_latent_given_inducing_values(model, bags, u)
    for seed in range(3):
        f = mean + 2 * np.random.default_rng(seed).normal(size=len(mean))
        expected = stats.multivariate_normal(cov=K_ZZ).logpdf(u)
        expected += stats.norm(mean, np.sqrt(variance)).logpdf(f).sum()
        expected += log_reweighting(scale_mixture, f).sum()
        for b, label in enumerate(bags.labels):
            expected += log_label_given_latent(label, f[rows(bags, b)], 20.0)
        found = joint(model, bags, inducing_value=u, latent=f)
        np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("sharpness", [1.0, 3.0, 100.0, 1e12])
def test_instance_labels_are_summed_out_exactly(sharpness):
    bags, model = small_bags(), small_model(sharpness=sharpness)
    f = 3 * np.random.default_rng(1).normal(size=len(bags.instances))
    found = label_log_probability(model, bags, inducing_value=some_inducing_values(model), latent=f)
    expected = [
        log_label_given_latent(label, f[rows(bags, b)], sharpness)
        for b, label in enumerate(bags.labels)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_sites_have_the_names_and_shapes_of_dims():
    bags, sizes = small_bags(), {"inducing_point": 3, "instance": 12, "bag": 5}
    model = small_model()
    for program, names in (
        (model, {"inducing_value", "latent", "bag_label"}),
        (model.marginal(), {"inducing_value", "bag_label"}),
        (
            model.augmented(),
            {"inducing_value", "latent", "augmentation", "instance_label", "bag_label"},
        ),
    ):
        sites = handlers.trace(handlers.seed(program, 0)).get_trace(bags)
        sampled = {name: site for name, site in sites.items() if site["type"] == "sample"}
        assert set(sampled) == names
        for name, site in sampled.items():
            assert site["value"].shape == tuple(sizes[dim] for dim in model.dims[name]), name
            assert site["is_observed"] == (name == "bag_label")


@pytest.mark.in_ci
def test_hyperparameters_with_priors_are_sites_by_name():
    model = small_model(mean=dist.Normal(0.0, 1.0))
    priors = {"variance": dist.LogNormal(0.0, 0.3), "length_scale": dist.LogNormal(0.0, 0.3)}
    model = model.with_hyperparameters(priors)
    assert set(model.priors) == {"variance", "length_scale", "mean"}
    bags = small_bags()
    values = {"variance": 1.3, "length_scale": 0.8, "mean": -0.4}
    u = some_inducing_values(model)
    fixed = model.with_hyperparameters(values)
    assert fixed.priors == {}
    prior = sum(float(model.priors[name].log_prob(value)) for name, value in values.items())
    for program, same in ((model.marginal(), fixed.marginal()), (model, fixed)):
        sites = {"inducing_value": u}
        if program is model:
            sites["latent"] = jnp.linspace(-2, 2, len(bags.instances))
        found = joint(program, bags, **sites, **values)
        np.testing.assert_allclose(found, prior + joint(same, bags, **sites), atol=1e-6)


@pytest.mark.in_ci
@pytest.mark.slow_but_first
@pytest.mark.parametrize(
    "prior",
    [
        dist.Gamma(2.0, 1.0),
        dist.InverseGamma(3.0, 2.0),
        dist.HalfNormal(1.0),
        dist.LogNormal(0.0, 1.0),
        dist.Uniform(0.1, 3.0),
    ],
    ids=lambda prior: type(prior).__name__,
)
def test_common_variance_priors_work_in_the_marginal_program(prior):
    bags = small_bags()
    model = small_model().with_hyperparameters({"variance": prior})
    u = some_inducing_values(model)

    @jax.jit
    def target(variance):
        sites = {"inducing_value": u, "variance": variance}
        return log_density(model.marginal(), (bags,), {}, sites)[0]

    fixed = model.with_hyperparameters({"variance": 1.3})
    expected = joint(fixed.marginal(), bags, inducing_value=u) + float(prior.log_prob(1.3))
    np.testing.assert_allclose(target(1.3), expected, atol=1e-6)
    assert np.isfinite(jax.grad(target)(1.3))


# ------------------------------------------------------------------ latent values integrated out
@pytest.mark.in_ci
@pytest.mark.slow_but_first
@both_scale_mixtures
@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("size", [1, 2])
def test_the_full_program_integrates_to_the_marginal_one(scale_mixture, label, size):
    """Quadrature on a grid, with all normalising constants."""
    bags = small_bags(sizes=(size,), labels=(label,), seed=3)
    model = small_model(scale_mixture=scale_mixture, mean=-0.8)
    model = model.with_hyperparameters({"variance": 6.0})
    u = 2.0 * some_inducing_values(model)
    _, mean, variance = dense_latent_given_inducing_values(model, bags, u)
    steps = np.linspace(-9, 9, 181)
    grid = np.stack(np.meshgrid(*[steps] * size, indexing="ij"), axis=-1).reshape(-1, size)
    f = mean + np.sqrt(variance) * grid

    def full(latent):
        sites = {"inducing_value": u, "latent": latent}
        return log_density(model, (bags,), {}, sites)[0]

    log_cell = np.log((steps[1] - steps[0]) * np.sqrt(variance)).sum()
    expected = logsumexp(jax.jit(jax.vmap(full))(f)) + log_cell
    found = joint(model.marginal(), bags, inducing_value=u)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.slow_but_first
@both_scale_mixtures
def test_marginal_program_equals_dense_monte_carlo_over_latent_values(scale_mixture):
    """Per bag, E over f|u of the reweighted likelihood equals factor times label probability."""
    bags, model = small_bags(), small_model(scale_mixture=scale_mixture)
    u = some_inducing_values(model)
    _, mean, variance = dense_latent_given_inducing_values(model, bags, u)
    random = np.random.default_rng(5)
    f = mean + np.sqrt(variance) * random.normal(size=(100_000, len(mean)))
    found = label_log_probability(model.marginal(), bags, inducing_value=u)
    if not isinstance(scale_mixture, PolyaGammaScaleMixture):
        sites = handlers.trace(
            handlers.substitute(handlers.seed(model.marginal(), 0), {"inducing_value": u})
        ).get_trace(bags)
        found = found + np.asarray(sites["scale_mixture"]["fn"].log_factor)
    for b, label in enumerate(bags.labels):
        f_b = f[:, rows(bags, b)]
        values = np.exp(
            log_label_given_latent(label, f_b, 20.0)
            + log_reweighting(scale_mixture, f_b).sum(axis=1)
        )
        standard_error = values.std() / np.sqrt(len(values))
        assert_within_errors(np.exp(found[b]), values.mean(), standard_error)


@pytest.mark.in_ci
@pytest.mark.parametrize("program", ["full", "augmented"])
def test_padding_instances_do_not_reweight_latent_values(program):
    """Else ψ(f)/φ(f) of hundreds of absent instances, large far out, would pull u there."""
    model, bags = small_model(scale_mixture=GammaScaleMixture(1.0, 2.5)), small_bags()
    run = model if program == "full" else model.augmented()
    with jax.enable_x64(True):
        given = model.prepare(bags)
        num_instances = len(given.bags.instances)
        assert num_instances > bags.num_instances
        latent = np.random.default_rng(0).normal(size=num_instances)

        def factor(values, rows):
            start = jnp.zeros(model.num_inducing)
            sites = {"latent": jnp.asarray(values), "inducing_value": start}
            seeded = handlers.seed(handlers.substitute(run, sites), 0)
            site = handlers.trace(seeded).get_trace(rows)["scale_mixture"]
            return float(jnp.sum(site["fn"].log_prob(site["value"])))

        latent[bags.num_instances :] = 40.0
        expected = factor(latent[: bags.num_instances], bags)
        assert factor(latent, given) == pytest.approx(expected, rel=1e-12)


def test_reweighting_of_unpadded_bags_can_be_traced():
    model, bags = small_model(scale_mixture=GammaScaleMixture(1.0, 2.5)), small_bags()
    with jax.enable_x64(True):
        sites = {
            "latent": jnp.zeros(bags.num_instances),
            "inducing_value": jnp.zeros(model.num_inducing),
        }
        traced, eager = (
            apply(lambda values: log_density(model, (bags,), {}, values)[0])(sites)
            for apply in (jax.jit, lambda function: function)
        )
    assert float(traced) == pytest.approx(float(eager), rel=1e-12)


def test_marginal_program_is_right_for_a_peaked_psi():
    """ψ = (1 + f²/0.2)^−1 has its poles 0.45 from the real line."""
    bags = small_bags(sizes=(1,), labels=(1,), seed=3)
    scale_mixture = GammaScaleMixture(alpha=1.0, beta=0.1)
    model = small_model(scale_mixture=scale_mixture).with_hyperparameters({"variance": 6.0})
    u = some_inducing_values(model)
    K_ZZ, mean, variance = dense_latent_given_inducing_values(model, bags, u)
    f = (mean + np.sqrt(variance) * np.linspace(-12, 12, 40_001))[:, None]
    log_integrand = (
        stats.norm(mean, np.sqrt(variance)).logpdf(f)[:, 0]
        + log_reweighting(scale_mixture, f)[:, 0]
        + log_label_given_latent(1, f, 20.0)
    )
    expected = logsumexp(log_integrand) + np.log(f[1, 0] - f[0, 0])
    expected += stats.multivariate_normal(cov=K_ZZ).logpdf(u)
    found = joint(model.marginal(), bags, inducing_value=u)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 2.5), (5.0, 0.5), (10.0, 0.5), (10.0, 5.0)])
@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
def test_integrals_of_psi_are_right_far_from_its_mode(alpha, beta, scale):
    """A steep ψ moves the mass of the integrand by many sds: at f = 12 to the mode at 0."""
    model = small_model(scale_mixture=GammaScaleMixture(alpha, beta))
    location, z = np.array([-12.0, -7.0, -3.0, 0.0, 2.0, 9.0, 12.0]), np.linspace(-60, 60, 400_001)
    with jax.enable_x64(True):
        scales = jnp.full(len(location), scale)
        found = _scale_mixture_integrals(
            model.scale_mixture, jnp.asarray(location), scales, model._rule(scale)
        )
        found = np.asarray(found)
    f = location[:, None] + scale * z
    log_weight = stats.norm.logpdf(z) + np.log(z[1] - z[0]) - alpha * np.log1p(f**2 / (2 * beta))
    expected = [logsumexp(log_weight + g, axis=1) for g in (-f / 2, np.logaddexp(f / 2, -f / 2))]
    np.testing.assert_allclose(found, expected, rtol=0, atol=5e-9)


@pytest.mark.slow
def test_the_marginal_program_is_accurate_for_narrow_psi():
    bags = small_bags(sizes=(1,), labels=(1,), seed=3)
    gamma = GammaScaleMixture(alpha=1.0, beta=0.01)
    told = ScaleMixture.from_log_density(lambda f: -jnp.log1p(f**2 / 0.02), gamma.distance_to_pole)
    u = some_inducing_values(small_model())
    by_hand, by_logarithm = (
        joint(
            small_model(scale_mixture=scale_mixture)
            .with_hyperparameters({"variance": 6.0})
            .marginal(),
            bags,
            inducing_value=u,
        )
        for scale_mixture in (gamma, told)
    )
    np.testing.assert_allclose(by_logarithm, by_hand, rtol=1e-8)


@pytest.mark.in_ci
def test_marginal_program_takes_any_psi_given_by_its_logarithm():
    bags = small_bags()
    gamma = SCALE_MIXTURES[1]
    automatic = ScaleMixture.from_log_density(lambda f: -jnp.log1p(f**2 / 5.0))
    u = some_inducing_values(small_model())
    by_hand, by_logarithm = (
        joint(small_model(scale_mixture=scale_mixture).marginal(), bags, inducing_value=u)
        for scale_mixture in (gamma, automatic)
    )
    # The quadrature steps of the two differ; each is exact to about 1e-9 an instance.
    np.testing.assert_allclose(by_logarithm, by_hand, rtol=1e-8)


def test_a_fixed_kernel_is_constant_in_compiled_programs():
    """No factorisation, no kernel, and no exponential per quadrature node."""
    bags, model = small_bags(), small_model().with_hyperparameters({"variance": 9.0})

    def target(u):
        return log_density(model.marginal(), (bags,), {}, {"inducing_value": u})[0]

    program = str(jax.make_jaxpr(jax.jit(jax.value_and_grad(target)))(jnp.zeros(3)))
    assert "cholesky" not in program
    exponentials = re.findall(r"f64\[([\d,]*)\] = exp ", program)
    assert exponentials
    assert [shape for shape in exponentials if "," in shape] == []


@pytest.mark.slow
def test_marginal_density_is_finite_at_large_prior_variance():
    bags = small_bags()
    model = small_model().with_hyperparameters({"variance": 1000.0, "length_scale": 0.2})

    def target(u):
        return log_density(model.marginal(), (bags,), {}, {"inducing_value": u})[0]

    value, gradient = jax.value_and_grad(target)(20.0 * jnp.asarray(some_inducing_values(model)))
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


# ------------------------------------------------------------------------ ω and y in the program
@pytest.mark.slow
@both_scale_mixtures
def test_the_augmented_program_sums_to_the_full_one(scale_mixture):
    """Given ω; its distribution given f is normalised and does not depend on y."""
    bags = small_bags(sizes=(1, 3), labels=(0, 1))
    model = small_model(scale_mixture=scale_mixture)
    random = np.random.default_rng(2)
    f, omega = random.normal(size=4), random.uniform(0.1, 0.6, size=4)
    sites = {"inducing_value": some_inducing_values(model), "latent": jnp.asarray(f)}
    patterns = np.array(list(itertools.product([0, 1], repeat=4)))

    @jax.vmap
    def augmented(labels):
        every = sites | {"augmentation": omega, "instance_label": labels}
        return log_density(model.augmented(), (bags,), {}, every)[0]

    log_omega = float(scale_mixture.conditional(jnp.asarray(f)).log_prob(jnp.asarray(omega)).sum())
    np.testing.assert_allclose(
        logsumexp(augmented(patterns)) - log_omega, joint(model, bags, **sites), rtol=1e-10
    )


@pytest.mark.slow_but_first
@both_scale_mixtures
def test_integrating_both_augmentations_leaves_the_full_program(scale_mixture):
    """One instance: the trapezoid rule in log ω, both labels."""
    bags, model = small_bags(sizes=(1,), labels=(1,)), small_model(scale_mixture=scale_mixture)
    sites = {"inducing_value": some_inducing_values(model), "latent": jnp.array([1.4])}
    log_omega = np.linspace(np.log(1e-9), np.log(60.0), 4_001)

    @jax.jit
    @partial(jax.vmap, in_axes=(0, None))
    def augmented(omega, label):
        every = sites | {"augmentation": omega[None], "instance_label": label[None]}
        return log_density(model.augmented(), (bags,), {}, every)[0]

    density = sum(
        np.exp(np.asarray(augmented(np.exp(log_omega), jnp.asarray(label)))) for label in (0, 1)
    )
    found = np.log(np.trapezoid(density * np.exp(log_omega), log_omega))
    np.testing.assert_allclose(found, joint(model, bags, **sites), atol=1e-7)


@pytest.mark.slow_but_first
@both_scale_mixtures
def test_given_augmentation_and_labels_latent_values_are_gaussian(scale_mixture):
    """log p(ω, y, T | f) = −½ωᵀf² + (y − ½)ᵀf + a constant: conjugacy of the updates."""
    bags, model = small_bags(), small_model(scale_mixture=scale_mixture)
    random = np.random.default_rng(2)
    u, N = some_inducing_values(model), len(bags.instances)
    _, mean, variance = dense_latent_given_inducing_values(model, bags, u)
    omega, y = random.uniform(0.1, 0.6, size=N), random.integers(0, 2, size=N)

    def rest(f):
        everything = joint(
            model.augmented(),
            bags,
            inducing_value=u,
            latent=f,
            augmentation=omega,
            instance_label=y,
        )
        return everything - stats.norm(mean, np.sqrt(variance)).logpdf(f).sum()

    f, g = 2 * random.normal(size=(2, N))
    expected = np.sum(-omega * (f**2 - g**2) / 2 + (y - 0.5) * (f - g))
    np.testing.assert_allclose(rest(f) - rest(g), expected, rtol=1e-9)


# ------------------------------------------------------------------------ known answers
@pytest.mark.slow
def test_without_labels_the_prior_is_recovered():
    labelled, model = small_bags(), small_model()
    bags = Bags.from_list(labelled.to_list())
    K_ZZ, _, _ = dense_latent_given_inducing_values(model, bags, np.zeros(3))
    S = 20_000
    draws = Predictive(model, num_samples=S)(jax.random.key(1), bags)
    u, f, labels = (np.asarray(draws[s]) for s in ("inducing_value", "latent", "bag_label"))
    assert_within_errors(u.mean(axis=0), 0.0, np.sqrt(np.diag(K_ZZ) / S))
    errors = np.sqrt((K_ZZ**2 + np.outer(np.diag(K_ZZ), np.diag(K_ZZ))) / S)
    assert_within_errors(np.cov(u.T), K_ZZ, errors)
    # f_n ~ N(μ0, v), whatever is inducing.
    assert_within_errors(f.mean(axis=0), 0.3, np.sqrt(1.7 / S))
    assert_within_errors(f.var(axis=0), 1.7, 1.7 * np.sqrt(2 / S))
    for b in range(bags.num_bags):
        probability = np.exp(log_label_given_latent(1, f[:, rows(bags, b)], 20.0))
        error = np.sqrt(np.mean(probability * (1 - probability)) / S)
        assert_within_errors(labels[:, b].mean(), probability.mean(), error)


def test_the_marginal_program_without_labels_has_the_same_prior():
    bags, model = Bags.from_list(small_bags().to_list()), small_model()
    u = some_inducing_values(model)
    K_ZZ, _, _ = dense_latent_given_inducing_values(model, bags, u)
    sites = handlers.trace(
        handlers.substitute(handlers.seed(model.marginal(), 0), {"inducing_value": u})
    ).get_trace(bags)
    assert not sites["bag_label"]["is_observed"]
    found = float(sites["inducing_value"]["fn"].log_prob(u))
    np.testing.assert_allclose(found, stats.multivariate_normal(cov=K_ZZ).logpdf(u), rtol=1e-9)


@both_scale_mixtures
def test_order_of_bags_and_of_instances_changes_nothing(scale_mixture):
    bags, model = small_bags(), small_model(scale_mixture=scale_mixture)
    u = some_inducing_values(model)
    order = [3, 0, 4, 2, 1]
    backwards = [bags.to_list()[b][::-1] for b in order]
    permuted = quiet_bags(backwards, bags.labels[order])
    np.testing.assert_allclose(
        joint(model.marginal(), bags, inducing_value=u),
        joint(model.marginal(), permuted, inducing_value=u),
        rtol=1e-12,
    )
    draws = {"inducing_value": np.asarray(u)[None]}
    one, other = model.predict(draws, bags), model.predict(draws, permuted)
    np.testing.assert_allclose(
        other["bag_probability"], one["bag_probability"][:, order], rtol=1e-12
    )
    rearranged = np.concatenate([np.flatnonzero(rows(bags, b))[::-1] for b in order])
    np.testing.assert_allclose(
        other["instance_probability"], one["instance_probability"][:, rearranged], rtol=1e-12
    )


def test_a_bag_of_one_is_plain_classification():
    bags = small_bags(sizes=(1, 1, 1, 1), labels=(1, 0, 0, 1))
    model = small_model(sharpness=1e15)
    f = np.array([-3.0, 2.0, -0.4, 5.0])
    found = label_log_probability(model, bags, inducing_value=some_inducing_values(model), latent=f)
    np.testing.assert_allclose(found, log_expit(f * [1, -1, -1, 1]), rtol=1e-12)


def test_sharpness_one_makes_labels_fair_coins():
    bags, model = small_bags(), small_model(sharpness=1.0)
    found = label_log_probability(
        model.marginal(), bags, inducing_value=some_inducing_values(model)
    )
    np.testing.assert_allclose(found, np.log(0.5), rtol=1e-12)


# ------------------------------------------------------------------------ the prior's constant
@pytest.mark.in_ci
@pytest.mark.slow_but_first
@pytest.mark.parametrize("size", [1, 3])
def test_the_prior_constant_equals_quadrature(size):
    """E over u by Gauss–Hermite of Π E[ψ(f_n)·2cosh(f_n/2) | u] by Gauss–Hermite, M = 2."""
    gamma = GammaScaleMixture(alpha=1.0, beta=2.5)
    points = np.array([[0.5, -0.3], [-1.0, 0.8]])
    model = small_model(scale_mixture=gamma).with_hyperparameters({"variance": 4.0})
    model = replace(model, inducing_points=points)
    bags = Bags.from_list(small_bags(sizes=(size, 1), labels=(1, 0)).to_list()[:1])
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    K_ZZ, _, k = dense_latent_given_inducing_values(model, bags, np.zeros(2))
    log_u = []
    for z in itertools.product(nodes, repeat=2):
        _, mean, _ = dense_latent_given_inducing_values(model, bags, np.linalg.cholesky(K_ZZ) @ z)
        f = mean[:, None] + np.sqrt(k)[:, None] * nodes
        log_u.append(logsumexp(log_reweighting(gamma, f), b=weights, axis=1).sum())
    expected = logsumexp(log_u, b=np.outer(weights, weights).ravel())
    found, error = model.log_normaliser(bags, seed=0, num_draws=200_000)
    assert error < 0.01
    assert_within_errors(found, expected, error)


@pytest.mark.in_ci
def test_probabilities_of_all_labels_sum_to_the_constant():
    """Σ_T ∫ p̃(T, u) du = Z, over the eight labellings of three bags, u on a Gauss–Hermite grid."""
    scale_mixture = GammaScaleMixture(alpha=1.0, beta=2.5)
    points = np.array([[0.5, -0.3], [-1.0, 0.8]])
    model = replace(small_model(scale_mixture=scale_mixture), inducing_points=points)
    nodes, weights = np.polynomial.hermite_e.hermegauss(30)
    grid = np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 2)
    log_weight = np.log(np.outer(weights, weights).ravel() / weights.sum() ** 2)
    values = grid @ np.asarray(model.inducing_cholesky()).T
    prior = stats.multivariate_normal(cov=np.cov(values.T, aweights=np.exp(log_weight), ddof=0))
    log_sums = []
    for labels in itertools.product([0, 1], repeat=3):
        bags = small_bags(sizes=(1, 2, 3), labels=labels)
        log_joint = jax.vmap(partial(joint_of_inducing_values, model, bags))(values)
        log_sums.append(logsumexp(log_joint - prior.logpdf(values) + log_weight))
    found, error = model.log_normaliser(bags, seed=0, num_draws=200_000)
    assert error < 0.01
    assert_within_errors(found, logsumexp(log_sums), error)


def joint_of_inducing_values(model, bags, inducing_value):
    sites = {"inducing_value": inducing_value}
    return log_density(model.marginal(), (bags,), {}, sites)[0]


def test_the_logistic_prior_is_normalised():
    found, error = small_model().log_normaliser(small_bags(), seed=0, num_draws=10)
    assert abs(found) < 1e-13
    assert error < 1e-13


def test_padding_adds_nothing_to_the_prior_constant():
    """At variance 0 all instances have f = μ0."""
    scale_mixture = GammaScaleMixture(alpha=1.0, beta=2.5)
    model = small_model(scale_mixture=scale_mixture).with_hyperparameters({"variance": 1e-12})
    found, _ = model.log_normaliser(small_bags(), seed=0, num_draws=2)
    np.testing.assert_allclose(found, 12 * log_reweighting(scale_mixture, np.array(0.3)), atol=1e-4)


# ------------------------------------------------------------------------ predict
@pytest.mark.slow_but_first
@pytest.mark.parametrize("variance", [1.7, 25.0])
def test_predictions_equal_dense_monte_carlo_over_new_latent_values(variance):
    bags = Bags.from_list(small_bags(seed=8).to_list())  # no labels: they are not used
    model = small_model().with_hyperparameters({"variance": variance})
    draws = np.stack([some_inducing_values(model, seed) for seed in (1, 2)])
    found = model.predict({"inducing_value": draws}, bags)
    assert found["bag_probability"].shape == (2, 5)
    assert found["instance_probability"].shape == (2, 12)
    S, random = 50_000, np.random.default_rng(6)
    for s, u in enumerate(draws):
        _, mean, k = dense_latent_given_inducing_values(model, bags, u)
        f = mean + np.sqrt(k) * random.normal(size=(S, len(mean)))
        y = expit(f)
        assert_within_errors(
            found["instance_probability"][s], y.mean(axis=0), y.std(axis=0) / np.sqrt(S)
        )
        for b in range(bags.num_bags):
            p = np.exp(log_label_given_latent(1, f[:, rows(bags, b)], 20.0))
            assert_within_errors(found["bag_probability"][s, b], p.mean(), p.std() / np.sqrt(S))


@pytest.mark.slow
@pytest.mark.parametrize("variance", [1.7, 25.0])
def test_standard_deviations_have_the_residual_variance_in_them(variance):
    """Equations 33 and 37 of Castro-Macías et al. (2024) by draws of f, k̃ in them."""
    bags = small_bags(seed=8)
    model = small_model().with_hyperparameters({"variance": variance})
    draws = np.stack([some_inducing_values(model, seed) for seed in (1, 2, 3)])
    of_bags, of_instances = model.standard_deviations({"inducing_value": draws}, bags)
    S, random = 100_000, np.random.default_rng(6)
    f = np.concatenate(
        [
            mean + np.sqrt(k) * random.normal(size=(S, len(mean)))
            for _, mean, k in (dense_latent_given_inducing_values(model, bags, u) for u in draws)
        ]
    )
    by_bag = [
        np.exp(log_label_given_latent(1, f[:, rows(bags, b)], 20.0)) for b in range(bags.num_bags)
    ]
    for found, probability in ((of_instances, expit(f)), (of_bags, np.stack(by_bag, axis=1))):
        square = (probability - probability.mean(axis=0)) ** 2
        error = square.std(axis=0) / np.sqrt(len(square))
        assert_within_errors(found**2, square.mean(axis=0), error)


def test_predictions_are_probabilities_even_where_the_model_is_sure():
    bags = small_bags()
    model = small_model()
    u = np.array([[300.0, -300.0, 300.0], [-300.0, 300.0, -300.0]])
    for variance in (0.01, 1.7, 40.0):
        sure = model.with_hyperparameters({"variance": variance})
        for probability in sure.predict({"inducing_value": u}, bags).values():
            assert (probability >= 0).all()
            assert (probability <= 1).all()


def test_predictions_with_priors_equal_those_draw_by_draw():
    """The variance 4.0 is far out in its prior, as a posterior draw may be."""
    bags = small_bags(seed=8)
    fixed = small_model()
    priors = {
        "variance": dist.HalfNormal(0.5),
        "length_scale": dist.LogNormal(0.0, 0.3),
        "mean": dist.Normal(0.0, 1.0),
    }
    values = {
        "variance": np.array([0.4, 1.7, 4.0]),
        "length_scale": np.array([1.0, 0.8, 1.4]),
        "mean": np.array([0.0, -1.2, 0.6]),
    }
    u = np.random.default_rng(2).normal(size=(3, 3))
    found = fixed.with_hyperparameters(priors).predict({"inducing_value": u} | values, bags)
    for s in range(3):
        numbers = {name: float(value[s]) for name, value in values.items()}
        expected = fixed.with_hyperparameters(numbers).predict(
            {"inducing_value": u[s : s + 1]}, bags
        )
        for name, probability in expected.items():
            np.testing.assert_allclose(found[name][s], probability[0], atol=1e-6)


def test_bags_of_another_width_are_refused_with_both_widths():
    wide = Bags.from_list([np.zeros((2, 5)), np.ones((1, 5))], [0, 1])
    model = small_model()
    message = r"bags have 5 features, but the inducing points of this model have 2; pass bags with"
    with pytest.raises(ValueError, match=message):
        model.predict({"inducing_value": np.zeros((1, 3))}, wide)
    with pytest.raises(ValueError, match=message):
        joint(model.marginal(), wide, inducing_value=np.zeros(3))


# ------------------------------------------------------------------------ complete
@pytest.mark.slow
@pytest.mark.parametrize("variance", [1.7, 30.0])
def test_completed_draws_have_the_full_program_moments(variance):
    bags = small_bags(sizes=(1, 2, 3), labels=(1, 0, 1))
    model = small_model(sharpness=4.0).with_hyperparameters({"variance": variance})
    u = some_inducing_values(model)
    S, random = 40_000, np.random.default_rng(7)
    completed = model.complete({"inducing_value": np.tile(u, (S, 1))}, bags, seed=3)
    assert set(completed) == {"inducing_value", "latent", "instance_label"}

    def statistics(f, y):
        """Means, mean squares, labels, both together, and pairs within the bag."""
        pairs = [y[:, i] * y[:, j] for i, j in itertools.combinations(range(y.shape[1]), 2)]
        cross = [f[:, 0] * f[:, -1]]
        return np.column_stack([f, f**2, y, f * y, *pairs, *cross])

    _, mean, k = dense_latent_given_inducing_values(model, bags, u)
    for b, label in enumerate(bags.labels):
        in_bag = rows(bags, b)
        f = mean[in_bag] + np.sqrt(k[in_bag]) * random.normal(size=(4 * S, in_bag.sum()))
        y = (random.uniform(size=f.shape) < expit(f)).astype(float)
        weight = np.exp(log_label_given_labels(label, y, 4.0))
        values = statistics(f, y)
        expected = weight @ values / weight.sum()
        expected_error = np.sqrt(weight**2 @ (values - expected) ** 2) / weight.sum()
        found = statistics(completed["latent"][:, in_bag], completed["instance_label"][:, in_bag])
        error = np.hypot(found.std(axis=0) / np.sqrt(S), expected_error)
        assert_within_errors(found.mean(axis=0), expected, error)


@pytest.mark.in_ci
def test_completed_labels_obey_a_sharp_maximum():
    bags, model = small_bags(), small_model(sharpness=1e12)
    u = np.random.default_rng(0).normal(size=(500, 3))
    completed = model.complete({"inducing_value": u}, bags, seed=0)
    labels = completed["instance_label"]
    assert set(np.unique(labels)) == {0, 1}
    for b, label in enumerate(bags.labels):
        assert (labels[:, rows(bags, b)].max(axis=1) == label).all()
    np.testing.assert_array_equal(completed["inducing_value"], u)
    again = model.complete({"inducing_value": u}, bags, seed=0)
    np.testing.assert_array_equal(again["latent"], completed["latent"])
    other = model.complete({"inducing_value": u}, bags, seed=1)
    assert (other["latent"] != completed["latent"]).all()


def test_completion_uses_the_hyper_parameters_of_each_draw():
    """With a mean of ±30 instance labels are certain, whatever the bag labels."""
    bags = small_bags(labels=(1, 1, 1, 1, 1))
    model = small_model(mean=dist.Normal(0.0, 30.0), sharpness=1.0)
    draws = {"inducing_value": np.zeros((2, 3)), "mean": np.array([-30.0, 30.0])}
    completed = model.complete(draws, bags, seed=0)
    np.testing.assert_array_equal(completed["instance_label"], [[0] * 12, [1] * 12])
    np.testing.assert_allclose(completed["latent"], [[-30.0] * 12, [30.0] * 12], atol=8.0)


def test_what_cannot_be_completed_is_refused():
    bags, model = small_bags(), small_model()
    draws = {"inducing_value": np.zeros((1, 3))}
    with pytest.raises(ValueError, match=r"bags have no labels; complete\(\) needs one"):
        model.complete(draws, Bags.from_list(bags.to_list()), seed=0)
    with pytest.raises(
        NotImplementedError, match=r"GammaScaleMixture.*expected PolyaGammaScaleMixture"
    ):
        small_model(scale_mixture=SCALE_MIXTURES[1]).complete(draws, bags, seed=0)


# ------------------------------------------------------------------------ making a model
def four_clusters():
    random = np.random.default_rng(0)
    centres = np.array([[0.0, 0.0, 0.0], [50.0, 0.0, 0.0], [0.0, 50.0, 0.0], [0.0, 0.0, 50.0]])
    tables = [centres + random.normal(size=(4, 3)) for _ in range(10)]
    return tables, Bags.from_list(tables, np.arange(10) % 2)


def test_for_bags_takes_k_means_and_median_distance():
    tables, bags = four_clusters()
    model = VGPMIL.for_bags(bags, num_inducing=4)
    found = model.inducing_points[np.argsort(model.inducing_points @ [1.0, 2.0, 3.0])]
    np.testing.assert_allclose(found, np.mean(tables, axis=0), atol=1e-9)
    apart = [np.linalg.norm(x - y) for x, y in itertools.combinations(np.concatenate(tables), 2)]
    assert model.kernel.length_scale == pytest.approx(np.median(apart), rel=1e-12)
    assert (model.kernel.variance, model.sharpness) == (5.0, 100.0)
    assert model.scale_mixture == PolyaGammaScaleMixture()


def test_as_published_has_the_values_of_the_paper():
    _, bags = four_clusters()
    model = VGPMIL.as_published(bags, num_inducing=4)
    assert (model.kernel.variance, model.kernel.length_scale) == (0.5, np.sqrt(3.0))
    assert (model.mean, model.sharpness, model.scale_mixture) == (
        0.0,
        100.0,
        PolyaGammaScaleMixture(),
    )
    assert VGPMIL.as_published(bags, num_inducing=4, mean=-2.0).mean == -2.0


def bags_of_one(labels):
    return Bags.from_list([np.zeros((1, 1))] * len(labels), labels)


@pytest.mark.filterwarnings("ignore:labels. all 20 bags have label:UserWarning")
@pytest.mark.parametrize("positives", [0, 1, 7, 20])
def test_prior_mean_of_single_instances_matches_quadrature(positives):
    """P(y = 1) = E σ(f) = ((H + 1)·rate − 1)/(H − 1), or half a bag from 0 and 1."""
    bags = bags_of_one((np.arange(20) < positives).astype(int))
    variance, sharpness = 3.0, 11.0
    model = VGPMIL.for_bags(bags, 1, variance, 1.0, sharpness=sharpness)
    node, weight = np.polynomial.hermite_e.hermegauss(60)
    prior = np.sum(weight * expit(model.mean + np.sqrt(variance) * node)) / weight.sum()
    wanted = (positives / 20 * (sharpness + 1) - 1) / (sharpness - 1)
    # 64 pairs of draws: σ has an sd of at most ½, of pairs far less.
    assert prior == pytest.approx(np.clip(wanted, 0.5 / 21, 20.5 / 21), abs=0.03)


@pytest.mark.slow
def test_prior_predictive_has_the_fraction_of_positive_bags():
    design = simulate_instances(40, range(1, 12), 2, seed=0)
    bags = replace(design, labels=(np.arange(40) % 4 == 0).astype(int))
    model = VGPMIL.for_bags(bags, num_inducing=8, variance=2.0, length_scale=1.0)
    replicates = Predictive(model, num_samples=4000)(jax.random.key(1), bags.without_labels())
    by_draw = np.asarray(replicates["bag_label"]).mean(axis=1)
    error = by_draw.std() * np.sqrt(1 / 4000 + 1 / 128)
    assert by_draw.mean() == pytest.approx(0.25, abs=4.5 * error)
    assert VGPMIL.for_bags(bags, 8, 2.0, 1.0).mean == model.mean
    assert VGPMIL.for_bags(bags, 8, 2.0, 1.0, seed=1).mean == pytest.approx(model.mean, abs=0.2)


@pytest.mark.in_ci
def test_prior_mean_is_at_the_median_of_kernel_priors():
    bags = small_bags()
    prior = dist.LogNormal(np.log(3.0), 1.0)
    model = VGPMIL.for_bags(bags, 4, prior, 2.0)
    assert model.mean == pytest.approx(VGPMIL.for_bags(bags, 4, 3.0, 2.0).mean, abs=1e-6)
    assert model.priors == {"variance": prior}


@pytest.mark.in_ci
def test_prior_mean_of_many_bags_is_that_of_some():
    random = np.random.default_rng(3)
    tables = [random.normal(size=(3, 2)) for _ in range(6000)]
    bags = Bags.from_list(tables, (np.arange(6000) % 3 == 0).astype(int))
    some = bags.select(np.arange(0, 6000, 3))
    model = VGPMIL.for_bags(some, num_inducing=4)
    many = model.mean_by_base_rate(bags, seed=0)
    few = model.mean_by_base_rate(
        replace(some, labels=(np.arange(2000) % 3 == 0).astype(int)), seed=0
    )
    assert many.mean == pytest.approx(few.mean, abs=0.01)


def test_prior_mean_by_base_rate_needs_labels():
    bags = small_bags().without_labels()
    with pytest.raises(ValueError, match="bags have no labels; mean_by_base_rate needs one"):
        VGPMIL.for_bags(bags, 4)
    assert VGPMIL.for_bags(bags, 4, mean=-1.0).mean == -1.0


def test_for_bags_passes_every_field_on_and_is_seeded():
    bags = small_bags()
    prior = dist.LogNormal(0.0, 1.0)
    model = VGPMIL.for_bags(
        bags, 4, variance=prior, length_scale=2.5, seed=1, mean=-1.0, sharpness=7.0, jitter=1e-3
    )
    assert model.kernel.length_scale == 2.5
    assert (model.mean, model.sharpness, model.jitter) == (-1.0, 7.0, 1e-3)
    assert model.priors == {"variance": prior}
    again = VGPMIL.for_bags(bags, 4, seed=1)
    np.testing.assert_array_equal(again.inducing_points, model.inducing_points)
    assert (VGPMIL.for_bags(bags, 4, seed=2).inducing_points != again.inducing_points).any()


@pytest.mark.parametrize("number", [0, 4])
def test_more_inducing_points_than_distinct_instances_are_refused(number):
    rows = np.array([[0.0, 1.0], [2.0, 3.0], [2.0, 3.0], [4.0, 5.0]])
    bags = Bags.from_list([rows, rows[:2]], [1, 0])
    expected = "between 1 and 3, the number of distinct" if number else "an integer of at least 1"
    message = f"num_inducing is {number}; expected {expected}"
    with pytest.raises(ValueError, match=message):
        VGPMIL.for_bags(bags, num_inducing=number)
    assert len(VGPMIL.for_bags(bags, num_inducing=3).inducing_points) == 3


@pytest.mark.slow
def test_duplicate_rows_and_constant_columns_just_work():
    random = np.random.default_rng(0)
    instances = np.column_stack([random.normal(size=12), np.full(12, 3.0)])
    instances[6:] = instances[:6]
    bags = Bags.from_arrays(instances, np.repeat([0, 1, 2], 4), [1, 0, 1])
    model = VGPMIL.as_published(bags, num_inducing=6)
    u = some_inducing_values(model)
    for program in (model, model.marginal()):
        sites = {"inducing_value": u}
        if program is model:
            sites["latent"] = jnp.zeros(12)
        assert np.isfinite(joint(program, bags, **sites))
    draws = {"inducing_value": np.asarray(u)[None]}
    predicted = model.predict(draws, bags)["instance_probability"][0]
    np.testing.assert_allclose(predicted[6:], predicted[:6], rtol=1e-12)
    assert np.isfinite(model.complete(draws, bags, seed=0)["latent"]).all()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sharpness": 0.5}, r"sharpness is 0\.5; expected a finite number of at least 1"),
        ({"sharpness": np.inf}, "sharpness is inf; expected a finite"),
        ({"sharpness": np.nan}, "sharpness is nan; expected a finite"),
        ({"jitter": -1e-9}, "jitter is -1e-09; expected a finite number of at"),
        ({"jitter": np.nan}, "jitter is nan; expected a finite number of at"),
        ({"mean": np.zeros(3)}, r"mean is \[0\. 0\. 0\.\]; expected a finite number"),
        ({"inducing_points": np.zeros((0, 2))}, r"inducing_points have shape \(0, 2\); expected"),
        ({"mean": np.nan}, "mean is nan; expected a finite number"),
    ],
    ids=lambda value: next(iter(value.items())).__repr__() if isinstance(value, dict) else "",
)
def test_fields_out_of_range_are_refused_by_name(fields, message, without_type_checks):
    defaults = {"kernel": RBF(1.0, 1.0), "inducing_points": np.zeros((2, 2))}
    with pytest.raises(ValueError, match=f"VGPMIL .*{message}"):
        VGPMIL(**(defaults | fields))


def test_priors_with_unknown_normalising_constants_are_refused():
    kernel = RBF(variance=dist.LogNormal(0.0, 1.0), length_scale=1.0)
    message = "variance of VGPMIL have priors, and scale_mixture is GammaScaleMixture"
    with pytest.raises(ValueError, match=message):
        VGPMIL(kernel, np.zeros((2, 3)), scale_mixture=GammaScaleMixture(1.0, 3.0))


def test_inducing_points_not_finite_are_refused_by_row():
    points = np.zeros((4, 2))
    points[2, 1] = np.nan
    with pytest.raises(ValueError, match="inducing_points row 2 has a NaN"):
        VGPMIL(RBF(1.0, 1.0), points)


def test_heavy_tailed_variance_priors_keep_few_nodes():
    model = VGPMIL(RBF(variance=dist.HalfCauchy(1.0), length_scale=1.0), np.zeros((1, 2)))
    bags = Bags.from_list([np.zeros((3, 2))])
    rules = []
    jax.make_jaxpr(lambda s: rules.append(model.prepare(bags).rule) or s)(jnp.ones(3))
    assert len(rules[0].nodes) == len(logistic_rule(8.0).nodes)


def test_inducing_points_of_another_shape_are_refused(without_type_checks):
    with pytest.raises(ValueError, match=r"VGPMIL inducing_points have shape \(3,\)"):
        VGPMIL(RBF(1.0, 1.0), np.zeros(3))


def test_inducing_points_are_a_copy_that_cannot_be_written():
    points = np.zeros((2, 2))
    model = VGPMIL(RBF(1.0, 1.0), points)
    points[0, 0] = 9.0
    assert model.inducing_points[0, 0] == 0.0
    with pytest.raises(ValueError, match="read-only"):
        model.inducing_points[0, 0] = 1.0


# ------------------------------------------------------------------------ 32 bit
@pytest.mark.slow
@both_scale_mixtures
def test_programs_in_32_bit_agree_with_64_bit(scale_mixture):
    bags = small_bags()
    model = small_model(scale_mixture=scale_mixture)
    N = len(bags.instances)
    random = np.random.default_rng(3)
    values = {
        "inducing_value": np.asarray(some_inducing_values(model)),
        "latent": random.normal(size=N),
        "augmentation": random.uniform(0.1, 0.5, size=N),
        "instance_label": random.integers(0, 2, size=N),
    }

    def density(program, names):
        sites = {name: jnp.asarray(values[name]) for name in names}
        return log_density(program, (bags,), {}, sites)[0]

    def gradient(program):
        return jax.grad(lambda u: log_density(program, (bags,), {}, {"inducing_value": u})[0])(
            jnp.asarray(values["inducing_value"])
        )

    for function, *arguments in (
        (density, model, ["inducing_value", "latent"]),
        (density, model.marginal(), ["inducing_value"]),
        (density, model.augmented(), list(values)),
        (gradient, model.marginal()),
    ):
        exact = function(*arguments)
        with jax.enable_x64(False):
            rough = function(*arguments)
            assert rough.dtype == np.float32
        np.testing.assert_allclose(rough, exact, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_a_program_runs_in_32_after_64_bit():
    """Run the program as `Predictive` does after an engine, on the same bags."""
    bags, model = small_bags(), small_model()

    def target(u):
        return log_density(model.marginal(), (bags,), {}, {"inducing_value": u})[0]

    exact = jax.jit(target).lower(jnp.zeros(3)).compile()(jnp.zeros(3))
    with jax.enable_x64(False):
        np.testing.assert_allclose(target(jnp.zeros(3)), exact, rtol=1e-4)
        draws = Predictive(model, num_samples=3)(jax.random.key(0), bags)
        assert draws["latent"].dtype == np.float32


@pytest.mark.slow
def test_augmented_program_can_be_drawn_from_in_32_bit():
    bags = Bags.from_list(small_bags().to_list())
    with jax.enable_x64(False):
        draws = Predictive(small_model().augmented(), num_samples=50)(jax.random.key(0), bags)
    for name in ("inducing_value", "latent", "augmentation"):
        assert draws[name].dtype == np.float32
        assert np.isfinite(draws[name]).all()
    assert (np.asarray(draws["augmentation"]) > 0).all()
