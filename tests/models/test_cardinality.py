"""The cardinality model: all labellings of small bags, known answers, and errors."""

from dataclasses import replace
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from milzoo.datasets import Bags, simulate
from milzoo.models import (
    AtLeastOne,
    CardinalityModel,
    MajorityCardinality,
    NormalCardinality,
)
from milzoo.models.cardinality import InstanceLabelsByCount
from numpyro.handlers import seed, substitute, trace
from numpyro.infer.util import log_density
from scipy.special import logsumexp

SIZES = [1, 3, 12, 2, 7, 5]


def two_peaks(count, size):
    """A user-defined potential: not concave, and not of the fraction alone."""
    fraction = count / size
    return jnp.stack([-20.0 * fraction * (1 - fraction), -1.0 * jnp.abs(count - 3)])


POTENTIALS = {
    "normal": NormalCardinality(0.5, 0.1),
    "all": NormalCardinality(1.0, 0.05),
    "majority": MajorityCardinality(),
    "at least one": AtLeastOne(),
    "own": two_peaks,
}


@pytest.fixture(scope="module")
def bags():
    random = np.random.default_rng(0)
    return Bags.from_list(
        [random.normal(size=(size, 3)) for size in SIZES], labels=[0, 1, 1, 0, 1, 0]
    )


WEIGHTS = np.array([2.0, -1.0, 3.0])


class AllLabellings:
    """Brute force for one bag, from the printed potentials."""

    def __init__(self, logits, potential):
        self.labellings = np.array(list(product([0, 1], repeat=len(logits))))
        count = self.labellings.sum(axis=1)
        with np.errstate(divide="ignore"):
            log_c = log_potential(potential, count, len(logits))
        self.log_weight = log_c + self.labellings @ logits  # (2, 2^m)

    @property
    def log_partition(self):
        return logsumexp(self.log_weight, axis=1)

    def marginals(self, label=None):
        """P(y_n = 1 | X), or given the bag's label."""
        rows = self.log_weight if label is None else self.log_weight[label][None]
        weight = np.exp(rows - rows.max())
        return (weight @ self.labellings).sum(axis=0) / weight.sum()


def log_potential(potential, count, size):
    """log C⁻ and log C⁺ from the paper, equations 3 and 4."""
    fraction = count / size
    match potential:
        case NormalCardinality(mu=mu, sigma=sigma):
            return np.stack([-(fraction**2), -((fraction - mu) ** 2)]) / (2 * sigma**2)
        case MajorityCardinality():
            return np.log([fraction < 0.5, fraction >= 0.5])
        case AtLeastOne():
            return np.log([count == 0, count > 0])
    with jax.enable_x64(True):
        return np.asarray(potential(jnp.asarray(count), size))


def brute_force(bags, weights, potential, intercept=0.0):
    logits = bags.instances @ weights + intercept
    return [AllLabellings(part, potential) for part in np.split(logits, bags.starts[1:])]


@pytest.fixture(params=POTENTIALS)
def potential(request):
    return POTENTIALS[request.param]


# ------------------------------------------------------------------ every labelling


@pytest.mark.slow_but_first
def test_log_likelihood_is_that_of_all_labellings(bags, potential):
    model = CardinalityModel(potential, intercept_scale=2.0)
    with jax.enable_x64(True):
        sites = {"weights": jnp.asarray(WEIGHTS), "intercept": jnp.asarray(-0.7)}
        found = trace(substitute(seed(model, 0), sites)).get_trace(bags)["bag_label"]
        log_prob = found["fn"].log_prob(found["value"])
    log_z = np.stack([one.log_partition for one in brute_force(bags, WEIGHTS, potential, -0.7)])
    expected = log_z[np.arange(len(SIZES)), bags.labels] - logsumexp(log_z, axis=1)
    np.testing.assert_allclose(log_prob, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.slow_but_first
def test_gradients_of_the_log_likelihood_are_finite_differences(bags, potential):
    model = CardinalityModel(potential)

    def of(weights):
        return log_density(model, (bags,), {}, {"weights": weights})[0]

    with jax.enable_x64(True):
        gradients = jax.jit(jax.grad(of))(jnp.asarray(WEIGHTS))

    def brute(weights):
        log_z = np.stack([one.log_partition for one in brute_force(bags, weights, potential)])
        given = log_z[np.arange(len(SIZES)), bags.labels] - logsumexp(log_z, axis=1)
        return given.sum() - 0.5 * weights @ weights

    # Fourth order: the error is of order 1e-12 by h⁴ and 1e-13 by rounding over h.
    step = 1e-3
    expected = [
        sum(w * brute(WEIGHTS + k * step * unit) for k, w in ((-2, 1), (-1, -8), (1, 8), (2, -1)))
        / (12 * step)
        for unit in np.eye(3)
    ]
    np.testing.assert_allclose(gradients, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.in_ci
@pytest.mark.slow_but_first
def test_probabilities_are_those_of_all_labellings(bags, potential):
    model = CardinalityModel(potential)
    found = model.predict({"weights": WEIGHTS[None]}, bags)
    every = brute_force(bags, WEIGHTS, potential)
    log_z = np.stack([one.log_partition for one in every])
    expected = np.exp(log_z[:, 1] - logsumexp(log_z, axis=1))
    np.testing.assert_allclose(found["bag_probability"][0], expected, rtol=1e-11)
    instance = np.concatenate([one.marginals() for one in every])
    np.testing.assert_allclose(found["instance_probability"][0], instance, rtol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["normal", "at least one"])
def test_instance_labels_given_bags_have_their_exact_probabilities(bags, name):
    model, draws = CardinalityModel(POTENTIALS[name]), 20_000
    many = {"weights": np.broadcast_to(0.5 * WEIGHTS, (draws, 3))}
    labels = model.complete(many, bags, seed=1)["instance_label"]
    every = brute_force(bags, 0.5 * WEIGHTS, model.potential)
    chance = np.concatenate(
        [one.marginals(label) for one, label in zip(every, bags.labels, strict=True)]
    )
    # 30 instances at 5 sd: a false alarm in 2e-5 of all seeds.
    error = np.sqrt(chance * (1 - chance) / draws)
    assert (np.abs(labels.mean(axis=0) - chance) <= 5 * error).all()


@pytest.mark.slow
def test_draws_of_instance_labels_have_their_joint_distribution(bags):
    """Frequencies of all eight labellings of the bag of three."""
    model, draws = CardinalityModel(POTENTIALS["normal"]), 20_000
    logits = bags.instances[1:4] @ WEIGHTS
    with jax.enable_x64(True):
        one = bags.select([1])
        prepared = model.unpadded(one)
        both = model.log_potential(prepared)
        distribution = InstanceLabelsByCount(prepared.tree, jnp.asarray(logits), both[1])
        labels = np.asarray(distribution.sample(jax.random.key(0), (draws,)))
        log_prob = [float(distribution.log_prob(jnp.array(y))) for y in product([0, 1], repeat=3)]
    every = AllLabellings(logits, model.potential).log_weight[1]
    np.testing.assert_allclose(log_prob, every - logsumexp(every), rtol=1e-12)
    number = labels @ [4, 2, 1]
    chance = np.exp(log_prob)
    error = np.sqrt(chance * (1 - chance) / draws)
    assert (np.abs(np.bincount(number, minlength=8) / draws - chance) <= 5 * error).all()


@pytest.mark.slow
def test_the_augmented_program_has_the_same_bag_labels(bags):
    """Σ_y p(y, Y) = p(Y): the augmented program summed over all labels of its instances."""
    small = bags.select([0, 1, 3])
    model = CardinalityModel(POTENTIALS["normal"])
    with jax.enable_x64(True):
        sites = {"weights": jnp.asarray(WEIGHTS)}
        every = jnp.array(list(product([0, 1], repeat=small.num_instances)))
        joint = jax.jit(
            jax.vmap(
                lambda y: log_density(
                    model.augmented(), (small,), {}, sites | {"instance_label": y}
                )[0]
            )
        )(every)
        marginal = log_density(model.marginal(), (small,), {}, sites)[0]
    np.testing.assert_allclose(logsumexp(joint), marginal, rtol=1e-12)


# ------------------------------------------------------------------ known answers


@pytest.mark.slow
def test_a_bag_of_one_is_logistic_regression(bags):
    one = bags.select([0])
    logit = (one.instances @ WEIGHTS)[0]
    for potential in (AtLeastOne(), MajorityCardinality()):
        found = CardinalityModel(potential).predict({"weights": WEIGHTS[None]}, one)
        expected = 1 / (1 + np.exp(-logit))
        np.testing.assert_allclose(found["bag_probability"], [[expected]], rtol=1e-12)


@pytest.mark.in_ci
def test_order_of_instances_and_of_bags_changes_nothing(bags):
    model = CardinalityModel(POTENTIALS["normal"])
    mixed = Bags.from_list([part[::-1] for part in bags.to_list()][::-1])
    one, other = (model.predict({"weights": WEIGHTS[None]}, b) for b in (bags, mixed))
    for name in ("bag_probability", "instance_probability"):
        np.testing.assert_allclose(one[name][0], other[name][0][::-1], rtol=1e-12)


@pytest.mark.in_ci
def test_a_constant_that_both_potentials_share_means_nothing(bags):
    def shifted(count, size):
        return NormalCardinality(0.5, 0.1)(count, size) + 700.0

    draws = {"weights": WEIGHTS[None]}
    one, other = (
        CardinalityModel(p).predict(draws, bags) for p in (NormalCardinality(0.5, 0.1), shifted)
    )
    for name, value in one.items():
        np.testing.assert_allclose(value, other[name], rtol=1e-11)


@pytest.mark.parametrize("prior", ["normal", "laplace"])
def test_a_typical_instance_has_prior_sd_three(bags, prior):
    model = CardinalityModel.for_bags(bags, weight_prior=prior)
    distribution = {"normal": dist.Normal, "laplace": dist.Laplace}[prior](0.0, model.weight_scale)
    variance = float(distribution.variance) * (bags.instances**2).sum(axis=1)
    assert np.isclose(variance.mean(), 9.0)


@pytest.mark.slow
def test_a_second_mode_counts_in_large_bags():
    """A quarter of the instances is nearly surely positive; C has modes at none and at half."""

    def none_or_half(count, size):
        peaks = jnp.where(count == 0, 46.0, jnp.where(count == 50, 0.0, -jnp.inf))
        return jnp.stack([peaks, jnp.where(count == 25, -954.0, -jnp.inf)])

    instances = np.where(np.arange(100) < 25, 40.0, -40.0)[:, None]
    model = CardinalityModel(none_or_half)
    found = model.predict({"weights": np.ones((1, 1))}, Bags.from_list([instances]))
    log_e = np.zeros(1)
    for logit in instances[:, 0]:
        log_e = np.logaddexp(np.append(log_e, -np.inf), np.append(-np.inf, log_e + logit))
    log_odds = -954.0 + log_e[25] - np.logaddexp(46.0 + log_e[0], log_e[50])
    expected = -np.logaddexp(0.0, log_odds)  # log P(Y = 0)
    np.testing.assert_allclose(found["bag_probability"], [[-np.expm1(expected)]], rtol=1e-9)


@pytest.mark.slow
def test_sites_have_the_priors_that_the_fields_say(bags):
    """Laplace weights, and a prior on each hyper-parameter."""
    model = CardinalityModel(
        NormalCardinality(dist.Beta(2.0, 3.0), dist.LogNormal(-1.0, 0.3)),
        weight_scale=dist.HalfNormal(2.0),
        weight_prior="laplace",
        intercept_scale=3.0,
    )
    assert model.latent_sites == ("weights", "intercept", "weight_scale", "mu", "sigma")
    drawn, sites = simulate(model, bags, seed=0)
    assert set(sites) == {*model.latent_sites, "bag_label"}
    assert drawn.labels is not None and sites["weights"].shape == (3,)
    unlabelled = replace(bags, labels=None)
    with jax.enable_x64(True):
        given = {name: jnp.asarray(sites[name]) for name in model.latent_sites}
        found = trace(substitute(seed(model, 0), given)).get_trace(unlabelled)
        log_prior = sum(float(found[name]["fn"].log_prob(given[name]).sum()) for name in given)
        expected = (
            dist.Beta(2.0, 3.0).log_prob(given["mu"])
            + dist.LogNormal(-1.0, 0.3).log_prob(given["sigma"])
            + dist.HalfNormal(2.0).log_prob(given["weight_scale"])
            + dist.Laplace(0.0, given["weight_scale"]).log_prob(given["weights"]).sum()
            + dist.Normal(0.0, 3.0).log_prob(given["intercept"])
        )
    assert np.isclose(log_prior, float(expected))


@pytest.mark.slow
def test_a_program_in_32_bit_has_32_bit_accuracy(bags):
    model, sites = CardinalityModel(POTENTIALS["normal"]), {"weights": jnp.asarray(WEIGHTS)}
    narrow = float(log_density(model, (bags,), {}, sites)[0])
    with jax.enable_x64(True):
        sites = {"weights": jnp.asarray(WEIGHTS)}
        wide = float(log_density(model, (bags,), {}, sites)[0])
    assert np.isclose(narrow, wide, rtol=1e-5)


# ------------------------------------------------------------------ what it refuses


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"weight_scale": 0.0}, "weight_scale is 0.0; expected a positive finite number"),
        ({"weight_prior": "gauss"}, "weight_prior is 'gauss'; expected one of normal, laplace"),
        ({"intercept_scale": -1.0}, "intercept_scale is -1.0; expected a positive"),
    ],
)
def test_a_field_out_of_range_is_refused(fields, message, without_type_checks):
    with pytest.raises(ValueError, match=message):
        CardinalityModel(**fields)


def test_a_potential_that_is_no_function_is_refused(without_type_checks):
    with pytest.raises(ValueError, match=r"potential is <class .*AtLeastOne'>; expected Normal"):
        CardinalityModel(AtLeastOne)


@pytest.mark.parametrize(
    ("mu", "sigma", "message"),
    [
        (1.5, 0.1, "mu is 1.5; expected at most 1, a fraction"),
        (0.0, 0.1, "mu is 0.0; expected a positive"),
        (0.5, -0.1, "sigma is -0.1; expected a positive"),
        (0.5, dist.Normal(0.0, 1.0), "sigma is .*Normal.*; expected a positive"),
        (dist.LogNormal(0.0, 1.0), 0.1, "mu is .*LogNormal.*; expected at most 1"),
    ],
)
def test_a_normal_potential_out_of_range_is_refused(mu, sigma, message):
    with pytest.raises(ValueError, match=message):
        NormalCardinality(mu, sigma)


@pytest.mark.parametrize(
    ("potential", "message"),
    [
        (lambda count, size: count, r"shape \(36,\) for 36 counts; expected \(2, 36\)"),
        (
            lambda count, size: jnp.log(jnp.stack([count - 1.0, count])),
            "potential is .*nan.* for a count of 0 in a bag of 1; expected log C⁻ and log C⁺",
        ),
        (
            lambda count, size: jnp.log(jnp.stack([count < 1, count > 3])),
            "no weight to label 1 of bag '1', whatever the count of its 3 instances",
        ),
    ],
)
def test_a_potential_that_gives_no_law_is_refused(bags, potential, message):
    with pytest.raises(ValueError, match=message):
        log_density(CardinalityModel(potential), (bags,), {}, {"weights": jnp.ones(3)})


@pytest.mark.in_ci
def test_a_label_without_counts_has_probability_zero(bags):
    """Three witnesses or more: a bag of two cannot be positive."""

    def at_least_three(count, size):
        return jnp.log(jnp.stack([count < 3, count >= 3]))

    found = CardinalityModel(at_least_three).predict({"weights": WEIGHTS[None]}, bags)
    assert (found["bag_probability"][0][bags.bag_sizes < 3] == 0).all()
    assert np.isfinite(found["instance_probability"]).all()


def test_bags_of_another_width_are_refused(bags):
    with pytest.raises(ValueError, match="bags have 3 features, but there are weights for 2"):
        CardinalityModel().predict({"weights": np.ones((1, 2))}, bags)


def test_instances_that_are_all_zero_are_refused():
    with pytest.raises(ValueError, match="instances are all zero"):
        CardinalityModel.for_bags(Bags.from_list([np.zeros((2, 2))]))
