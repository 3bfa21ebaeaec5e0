"""Tests of all sites at once in a comparison: who is told apart, and in which words."""

from dataclasses import replace

import numpy as np
import pytest
from milzoo.diagnostics import compare
from milzoo.diagnostics.joint import joint_tests
from milzoo.inference import maximum_a_posteriori, nuts


@pytest.fixture(scope="module")
def judged(posteriors, problem):
    """The ascent and two runs of NUTS, of which one is the reference."""
    again = nuts(problem[2], problem[0], seed=5, num_warmup=200, num_samples=500)
    fits = {"cavi": posteriors["cavi"], "nuts": posteriors["nuts"], "again": again}
    return compare(fits, reference="nuts")


@pytest.mark.in_ci
def test_ascent_is_told_from_nuts_by_the_classifier(judged):
    table = judged.joint_table
    assert list(table.index) == ["cavi", "nuts", "again"]
    assert table.loc["cavi", "classifier_p"] <= 0.01 and table.loc["cavi", "stein_p"] <= 0.01
    assert table.loc["again", "classifier_p"] > 0.01 and table.loc["again", "stein_p"] > 0.01
    assert np.isnan(table.loc["nuts", "classifier_accuracy"])
    cavi, _, again = judged.joint_sentences
    assert cavi.startswith("A classifier tells cavi from nuts: it is right of ")
    assert "They differ most along a direction like inducing_value[" in cavi
    assert "By the model's density draws of cavi are not of its posterior" in cavi
    assert again.startswith("A classifier cannot tell again from nuts: it is right of ")


@pytest.mark.slow
def test_densities_are_used_where_they_are_known(judged):
    cavi, again = (judged.joint[name].two_sample for name in ("cavi", "again"))
    assert cavi.is_best and not again.is_best
    assert f"wrong by up to {100 * cavi.total_variation:.0f} %" in judged.joint_sentences[0]


def test_a_reference_that_missed_a_mode_tests_nothing(judged):
    found = joint_tests(judged.verdicts, missed={"nuts"}, seed=0)
    assert all(one.two_sample is None and one.reference is None for one in found.values())


def test_chains_that_have_not_mixed_are_not_tested(comparison):
    """Their draws are no sample of anything, and cannot be thinned to one."""
    assert not comparison.verdicts["gibbs"].assessment.convergence.mixed
    assert "gibbs" not in comparison.joint


def test_a_reference_that_cannot_judge_tests_nothing(posteriors):
    compared = compare({name: posteriors[name] for name in ("cavi",)})
    assert compared.joint["cavi"].two_sample is None
    assert compared.joint["cavi"].stein is not None


def test_a_point_and_a_failure_are_not_tested(posteriors, problem):
    point = maximum_a_posteriori(problem[2], problem[0], seed=0)
    failed = replace(posteriors["cavi"], status=replace(posteriors["cavi"].status, kind="failed"))
    compared = compare({"point": point, "failed": failed, "nuts": posteriors["nuts"]})
    assert set(compared.joint) == {"nuts"}
