"""Verdicts on chains: R̂, effective sample sizes, divergences."""

import pytest
from milzoo.diagnostics.measures.convergence import Convergence

REASONABLE = {
    "num_chains": 4,
    "num_draws": 1000,
    "rhat": 1.004,
    "ess_bulk": 2000.0,
    "ess_tail": 1800.0,
    "ess_per_second": 100.0,
    "divergences": 0.0,
}


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({}, "converged"),
        ({"divergences": float("nan")}, "converged"),
        ({"divergences": 4.0}, "converged"),
        ({"divergences": 5.0}, "divergent"),
        ({"divergences": 5.0, "rhat": 1.3}, "not mixed"),
        ({"rhat": 1.011}, "not mixed"),
        ({"ess_tail": 399.0}, "too short"),
        ({"num_chains": 1, "rhat": float("nan")}, "one chain"),
    ],
)
def test_verdict_names_the_fault(changed, verdict):
    chains = Convergence(**(REASONABLE | changed))
    assert chains.verdict == verdict
    assert chains.mixed == (verdict == "converged") == (not chains.complaints())


def test_rhat_of_a_large_fault_is_told():
    complaints = Convergence(**(REASONABLE | {"rhat": 1.015})).complaints()
    assert complaints == ["worst R̂ 1.015, should be below 1.01"]
