"""Log odds and their loss, against decimals of many digits."""

from decimal import Decimal, localcontext

import numpy as np
import pytest
from milzoo.models.numerics.log_odds import log_loss, log_odds


def test_log_odds_are_accurate_and_finite():
    probability = np.array([0.0, 1e-300, 0.3, 0.5, 1 - 2.0**-53, 1.0])
    found = log_odds(probability)
    for p, value in zip(probability[1:-1], found[1:-1], strict=True):
        exact = Decimal(float(p))
        expected = float((exact / (1 - exact)).ln())
        assert value == pytest.approx(expected, rel=1e-14, abs=1e-14)
    assert found[-1] == -found[0] and 708 < found[-1] < np.inf


def test_the_loss_is_minus_the_log_probability():
    values = np.array([-900.0, -50.0, -0.3, 0.0, 2.0, 40.0, 900.0])
    of_one, of_none = log_loss(values, np.ones(7)), log_loss(values, np.zeros(7))
    with localcontext() as context:
        context.prec = 900  # 1 + e^−900 has as many
        for value, one, none in zip(values, of_one, of_none, strict=True):
            odds = Decimal(float(value)).exp()
            assert one == pytest.approx(float(-(odds / (1 + odds)).ln()), rel=1e-13, abs=0)
            assert none == pytest.approx(float((1 + odds).ln()), rel=1e-13, abs=0)
    np.testing.assert_allclose(log_loss(values, np.full(7, 0.25)), of_one / 4 + 0.75 * of_none)
