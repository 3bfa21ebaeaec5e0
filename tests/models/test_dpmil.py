"""DPMIL's programs and what draws imply, against sums over all instance labels and clusters.

Statistical tests are seeded; `largest_z` keeps the false alarms of each below 1e-5 over all its
looks, hence of the whole file (3 such tests) below 1e-4.
"""

import math
from dataclasses import replace
from decimal import Decimal, localcontext
from itertools import product
from statistics import NormalDist
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from milzoo.datasets import Bags
from milzoo.models.dpmil import DPMIL, log_stick_weights
from milzoo.models.model import Model
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.infer.util import log_density
from scipy import stats
from scipy.special import expit, logsumexp

FALSE_ALARM = 1e-5


def largest_z(looks):
    return NormalDist().inv_cdf(1 - FALSE_ALARM / (2 * looks))


@pytest.fixture(autouse=True)
def _in_64_bit():
    with jax.enable_x64(True):
        yield


# ------------------------------------------------------------------ a model, bags and draws

SIZES = [3, 1, 1, 2]
LABELS = [1, 0, 1, 1]
INSTANCE_LABELS = [[-1, 0, -1], [-1], [-1], [1, -1]]
TAU, ALPHA, BETA_0, NU_0 = 0.3, 1.7, 0.8, 3.5


def small_bags(num_features=2, seed=0):
    random = np.random.default_rng(seed)
    instances = [random.normal(size=(size, num_features)) for size in SIZES]
    return Bags.from_list(instances, LABELS, INSTANCE_LABELS, names=["a", "b", "c", "d"])


def small_model(num_features=2, covariance="full", num_components=2, **others):
    random = np.random.default_rng(1)
    mix = random.normal(size=(num_features, num_features))
    scale = mix @ mix.T + np.eye(num_features)
    fields = {
        "center": random.normal(size=num_features),
        "scale": scale if covariance == "full" else np.diagonal(scale).copy(),
        "degrees_of_freedom": NU_0,
        "mean_strength": BETA_0,
        "concentration": ALPHA,
        "max_components": num_components,
        "positive_fraction": TAU,
    }
    return DPMIL(**(fields | others))


def random_draws(model, number=3, seed=2):
    """Arbitrary draws of the latent sites; one number of draws compiles once."""
    random, K, D = np.random.default_rng(seed), model.max_components, model.num_features
    diagonal = random.uniform(0.5, 1.5, size=(number, 2, K, D))
    draws = {"mean": 1.5 * random.normal(size=(number, 2, K, D))}
    if K > 1:
        draws["stick"] = random.uniform(0.1, 0.9, size=(number, 2, K - 1))
    if model.covariance == "full":
        below = np.tril(random.normal(size=(number, 2, K, D, D)), -1)
        draws["precision_cholesky"] = below + diagonal[..., None] * np.eye(D)
    else:
        draws["precision"] = diagonal
    return draws


def one_of(draws, s=0):
    return {name: value[s] for name, value in draws.items()}


# ------------------------------------------------------------------ brute force


def weights_of(draw, num_components):
    """Mixture weights π, stick by stick."""
    weights = np.empty((2, num_components))
    for klass in range(2):
        left = 1.0
        for k in range(num_components):
            broken = draw["stick"][klass, k] if k < num_components - 1 else 1.0
            weights[klass, k] = left * broken
            left *= 1 - broken
    return weights


def precision_of(draw, klass, k):
    if "precision" in draw:
        return np.diag(draw["precision"][klass, k])
    root = draw["precision_cholesky"][klass, k]
    return root @ root.T


def dense_components(draw, instances):
    """log π_lk N(x_n; μ_lk, Λ_lk⁻¹), by scipy."""
    K = draw["mean"].shape[1]
    found = np.log(weights_of(draw, K))[..., None] + np.zeros(len(instances))
    for klass, k in np.ndindex(2, K):
        covariance = np.linalg.inv(precision_of(draw, klass, k))
        found[klass, k] += stats.multivariate_normal(draw["mean"][klass, k], covariance).logpdf(
            instances
        )
    return found


def allowed(model, bags, bag):
    """All labellings that the bag's label allows, and the known labels where they are used."""
    size = bags.bag_sizes[bag]
    known = np.full(size, -1)
    if model.supervision == "instances":
        known = bags.instance_labels[bags.bag_index == bag]
    if bags.labels[bag] == 0:
        return [(0,) * size]
    return [
        labels
        for labels in product((0, 1), repeat=size)
        if all(k in (-1, label) for k, label in zip(known, labels, strict=True))
        and (any(labels) or not model.needs_witness)
    ]


class States(NamedTuple):
    """All instance labels and clusters of some instances, with their weights."""

    label: np.ndarray  # (M, N)
    cluster: np.ndarray  # (M, N)
    log_weight: np.ndarray  # (M,)  log p(r | T) p(z | r) p(X | r, z)

    @property
    def log_total(self):
        return logsumexp(self.log_weight)

    @property
    def probability(self):
        return np.exp(self.log_weight - self.log_total)


def states_of(model, bags, draw, bag=None):
    """All states of all bags, or of one; forbidden ones have weight 0."""
    chosen = range(bags.num_bags) if bag is None else [bag]
    members = np.flatnonzero(np.isin(bags.bag_index, list(chosen)))
    K, N = model.max_components, len(members)
    both = np.array(list(product(range(2 * K), repeat=N)))
    label, cluster = both // K, both % K
    components = dense_components(draw, bags.instances)[:, :, members]
    log_weight = components[label, cluster, np.arange(N)].sum(axis=1)
    for b in chosen:
        possible = allowed(model, bags, b)
        own = label[:, bags.bag_index[members] == b]
        matches = (own[:, None] == np.array(possible)).all(axis=2).any(axis=1)
        log_weight = log_weight + np.where(matches, -math.log(len(possible)), -np.inf)
    return States(label, cluster, log_weight)


def log_prior(model, bags, draw):
    """log p(v) p(Λ) p(μ | Λ) p(T), by scipy; Λ by its Cholesky factor, with the Jacobian."""
    K, D = model.max_components, model.num_features
    total = stats.bernoulli(model.positive_fraction).logpmf(bags.labels).sum()
    if K > 1:
        total += stats.beta(1, model.concentration).logpdf(draw["stick"]).sum()
    for klass, k in np.ndindex(2, K):
        precision = precision_of(draw, klass, k)
        if model.covariance == "full":
            distribution = stats.wishart(model.degrees_of_freedom, model.scale)
            total += distribution.logpdf(precision)
            root = np.diagonal(draw["precision_cholesky"][klass, k])
            total += D * math.log(2) + np.log(root) @ np.arange(D, 0, -1)
        else:
            for value, w in zip(np.diagonal(precision), model.scale, strict=True):
                total += stats.wishart(model.degrees_of_freedom, w).logpdf(value)
        covariance = np.linalg.inv(model.mean_strength * precision)
        total += stats.multivariate_normal(model.center, covariance).logpdf(draw["mean"][klass, k])
    return float(total)


# ------------------------------------------------------------------ the programs

CASES = {
    f"{covariance}, {supervision}, {'witness' if needs else 'none'}, K = {K}, D = {D}": (
        {"covariance": covariance, "num_components": K, "num_features": D},
        {"supervision": supervision, "needs_witness": needs},
    )
    for covariance, supervision, needs, K, D in [
        ("full", "bags", True, 2, 2),
        ("full", "instances", False, 2, 1),
        ("diagonal", "bags", False, 2, 2),
        ("diagonal", "instances", True, 2, 1),
        ("full", "bags", True, 1, 2),
        ("diagonal", "instances", True, 1, 1),
    ]
}


class Evaluated(NamedTuple):
    """A model on its bags at one draw, by the programs and by hand."""

    states: States
    prior: float
    marginal: float
    augmented: np.ndarray  # (M,)


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES.keys())
def evaluated(request):
    shape, fields = request.param
    model, bags = small_model(**shape, **fields), small_bags(shape["num_features"])
    draw = one_of(random_draws(model))
    states = states_of(model, bags, draw)
    with jax.enable_x64(True):
        sites = jax.tree.map(jnp.asarray, draw)

        @jax.jit
        @jax.vmap
        def augmented(label, cluster):
            given = {**sites, "instance_label": label, "cluster": cluster}
            return log_density(model.augmented(), (bags,), {}, given)[0]

        marginal = jax.jit(lambda: log_density(model.marginal(), (bags,), {}, sites)[0])()
        found = np.asarray(augmented(states.label, states.cluster))
    return Evaluated(states, log_prior(model, bags, draw), float(marginal), found)


@pytest.mark.slow_but_first
def test_the_augmented_density_is_that_written_by_hand(evaluated):
    expected = evaluated.prior + evaluated.states.log_weight
    assert np.isfinite(expected).any() and np.isneginf(expected).any()
    np.testing.assert_allclose(evaluated.augmented, expected, rtol=1e-10)


@pytest.mark.slow
def test_the_augmented_program_sums_to_the_marginal_one(evaluated):
    np.testing.assert_allclose(logsumexp(evaluated.augmented), evaluated.marginal, rtol=1e-12)


def test_the_marginal_program_has_the_density_written_by_hand(evaluated):
    expected = evaluated.prior + evaluated.states.log_total
    np.testing.assert_allclose(evaluated.marginal, expected, rtol=1e-10)


def test_the_paper_program_is_the_marginal_one():
    model = small_model()
    assert model.marginal() is model


def test_the_marginal_density_nearly_agrees_in_32_bit():
    model, bags = small_model(), small_bags()
    draw = one_of(random_draws(model))
    expected = log_prior(model, bags, draw) + states_of(model, bags, draw).log_total
    with jax.enable_x64(False):
        sites = {name: jnp.asarray(value, jnp.float32) for name, value in draw.items()}
        found = jax.jit(lambda: log_density(model, (bags,), {}, sites)[0])()
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(float(found), expected, rtol=1e-5)


@pytest.mark.slow_but_first
@pytest.mark.parametrize("shape", [{}, {"covariance": "diagonal"}, {"num_components": 1}])
def test_sites_and_unknowns_are_those_of_the_model(shape):
    model, bags = small_model(**shape), small_bags()

    def latent():
        trace = handlers.trace(handlers.seed(model.marginal(), 0)).get_trace(bags)
        assert trace[model.observed_site]["is_observed"]
        return {
            name: (site["value"], biject_to(site["fn"].support).inv(site["value"]))
            for name, site in trace.items()
            if site["type"] == "sample" and not site["is_observed"]
        }

    shapes = jax.eval_shape(latent)
    assert set(shapes) == set(model.latent_sites)
    assert model.num_unknowns == sum(free.size for _, free in shapes.values())
    draws = random_draws(model)
    kept = sum(value[0].size for value in (draws | model.estimands_of(draws, bags)).values())
    # An upper bound: labels of negative bags are not stored, and the last stick is 1.
    assert kept <= model.numbers_in_a_draw(bags) <= kept + bags.num_instances + 2
    for name, (value, _) in shapes.items():
        assert len(model.dims[name]) == value.ndim


def test_it_keeps_the_protocol_of_models():
    model = small_model()
    assert isinstance(model, Model)
    assert model.priors == {} and model.with_hyperparameters({}) is model


def test_stick_weights_are_products_and_sum_to_one():
    draw = {"stick": np.random.default_rng(3).uniform(size=(2, 4))}
    found = log_stick_weights(jnp.asarray(draw["stick"]))
    np.testing.assert_allclose(found, np.log(weights_of(draw, 5)), rtol=1e-12)
    np.testing.assert_allclose(np.exp(found).sum(axis=1), 1, rtol=1e-14)
    np.testing.assert_array_equal(log_stick_weights(jnp.zeros((2, 0))), np.zeros((2, 1)))


@pytest.mark.slow
def test_bags_without_labels_are_drawn_by_the_program_itself():
    """T ~ τ, and r uniform over the labellings that T allows; instances are ignored."""
    model = small_model(num_features=1)
    empty = replace(small_bags(1), labels=None, instance_labels=None)
    number = 20_000

    def draw(key):
        trace = handlers.trace(handlers.seed(model.augmented(), key)).get_trace(empty)
        assert not trace["instances"]["is_observed"]
        return {name: trace[name]["value"] for name in ("bag_label", "instance_label")}

    found = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(4), number))
    label, instance = (np.asarray(found[name]) for name in ("bag_label", "instance_label"))
    looks = 4 + 4
    for b, size in enumerate(SIZES):
        positive = label[:, b] == 1
        pvalue = stats.binomtest(int(positive.sum()), number, TAU).pvalue
        assert pvalue > FALSE_ALARM / looks
        own = instance[:, empty.bag_index == b]
        assert not own[~positive].any() and own[positive].any(axis=1).all()
        if size > 1:
            which = own[positive] @ 2 ** np.arange(size)
            counts = np.bincount(which, minlength=2**size)[1:]
            assert stats.chisquare(counts).pvalue > FALSE_ALARM / looks


# ------------------------------------------------------------------ what does not depend on names


def enumerated(model, bags, draw):
    """The estimands of one draw, by their definition."""
    states = states_of(model, bags, draw)
    occupied = np.zeros((len(states.label), 2))
    for klass, k in np.ndindex(2, model.max_components):
        here = (states.label == klass) & (states.cluster == k)
        occupied[:, klass] += here.any(axis=1)
    label_mean = states.probability @ states.label
    can_be = np.concatenate(
        [np.ptp(allowed(model, bags, bag), axis=0) > 0 for bag in range(bags.num_bags)]
    )
    # A bag of one that needs a witness leaves its label no choice, but the model calls it free.
    is_free = np.array(bags.labels)[bags.bag_index] == 1
    if model.supervision == "instances":
        is_free &= bags.instance_labels == -1
    assert not (can_be & ~is_free).any()
    return {
        "instance_probability": label_mean[is_free],
        "log_density": np.array(
            [states_of(model, bags, draw, bag).log_total for bag in range(bags.num_bags)]
        ),
        "occupied_components": states.probability @ occupied,
    }


@pytest.mark.slow_but_first
@pytest.mark.parametrize(("shape", "fields"), CASES.values(), ids=CASES.keys())
def test_identified_quantities_are_those_of_all_labels_and_clusters(shape, fields):
    model, bags = small_model(**shape, **fields), small_bags(shape["num_features"])
    draws = random_draws(model)
    found = model.estimands_of(draws, bags)
    assert set(found) == set(model.estimands)
    for s in range(3):
        expected = enumerated(model, bags, one_of(draws, s))
        for name, value in expected.items():
            np.testing.assert_allclose(found[name][s], value, rtol=1e-10)


@pytest.mark.slow
def test_estimands_do_not_depend_on_block_sizes(monkeypatch):
    model, bags = small_model(num_components=3), small_bags()
    draws = random_draws(model)
    before = model.estimands_of(draws, bags)
    monkeypatch.setattr("milzoo.models.dpmil._BLOCK", 1)
    monkeypatch.setattr("milzoo.models.parts.dp_mixture._BLOCK", 1)
    after = model.estimands_of(draws, bags)
    for name, value in before.items():
        np.testing.assert_allclose(after[name], value, rtol=1e-12)


def test_estimands_of_known_labels_have_no_instance_probabilities():
    known = [[1, 0, 1], [0], [1], [1, 0]]
    bags = Bags.from_list(small_bags().to_list(), LABELS, known)
    model = small_model(supervision="instances")
    draws = random_draws(model)
    found = model.estimands_of(draws, bags)
    assert set(found) == {"log_density", "occupied_components"}
    expected = enumerated(model, bags, one_of(draws))
    for name, value in found.items():
        np.testing.assert_allclose(value[0], expected[name], rtol=1e-10)


def test_estimands_are_accurate_far_from_all_components():
    """All instances are far more likely negative, as in hundreds of dimensions: one witness."""
    model, bags = small_model(num_components=1, num_features=1), small_bags(1)
    far = replace(bags, instances=bags.instances - 40.0)
    draws = random_draws(model)
    draws["mean"][:] = [[[-40.0]], [[40.0]]]
    draws["precision_cholesky"][:] = 1.0
    found = model.estimands_of(draws, far)
    logits = 80 * far.instances[:, 0]  # log p₊ − log p₋ of unit Gaussians at ±40
    assert logits.max() < -1000
    first = logits[:3] - logsumexp(logits[:3])
    last = logits[5:] - logsumexp(logits[5:])
    expected = np.exp([*first, 0.0, *last])
    np.testing.assert_allclose(found["instance_probability"][0], expected, rtol=1e-9)
    # Each positive bag has its one witness: its other instances are negative.
    np.testing.assert_allclose(found["occupied_components"][0], [1, 1], rtol=1e-12)
    assert np.isfinite(found["log_density"]).all()


def named_otherwise(draws, orders):
    """The same mixtures with the components of each class in another order."""
    K = draws["mean"].shape[2]
    other = {name: value.copy() for name, value in draws.items()}
    for s in range(len(draws["mean"])):
        weight = weights_of(one_of(draws, s), K)
        for klass, order in enumerate(orders):
            reordered = weight[klass, order]
            left = 1 - np.concatenate([[0.0], np.cumsum(reordered)[:-1]])
            other["stick"][s, klass] = (reordered / left)[:-1]
            for name in set(draws) - {"stick"}:
                other[name][s, klass] = draws[name][s, klass][order]
    return other


@pytest.mark.slow
def test_names_of_components_change_only_the_stick_prior():
    model, bags = small_model(num_components=3), small_bags()
    draws = random_draws(model)
    renamed = named_otherwise(draws, ([2, 0, 1], [1, 0, 2]))
    before, after = model.estimands_of(draws, bags), model.estimands_of(renamed, bags)
    for name, value in before.items():
        np.testing.assert_allclose(after[name], value, rtol=1e-10)
    before, after = model.predict(draws, bags), model.predict(renamed, bags)
    for name, value in before.items():
        np.testing.assert_allclose(after[name], value, rtol=1e-10)
    joint = jax.jit(lambda sites: log_density(model, (bags,), {}, sites)[0])
    of_program, of_sticks = [
        function(jax.tree.map(jnp.asarray, one_of(renamed)))
        - function(jax.tree.map(jnp.asarray, one_of(draws)))
        for function in (
            joint,
            lambda sites: stats.beta(1, ALPHA).logpdf(np.asarray(sites["stick"])).sum(),
        )
    ]
    np.testing.assert_allclose(float(of_program), of_sticks, rtol=1e-9)
    assert abs(of_sticks) > 0.01


def test_order_of_bags_and_instances_changes_nothing():
    model = small_model(supervision="instances")
    bags, draws = small_bags(), random_draws(model)
    order = np.array([3, 6, 5, 2, 0, 1, 4])  # bags 1, 3, 0, 2, and instances within them
    permuted = Bags.from_arrays(
        bags.instances[order],
        bags.bag_index[order],
        bags.labels[[1, 3, 0, 2]],
        bags.instance_labels[order],
    )
    before, after = model.estimands_of(draws, bags), model.estimands_of(draws, permuted)
    np.testing.assert_allclose(
        after["log_density"], before["log_density"][:, [1, 3, 0, 2]], rtol=1e-12
    )
    np.testing.assert_allclose(
        after["occupied_components"], before["occupied_components"], rtol=1e-12
    )
    free = np.flatnonzero((bags.instance_labels == -1) & (bags.labels[bags.bag_index] == 1))
    position = {n: i for i, n in enumerate(free)}
    permuted_free = [position[n] for n in order if n in position]
    np.testing.assert_allclose(
        after["instance_probability"], before["instance_probability"][:, permuted_free], rtol=1e-12
    )


# ------------------------------------------------------------------ completed draws

# Whole blocks of 64, or the last block compiles apart.
MANY = 300 * 64


@pytest.mark.slow
def test_completed_labels_and_clusters_have_their_exact_frequencies():
    model, bags = small_model(supervision="instances"), small_bags()
    draw, number = one_of(random_draws(model)), MANY
    draws = {name: np.tile(value, (number, *[1] * value.ndim)) for name, value in draw.items()}
    found = model.complete(draws, bags, seed=5)
    assert set(found) == {*draws, "instance_label", "cluster"}
    for bag in range(bags.num_bags):
        states, members = states_of(model, bags, draw, bag), bags.bag_index == bag
        codes = np.append(model.max_components * states.label, states.cluster, axis=1)
        position = {tuple(row): i for i, row in enumerate(codes.tolist())}
        drawn = np.append(
            model.max_components * found["instance_label"][:, members],
            found["cluster"][:, members],
            axis=1,
        )
        counts = np.zeros(len(codes))
        for row, count in zip(*np.unique(drawn, axis=0, return_counts=True), strict=True):
            counts[position[tuple(row.tolist())]] = count
        assert not counts[np.isneginf(states.log_weight)].any()
        # What is expected less than ten times is counted together.
        expected = number * states.probability
        order = np.argsort(expected)
        rare = np.searchsorted(np.cumsum(expected[order]), 10) + 1
        observed = [counts[order[:rare]].sum(), *counts[order[rare:]]]
        expected = [expected[order[:rare]].sum(), *expected[order[rare:]]]
        if len(expected) > 1:
            assert stats.chisquare(observed, expected).pvalue > FALSE_ALARM / len(SIZES)


@pytest.mark.slow
def test_completed_labels_have_a_witness_even_if_unlikely():
    """Log-odds around −3,000, as in hundreds of dimensions; one witness each, by softmax."""
    model, bags = small_model(num_components=1, num_features=1), small_bags(1)
    far = replace(bags, instances=bags.instances / 40 - 40.0)
    number = MANY
    draws = {
        "mean": np.tile([[[-40.0]], [[40.0]]], (number, 1, 1, 1)),
        "precision_cholesky": np.ones((number, 2, 1, 1, 1)),
    }
    label = model.complete(draws, far, seed=6)["instance_label"]
    np.testing.assert_array_equal(
        np.add.reduceat(label, far.starts, axis=1), [[1, 0, 1, 1]] * number
    )
    for rows in (slice(0, 3), slice(5, 7)):
        logits = 80 * far.instances[rows, 0]
        expected = number * np.exp(logits - logsumexp(logits))
        assert stats.chisquare(label[:, rows].sum(axis=0), expected).pvalue > FALSE_ALARM / 2


# ------------------------------------------------------------------ predictions


def bag_probability_by_hand(log_negative, log_positive, fraction):
    """Bayes over all labellings of a bag; given T = 1, those with a witness weigh the same."""
    labellings = list(product((0, 1), repeat=len(log_negative)))
    log_given = [np.where(labels, log_positive, log_negative).sum() for labels in labellings]
    positive = math.log(fraction) + logsumexp(log_given[1:]) - math.log(len(labellings) - 1)
    negative = math.log1p(-fraction) + log_given[0]
    return expit(positive - negative)


def densities_by_hand(draw, instances):
    """log p₋ and log p₊ of each instance, (2, N)."""
    return logsumexp(dense_components(draw, instances), axis=1)


def test_predictions_are_bayes_rule_over_all_labellings():
    model, bags = small_model(), small_bags()
    draws = random_draws(model)
    found = model.predict(draws, bags)
    for s in range(3):
        density = densities_by_hand(one_of(draws, s), bags.instances)
        ratio = expit(density[1] - density[0])
        np.testing.assert_allclose(found["instance_probability"][s], ratio, rtol=1e-10)
        for b in range(bags.num_bags):
            expected = bag_probability_by_hand(*density[:, bags.bag_index == b], TAU)
            np.testing.assert_allclose(found["bag_probability"][s, b], expected, rtol=1e-10)


@pytest.mark.parametrize("needs_witness", [True, False])
def test_predictions_are_the_label_posterior_of_the_program(needs_witness):
    """P(T = 1 | X, θ) from the program's own log p(X | T, θ) for either label."""
    model, bags = small_model(needs_witness=needs_witness), small_bags()
    draws = random_draws(model)
    given = [
        model.estimands_of(draws, replace(bags, labels=np.full(4, label)))["log_density"]
        for label in (0, 1)
    ]
    expected = expit(math.log(TAU) - math.log1p(-TAU) + given[1] - given[0])
    found = model.predict(draws, bags)["bag_probability"]
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_predictions_by_all_draws_use_mean_densities():
    model, bags = small_model(), small_bags()
    draws = random_draws(model)
    found = model.predict(draws, bags)
    each = [densities_by_hand(one_of(draws, s), bags.instances) for s in range(3)]
    density = logsumexp(each, axis=0) - math.log(3)
    np.testing.assert_allclose(
        found["instance_log_odds"], density[1] - density[0], rtol=1e-10, atol=1e-10
    )


def bag_densities_by_hand(log_density):
    """log p(X | T = 0) and log p(X | T = 1): the latter is a mean over all labellings but one."""
    num = log_density.shape[1]
    labellings = [label for label in product((0, 1), repeat=num) if any(label)]
    of_labels = [sum(log_density[r, n] for n, r in enumerate(label)) for label in labellings]
    return log_density[0].sum(), logsumexp(of_labels) - math.log(len(labellings))


def test_bags_are_predicted_by_mean_densities_of_bags():
    """The densities of a bag's instances are dependent under the posterior of θ."""
    model, bags = small_model(), small_bags()
    draws = random_draws(model)
    found = model.predict(draws, bags)
    each = np.stack([densities_by_hand(one_of(draws, s), bags.instances) for s in range(3)])
    for b in range(bags.num_bags):
        chosen = bags.bag_index == b
        negative, positive = logsumexp(
            [bag_densities_by_hand(one[:, chosen]) for one in each], axis=0
        )
        expected = math.log(TAU) - math.log1p(-TAU) + positive - negative
        assert found["bag_log_odds"][b] == pytest.approx(expected, rel=1e-10, abs=1e-10)
    # Neither the mean of the probabilities, nor from mean densities of the instances.
    density = logsumexp(each, axis=0) - math.log(3)
    of_instances = expit(model.log_odds(density, bags, pooling="bayes")[0])
    for other in (found["bag_probability"].mean(axis=0), of_instances):
        assert np.abs(expit(found["bag_log_odds"]) - other).max() > 0.01


def test_known_predictive_densities_are_taken():
    model, bags = small_model(), small_bags()
    draws, known = random_draws(model), np.random.default_rng(9).normal(size=(2, 7))
    for pooling in ("bayes", "noisy_or"):
        found = model.predict(draws, bags, pooling=pooling, log_predictive=known)
        np.testing.assert_array_equal(found["instance_log_odds"], known[1] - known[0])
    expected = model.log_odds(known, bags, pooling="noisy_or")[0]
    np.testing.assert_array_equal(found["bag_log_odds"], expected)


def test_predictions_by_noisy_or_are_its_formula():
    model, bags = small_model(), small_bags()
    draws = random_draws(model)
    found = model.predict(draws, bags, pooling="noisy_or")
    for of_bags, of_instances in (
        (found["bag_probability"], found["instance_probability"]),
        (expit(found["bag_log_odds"]), expit(found["instance_log_odds"])),
    ):
        negative = np.multiply.reduceat(1 - of_instances, bags.starts, axis=-1)
        np.testing.assert_allclose(of_bags, 1 - negative, rtol=1e-12)
    by_bayes = model.predict(draws, bags)
    for name in ("instance_probability", "instance_log_odds"):
        np.testing.assert_array_equal(found[name], by_bayes[name])


def test_labels_of_new_bags_are_not_looked_at():
    model, bags = small_model(supervision="instances"), small_bags()
    draws = random_draws(model)
    unlabelled = replace(bags, labels=None, instance_labels=None)
    for name, value in model.predict(draws, bags).items():
        np.testing.assert_array_equal(model.predict(draws, unlabelled)[name], value)


@pytest.mark.in_ci
def test_uninformative_instances_give_the_prior_by_bayes():
    """The same mixture for both classes; by the noisy-or, 1 − 2⁻¹⁰."""
    model = small_model()
    draws = random_draws(model)
    for value in draws.values():
        value[:, 1] = value[:, 0]
    bags = Bags.from_list(
        [np.random.default_rng(7).normal(size=(size, 2)) for size in (10, 1, 400)]
    )
    by_bayes, noisy = (model.predict(draws, bags, pooling=way) for way in ("bayes", "noisy_or"))
    log_odds = math.log(TAU) - math.log1p(-TAU)
    np.testing.assert_allclose(by_bayes["bag_probability"], np.full((3, 3), TAU), rtol=1e-10)
    np.testing.assert_allclose(by_bayes["bag_log_odds"], np.full(3, log_odds), rtol=1e-10)
    expected = np.broadcast_to([1 - 2.0**-10, 0.5, 1.0], (3, 3))
    np.testing.assert_allclose(noisy["bag_probability"], expected, rtol=1e-12)
    # 2^N − 1 ways to have a positive instance for one to have none.
    expected = [math.log(2.0**size - 1) for size in (10, 1, 400)]
    np.testing.assert_allclose(noisy["bag_log_odds"], expected, rtol=1e-12, atol=1e-12)


def test_a_bag_of_one_is_plain_classification_by_bayes():
    model = small_model()
    instances = np.random.default_rng(8).normal(size=(5, 2))
    bags, draws = Bags.from_list(list(instances[:, None])), random_draws(model)
    found = model.predict(draws, bags)["bag_probability"]
    for s in range(3):
        negative, positive = np.exp(densities_by_hand(one_of(draws, s), instances))
        expected = TAU * positive / (TAU * positive + (1 - TAU) * negative)
        np.testing.assert_allclose(found[s], expected, rtol=1e-10)


def test_log_odds_of_bags_are_accurate_at_extremes():
    model = small_model()
    groups = [
        *([-300.0, -301.0], [-650.0] * 5, [-20.0, -1000.0, -1000.0]),
        *([2.0, -3000.0], [1000.0, -2000.0], [-0.5] * 60, [0.7]),
    ]
    bags = Bags.from_list([np.zeros((len(group), 2)) for group in groups])
    log_density = np.stack([np.full(bags.num_instances, -5000.0), np.concatenate(groups) - 5000.0])
    found = {
        way: model.log_odds(log_density, bags, pooling=way)[0] for way in ("bayes", "noisy_or")
    }
    fraction = Decimal(TAU)
    with localcontext() as context:
        context.prec = 700
        odds = {a: Decimal(a).exp() for a in {a for group in groups for a in group}}
        for b, group in enumerate(groups):
            total = Decimal(1)
            for a in group:
                total *= 1 + odds[a]
            ratio = (total - 1) / (2 ** len(group) - 1)
            bayes = (fraction * ratio / (1 - fraction)).ln()
            # Log densities near 5,000 are right to 1e-12.
            np.testing.assert_allclose(found["bayes"][b], float(bayes), rtol=1e-13, atol=1e-11)
            noisy_or = float((total - 1).ln())
            np.testing.assert_allclose(found["noisy_or"][b], noisy_or, rtol=1e-13, atol=1e-11)


# ------------------------------------------------------------------ constructors


def training_bags(num_features, seed=9):
    random = np.random.default_rng(seed)
    mix = random.normal(size=(num_features, num_features)) + 2 * np.eye(num_features)
    instances = [3 + random.normal(size=(4, num_features)) @ mix for _ in range(10)]
    return Bags.from_list(instances, [1] * 3 + [0] * 7)


@pytest.mark.parametrize("num_features", [1, 3])
def test_the_prior_for_bags_is_the_papers(num_features):
    bags = training_bags(num_features)
    model = DPMIL.for_bags(bags)
    covariance = np.cov(bags.instances.T, bias=True).reshape(num_features, num_features)
    # A ridge of a millionth keeps it invertible.
    np.testing.assert_allclose(model.scale, np.linalg.inv(covariance), rtol=1e-4)
    np.testing.assert_allclose(model.center, bags.instances.mean(axis=0), rtol=1e-13)
    assert model.degrees_of_freedom == num_features + 1
    assert (model.mean_strength, model.concentration, model.max_components) == (1, 2, 20)
    assert model.positive_fraction == 0.3
    assert (model.covariance, model.supervision, model.needs_witness) == ("full", "bags", True)


def test_the_diagonal_prior_is_that_of_single_features():
    bags = training_bags(3)
    model = DPMIL.for_bags(bags, 7, covariance="diagonal", seed=1, mean_strength=0.5)
    np.testing.assert_allclose(model.scale, 1 / bags.instances.var(axis=0), rtol=1e-5)
    assert model.degrees_of_freedom == 2 and model.covariance == "diagonal"
    assert model.max_components == 7 and model.mean_strength == 0.5
    for d in range(3):
        one = DPMIL.for_bags(replace(bags, instances=bags.instances[:, [d]]))
        assert one.degrees_of_freedom == model.degrees_of_freedom
        np.testing.assert_allclose(one.scale[0, 0], model.scale[d], rtol=1e-5)


def test_whitened_instances_have_unit_covariance():
    bags = training_bags(3)
    for covariance in ("full", "diagonal"):
        whitened = DPMIL.for_bags(bags, covariance=covariance).whitened(bags)
        found = np.cov(whitened.T, bias=True)
        if covariance == "diagonal":
            found = np.diag(np.diagonal(found))
        np.testing.assert_allclose(found, np.eye(3), atol=1e-4)
        np.testing.assert_allclose(np.mean(whitened, axis=0), 0, atol=1e-12)


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_units_of_features_do_not_matter(covariance):
    bags = training_bags(3)
    other = replace(bags, instances=bags.instances * [1.0, 1e6, 1e-6] + [0.0, 1e6, 1e-5])
    one, another = (
        np.asarray(DPMIL.for_bags(b, covariance=covariance).whitened(b)) for b in (bags, other)
    )
    # The mean of the second feature and the condition of the covariance cost digits.
    np.testing.assert_allclose(another, one, rtol=1e-6, atol=1e-8)


def test_lists_of_numbers_are_taken(without_type_checks):
    model = DPMIL([0, 0], [[2, 0], [0, 1]], 3.0, max_components=2)
    assert model.center.dtype == model.scale.dtype == float
    assert model.covariance == "full"


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_degenerate_features_still_have_a_prior(covariance):
    random = np.random.default_rng(10)
    instances = random.normal(size=(2, 2, 6))
    instances[..., 4] = 5.0
    model = DPMIL.for_bags(Bags.from_list(list(instances), [0, 1]), covariance=covariance)
    assert np.isfinite(model.scale_root).all()


def test_mimm_has_one_diagonal_gaussian_per_class():
    bags = training_bags(2)
    model = DPMIL.mimm(bags)
    assert (model.max_components, model.covariance, model.needs_witness) == (1, "diagonal", False)
    assert model.supervision == "bags"
    assert DPMIL.mimm(bags, covariance="full").covariance == "full"


def known_bags():
    """All instances of positive bags are labelled; those of negative bags need none."""
    bags = training_bags(2)
    known = np.where(np.arange(bags.num_instances) % 4 == 0, 1, 0)
    known[bags.labels[bags.bag_index] == 0] = 0
    return replace(bags, instance_labels=known)


def test_qda_has_one_gaussian_per_class_of_instances():
    """The likelihood is that of the Gaussians of the known labels."""
    bags = known_bags()
    model = DPMIL.qda(bags)
    assert (model.max_components, model.covariance, model.supervision) == (1, "full", "instances")
    draws = random_draws(model)
    density = dense_components(one_of(draws), bags.instances)[:, 0]
    own = density[bags.instance_labels, np.arange(bags.num_instances)]
    found = model.estimands_of(draws, bags)["log_density"]
    np.testing.assert_allclose(found[0], np.add.reduceat(own, bags.starts), rtol=1e-10)


def test_qda_infers_negative_instances_from_negative_bags():
    bags = known_bags()
    unmarked = np.where(bags.labels[bags.bag_index] == 0, -1, bags.instance_labels)
    model = DPMIL.qda(replace(bags, instance_labels=unmarked))
    rule = model.label_rule(replace(bags, instance_labels=unmarked))
    np.testing.assert_array_equal(rule.known > 0, bags.instance_labels == 1)
    assert np.isinf(rule.known).all()


def test_without_witnesses_positive_bags_may_be_all_negative():
    known = [[0, 0, 0], [-1], [-1], [1, -1]]
    bags = Bags.from_list(small_bags().to_list(), LABELS, known)
    model = small_model(supervision="instances", needs_witness=False)
    draws = random_draws(model)
    found = model.estimands_of(draws, bags)
    for name, value in enumerated(model, bags, one_of(draws)).items():
        np.testing.assert_allclose(found[name][0], value, rtol=1e-10)


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"scale": np.ones(3)},
            r"scale has shape \(3,\) and center 2 features; expected \(2, 2\), or \(2,\) for diag",
        ),
        ({"scale": np.eye(3)}, r"scale has shape \(3, 3\) and center 2 features; expected \(2, 2"),
        ({"degrees_of_freedom": 1.0}, r"degrees_of_freedom is 1\.0; expected a number above 1"),
        ({"degrees_of_freedom": math.nan}, "degrees_of_freedom is nan; expected a positive finite"),
        (
            {"scale": np.ones(2), "degrees_of_freedom": 0.0},
            r"degrees_of_freedom is 0\.0; expected a positive finite",
        ),
        ({"mean_strength": 0.0}, r"mean_strength is 0\.0; expected a positive finite"),
        ({"mean_strength": math.inf}, "mean_strength is inf; expected a positive finite"),
        ({"concentration": -1.0}, r"concentration is -1\.0; expected a positive finite"),
        ({"max_components": 0}, "max_components is 0; expected an integer of at least 1"),
        ({"max_components": 2.5}, r"max_components is 2\.5; expected an integer of at least 1"),
        (
            {"positive_fraction": 0.0},
            r"positive_fraction is 0\.0; expected a number between 0 and 1",
        ),
        (
            {"positive_fraction": 1.0},
            r"positive_fraction is 1\.0; expected a number between 0 and 1",
        ),
        ({"supervision": "all"}, "supervision is 'all'; expected one of bags, instances"),
        (
            {"scale": np.array([[1.0, 2.0], [2.0, 1.0]])},
            "scale is not positive definite; expected W0 to be",
        ),
        ({"scale": np.full((2, 2), math.nan)}, "scale is not positive definite; expected W0"),
        ({"scale": np.array([1.0, 0.0])}, "scale is not positive definite; expected W0 to be"),
        ({"scale": np.array([1.0, -1.0])}, "scale is not positive definite; expected W0 to be"),
        ({"scale": np.array([1.0, math.inf])}, "scale is not positive definite; expected W0 to"),
    ],
)
def test_fields_out_of_range_are_refused_by_name(fields, message, without_type_checks):
    with pytest.raises(ValueError, match=f"DPMIL {message}"):
        small_model(**fields)


def one_label(label):
    bags = training_bags(2)
    return replace(bags, labels=np.full(bags.num_bags, label))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: DPMIL.for_bags(training_bags(2), covariance="spherical"),
            "covariance is 'spherical'; expected one of full, diagonal",
        ),
        (
            lambda: DPMIL.for_bags(replace(training_bags(2), labels=None)),
            r"bags have no labels; DPMIL\.for_bags needs one for each bag",
        ),
        (
            lambda: DPMIL.for_bags(one_label(1)),
            "all bags have label 1; DPMIL learns from bags of both labels",
        ),
        (
            lambda: DPMIL.for_bags(one_label(0)),
            "all bags have label 0; DPMIL learns from bags of both labels",
        ),
        (
            lambda: DPMIL.for_bags(Bags.from_list([np.ones((2, 3))] * 2, [0, 1])),
            "all instances are alike; expected features with a variance for DPMIL to model",
        ),
        (
            lambda: DPMIL.mimm(one_label(1)),
            "all bags have label 1; DPMIL learns from bags of both labels",
        ),
        (
            lambda: DPMIL.qda(training_bags(2)),
            r"bags have instances of unknown label; DPMIL\.qda is for .*: use DPMIL\.mimm, or give",
        ),
        (
            lambda: DPMIL.qda(small_bags()),
            r"bags have instances of unknown label; DPMIL\.qda is for instances that are all label",
        ),
    ],
    ids=["covariance", "no labels", "all 1", "all 0", "alike", "mimm", "qda none", "qda some"],
)
def test_bags_without_a_possible_prior_are_refused(make, message, without_type_checks):
    with pytest.raises(ValueError, match=message):
        make()


def all_negative(names):
    """Bag c is positive, and its one instance known to be negative."""
    known = [[-1, 0, -1], [-1], [0], [1, -1]]
    bags = Bags.from_list(small_bags().to_list(), LABELS, known, names=["a", "b", "c", "d"])
    return bags if names else replace(bags, names=())


@pytest.mark.parametrize(
    ("fields", "bags", "message"),
    [
        ({}, lambda: small_bags(3), "bags have 3 features and the model 2; expected the features"),
        (
            {},
            lambda: replace(small_bags(), labels=None),
            "bags have no labels; DPMIL needs one for each bag to learn from",
        ),
        (
            {"supervision": "instances"},
            lambda: replace(small_bags(), instance_labels=None),
            r"bags have no instance labels, and supervision='instances' learns from them; give "
            r"instance_labels, or use supervision='bags'",
        ),
        (
            {"supervision": "instances"},
            lambda: all_negative(names=True),
            r"bag 'c' is positive, but all its instances are known to be negative; expected one "
            r"that may be positive, or needs_witness=False",
        ),
        ({"supervision": "instances"}, lambda: all_negative(names=False), "bag 2 is positive, but"),
    ],
    ids=["features", "labels", "instance labels", "all negative", "without names"],
)
def test_bags_that_cannot_be_learned_from_are_refused(fields, bags, message):
    model = small_model(**fields)
    with pytest.raises(ValueError, match=message):
        model.label_rule(bags())


@pytest.mark.parametrize("supervised", [True, False])
def test_functions_of_bags_learned_from_refuse_those_without_labels(supervised):
    model = small_model(supervision="instances" if supervised else "bags")
    draws, bags = random_draws(model), replace(small_bags(), labels=None)
    with pytest.raises(ValueError, match="bags have no labels; DPMIL needs one for each bag"):
        model.estimands_of(draws, bags)
    with pytest.raises(ValueError, match="bags have no labels; DPMIL needs one for each bag"):
        model.complete(draws, bags, seed=0)


def test_predictions_that_cannot_be_made_are_refused(without_type_checks):
    model = small_model()
    draws = random_draws(model)
    with pytest.raises(ValueError, match="pooling is 'max'; expected one of bayes, noisy_or"):
        model.predict(draws, small_bags(), pooling="max")
    with pytest.raises(ValueError, match="pooling is 'max'; expected one of bayes, noisy_or"):
        model.log_odds(np.zeros((2, 7)), small_bags(), pooling="max")
    with pytest.raises(ValueError, match="bags have 3 features and the model 2; expected the feat"):
        model.predict(draws, small_bags(3))
    unlabelled = replace(small_bags(3), labels=None)
    with pytest.raises(ValueError, match="bags have 3 features and the model 2; expected the feat"):
        jax.eval_shape(lambda: handlers.seed(model, 0)(unlabelled))
