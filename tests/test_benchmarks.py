"""The mathematics that benchmarks have of their own."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from milzoo.datasets import Bags, load
from milzoo.inference import (
    CardinalityKernelLearner,
    CardinalityKernelSVM,
    coordinate_ascent,
    maximum_a_posteriori,
)
from milzoo.inference.closed_form import vgpmil
from milzoo.models import (
    RBF,
    VGPMIL,
    VWSGP,
    CardinalityGP,
    CardinalityKernel,
    CardinalityModel,
    NormalCardinality,
)
from scipy.special import expit, logit
from sklearn.metrics import roc_auc_score

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def benchmark():
    """Function of a benchmark's name that gives its module."""
    loaded = []

    def named(name):
        specification = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
        module = importlib.util.module_from_spec(specification)
        # Its frozen dataclasses look their own module up by name.
        sys.modules[name] = module
        specification.loader.exec_module(module)
        loaded.append(name)
        return module

    yield named
    for name in set(loaded):
        del sys.modules[name]


@pytest.mark.parametrize("label_update", ["exact", "mean_field"])
def test_a_bag_left_out_by_zero_rows_is_a_bag_left_out(benchmark, label_update):
    musk1_label_updates = benchmark("musk1_label_updates")
    bags = load("digits").select(np.arange(12)).standardize()
    held_out = np.arange(bags.num_bags) % 3 == 0
    model = replace(VGPMIL.for_bags(bags, num_inducing=6), mean=-2.0)
    others = coordinate_ascent(
        model, bags.select(~held_out), seed=0, label_update=label_update, tolerance=1e-13
    )
    with jax.enable_x64(True):
        problem, _ = vgpmil.init(model, bags, label_update="exact", key=jax.random.key(0))
        problem = musk1_label_updates.without(problem, held_out, label_update)
        state = musk1_label_updates.closed_form(problem, seed=0, tolerance=1e-13)
        bound = musk1_label_updates.honest_bound(problem, state, jnp.asarray(held_out))
        mean = model.conditional(bags).cholesky @ state.mean
    np.testing.assert_allclose(mean, others.approximation.mean, atol=1e-5)
    np.testing.assert_allclose(bound, others.elbo[-1], rtol=1e-9)


@pytest.fixture(scope="module")
def fold(benchmark):
    """A fold of the accuracy benchmark, and the kernel to fit it with, as a stack of one."""
    accuracy = benchmark("vwsgp_accuracy")
    bags = load("digits").select(np.arange(30))
    held_out = np.arange(bags.num_bags) % 3 == 0
    return accuracy, accuracy.Fold.of(bags, held_out, num_inducing=6, seed=0), RBF(2.0, 6.0)


def fitted(fold, name, **options):
    accuracy, one, kernel = fold
    with jax.enable_x64(True):
        stacked = jax.tree.map(lambda value: jnp.asarray([value]), kernel)
        return accuracy.FITS[name](one, stacked, **options)


def test_a_fold_of_the_accuracy_benchmark_is_coordinate_ascent_on_the_other_bags(fold):
    _, one, kernel = fold
    found = fitted(fold, "default", max_steps=2000, tolerance=1e-13)
    model = VWSGP(kernel, one.inducing_points)
    others = one.bags.select(~one.held_out)
    expected = coordinate_ascent(model, others, seed=0, tolerance=1e-13, max_steps=2000)
    np.testing.assert_allclose(found.bound, expected.elbo[-1], rtol=1e-9)
    # Draws that have the mean and the covariance of q(u) exactly.
    q = expected.approximation
    steps = np.sqrt(6) * q.scale_tril.T
    draws = {"inducing_value": np.concatenate([q.mean + steps, q.mean - steps])}
    alone = model.predict(draws, one.bags, accumulation="independent_instances")
    with jax.enable_x64(True):
        joint, independent = found.bag_probability(), found.independent_probability()
    np.testing.assert_allclose(independent, alone["bag_probability"][0], atol=1e-6)
    by_draw = expected.predict(one.bags).bag_draws
    error = by_draw.std(axis=0) / np.sqrt(len(by_draw))
    # 30 bags at 5 standard errors: a false alarm in 2e-5 of all seeds.
    assert (np.abs(joint - by_draw.mean(axis=0)) < 5 * error).all()


def test_a_kernel_learned_by_the_accuracy_benchmark_is_that_of_the_engine(fold):
    _, one, kernel = fold
    found = fitted(fold, "learned", max_steps=300, tolerance=1e-11)
    expected = coordinate_ascent(
        VWSGP(kernel, one.inducing_points),
        one.bags.select(~one.held_out),
        seed=0,
        tolerance=1e-11,
        max_steps=300,
        learn_hyperparameters=True,
    )
    # Both stop when a step gains less than 1e-11 of the bound; along a ridge many may be left.
    np.testing.assert_allclose(found.bound, expected.elbo[-1], atol=1e-3)


def test_sums_made_chunk_by_chunk_give_the_posterior_of_all_bags_at_once(benchmark):
    scale = benchmark("vwsgp_scale")
    design = scale.Design(4_000, 5, 50, 20, 8, steps=10, seed=1)
    chunks = [design.chunk(number) for number in range(design.num_chunks)]
    whole = Bags.from_list(
        [bag for chunk in chunks for bag in chunk.to_list()],
        np.concatenate([chunk.labels for chunk in chunks]),
    )
    model = design.model()
    with jax.enable_x64(True):
        problem, state = scale._fitted(design, model, scale.Clock())
        mean = np.asarray(problem.cholesky @ state.mean)
    expected = coordinate_ascent(model, whole, seed=0, max_steps=10, tolerance=0.0)
    deviation = np.sqrt(
        np.diag(expected.approximation.scale_tril @ expected.approximation.scale_tril.T)
    )
    # 32-bit kernels: a ten thousandth of a posterior sd.
    assert (np.abs(mean - expected.approximation.mean) < 1e-4 * deviation).all()


def test_the_newsgroups_benchmark_ranks_the_instances_of_each_bag_once(benchmark):
    newsgroups = benchmark("dpmil_newsgroups")
    random = np.random.default_rng(0)
    label = np.arange(480) % 24 == 0  # the first of every second bag of twelve
    instances = random.normal(size=(480, 3)) + 6 * label[:, None]
    bags = Bags.from_arrays(instances, np.arange(480) // 12, np.arange(40) % 2 == 0, label)
    protocol = replace(newsgroups.Protocol.toy(seed=0), components=(3,))
    row, given = newsgroups.rows_of(bags, protocol, print)
    assert (row.labels, given.labels) == ("hard", "given")
    assert [fold.witness_precision for fold in given.folds] == [1.0, 1.0]
    assert [len(fold.bag_truth) for fold in row.folds] == [20, 20]
    assert sum(len(fold.instance_truth) for fold in row.folds) == 480
    assert sum(fold.instance_truth.sum() for fold in row.folds) == 20
    # Were the ranks another instance's, 0.5 with an sd of 0.07.
    assert row.pooled(roc_auc_score, "instance") > 0.9


def test_folds_of_the_newsgroups_benchmark_are_averaged_or_pooled(benchmark):
    newsgroups = benchmark("dpmil_newsgroups")
    truths, found = np.array([[0, 1], [0, 1]]), np.array([[0.1, 0.2], [0.3, 0.4]])
    nothing = np.zeros(0)
    folds = [
        newsgroups.Fold(truth, ranked, nothing, nothing, 0, 0.0, 0, 0.0)
        for truth, ranked in zip(truths, found, strict=True)
    ]
    row = newsgroups.Row(2, "hard", folds)
    assert row.by_fold(roc_auc_score, "instance") == [1.0, 1.0]
    assert row.pooled(roc_auc_score, "instance") == 0.75


def test_the_speed_benchmark_of_dpmil_has_the_sizes_of_the_papers_data(benchmark):
    speed = benchmark("dpmil_speed")
    text, cancer = (design.bags(seed=0) for design in speed.FULL)
    assert (text.num_instances, text.num_features, text.num_bags) == (3_600, 100, 100)
    assert (cancer.num_instances, cancer.num_features, cancer.num_bags) == (14_303, 30, 210)
    for bags, num_positive in ((text, 50), (cancer, 143)):
        assert bags.labels.sum() == num_positive
        witnesses = np.bincount(bags.bag_index, bags.instance_labels)
        np.testing.assert_array_equal(witnesses > 0, bags.labels == 1)
    # 50 certain and 1,750 at 0.0023, sd 2; of 143 and 9,597 at 0.78, sd 41: 5 sd.
    assert abs(text.instance_labels.sum() - 0.03 * 1_800) < 10
    assert abs(cancer.instance_labels.sum() - 0.534 * 14_303) < 210


def test_the_speed_benchmark_of_dpmil_times_every_round_that_it_counts(benchmark):
    speed = benchmark("dpmil_speed")
    rows = list(speed.rows_of(speed.TOY[0], seed=0))
    assert [row.rounds for row in rows] == [5, 5, 5]
    for row in rows:
        assert 0 < row.seconds < row.total


@pytest.fixture(scope="module")
def counted(benchmark):
    """What the accuracy benchmark of cardinality models finds in a fold, and the fold."""
    accuracy = benchmark("cardinality_accuracy")
    bags = load("digits").select(np.arange(40))
    protocol = replace(
        accuracy.Protocol.toy(seed=0),
        inner_folds=2,
        mu=(0.4,),
        penalty=(1.0,),
        max_steps=200,
    )
    with jax.enable_x64(True):
        fold = accuracy.Fold.of(bags, np.arange(40) % 4 == 0, protocol)
        return fold, accuracy.outcomes_of(fold, protocol)


def test_a_fold_is_scaled_by_its_training_bags_and_split_among_them(counted):
    fold, _ = counted
    training = fold.bags.select(fold.outer.learned_from).instances
    varies = np.ptp(training, axis=0) > 0
    np.testing.assert_allclose(training[:, varies].min(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(training[:, varies].max(axis=0), 1.0, atol=1e-12)
    assert (fold.bags.instances[:, ~varies] == 0.0).all()
    judged = np.sum([part.judged for part in fold.inner], axis=0)
    np.testing.assert_array_equal(judged, fold.outer.learned_from)
    for part in fold.inner:
        np.testing.assert_array_equal(part.judged | part.learned_from, fold.outer.learned_from)
        assert not (part.judged & part.learned_from).any()


@pytest.mark.parametrize("method", ["MICPM", "MICPK-SVM", "MICPKL", "GP by the bound"])
def test_a_fold_of_the_cardinality_benchmark_is_the_package_on_its_training_bags(counted, method):
    fold, outcomes = counted
    found, setting = outcomes[method]
    training, test = (fold.bags.select(one) for one in fold.outer)
    scale = 1 / np.sqrt(2 * setting["regularisation"])
    model = CardinalityModel(NormalCardinality(setting["mu"], 0.1), scale)
    between = RBF(1.0, 0.2 * np.sqrt(64))
    if method == "MICPM":
        mode = maximum_a_posteriori(model, training, seed=0)
        expected = logit(mode.predict(test).bag_probability)
    elif method == "GP by the bound":
        mode = maximum_a_posteriori(model, training, seed=0).stored_draws()
        kernel = CardinalityKernel(model, mode["weights"][0], between)
        process = CardinalityGP.at_bags(kernel, training, setting["variance"])
        fit = coordinate_ascent(process, training, seed=0, tolerance=1e-12, max_steps=1000)
        q = fit.approximation
        given = process.accumulated(test)
        whitened = np.linalg.solve(np.asarray(given.cholesky), np.c_[q.mean, q.scale_tril])
        mean, *spread = (np.asarray(given.projection) @ whitened).T
        sd = np.sqrt(np.sum(np.square(spread), axis=0) + np.asarray(given.residual_variance))
        nodes, weights = np.polynomial.hermite_e.hermegauss(101)
        by_node = expit(mean[:, None] + sd[:, None] * nodes)
        expected = logit(by_node @ weights / weights.sum())
    else:
        kind = CardinalityKernelSVM if method == "MICPK-SVM" else CardinalityKernelLearner
        expected = kind(model, between, setting["penalty"]).fit(training).decision_function(test)
    np.testing.assert_allclose(found, expected, atol=2e-3)


def test_settings_are_those_of_the_best_agreement_on_inner_folds(counted):
    """By the package, of λ; the first of equals."""
    fold, outcomes = counted
    scores = {}
    for mu, regularisation in [(0.4, 10.0), (0.4, 1.0)]:
        model = CardinalityModel(NormalCardinality(mu, 0.1), 1 / np.sqrt(2 * regularisation))
        right, likelihood = [], []
        for part in fold.inner:
            mode = maximum_a_posteriori(model, fold.bags.select(part.learned_from), seed=0)
            judged = fold.bags.select(part.judged)
            probability = mode.predict(judged).bag_probability
            right.append((probability > 0.5) == judged.labels)
            likelihood.append(np.log(np.where(judged.labels, probability, 1 - probability)))
        scores[mu, regularisation] = (
            np.mean(np.concatenate(right)),
            np.sum(np.concatenate(likelihood)),
        )
    chosen = outcomes["MICPM"].setting
    assert (chosen["mu"], chosen["regularisation"]) == max(scores, key=scores.__getitem__)
