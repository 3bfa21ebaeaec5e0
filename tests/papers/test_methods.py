"""Methods of the papers that are estimators of their own here, and the comparators' grids."""

import math
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from milzoo.datasets import load
from milzoo.estimators import (
    CardinalityKernelLearner,
    CardinalityKernelSVM,
    PCAOfInstances,
    PrototypeLearner,
    ScoreLearner,
)
from milzoo.inference import maximum_a_posteriori
from milzoo.models import (
    RBF,
    VGPMIL,
    CardinalityModel,
    GammaScaleMixture,
    MajorityCardinality,
    NeighbourScore,
    NormalCardinality,
)
from milzoo.papers import PAPERS, castro_macias_2024, exhibits_named, hajimirsadeghi_2017
from milzoo.papers.castro_macias_2024 import StoppedVGPMIL
from milzoo.papers.comparators import comparator, comparators
from milzoo.papers.hajimirsadeghi_2017 import TwoStageKernelSVM, chosen_model
from milzoo.papers.results import read
from milzoo.papers.venkatesan_2015 import ElbowLearner, FlippedLabels, LogPrototypes
from sklearn.base import clone
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold


@pytest.fixture(scope="module")
def bags():
    return load("digits")[:60]


@pytest.fixture(scope="module")
def scene():
    return load("kandemir2014")


# ------------------------------------------------------------------ VGPMIL, stopped early


@pytest.fixture(scope="module")
def stopped(bags):
    return StoppedVGPMIL(15, 40.0, seed=0).fit(bags)


@pytest.mark.in_ci
def test_a_bag_is_as_likely_as_its_likeliest_instance(bags, stopped):
    of_instances = stopped.posterior_.predict(bags.without_labels()).instance_probability
    expected = [of_instances[bags.bag_index == b].max() for b in range(len(bags))]
    np.testing.assert_allclose(stopped.predict_proba(bags)[:, 1], expected)


@pytest.mark.in_ci
def test_the_ascent_ends_ten_steps_behind_the_best(bags, stopped):
    """A fifth of the bags is watched and not fitted; each step's AUC is found again."""
    fitted, watched = castro_macias_2024._split_off(bags, 0)
    assert (len(fitted), len(watched)) == (48, 12)
    assert not set(fitted.names) & set(watched.names)
    assert set(stopped.posterior_.bags.names) == set(fitted.names)
    steps, found = len(stopped.posterior_.elbo), []
    for number in range(1, steps + 1):
        one = castro_macias_2024.coordinate_ascent(
            stopped.posterior_.model,
            fitted,
            seed=0,
            label_update="plug_in_max",
            max_steps=number,
            tolerance=0.0,
            num_draws=100,
        )
        probability = one.predict(watched.without_labels()).instance_probability
        of_bags = np.maximum.reduceat(probability, watched.starts)
        found.append(roc_auc_score(watched.labels, of_bags))
    assert int(np.argmax(found)) + 1 == steps - 10


@pytest.mark.in_ci
def test_settings_are_those_of_the_model(bags):
    fitted = StoppedVGPMIL(10_000, 40.0, alpha=1.0, beta=2.5, seed=0).fit(bags[:20])
    model = fitted.posterior_.model
    assert model.scale_mixture == GammaScaleMixture(1.0, 2.5)
    assert (model.sharpness, float(model.kernel.variance)) == (100.0, 0.5)
    # All distinct instances, as there are no more.
    assert len(model.inducing_points) == len(np.unique(bags[:20].instances, axis=0))


@pytest.mark.in_ci
@pytest.mark.parametrize(("table", "D"), [(4, 30), (5, 784), (6, 166), (7, 166)])
def test_the_kernel_is_the_papers(bags, table, D):
    """v exp(−‖x − x'‖²/(2l)) with (v, l) = (0.5, D)."""
    ((_, exhibit),) = exhibits_named(f"castro-macias-2024/table-{table}")
    for cell in exhibit.cells:
        _, honest = cell.attempts
        pipeline, _ = honest.method(bags, None)
        assert pipeline["classify"].length_scale ** 2 == pytest.approx(D)
    fitted = StoppedVGPMIL(5, D**0.5, seed=0).fit(bags)
    kernel, ones = fitted.posterior_.model.kernel, np.ones((1, 4))
    assert kernel.covariance(ones, 0 * ones).item() == pytest.approx(0.5 * math.exp(-4 / (2 * D)))


def test_settings_share_the_components_of_digits(bags, monkeypatch, tmp_path):
    """PCA of the same bags is not fitted again for another α."""
    ((_, exhibit),) = exhibits_named("castro-macias-2024/table-4")
    _, honest = exhibit.cells[0].attempts
    pipeline, _ = honest.method(bags, str(tmp_path))
    num_fits, fit = [], PCAOfInstances.fit
    monkeypatch.setattr(PCAOfInstances, "fit", lambda *given: num_fits.append(1) or fit(*given))
    monkeypatch.setattr(StoppedVGPMIL, "fit", lambda self, bags, labels: self)
    for alpha in (0.5, 1.0):
        clone(pipeline).set_params(classify__alpha=alpha).fit(bags, bags.labels)
    assert len(num_fits) == 1
    clone(pipeline).fit(bags[:50], bags.labels[:50])
    assert len(num_fits) == 2


@pytest.mark.in_ci
def test_memory_keeps_inducing_points_for_other_mixtures(bags, stopped, monkeypatch, tmp_path):
    def probabilities(num_inducing=15, alpha=None):
        given = {"alpha": alpha, "beta": alpha, "memory": str(tmp_path)}
        fitted = StoppedVGPMIL(num_inducing, 40.0, seed=0, **given).fit(bags)
        return fitted.predict_proba(bags)

    probabilities(alpha=1.0)
    monkeypatch.setattr(VGPMIL, "as_published", None)
    np.testing.assert_array_equal(probabilities(), stopped.predict_proba(bags))
    with pytest.raises(TypeError, match="not callable"):
        probabilities(num_inducing=14)


# ------------------------------------------------------------------ k at the elbow


def test_k_stands_at_the_elbow_of_the_training_error(scene):
    assert ElbowLearner(1).fit(scene).learner_.neighbourhood_score == NeighbourScore(1)
    fitted = ElbowLearner(4).fit(scene)
    errors = [ScoreLearner(NeighbourScore(k)).fit(scene).threshold_.error for k in range(1, 5)]
    below_chord = np.linspace(errors[0], errors[-1], 4) - errors
    chosen = NeighbourScore(1 + int(np.argmax(below_chord)))
    alone = ScoreLearner(chosen).fit(scene)
    np.testing.assert_array_equal(fitted.predict(scene), alone.predict(scene))
    np.testing.assert_array_equal(fitted.decision_function(scene), alone.decision_function(scene))


# ------------------------------------------------------------------ labels that are flipped


@pytest.mark.in_ci
def test_a_fraction_of_the_labels_is_flipped(scene):
    """And those of a smaller fraction stay flipped; the classifier behind sees nothing else."""

    class Labels(ScoreLearner):
        def _fit(self, bags):
            super()._fit(bags)
            self.seen_ = np.array(bags.labels), bags.instance_labels

    flipped = []
    for fraction in (0.0, 0.2, 0.4):
        noisy = FlippedLabels(Labels(NeighbourScore(1)), fraction, seed=0).fit(scene)
        seen, instance_labels = noisy.classifier_.seen_
        flipped.append(set(np.flatnonzero(seen != scene.labels)))
        assert fraction == 0 or instance_labels is None
    assert [len(one) for one in flipped] == [0, 8, 16]
    assert flipped[1] < flipped[2]


@pytest.mark.in_ci
def test_labels_that_are_not_flipped_change_nothing(scene):
    alone = ScoreLearner(NeighbourScore(2)).fit(scene)
    noisy = FlippedLabels(ScoreLearner(NeighbourScore(2)), 0.0, seed=0).fit(scene)
    np.testing.assert_array_equal(noisy.predict(scene), alone.predict(scene))
    np.testing.assert_array_equal(noisy.decision_function(scene), alone.decision_function(scene))


def test_settings_are_chosen_by_flipped_labels(scene):
    ((_, exhibit),) = exhibits_named("venkatesan-2015/figure-6")
    for cell in exhibit.cells[:4:3]:  # of the score, and of MILES
        (attempt,) = cell.attempts
        estimator, grid = attempt.method(scene, None)
        assert not grid
        assert isinstance(estimator, FlippedLabels)
        assert isinstance(estimator.classifier, GridSearchCV)


def test_prototypes_have_a_concave_transform(scene):
    fitted = LogPrototypes(3, 1.0).fit(scene)
    alone = PrototypeLearner(NeighbourScore(3, jnp.log1p), 1.0).fit(scene)
    np.testing.assert_array_equal(fitted.predict(scene), alone.predict(scene))
    np.testing.assert_array_equal(fitted.decision_function(scene), alone.decision_function(scene))


# ------------------------------------------------------------------ the cardinality kernel


def test_the_majority_potential_leaves_one_setting_to_choose(scene):
    ((_, exhibit),) = exhibits_named("hajimirsadeghi-2017/table-1")
    cells = [cell for cell in exhibit.cells if cell.method == "MICPM, majority"]
    assert {cell.data for cell in cells} == {"elephant", "fox", "musk1", "musk2"}
    published, honest = cells[0].attempts
    assert published.method == honest.method
    _, grid = honest.method(scene, None)
    assert grid["classify__model__potential"] == [MajorityCardinality()]
    assert {len(values) for values in grid.values()} == {1, 4}


@pytest.mark.slow
def test_folds_of_training_bags_choose_the_model(scene, monkeypatch):
    """A search of two settings, by a loop over the same folds."""
    monkeypatch.setattr(hajimirsadeghi_2017, "MU", (0.2, 0.9))
    monkeypatch.setattr(hajimirsadeghi_2017, "WEIGHT_SCALE", (math.sqrt(0.5),))
    scores = {}
    for mu in (0.2, 0.9):
        model = CardinalityModel(NormalCardinality(mu, 0.1), 1 / math.sqrt(2))
        right = []
        for train, test in StratifiedKFold(3, shuffle=True, random_state=0).split(
            np.zeros(len(scene)), scene.labels
        ):
            mode = maximum_a_posteriori(model, scene[train], seed=0)
            probability = mode.predict(scene[test].without_labels()).bag_probability
            right.append(np.mean((probability > 0.5) == scene.labels[test]))
        scores[mu] = np.mean(right)
    assert len(set(scores.values())) == 2
    chosen = chosen_model(scene)
    assert chosen.potential == NormalCardinality(max(scores, key=scores.__getitem__), 0.1)
    assert chosen.weight_scale == pytest.approx(math.sqrt(0.5))


def test_the_best_models_are_those_of_the_published_row():
    """Typed from the results of MICPM that are kept."""
    folder = Path(__file__).resolve().parents[2] / "docs" / "results"
    kept = read(folder / "hajimirsadeghi-2017" / "table-1.csv")
    of_row = {
        one.data: one.setting
        for one in kept
        if (one.method, one.protocol, one.score) == ("MICPM", "as published", "accuracy")
    }
    assert of_row == {
        data: f"potential={NormalCardinality(mu, 0.1)}, weight_scale={scale}"
        for data, (mu, scale) in hajimirsadeghi_2017.BEST_MODEL.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("learns", [False, True])
def test_folds_choose_the_classifier_on_the_kernel(scene, monkeypatch, tmp_path, learns):
    """C and ℓ by a loop at the mode; and then λ of a learned kernel."""
    model = CardinalityModel(NormalCardinality(0.2, 0.1), 1.0)
    monkeypatch.setattr(hajimirsadeghi_2017, "chosen_model", lambda bags: model)
    monkeypatch.setattr(hajimirsadeghi_2017, "WEIGHT_SCALE", (0.1, 5.0))
    monkeypatch.setattr(hajimirsadeghi_2017, "PENALTY", (0.01, 100.0))
    monkeypatch.setattr(hajimirsadeghi_2017, "LENGTH_SCALE", (0.02, 2.0))
    folds = list(StratifiedKFold(3, shuffle=True, random_state=0).split(scene, scene.labels))

    def score(classifier):
        return np.mean([classifier.fit(scene[a]).score(scene[b]) for a, b in folds])

    settings = [(penalty, length) for length in (0.02, 2.0) for penalty in (0.01, 100.0)]
    of_svm = [
        CardinalityKernelSVM(model, RBF(1.0, length * math.sqrt(2)), penalty)
        for penalty, length in settings
    ]
    scores = [score(one) for one in of_svm]
    assert np.ptp(scores) > 0.05
    best = of_svm[int(np.argmax(scores))]
    if learns:
        given = best.instance_kernel, best.penalty
        models = [replace(model, weight_scale=scale) for scale in (0.1, 5.0)]
        best = max((CardinalityKernelLearner(one, *given) for one in models), key=score)
    two_stages = TwoStageKernelSVM(learns, str(tmp_path)).fit(scene)
    found = two_stages.classifier_
    assert (found.penalty, found.instance_kernel.length_scale) == (
        best.penalty,
        best.instance_kernel.length_scale,
    )
    assert found.model.weight_scale == best.model.weight_scale and type(found) is type(best)
    expected = best.fit(scene).decision_function(scene)
    np.testing.assert_allclose(two_stages.decision_function(scene), expected, atol=1e-6)


# ------------------------------------------------------------------ all of them


def test_grids_have_names_and_values_of_parameters(scene):
    chosen = [comparator(name) for name in comparators(4)]
    for paper in PAPERS:
        for exhibit in paper.exhibits:
            for cell in exhibit.cells:
                chosen += [attempt.method for attempt in cell.attempts]
    for method in chosen:
        estimator, grid = method(scene, None)
        clone(estimator).set_params(**{setting: values[-1] for setting, values in grid.items()})
