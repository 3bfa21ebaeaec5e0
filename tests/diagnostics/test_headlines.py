"""The verdict in a word: planted errors of each kind, and who may not be judged."""

from dataclasses import replace

import numpy as np
import pytest
from milzoo.diagnostics import compare
from milzoo.diagnostics.checks.dispersed_starts import Missed
from milzoo.diagnostics.headlines import headline
from milzoo.inference import maximum_a_posteriori
from milzoo.inference.posterior import Status


@pytest.fixture(scope="module")
def planted(posteriors):
    """NUTS, and Gaussians with its moments but for one planted error each."""
    nuts = posteriors["nuts"]
    draws = nuts.stored_draws()["inducing_value"]
    mean, covariance = draws.mean(axis=0), np.cov(draws.T)
    sd = np.sqrt(np.diagonal(covariance))

    def gaussian(*, shift=0.0, width=1.0):
        root = width * np.linalg.cholesky(covariance)
        approximation = replace(
            posteriors["cavi"].approximation, mean=mean + shift * sd, scale_tril=root
        )
        return replace(posteriors["cavi"], approximation=approximation)

    one_site = np.zeros(len(sd))
    # At 1.5 the mean coverage is so near its limit that chance decides which of the two is said.
    one_site[3] = 1.2
    return compare(
        {
            "nuts": nuts,
            "right": gaussian(),
            "narrow": gaussian(width=0.6),
            "wide": gaussian(width=2.0),
            "aside": gaussian(shift=1.0),
            "one site": gaussian(shift=one_site),
        }
    )


@pytest.mark.in_ci
@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("nuts", "reliable"),
        ("right", "reliable"),
        ("narrow", "overconfident"),
        ("wide", "underconfident"),
        ("aside", "wrong place"),
        ("one site", "wrong place"),
    ],
)
def test_a_planted_error_has_its_word(planted, name, word):
    assert planted.headlines[name].word == word


@pytest.mark.in_ci
def test_the_reason_is_the_number_that_decides(planted):
    table, lines = planted.table, planted.headlines
    said = (
        f"its 90 % intervals hold {100 * table.loc['narrow', 'coverage_90']:.0f} % of nuts's draws"
    )
    assert lines["narrow"].reason == said
    assert "but that of inducing_value[3] holds" in lines["one site"].reason
    assert lines["nuts"].reason.startswith(f"R̂ {table.loc['nuts', 'rhat']:.3f}, smallest ESS")


def test_without_a_judge_nothing_can_be_told(posteriors, problem):
    cavi = posteriors["cavi"]
    failed = replace(cavi, status=Status("failed", "the bound is not finite"))
    stopped = replace(cavi, status=Status("max_steps", "the bound still moved"))
    point = maximum_a_posteriori(problem[2], problem[0], seed=0)
    compared = compare({"cavi": cavi, "failed": failed, "stopped": stopped, "point": point})
    lines = compared.headlines
    assert lines["cavi"].word == "cannot tell" and "add nuts or gibbs" in lines["cavi"].reason
    assert lines["failed"] == ("failed", "the bound is not finite")
    assert lines["stopped"] == ("cannot tell", "its run ended as max_steps")
    assert lines["point"] == ("cannot tell", "one point has no interval")


def test_chains_that_have_not_mixed_cannot_tell(comparison):
    line = comparison.headlines["gibbs"]
    assert line.word == "cannot tell" and "should be" in line.reason


@pytest.mark.in_ci
def test_a_reference_that_missed_a_mode_judges_no_intervals(planted):
    missed = {"nuts": Missed(mass=0.9, size=50.0, own_size=1.0)}
    line = headline("narrow", planted.verdicts["narrow"], missed=missed, divergence=None)
    assert line.word == "cannot tell" and "nothing here can judge it" in line.reason
    own = headline("nuts", planted.verdicts["nuts"], missed=missed, divergence=None)
    assert own == ("wrong place", "modes with 90 % of the mass were not visited")


@pytest.mark.slow  # quick: the golden file of the same comparison
def test_a_missed_mode_is_the_wrong_place(runaway):
    for line in runaway.headlines.values():
        assert line.word == "wrong place"
        assert "modes with over 99 % of the mass were not visited" in line.reason
