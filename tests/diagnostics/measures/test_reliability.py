"""Calibration curves against the definition of isotonic regression, and against forecasts known."""

import numpy as np
import pytest
from milzoo.diagnostics.measures.reliability import reliability
from scipy.stats import binom


def by_definition(probability, truth):
    """max over starts, min over ends, of the mean between: isotonic least squares, case by case."""
    distinct = np.unique(probability)
    frequency = np.array([truth[probability == p].mean() for p in distinct])
    counts = np.array([(probability == p).sum() for p in distinct])

    def mean(start, end):
        part = slice(start, end + 1)
        return (frequency[part] * counts[part]).sum() / counts[part].sum()

    indices = range(len(distinct))
    return np.array(
        [
            max(min(mean(start, end) for end in indices if end >= at) for start in range(at + 1))
            for at in indices
        ]
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_curve_is_isotonic_regression_by_its_definition(seed):
    random = np.random.default_rng(seed)
    probability = random.integers(1, 9, size=40) / 9  # so that some forecasts are alike
    truth = (random.random(40) < probability).astype(int)
    found = reliability(probability, truth)
    expected = by_definition(probability, truth)
    np.testing.assert_allclose(found.frequency, expected, atol=1e-12)
    of_case = np.searchsorted(found.probability, probability)
    error = np.abs(expected[of_case] - probability).mean()
    assert found.error == pytest.approx(error, abs=1e-12)


def test_the_error_is_that_by_hand():
    # 0.2 → 0 and 0.6 → 1 as they are; 0.7 → 0 and 0.9 → 1: 0.6 and 0.7 pooled to ½.
    found = reliability(np.array([0.7, 0.2, 0.9, 0.6]), np.array([0, 0, 1, 1]))
    np.testing.assert_allclose(found.frequency, [0, 0.5, 0.5, 1])
    assert found.error == pytest.approx((0.2 + 0.1 + 0.2 + 0.1) / 4)


def test_the_order_of_cases_does_not_matter():
    random = np.random.default_rng(3)
    probability = random.integers(1, 5, size=60) / 5
    truth = random.integers(0, 2, size=60)
    order = random.permutation(60)
    one, other = reliability(probability, truth), reliability(probability[order], truth[order])
    np.testing.assert_allclose(one.frequency, other.frequency, atol=1e-12)
    assert one.error == pytest.approx(other.error, abs=1e-12)


@pytest.mark.slow
def test_only_uncalibrated_forecasts_exceed_the_expected_error():
    random = np.random.default_rng(0)
    probability = random.uniform(0.02, 0.98, size=400)
    p_values, errors = [], []
    for _ in range(100):
        found = reliability(probability, random.random(400) < probability)
        p_values.append(found.p_value)
        errors.append(found.error)
    # 100 p-values, uniform on a grid of 1,001: their mean is ½ ± 1/√(12 · 100) = 0.029. The mean
    # of the errors is within 5 standard errors of the one expected. False alarms below 1e-6 each.
    assert abs(np.mean(p_values) - 0.5) < 5 * np.sqrt(1 / 12 / 100)
    standard_error = np.std(errors) * np.sqrt(1 / 100 + 1 / 1000)
    assert abs(np.mean(errors) - found.error_if_calibrated) < 5 * standard_error
    sharper = np.clip(3 * (probability - 0.5) + 0.5, 0.02, 0.98)
    error = np.abs(sharper - probability).mean()
    wrong = reliability(sharper, random.random(400) < probability)
    # The mean error of the forecasts is 0.15, and chance adds and takes no more than before.
    assert wrong.p_value < 0.002 and abs(wrong.error - error) < found.error_if_calibrated


def test_truths_outside_the_band_are_detected():
    probability = np.repeat([0.1, 0.5, 0.9], 200)
    truth = np.concatenate(
        [np.arange(200) < fraction * 200 for fraction in (0.3, 0.5, 0.7)]
    ).astype(int)
    found = reliability(probability, truth)
    np.testing.assert_allclose(found.frequency, [0.3, 0.5, 0.7])
    np.testing.assert_array_equal(found.frequency > found.high, [True, False, False])
    np.testing.assert_array_equal(found.frequency < found.low, [False, False, True])


def test_band_of_equal_forecasts_is_binomial():
    found = reliability(np.full(400, 0.3), np.zeros(400, int))
    # Of 1,000 draws: levels are known to 5 standard errors, 0.035, and a step of the distribution.
    for bound, level in ((found.low.item(), 0.05), (found.high.item(), 0.95)):
        step = binom.pmf(round(400 * bound), 400, 0.3)
        assert abs(binom.cdf(400 * bound, 400, 0.3) - level) < 0.035 + step


def test_no_cases_are_refused():
    with pytest.raises(ValueError, match="no forecasts"):
        reliability(np.empty(0), np.empty(0, int))
