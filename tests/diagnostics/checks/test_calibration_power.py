"""Power of a calibration, against calibrations that are run."""

import re
from pathlib import Path

import numpy as np
import pytest
from milzoo.diagnostics import SimulationCalibration, calibration_power

SIMULATIONS, QUANTITIES, DRAWS, RUNS = 150, 4, 49, 300


@pytest.fixture(scope="module")
def power():
    return calibration_power(SIMULATIONS, num_quantities=QUANTITIES, seed=0, num_draws=DRAWS)


def fraction_found(bias, ratio):
    """Of runs whose first quantity has draws of N(bias, ratio²), its truth being of N(0, 1)."""
    random = np.random.default_rng(1)

    def is_found():
        truth = random.normal(size=(SIMULATIONS, QUANTITIES, 1))
        draws = random.normal(size=(SIMULATIONS, QUANTITIES, DRAWS))
        draws[:, 0] = bias + ratio * draws[:, 0]
        rank = (draws < truth).sum(axis=2) + random.random((SIMULATIONS, QUANTITIES))
        pit = rank / (DRAWS + 1)
        run = SimulationCalibration(
            "planted",
            {str(q): pit[:, q] for q in range(QUANTITIES)},
            {str(q): truth[:, q, 0] for q in range(QUANTITIES)},
            np.ones(SIMULATIONS, bool),
            DRAWS,
            1.0,
            1e-4,
        )
        return bool(run.not_uniform)

    return np.mean([is_found() for _ in range(RUNS)])


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["narrow", "wide", "bias"])
def test_faults_of_that_size_have_that_power(power, fault):
    size = getattr(power, fault)
    found = fraction_found(size, 1.0) if fault == "bias" else fraction_found(0.0, size)
    # Of 300 runs here and 400 there, 4.9 standard errors: two-sided 1e-6.
    assert found == pytest.approx(0.8, abs=4.9 * np.sqrt(0.16 * (1 / 300 + 1 / 400)))


@pytest.mark.in_ci
def test_smaller_faults_need_more_simulations(power):
    more = calibration_power(4 * SIMULATIONS, num_quantities=QUANTITIES, seed=0, num_draws=DRAWS)
    assert power.narrow < more.narrow < 1 < more.wide < power.wide
    # The band shrinks with the root of the number.
    assert more.bias == pytest.approx(power.bias / 2, rel=0.2)


def test_more_quantities_hide_a_fault(power):
    more = calibration_power(SIMULATIONS, num_quantities=400, seed=0, num_draws=DRAWS)
    assert more.narrow < power.narrow and more.bias > power.bias


def test_faults_that_no_simulation_can_find_are_infinite():
    few = calibration_power(4, num_quantities=4, seed=0)
    assert (few.narrow, few.wide) == (0.0, np.inf) and few.bias < 8
    said = f"find, with probability 0.8, a bias of {few.bias:.2f} posterior sds"
    assert few.sentence == f"4 simulations of 4 quantities {said}"
    assert calibration_power(2, num_quantities=4, seed=0).sentence.endswith("however large")


@pytest.mark.in_ci
def test_the_guide_quotes_what_is_found():
    guide = Path(__file__).parents[3] / "docs" / "reading_a_comparison.md"
    quoted = re.sub(r"\s+", " ", guide.read_text("utf-8"))
    sentence = calibration_power(1000, num_quantities=6, seed=0).sentence
    assert sentence.partition("probability 0.8, ")[2] in quoted


@pytest.mark.parametrize(
    ("changed", "message"),
    [({"num_quantities": 0}, "num_quantities is 0"), ({"power": 1.0}, "power is 1.0")],
)
def test_bad_numbers_are_named(changed, message):
    with pytest.raises(ValueError, match=message):
        calibration_power(10, **({"num_quantities": 2, "seed": 0} | changed))
