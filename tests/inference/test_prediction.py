"""What is said of new targets: mixtures of Gaussians, by hand."""

import numpy as np
import pytest
from milzoo.datasets import Bags
from milzoo.diagnostics.measures.scores import score
from milzoo.inference.prediction import LatentPrediction, Prediction, TargetPrediction
from milzoo.models import StudentT
from scipy import stats

MEAN = np.array([[-1.0, 1.0, 2.0], [1.0, 1.0, 6.0]])
SCALE = np.array([[1.0, 2.0, 0.5], [3.0, 2.0, 1.0]])


@pytest.fixture
def target_prediction():
    return TargetPrediction(MEAN, SCALE, MEAN - 1.0, 2.0 * SCALE)


def test_targets_are_scored_by_hand(target_prediction):
    test = Bags.from_arrays(np.zeros((3, 1)), [0, 1, 2]).with_targets([0.0, 1.0, 2.0])
    density = stats.norm.pdf(test.targets, MEAN, SCALE).mean(axis=0)
    np.testing.assert_allclose(target_prediction.log_density(test.targets), np.log(density))
    found = score(target_prediction, test)
    assert found.log_loss == pytest.approx(-np.log(density).mean())
    assert found.rmse == pytest.approx(np.sqrt(4 / 3))  # errors 0, 0 and 2


def test_target_intervals_have_equal_tails_of_the_mixture(target_prediction):
    for interval, mean, scale in (
        (target_prediction.bag_interval(0.8), MEAN, SCALE),
        (target_prediction.instance_interval(0.8), MEAN - 1.0, 2.0 * SCALE),
    ):
        below = [stats.norm.cdf(end, mean, scale).mean(axis=0) for end in interval]
        np.testing.assert_allclose(below, np.repeat([[0.1], [0.9]], 3, axis=1), rtol=1e-8)


def test_targets_of_other_bags_are_refused(target_prediction):
    with pytest.raises(ValueError, match=r"targets have shape \(2,\); expected \(3,\), one"):
        target_prediction.log_density([0.0, 1.0])


@pytest.mark.parametrize(
    ("name", "value", "is_number"),
    [
        ("bag_scale", np.inf, True),  # two degrees of freedom
        ("bag_scale", np.nan, False),
        ("bag_mean", np.inf, False),
        ("latent", np.inf, False),
    ],
)
def test_a_heavy_tail_is_no_failed_run(name, value, is_number):
    at_zero, latent_scale = np.zeros((2, 3)), np.ones((2, 3))
    fields = {"bag_mean": at_zero.copy(), "bag_scale": np.ones((2, 3)), "latent": latent_scale}
    fields[name][1, 2] = value
    prediction = TargetPrediction(
        fields["bag_mean"],
        fields["bag_scale"],
        at_zero,
        np.ones((2, 3)),
        LatentPrediction(StudentT(2.0, 1.0), at_zero, latent_scale),
    )
    found = prediction.is_finite(np.arange(3))
    assert found.tolist() == [True, True, is_number]


def test_log_odds_are_those_of_mean_probabilities():
    prediction = Prediction(np.array([[0.2, 1.0], [0.6, 1.0]]), np.array([[0.9, 0.0]]))
    of_bags = prediction.bag_log_odds
    assert of_bags[0] == pytest.approx(np.log(0.4 / 0.6), rel=1e-14)
    of_instances = prediction.instance_log_odds
    assert of_instances[0] == pytest.approx(np.log(0.9 / 0.1), rel=1e-14)
    for rounded in (of_bags[1], -of_instances[1]):
        assert 700 < rounded < np.inf


def test_predictive_log_odds_stay_apart_where_probabilities_round():
    known, of_instances = np.array([40.0, 800.0, -800.0]), np.array([50.0, 60.0])
    prediction = Prediction(np.full((2, 3), 0.5), np.full((2, 2), 0.5), known, of_instances)
    assert prediction.bag_probability.tolist() == [1.0, 1.0, 0.0]
    assert prediction.instance_probability.tolist() == [1.0, 1.0]
    np.testing.assert_array_equal(prediction.bag_log_odds, known)
    np.testing.assert_array_equal(prediction.instance_log_odds, of_instances)


def test_one_draw_has_no_interval():
    prediction = Prediction(np.full((1, 2), 0.3), np.full((5, 2), 0.3))
    with pytest.raises(ValueError, match="one draw, as maximum_a_posteriori and accumulation='ind"):
        prediction.bag_interval()
