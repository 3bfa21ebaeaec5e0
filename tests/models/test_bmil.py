"""BMIL against sums over all labels and integrals over the precisions, and its default prior."""

from dataclasses import replace
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from milzoo.datasets import Bags, simulate
from milzoo.inference.runtime.densities import log_joint
from milzoo.models import BMIL
from numpyro.infer.util import log_density
from scipy.integrate import cumulative_trapezoid, trapezoid
from scipy.special import expit, logsumexp
from scipy.stats import gamma, kstest, norm

MODEL = BMIL(shape=0.7, rate=1.6, intercept_scale=1.3, intercept_mean=-0.4)
LOG_PRECISION = np.linspace(-40.0, 12.0, 4001)


@pytest.fixture(scope="module")
def bags():
    """Four bags of two, one, three and one instances, in two dimensions."""
    random = np.random.default_rng(0)
    parts = [random.normal(size=(size, 2)) for size in (2, 1, 3, 1)]
    return Bags.from_list(parts, labels=[1, 0, 1, 1])


@pytest.fixture(scope="module")
def draws():
    random = np.random.default_rng(1)
    return {
        "weight_precision": np.exp(random.normal(size=(6, 2))),
        "weights": 2.0 * random.normal(size=(6, 2)),
        "intercept": random.normal(size=6),
    }


@pytest.fixture(scope="module")
def marginal_draws(draws):
    return {name: draws[name] for name in MODEL.latent_sites}


def chance_of_instances(weights, intercept, instances):
    return np.array([expit(intercept + weights @ x) for x in instances])


def by_all_labels(chance, bags, labels):
    """P(T_b) by the sum over the labels of the instances, (B,)."""
    found = []
    for b, label in enumerate(labels):
        own, total = chance[bags.bag_index == b], 0.0
        for each in product([0, 1], repeat=len(own)):
            if max(each) == label:
                total += np.prod(np.where(np.array(each) == 1, own, 1 - own))
        found.append(total)
    return np.array(found)


def log_likelihood_and_intercept(weights, intercept, bags):
    chance = chance_of_instances(weights, intercept, bags.instances)
    prior = norm(MODEL.intercept_mean, MODEL.intercept_scale).logpdf(intercept)
    return np.log(by_all_labels(chance, bags, bags.labels)).sum() + prior


def density_by_precision(weight):
    """p(α) p(w | α) α at the precisions of the grid, which is even in log α."""
    precision = np.exp(LOG_PRECISION)
    prior = gamma(MODEL.shape, scale=1 / MODEL.rate).pdf(precision)
    return prior * norm(0.0, precision**-0.5).pdf(weight) * precision


def test_the_marginal_program_sums_labels_and_integrates_precisions(bags, marginal_draws):
    expected = [
        log_likelihood_and_intercept(w, w0, bags)
        + sum(np.log(trapezoid(density_by_precision(w_d), LOG_PRECISION)) for w_d in w)
        for w, w0 in zip(*marginal_draws.values(), strict=True)
    ]
    found = log_joint(MODEL, "marginal", marginal_draws, bags)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_the_program_has_the_density_of_the_paper(bags, draws):
    expected = [
        log_likelihood_and_intercept(w, w0, bags)
        + gamma(MODEL.shape, scale=1 / MODEL.rate).logpdf(precision).sum()
        + norm(0.0, precision**-0.5).logpdf(w).sum()
        for precision, w, w0 in zip(*draws.values(), strict=True)
    ]
    np.testing.assert_allclose(log_joint(MODEL, "full", draws, bags), expected, rtol=1e-12)


def test_the_program_integrates_to_the_marginal_one(bags, marginal_draws):
    narrow = replace(bags, instances=bags.instances[:, :1])
    for draw in range(3):
        one = {
            "weights": marginal_draws["weights"][draw : draw + 1, :1],
            "intercept": marginal_draws["intercept"][draw : draw + 1],
        }
        repeated = {name: np.repeat(v, LOG_PRECISION.size, axis=0) for name, v in one.items()}
        repeated["weight_precision"] = np.exp(LOG_PRECISION)[:, None]
        densities = np.exp(log_joint(MODEL, "full", repeated, narrow) + LOG_PRECISION)
        expected = log_joint(MODEL, "marginal", one, narrow)[0]
        np.testing.assert_allclose(np.log(trapezoid(densities, LOG_PRECISION)), expected, rtol=1e-9)


def test_the_augmented_program_sums_to_the_program(bags, draws):
    labellings = np.array(list(product([0, 1], repeat=7)))
    one = {name: np.repeat(value[:1], len(labellings), axis=0) for name, value in draws.items()}
    full = log_joint(MODEL, "augmented", one | {"instance_label": labellings}, bags)
    expected = log_joint(MODEL, "full", {n: v[:1] for n, v in draws.items()}, bags)[0]
    np.testing.assert_allclose(logsumexp(full), expected, rtol=1e-12)


def test_predictions_are_the_noisy_or_and_its_parts(bags, marginal_draws):
    predicted = MODEL.predict(marginal_draws, replace(bags, labels=None))
    for n, (w, w0) in enumerate(zip(*marginal_draws.values(), strict=True)):
        chance = chance_of_instances(w, w0, bags.instances)
        np.testing.assert_allclose(predicted["instance_probability"][n], chance, rtol=1e-10)
        positive = by_all_labels(chance, bags, [1] * 4)
        np.testing.assert_allclose(predicted["bag_probability"][n], positive, rtol=1e-10)


@pytest.fixture(scope="module")
def completed(bags, marginal_draws):
    one = {name: np.repeat(value[:1], 20_000, axis=0) for name, value in marginal_draws.items()}
    return MODEL.complete(one, bags, seed=0)


@pytest.mark.slow
def test_precisions_are_drawn_back_given_weights(completed):
    """Four looks, each a false alarm in 1e-5 of all seeds."""
    for d, weight in enumerate(completed["weights"][0]):
        below = cumulative_trapezoid(density_by_precision(weight), LOG_PRECISION, initial=0.0)

        def distribution(precision, below=below):
            return np.interp(np.log(precision), LOG_PRECISION, below / below[-1])

        drawn = completed["weight_precision"][:, d]
        assert kstest(drawn, distribution).pvalue > 1e-5
        # Power: half a degree of freedom less is far from these draws.
        other = gamma(MODEL.shape, scale=1 / (MODEL.rate + weight**2 / 2))
        assert kstest(drawn, other.cdf).pvalue < 1e-5


@pytest.mark.slow
def test_instance_labels_are_drawn_back_given_those_of_bags(bags, completed):
    drawn = completed["instance_label"]
    highest = [drawn[:, bags.bag_index == b].max(axis=1) for b in range(4)]
    assert (bags.labels == np.array(highest).T).all()
    chance = chance_of_instances(completed["weights"][0], completed["intercept"][0], bags.instances)
    for first, size in ((0, 2), (3, 3)):
        own = chance[first : first + size]
        given = own / (1 - np.prod(1 - own))
        error = np.sqrt(given * (1 - given) / 20_000)
        # Five looks at 4.5 sd: a false alarm in 4e-5 of all seeds.
        found = drawn[:, first : first + size].mean(axis=0)
        assert (np.abs(found - given) < 4.5 * error).all()


@pytest.mark.slow
def test_precisions_that_were_sampled_are_kept(bags, draws):
    completed = MODEL.complete(draws, bags, seed=0)
    assert completed["weight_precision"] is draws["weight_precision"]
    assert completed["instance_label"].shape == (6, 7)


@pytest.mark.parametrize("size", [1e-150, 1.0, 1e2, 1e5])
@pytest.mark.parametrize("program", ["marginal", "full"])
def test_density_and_gradient_are_finite_far_out(bags, program, size):
    """Log odds up to ±10^5: a product of probabilities would be 0 or 1."""
    target = MODEL.marginal() if program == "marginal" else MODEL
    sites = {"weights": size * jnp.array([1.0, -2.0]), "intercept": -size}
    if program == "full":
        sites["weight_precision"] = jnp.array([1e-3, 1e3])
    with jax.enable_x64(True):
        sites = {name: jnp.asarray(value, float) for name, value in sites.items()}
        objective = jax.jit(
            jax.value_and_grad(lambda given: log_density(target, (bags,), {}, given)[0])
        )
        value, gradients = objective(sites)
    assert np.isfinite(value)
    assert all(np.isfinite(gradient).all() for gradient in gradients.values())


@pytest.mark.in_ci
def test_labels_can_be_simulated(bags):
    drawn, sites = simulate(MODEL.marginal(), bags, seed=0)
    assert drawn.labels.shape == (4,)
    assert sites["weights"].shape == (2,) and sites["intercept"].shape == ()


# ------------------------------------------------------------------ the default prior


def bags_of(bag_size, num_features, seed):
    random = np.random.default_rng(seed)
    return Bags.from_list(list(random.normal(size=(40, bag_size, num_features))))


def drawn_from_prior(model, num_features, number, seed):
    random = np.random.default_rng(seed)
    precision = random.gamma(model.shape, 1 / model.rate, size=(number, num_features))
    return {
        "weights": random.normal(size=precision.shape) / np.sqrt(precision),
        "intercept": random.normal(model.intercept_mean, model.intercept_scale, size=number),
    }


@pytest.mark.parametrize(("shape", "num_features"), [(1.0, 1), (1.0, 100), (0.5, 10), (5.0, 10)])
def test_the_rate_makes_a_typical_logit_three(shape, num_features):
    some = bags_of(3, num_features, seed=2)
    model = BMIL.for_bags(some, shape=shape)
    weights = drawn_from_prior(model, num_features, 4000, seed=3)["weights"]
    # Over independent features; one draw has two medians of some 1,000 draws to err in.
    typical = np.median(np.std(weights @ some.instances.T, axis=1))
    np.testing.assert_allclose(typical, 3.0, rtol=0.12)
    scaled = BMIL.for_bags(replace(some, instances=10.0 * some.instances), shape=shape)
    np.testing.assert_allclose(scaled.rate, model.rate / 100, rtol=1e-12)


@pytest.mark.parametrize(
    ("bag_size", "num_features"), [(1, 2), (4, 1), (10, 10), (60, 2), (60, 100)]
)
def test_a_bag_is_positive_with_even_prior_odds(bag_size, num_features):
    """0.5 to 0.6, as documented; 2,000 draws and 40 bags err by 0.01 or so."""
    some = bags_of(bag_size, num_features, seed=4)
    model = BMIL.for_bags(some)
    draws = drawn_from_prior(model, num_features, 2000, seed=5)
    predicted = model.predict(draws, some)
    assert 0.46 < predicted["bag_probability"].mean() < 0.64
    # Most instances of large bags are negative.
    assert predicted["instance_probability"].mean() < (0.3 if bag_size > 3 else 0.53)


def test_defaults_that_are_given_are_kept(bags):
    model = BMIL.for_bags(bags, shape=2, rate=0.3, intercept_scale=1.5, intercept_mean=-2)
    assert (model.shape, model.rate) == (2, 0.3)
    assert (model.intercept_scale, model.intercept_mean) == (1.5, -2)


def test_bad_input_is_refused(bags, marginal_draws):
    with pytest.raises(ValueError, match=r"BMIL shape is 0\.0; expected a positive finite number"):
        BMIL(shape=0.0)
    with pytest.raises(ValueError, match=r"BMIL rate is -1; expected a positive finite number"):
        BMIL(rate=-1)
    with pytest.raises(ValueError, match=r"BMIL intercept_scale is inf; expected a positive fin"):
        BMIL.for_bags(bags, intercept_scale=np.inf)
    with pytest.raises(ValueError, match=r"BMIL intercept_mean is nan; expected a finite number"):
        BMIL(intercept_mean=np.nan)
    zero = Bags.from_list([np.zeros((2, 3))])
    with pytest.raises(ValueError, match=r"instances are all zero, .* expected .* or a rate"):
        BMIL.for_bags(zero)
    with pytest.raises(ValueError, match="bags have 3 features, but there are weights for 2; pass"):
        MODEL.predict(marginal_draws, zero)
    with pytest.raises(ValueError, match="bags have 3 features, but there are weights for 2; pass"):
        MODEL.complete(marginal_draws, replace(zero, labels=np.array([1])), seed=0)
    with pytest.raises(ValueError, match="bags have no labels; complete"):
        MODEL.complete(marginal_draws, replace(bags, labels=None), seed=0)
