"""The mathematics that benchmarks have of their own."""

import importlib.util
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from milzoo.datasets import Bags, load, patch_on_grid, published_folds
from milzoo.estimators import CardinalityKernelSVM
from milzoo.estimators.kernel_classifiers import KernelObjective
from milzoo.inference import coordinate_ascent, maximum_a_posteriori
from milzoo.inference.closed_form.drivers import Limits, ascend_in_memory
from milzoo.inference.closed_form.sparse_gp import InstanceForm
from milzoo.models import (
    RBF,
    VGPMIL,
    VWSGP,
    CardinalityGP,
    CardinalityKernel,
    CardinalityModel,
    NormalCardinality,
)
from milzoo.papers import exhibits_named
from scipy.spatial.distance import cdist
from scipy.special import expit, logit
from sklearn.metrics import roc_auc_score
from sklearn.svm import SVC

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


@pytest.mark.slow_but_first
@pytest.mark.parametrize("label_update", ["exact", "mean_field"])
def test_a_weight_of_zero_leaves_a_bag_out(benchmark, label_update):
    musk1_label_updates = benchmark("musk1_label_updates")
    bags = load("digits").select(np.arange(12)).standardize()
    held_out = np.arange(bags.num_bags) % 3 == 0
    model = replace(VGPMIL.as_published(bags, num_inducing=6), mean=-2.0)
    others = coordinate_ascent(
        model, bags.select(~held_out), seed=0, label_update=label_update, tolerance=1e-13
    )
    with jax.enable_x64(True):
        found = musk1_label_updates.fit(
            model, bags, held_out, label_update, seed=0, tolerance=1e-13
        )
        mean = np.asarray(model.inducing_cholesky() @ found.q.mean)
    np.testing.assert_allclose(mean, others.approximation.mean, atol=1e-5)
    np.testing.assert_allclose(found.bound, others.elbo[-1], rtol=1e-9)


@pytest.mark.in_ci
def test_the_bound_given_mean_field_labels_is_the_elbo(benchmark):
    """By it the benchmark judges the plugged-in maximum, which ascends no bound of its own."""
    musk1_label_updates = benchmark("musk1_label_updates")
    bags = load("digits").select(np.arange(12)).standardize()
    form = InstanceForm(VGPMIL.as_published(bags, num_inducing=6), label_update="mean_field")
    with jax.enable_x64(True):
        end = ascend_in_memory(form, bags, Limits(9, 0.0), key=jax.random.key(0))
        given = replace(form, label_update="plug_in_max"), form.chunk(bags)
        bound = musk1_label_updates.bound_given_labels(*given, end.q, end.local)
    np.testing.assert_allclose(bound, end.elbo[-1], rtol=1e-12)


@pytest.fixture(scope="module")
def fold(benchmark):
    """A fold of the accuracy benchmark, and the kernel to fit it with."""
    accuracy = benchmark("vwsgp_accuracy")
    bags = load("digits").select(np.arange(30))
    held_out = np.arange(bags.num_bags) % 3 == 0
    return accuracy, accuracy.Fold.of(bags, held_out, num_inducing=6, seed=0), RBF(2.0, 6.0)


@pytest.mark.slow
def test_predictions_of_the_accuracy_benchmark_integrate_over_draws(fold):
    accuracy, one, kernel = fold
    with jax.enable_x64(True):
        found = accuracy.FITS["default"](one, [kernel], max_steps=2000, tolerance=1e-13)
        joint, independent = found.bag_probability(), found.independent_probability()
    model = VWSGP(kernel, one.inducing_points)
    others = one.bags.select(~one.held_out)
    expected = coordinate_ascent(model, others, seed=0, tolerance=1e-13, max_steps=2000)
    np.testing.assert_allclose(found.bound, expected.elbo[-1], rtol=1e-9)
    # Draws that have the mean and the covariance of q(u) exactly.
    q = expected.approximation
    steps = np.sqrt(6) * q.scale_tril.T
    draws = {"inducing_value": np.concatenate([q.mean + steps, q.mean - steps])}
    alone = model.predict(draws, one.bags, accumulation="independent_instances")
    np.testing.assert_allclose(independent, alone["bag_probability"][0], atol=1e-6)
    by_draw = expected.predict(one.bags).bag_draws
    error = by_draw.std(axis=0) / np.sqrt(len(by_draw))
    # 30 bags at 5 standard errors: a false alarm in 2e-5 of all seeds.
    assert (np.abs(joint - by_draw.mean(axis=0)) < 5 * error).all()


@pytest.mark.slow
def test_a_learned_kernel_starts_from_the_best_bound(fold):
    accuracy, one, kernel = fold
    far = RBF(1000.0, 0.1)
    limits = {"max_steps": 5, "tolerance": 1e-11}
    by_best, by_both = (
        accuracy.FITS["learned"](one, starts, **limits) for starts in ([kernel], [far, kernel])
    )
    assert by_both.bound == by_best.bound
    assert accuracy.FITS["default"](one, [far], **limits).bound < by_best.bound - 1


@pytest.mark.slow
def test_sums_by_chunks_give_the_posterior_of_all_bags(benchmark):
    scale = benchmark("vwsgp_scale")
    design = scale.Design(4_000, 5, 50, 20, 8, steps=10, seed=1)
    chunks = [design.chunk(number) for number in range(design.num_chunks)]
    whole = Bags.from_list(
        [bag for chunk in chunks for bag in chunk.to_list()],
        np.concatenate([chunk.labels for chunk in chunks]),
    )
    model = design.model()
    with jax.enable_x64(True):
        q = scale._fitted(design, model, scale.Clock())
        mean = np.asarray(model.inducing_cholesky() @ q.mean)
    expected = coordinate_ascent(model, whole, seed=0, max_steps=10, tolerance=0.0)
    deviation = np.sqrt(
        np.diag(expected.approximation.scale_tril @ expected.approximation.scale_tril.T)
    )
    # 32-bit kernels: a ten thousandth of a posterior sd.
    assert (np.abs(mean - expected.approximation.mean) < 1e-4 * deviation).all()


@pytest.mark.slow
def test_newsgroups_instances_are_ranked_once_by_bag(benchmark):
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


def test_comparators_are_fitted_on_the_published_folds_first(benchmark, data_folder):
    bags, tested_in = load("musk1"), published_folds("musk1")[:, 0]
    folds = benchmark("comparators").folds_of("musk1", bags, 2)
    assert len(folds) == 2
    for number, (training, test) in enumerate(folds, start=1):
        np.testing.assert_array_equal(test, np.flatnonzero(tested_in == number))
        np.testing.assert_array_equal(training, np.flatnonzero(tested_in != number))


def test_speed_of_dpmil_is_at_the_papers_sizes(benchmark):
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


@pytest.mark.slow
def test_speed_of_dpmil_times_every_counted_round(benchmark):
    speed = benchmark("dpmil_speed")
    rows = list(speed.rows_of(speed.TOY[0], seed=0))
    assert [row.rounds for row in rows] == [5, 5, 5]
    for row in rows:
        assert 0 < row.seconds < row.total


@dataclass(frozen=True)
class Counted:
    """What the accuracy benchmark of cardinality models finds in a fold."""

    accuracy: ModuleType
    protocol: Any
    bags: Bags
    fold: Any
    outcomes: dict

    def of(self, bags):
        """A fold of other bags, and what is found there."""
        held_out = np.arange(bags.num_bags) % 4 == 0
        with jax.enable_x64(True):
            fold = self.accuracy.Fold.of(bags, held_out, self.protocol)
            return fold, self.accuracy.outcomes_of(fold, self.protocol)

    @property
    def weights(self):
        """θ in each part."""
        with jax.enable_x64(True):
            return self.accuracy.find_modes(self.fold, self.protocol).weights

    def model(self, setting):
        scale = 1 / np.sqrt(2 * setting["regularisation"])
        return CardinalityModel(NormalCardinality(setting["mu"], 0.1), scale)

    def instance_kernel(self, length_scale):
        return RBF(1.0, length_scale * np.sqrt(self.bags.num_features))


@pytest.fixture(scope="module")
def counted(benchmark):
    accuracy = benchmark("cardinality_accuracy")
    protocol = replace(
        accuracy.Protocol.toy(seed=0),
        inner_folds=2,
        mu=(0.4,),
        penalty=(1.0, 100.0),
        length_scale=(0.2, 0.8),
        variance=(1.0, 10.0),
        max_steps=200,
        flat=1e-8,
        tolerance=1e-13,
    )
    empty = Counted(accuracy, protocol, load("digits").select(np.arange(40)), None, {})
    return replace(empty, **dict(zip(("fold", "outcomes"), empty.of(empty.bags), strict=True)))


@pytest.mark.slow
def test_a_fold_is_scaled_by_its_training_bags(counted):
    fold = counted.fold
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


@pytest.mark.slow
def test_bags_are_judged_by_fits_without_them(counted):
    fold = counted.fold
    sign = np.where(fold.bags.labels == 1, 1.0, -1.0)
    found = [np.where(part.judged, sign, -10 * sign) for part in fold.inner]
    accuracy, likelihood = fold.validated(found)
    assert accuracy == 1.0
    np.testing.assert_allclose(likelihood, -np.log1p(np.exp(-1.0)))  # that of a log odds of 1


@pytest.mark.slow
def test_bags_held_out_have_no_say(counted):
    bags, held_out = counted.bags, counted.fold.outer.judged
    moved = np.flatnonzero(held_out)[0]
    instances = np.where((bags.bag_index == moved)[:, None], 16 - bags.instances, bags.instances)
    labels = np.where(held_out, 1 - bags.labels, bags.labels)
    _, found = counted.of(replace(bags, instances=instances, labels=labels, instance_labels=None))
    for method, expected in counted.outcomes.items():
        assert found[method].setting == expected.setting
        # The process stands at the moved bag too, to within the root of its jitter.
        slack = np.sqrt(1e-6 * expected.setting.get("variance", 0.0))
        np.testing.assert_allclose(
            found[method].log_odds[1:], expected.log_odds[1:], rtol=1e-9, atol=slack
        )


@pytest.mark.slow
def test_the_benchmarks_mode_is_that_of_the_package(counted):
    fold, (found, setting, _) = counted.fold, counted.outcomes["MICPM"]
    training, test = (fold.bags.select(one) for one in fold.outer)
    mode = maximum_a_posteriori(counted.model(setting), training, seed=0)
    expected = logit(mode.predict(test).bag_probability)
    # Where the package's search ends the slope is at most 1e-6 in each of 64 coordinates, and the
    # curvature at least 1: 8e-6, times the slope of the log odds, which is some tens.
    np.testing.assert_allclose(found, expected, atol=1e-3)


@pytest.mark.slow
def test_the_benchmarks_classifier_is_that_of_the_package(counted):
    fold, (found, setting, _) = counted.fold, counted.outcomes["MICPK-SVM"]
    training, test = (fold.bags.select(one) for one in fold.outer)
    instance_kernel = counted.instance_kernel(setting["length_scale"])
    classifier = CardinalityKernelSVM(counted.model(setting), instance_kernel, setting["penalty"])
    # Both duals are solved to 1e-6, on kernels at modes that are known to 1e-5.
    np.testing.assert_allclose(found, classifier.fit(training).decision_function(test), atol=1e-3)


@pytest.mark.slow
def test_the_learners_objective_is_of_its_training_bags(counted):
    fold, setting = counted.fold, counted.outcomes["MICPKL"].setting
    training = fold.bags.select(fold.outer.learned_from)
    instance_kernel = counted.instance_kernel(setting["length_scale"])
    start = CardinalityKernel(counted.model(setting), counted.weights[-1], instance_kernel)
    among = KernelObjective.of(start, fold.bags, setting["penalty"], fold.outer.learned_from)
    alone = KernelObjective.of(start, training, setting["penalty"])
    for point in (among.origin, 2 * among.origin):
        value, slope = among(point)
        expected = alone(point)
        np.testing.assert_allclose(value, expected[0], rtol=1e-9)
        # The dual is solved to 1e-6.
        np.testing.assert_allclose(slope, expected[1], atol=1e-5 * setting["penalty"])


@pytest.mark.slow
def test_the_benchmarks_process_is_that_of_the_package(counted):
    fold, (found, setting, _) = counted.fold, counted.outcomes["GP by the bound"]
    training, test = (fold.bags.select(one) for one in fold.outer)
    instance_kernel = counted.instance_kernel(setting["length_scale"])
    kernel = CardinalityKernel(counted.model(setting), counted.weights[-1], instance_kernel)
    process = CardinalityGP.at_bags(kernel, training, setting["variance"])
    fit = coordinate_ascent(process, training, seed=0, tolerance=1e-13, max_steps=2000)
    given, q = process.accumulated(test), fit.approximation
    whitened = np.linalg.solve(np.asarray(given.cholesky), np.c_[q.mean, q.scale_tril])
    mean, *spread = (np.asarray(given.projection) @ whitened).T
    sd = np.sqrt(np.sum(np.square(spread), axis=0) + np.asarray(given.residual_variance))
    nodes, weights = np.polynomial.hermite_e.hermegauss(101)
    expected = logit(expit(mean[:, None] + sd[:, None] * nodes) @ weights / weights.sum())
    # One stands at the test bags too, to within the root of its jitter.
    np.testing.assert_allclose(found, expected, atol=np.sqrt(1e-6 * setting["variance"]))
    with jax.enable_x64(True):
        between = jnp.asarray(kernel(fold.bags, fold.bags))
        chosen = counted.accuracy.ProcessSetting(setting["length_scale"], setting["variance"])
        own = counted.accuracy.fitted_process(between, fold, fold.outer, chosen, counted.protocol)
    np.testing.assert_allclose(own.bound, fit.elbo[-1], atol=1e-3)


@pytest.mark.slow
def test_settings_have_the_best_agreement_on_inner_folds(counted):
    """By the package; of equals the first of λ falling, of C rising and then of ℓ falling."""
    fold = counted.fold

    def agreement(judge):
        """Accuracy and mean log likelihood over all training bags, each judged in its turn."""
        right, likelihood = [], []
        for number, part in enumerate(fold.inner):
            learned_from, judged = (fold.bags.select(one) for one in part)
            log_odds = judge(learned_from, judged, number)
            right.append((log_odds > 0) == judged.labels)
            likelihood.append(-np.log1p(np.exp(-np.where(judged.labels, log_odds, -log_odds))))
        return np.mean(np.concatenate(right)), np.mean(np.concatenate(likelihood))

    def of_model(regularisation):
        def judge(learned_from, judged, _):
            model = counted.model({"mu": 0.4, "regularisation": regularisation})
            mode = maximum_a_posteriori(model, learned_from, seed=0)
            return logit(mode.predict(judged).bag_probability)

        return agreement(judge)

    def of_classifier(penalty, length_scale):
        setting, weights = counted.outcomes["MICPM"].setting, counted.weights

        def judge(learned_from, judged, number):
            kernel = CardinalityKernel(
                counted.model(setting), weights[number], counted.instance_kernel(length_scale)
            )
            classifier = SVC(C=penalty, kernel="precomputed", tol=1e-6)
            classifier.fit(kernel(learned_from, learned_from), learned_from.labels)
            return classifier.decision_function(kernel(judged, learned_from))

        return agreement(judge)[0]

    model, classifier = (counted.outcomes[name].setting for name in ("MICPM", "MICPK-SVM"))
    assert model["regularisation"] == max((10.0, 1.0), key=of_model)
    settings = [(penalty, length) for penalty in (1.0, 100.0) for length in (0.8, 0.2)]
    best = max(settings, key=lambda setting: of_classifier(*setting))
    assert (classifier["penalty"], classifier["length_scale"]) == best


def test_the_speed_benchmark_of_scores_times_what_it_says(benchmark):
    speed = benchmark("neighbour_speed")
    points, bags = speed.data(200, seed=0)
    assert points.shape == bags.instances.shape == (200, 100)
    distances, label = cdist(points[:7], bags.instances), bags.labels[bags.bag_index]
    nearest = np.sort(distances, axis=1)[:, : speed.K]
    np.testing.assert_allclose(speed.run("scikit-learn", points[:7], bags), nearest, rtol=1e-6)
    votes = [
        np.sort(distances[:, label == one], axis=1)[:, : speed.K].sum(axis=1) for one in (0, 1)
    ]
    found = speed.run("NeighbourScore", points[:7], bags)
    np.testing.assert_allclose(found, votes[0] - votes[1], rtol=1e-6)


def test_the_set_kernel_is_the_mean_over_pairs(benchmark):
    cross_validation = benchmark("cross_validation")
    bags = load("digits").select(np.arange(4)).standardize()

    def mean(some, others):
        squared = cdist(some, others, "sqeuclidean")
        return np.exp(-0.5 * squared / bags.num_features).mean()

    lists = bags.to_list()
    plain = np.array([[mean(some, others) for others in lists] for some in lists])
    scale = np.sqrt(np.diagonal(plain))
    expected = (plain / np.outer(scale, scale))[:3, 2:]
    length_scale = np.sqrt(bags.num_features)
    found = cross_validation.set_kernel(bags.select(range(3)), bags.select([2, 3]), length_scale)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_folds_are_fitted_without_their_held_out_labels(benchmark, monkeypatch):
    cross_validation = benchmark("cross_validation")
    protocol = replace(cross_validation.Protocol.of(toy=True, seed=0), max_steps=5)
    bags = load("digits").select(np.arange(30))
    held_out = [np.arange(30) % 10 == fold for fold in (0, 1)]

    def rows(given):
        monkeypatch.setattr(cross_validation, "load", lambda _: given)
        seen = []

        def fit(train, test):
            seen.append((train.labels, train.instances))
            return np.linspace(0.1, 0.9, test.num_bags)

        monkeypatch.setattr(cross_validation.Protocol, "methods", lambda _: {"one": fit})
        monkeypatch.setattr(cross_validation, "folds_of", lambda *_: held_out)
        (row,) = cross_validation.rows_of("digits", protocol, SimpleNamespace(number=0))
        return row, seen

    row, seen = rows(bags)
    judged = held_out[0] | held_out[1]
    scores = np.tile(np.linspace(0.1, 0.9, 3), 2)[np.argsort(np.argsort(np.r_[0:6:2, 1:6:2]))]
    assert 0 <= row.accuracy <= 1 and row.compilations == row.compilations_again == 0
    assert row.auc == pytest.approx(roc_auc_score(bags.labels[judged], scores))
    other, seen_then = rows(
        replace(bags, labels=np.where(held_out[0], 1 - bags.labels, bags.labels))
    )
    for one, two in zip(seen[0], seen_then[0], strict=True):
        np.testing.assert_array_equal(one, two)
    assert len(seen) == 4 and len(seen[0][0]) == 27 and other.seconds


@pytest.fixture
def three_runs():
    """Two seeds of one sampler and one of another, with numbers that are easy to divide."""
    return pd.DataFrame(
        {
            "problem": "VGPMIL, digits",
            "engine": ["nuts, diagonal", "nuts, diagonal", "nuts, auto: laplace"],
            "compile s": 1.0,
            "seconds": [4.0, 10.0, 2.0],
            "sampling s": [2.0, 5.0, 1.0],
            "acceptance": 0.8,
            "steps/draw": [7.0, 9.0, np.nan],
            "step ms": 0.1,
            "median ESS": 500.0,
            "smallest ESS": [200.0, 100.0, 330.0],
        }
    )


def test_effective_draws_per_second_are_medians_over_seeds(benchmark, three_runs):
    nuts_speed = benchmark("nuts_speed")
    rows = nuts_speed.medians(three_runs)
    np.testing.assert_allclose(rows["smallest ESS/s"], [60.0, 330.0])
    np.testing.assert_allclose(rows["to first row's"], [1.0, 5.5])
    np.testing.assert_allclose(rows["with warm-up"], [30.0, 165.0])
    header, line, first, second = nuts_speed.markdown(rows).splitlines()
    assert header.count("|") == line.count("|") == first.count("|") == second.count("|")
    assert first.startswith("| nuts, diagonal | 1.0 | 3.50 | 3.50 | 0.80 | 8.0 | 0.100 | 500 | ")
    assert first.endswith(" | 150 | 60 | 1.00 | 30 |")
    assert " | 0.80 | – | " in second


def test_engines_left_out_keep_runs_and_order(benchmark, three_runs):
    nuts_speed = benchmark("nuts_speed")
    other = three_runs.iloc[[0, 2]].assign(engine=["gibbs", "nuts, diagonal"], seconds=[7.0, 8.0])
    kept = nuts_speed.beside(other, three_runs)
    assert kept["engine"].tolist() == ["nuts, diagonal", "nuts, auto: laplace", "gibbs"]
    assert kept["seconds"].tolist() == [8.0, 2.0, 7.0]


def test_the_picture_tells_gibbs_from_interweaved(benchmark, three_runs):
    runs = three_runs.assign(engine=["gibbs", "gibbs", "gibbs, interweaved"])
    (panel,) = benchmark("nuts_speed").picture(runs).axes
    dots, _, others, _ = (line.get_xydata().tolist() for line in panel.lines)
    assert (len(dots), len(others)) == (2, 1)


def test_the_picture_has_a_dot_a_seed(benchmark, three_runs):
    figure = benchmark("nuts_speed").picture(three_runs)
    (panel,) = figure.axes
    assert [label.get_text() for label in panel.get_yticklabels()] == [
        "nuts, diagonal",
        "nuts, auto",
    ]
    dots, median, other, other_median = (line.get_xydata().tolist() for line in panel.lines)
    assert dots == [[50.0, 0.0], [10.0, 0.0]]
    assert (median, other, other_median) == ([[30.0, 0.0]], [[165.0, 1.0]], [[165.0, 1.0]])


def test_the_page_of_samplers_shows_the_kept_runs(benchmark):
    nuts_speed = benchmark("nuts_speed")
    page = (BENCHMARKS.parent / "docs" / "which_sampler.md").read_text("utf-8")
    kept = sorted((BENCHMARKS.parent / "docs" / "nuts_speed").glob("*.csv"))
    assert len(kept) == 3
    for path in kept:
        assert nuts_speed.markdown(nuts_speed.medians(pd.read_csv(path))) in page


# ------------------------------------------------------------------ counts and outliers


def test_dealt_bags_count_their_twos_and_nines(benchmark, monkeypatch):
    """Features are left as they are, so that they tell which digit each instance is."""
    counts = benchmark("counts_and_outliers")
    digits = load("digits")
    is_positive = {
        row.tobytes(): label
        for row, label in zip(digits.instances, digits.instance_labels, strict=True)
    }
    monkeypatch.setattr(Bags, "standardize", lambda bags, *_: bags)
    ((training, test),) = counts.deals(1, None, seed=0)
    for bags in (training, test):
        found = [sum(is_positive[row.tobytes()] for row in bag) for bag in bags.to_list()]
        np.testing.assert_array_equal(bags.targets, found)
        assert bags.bag_sizes.min() >= 1 and bags.bag_sizes.max() <= 20
    assert training.num_instances + test.num_instances == digits.num_instances


def test_a_tenth_of_targets_is_ten_times_too_large(benchmark):
    counts = benchmark("counts_and_outliers")
    bags = Bags.from_list([np.zeros((1, 1))] * 4000).with_targets(np.ones(4000))
    wrong = counts.with_wrong_targets(bags, np.random.default_rng(0)).targets
    assert set(wrong) == {1.0, 10.0}
    # A binomial fraction of sd 0.0047: 5 of them.
    assert abs((wrong == 10).mean() - 0.1) < 0.024


# ------------------------------------------------------------------ coupled labels


def test_a_shuffled_graph_keeps_its_bags(benchmark):
    """With the same numbers of neighbours in each bag, between other instances."""
    bags = patch_on_grid(3, side=4, patch=2, seed=0)
    found = benchmark("coupled_labels").shuffled(bags, seed=1)
    for ours, theirs in zip(bags, found, strict=True):
        one, other = (given.edges.as_matrix(16).toarray() for given in (ours, theirs))
        np.testing.assert_array_equal(np.sort(one.sum(axis=0)), np.sort(other.sum(axis=0)))
        assert (one != other).any() and (other == other.T).all()
        np.testing.assert_array_equal(ours.instances, theirs.instances)


def test_couplings_are_compared_on_the_same_bags(benchmark):
    """Differences of each seed, and the standard error of their mean."""
    coupled_labels = benchmark("coupled_labels")
    losses = {"γ = 0.0": [1.0, 2.0, 4.0], "γ = 0.5": [0.9, 1.8, 3.3]}
    rows = pd.DataFrame(
        {"seed": seed, "graph": "grid", "model": model, "bags": loss, "instances": 2 * loss}
        for model, of_seeds in losses.items()
        for seed, loss in enumerate(of_seeds)
    )
    found = coupled_labels.summary(rows).loc[("grid", "γ = 0.5")]
    error = np.std([0.1, 0.2, 0.7], ddof=1) / np.sqrt(3)
    assert found["difference of bags"] == f"-0.333 ± {error:.3f}"
    assert found["difference of instances"] == f"-0.667 ± {2 * error:.3f}"
    assert found["log loss of bags"] == "2.000"


@pytest.mark.slow
def test_the_coupling_benchmark_has_a_row_of_each_model(benchmark):
    coupled_labels = benchmark("coupled_labels")
    sizes = {"train": 10, "test": 5, "num_inducing": 5, "num_draws": 20}
    rows = pd.DataFrame(coupled_labels.of_seed(coordinate_ascent, 0, sizes))
    assert len(rows) == 2 * (len(coupled_labels.COUPLINGS) + 1) + 1
    by_folds = rows[rows["model"] == "γ by folds"]
    for _, row in by_folds.iterrows():
        alike = (rows["graph"] == row["graph"]) & (rows["model"] == f"γ = {row['chosen']}")
        assert rows[alike]["bags"].item() == row["bags"]
    # Without coupling the graph has no effect.
    uncoupled = rows[rows["model"] == "γ = 0.0"]
    np.testing.assert_allclose(np.ptp(uncoupled[["bags", "instances"]], axis=0), 0.0, atol=1e-12)


def test_scripts_are_varied_by_what_is_asked_for(benchmark):
    scripts_varied = benchmark("scripts_varied")
    ((_, table),) = exhibits_named("castro-macias-2024/table-5")
    gamma, logistic = table.cells[:2]
    bags = load("digits")[:30]

    def of(cell, from_instances, beta):
        method, parameters = cell.attempts[0].method, {"alpha": None, "beta": beta}
        pipeline, grid = scripts_varied.varied(method, from_instances, parameters, bags, None)
        return pipeline[-1].set_params(num_inducing=6), grid

    (as_there, grid), (changed, with_beta) = of(gamma, False, None), of(gamma, True, [3.0])
    assert with_beta == grid | {"classify__beta": [3.0]}
    assert of(logistic, True, [3.0])[1] == {}
    assert type(changed) is scripts_varied.FromInstances
    assert changed.get_params() == as_there.get_params()
    centres = changed._centres_by_label(bags)
    of_negative = bags.instances[np.asarray(bags.labels)[bags.bag_index] == 0]
    nearest = cdist(of_negative, centres[:3]).argmin(axis=1)
    assert sorted(np.unique(nearest)) == [0, 1, 2]  # no centre is far from all instances


def test_newsgroups_have_rows_of_instances_where_some_are_labelled(benchmark):
    rows_of = benchmark("dpmil_all_newsgroups").rows_of
    by_fold = pd.DataFrame(
        {
            "classifier": ["20, α = 2", "MI-Kernel"] * 2,
            "auc": [0.8, 0.4, 0.9, 0.6],
            "instance_average_precision": [0.7, np.nan, 0.7, np.nan],
        }
    )
    of_bags = "| hockey | bag AUC | 0.850 ± 0.050 | 0.500 ± 0.100 |"
    assert rows_of("hockey", by_fold) == [of_bags, "| hockey | AUC-PR | 0.700 ± 0.000 | – |"]
    assert rows_of("hockey", by_fold.assign(instance_average_precision=np.nan)) == [of_bags]


def test_the_bootstrap_draws_bags_and_not_instances(benchmark):
    """Half of the bags rank their instances rightly, and half have none that is positive."""
    bootstrap_error = benchmark("hockey_by_setting").bootstrap_error
    right, empty = (np.array([1, 0]), np.array([2.0, 1.0])), (np.zeros(2, int), np.full(2, 3.0))
    assert bootstrap_error([right] * 8, seed=0) == 0
    # AP is p/(2 − p), where p of the bags are right: its derivative at ½ is 8/9, and sd p is ½/√n.
    found = bootstrap_error([right, empty] * 200, seed=0, num_samples=2000)
    assert found == pytest.approx(8 / 9 * 0.5 / np.sqrt(400), rel=0.1)


def test_the_key_instance_alone_keeps_its_score(benchmark):
    bags = Bags.from_list([np.zeros((2, 1)), np.zeros((3, 1))], [0, 1])
    scores = np.array([0.3, -0.2, 5.0, 4.0, 6.0])
    found = benchmark("hockey_by_setting").key_scores(scores, bags)
    assert found[[0, 4]].tolist() == [0.3, 6.0]
    assert found[[1, 2, 3]].max() < scores.min()
