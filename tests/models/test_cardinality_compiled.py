"""Cardinality models are compiled once for bags of similar sizes, without change of results."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from milzoo.datasets import Bags
from milzoo.models import (
    RBF,
    AtLeastOne,
    CardinalityKernel,
    CardinalityModel,
    MajorityCardinality,
    NormalCardinality,
)
from milzoo.models.cardinality import InstanceLabelsByCount, probabilities
from milzoo.models.parts import counting
from milzoo.models.parts.counting import CountTree, log_partition
from numpyro.handlers import seed, substitute, trace
from numpyro.infer.util import log_density


def wanted_share(count, size):
    """A user-defined potential: not concave in the count."""
    fraction = np.asarray(count) / np.asarray(size)  # by NumPy: it is never traced
    return np.stack([-20.0 * fraction * (1 - fraction), -5.0 * np.abs(fraction - 0.5)])


POTENTIALS = {
    "normal": NormalCardinality(0.5, 0.2),
    "majority": MajorityCardinality(),
    "at least one": AtLeastOne(),
    "own": wanted_share,
}
WEIGHTS = np.array([1.0, -0.5, 0.7])


def random_bags(sizes, seed):
    random = np.random.default_rng(seed)
    labels = np.arange(len(sizes)) % 2
    return Bags.from_list([random.normal(size=(size, 3)) for size in sizes], labels=labels)


@pytest.fixture(scope="module")
def bags():
    """Bags that are summed in logs, and bags that are not."""
    return random_bags([1, 3, 70, 12, 2, 7, 5, 100, 9, 20], 0)


@pytest.fixture(scope="module")
def folds():
    """Two trainings sets of a cross-validation, of 52 bags in 4 parts."""
    sizes = np.random.default_rng(1).integers(1, 13, 52)
    (first, _), (second, _), *_ = random_bags(sizes, 2).folds(4, seed=0)
    assert sorted(first.bag_sizes) != sorted(second.bag_sizes)
    return first, second


@pytest.fixture(scope="module")
def compilations():
    """An event for each program that was compiled since the list was cleared."""
    counted = []

    def listen(event, duration_secs, **_):
        if "backend_compile" in event:
            counted.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield counted
    jax.monitoring.unregister_event_duration_listener(listen)


@jax.jit
def value_and_gradient(model, prepared, sites):
    return jax.value_and_grad(lambda s: log_density(model.marginal(), (prepared,), {}, s)[0])(sites)


@jax.jit
def density(model, bags, sites):
    return log_density(model.augmented(), (bags,), {}, sites)[0]


# ------------------------------------------------------------------ once


@pytest.mark.in_ci
@pytest.mark.slow_but_first
@pytest.mark.parametrize("potential", POTENTIALS)
def test_a_second_fold_compiles_no_density(folds, compilations, potential):
    with jax.enable_x64(True):
        models = [CardinalityModel(POTENTIALS[potential], scale) for scale in (1.0, 2.0)]
        for model, fold in zip(models, folds, strict=True):
            compilations.clear()
            value_and_gradient(model, model.prepare(fold), {"weights": WEIGHTS})
        assert not compilations


@pytest.mark.slow
def test_a_second_fold_compiles_no_predictions(folds, compilations):
    draws = {"weights": WEIGHTS * np.linspace(0.5, 1.0, 5)[:, None]}
    for fold in folds:
        compilations.clear()
        model = CardinalityModel.for_bags(fold)
        model.predict(draws, fold)
        model.complete(draws, fold, seed=0)
    assert not compilations


@pytest.mark.slow
def test_a_second_fold_compiles_no_kernel(folds, compilations):
    some = random_bags([2, 5, 3], 3)
    for fold, scale in zip(folds, (0.5, 0.8), strict=True):
        compilations.clear()
        kernel = CardinalityKernel(CardinalityModel(), WEIGHTS * scale, RBF(1.0, scale))
        kernel(fold, fold)
        kernel(some, fold)
    assert not compilations


@pytest.mark.slow
def test_a_program_with_priors_is_compiled_once(folds, compilations):
    with jax.enable_x64(True):
        for fold, width in zip(folds, (1.0, 3.0), strict=True):
            potential = NormalCardinality(dist.Beta(2.0, width), dist.LogNormal(-1.0, width))
            model = CardinalityModel(potential, dist.HalfNormal(width), intercept_scale=width)
            sites = {"mu": 0.4, "sigma": 0.2, "weight_scale": 1.3, "intercept": 0.1}
            compilations.clear()
            value_and_gradient(model, model.prepare(fold), {"weights": WEIGHTS, **sites})
        assert not compilations


# ------------------------------------------------------------------ padding changes nothing


@pytest.mark.slow
@pytest.mark.parametrize("potential", POTENTIALS)
def test_padding_changes_no_density_and_no_gradient(bags, potential):
    model = CardinalityModel(POTENTIALS[potential], intercept_scale=2.0)
    sites = {"weights": WEIGHTS, "intercept": 0.3}
    with jax.enable_x64(True), jax.debug_nans(True):
        found = value_and_gradient(model, model.prepare(bags), sites)
        expected = value_and_gradient(model, model.unpadded(bags), sites)
    # Both are sums of some hundred terms, in another order.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10), found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("route", [0, 7], ids=["tilted", "in logs"])
def test_padded_log_partitions_are_those_of_the_bags(bags, route, monkeypatch):
    monkeypatch.setattr(counting, "_LOG_DEPTHS", route)
    model = CardinalityModel(NormalCardinality())
    jax.clear_caches()  # the route is no argument
    with jax.enable_x64(True):
        found, expected = (
            np.asarray(log_partition(one.tree, logits_of(one), model.log_potential(one)))
            for one in (model.prepare(bags), model.unpadded(bags))
        )
    jax.clear_caches()
    np.testing.assert_allclose(found[:, : bags.num_bags], expected, rtol=1e-12)
    assert (found[:, bags.num_bags :] == 0).all()


def logits_of(prepared):
    return jnp.asarray(prepared.bags.instances @ WEIGHTS)


@pytest.mark.slow
@pytest.mark.parametrize("potential", POTENTIALS)
def test_padding_changes_no_prediction(bags, potential):
    model = CardinalityModel(POTENTIALS[potential])
    found = model.predict({"weights": WEIGHTS[None]}, bags)
    with jax.enable_x64(True):
        one = model.unpadded(bags)
        bag, instance = probabilities(one.tree, logits_of(one), model.log_potential(one))
    np.testing.assert_allclose(found["bag_probability"][0], bag, rtol=1e-10)
    np.testing.assert_allclose(found["instance_probability"][0], instance, rtol=1e-10)


@pytest.mark.slow
def test_instance_labels_that_pad_have_no_density(bags):
    """Densities equal those of the bags without padding, the augmented one too."""
    model = CardinalityModel(intercept_scale=1.0)
    labels = np.random.default_rng(4).integers(0, 2, bags.num_instances)
    sites = {"weights": WEIGHTS, "intercept": 0.3}
    with jax.enable_x64(True):
        prepared = model.prepare(bags)
        padding = prepared.tree.bag_index.size - labels.size
        expected = density(model, model.unpadded(bags), sites | {"instance_label": labels})
        for value in (0, 1):
            padded = np.pad(labels, (0, padding), constant_values=value)
            found = density(model, prepared, sites | {"instance_label": padded})
            np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.slow
def test_labels_that_pad_are_drawn_as_zero(bags):
    model = CardinalityModel()
    prepared = model.prepare(bags)
    log_potential = model.log_potential(prepared)[1]
    distribution = InstanceLabelsByCount(prepared.tree, logits_of(prepared), log_potential)
    drawn = distribution.sample(jax.random.key(0), (20,))
    assert (drawn[:, bags.num_instances :] == 0).all() and drawn[:, : bags.num_instances].any()


@pytest.mark.slow
def test_bags_that_pad_are_masked_in_the_program(bags):
    """Only present bags are observed or drawn."""
    model = CardinalityModel()
    given = substitute(seed(model, 0), {"weights": jnp.asarray(WEIGHTS)})
    site = trace(given).get_trace(model.prepare(bags))["bag_label"]
    log_prob = np.asarray(site["fn"].log_prob(site["value"]))
    assert (log_prob[: bags.num_bags] != 0).all() and (log_prob[bags.num_bags :] == 0).all()


def test_prepared_bags_are_returned_as_they_are(bags):
    model = CardinalityModel()
    prepared = model.prepare(replace(bags, labels=None))
    assert model.prepare(prepared) is prepared and prepared.bags.labels is None
    assert (prepared.num_bags, prepared.num_instances) == (bags.num_bags, bags.num_instances)


def test_a_model_comes_back_from_its_leaves():
    model = CardinalityModel(wanted_share, dist.HalfNormal(2.0), "laplace", 3.0)
    leaves, structure = jax.tree.flatten(model)
    again = jax.tree.unflatten(structure, leaves)
    assert (again.potential, again.weight_prior) == (wanted_share, "laplace")
    assert again.intercept_scale == 3.0 and again.weight_scale.scale == 2.0
    assert hash(structure) == hash(jax.tree.structure(replace(model, intercept_scale=1.0)))


# ------------------------------------------------------------------ how much is added


def test_padding_adds_at_most_a_quarter_of_work():
    """Padded work of the log partition, for sets that take more than 0.1 ms."""
    random = np.random.default_rng(5)
    for sizes in (
        random.integers(1, 13, 300),
        random.integers(5, 21, 100),
        np.ceil(random.lognormal(2.5, 1.3, 100)).astype(int),
    ):
        index, present = np.repeat(np.arange(len(sizes)), sizes), np.ones(len(sizes), bool)
        work, padded = (
            sum(
                number * counting._work(depth)
                for depth, number in enumerate(CountTree.for_bags(index, len(sizes), p).num_roots)
            )
            for p in (None, present)
        )
        assert work <= padded <= 1.25 * work
