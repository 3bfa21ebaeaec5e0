"""What a prior expects, against quadrature and known moments."""

from dataclasses import replace

import numpy as np
import pytest
from milzoo.datasets import Bags
from milzoo.diagnostics import PriorPredictive, prior_predictive
from milzoo.inference.runtime.programs import num_compilations
from milzoo.models import DPMIL, RBF, VGPMIL, VWSGP, GammaScaleMixture, Gaussian
from numpy.polynomial.hermite_e import hermegauss
from scipy.special import expit

pytestmark = pytest.mark.in_ci

POINT = np.array([[0.3, -0.2]])
SIZES = np.array([1, 1, 3, 3, 3, 6])
# All instances are the inducing point: f_n = u, but for the jitter.
DESIGN = Bags.from_list([np.repeat(POINT, size, axis=0) for size in SIZES])
LOGISTIC = VGPMIL(RBF(4.0, 1.0), POINT, mean=-1.0, sharpness=100.0)
SUMS = VWSGP(RBF(4.0, 1.0), POINT, likelihood=Gaussian(0.5))
# 4.9 standard errors over a dozen numbers: false alarm below 1e-5.
LARGEST_Z = 4.9


@pytest.fixture(scope="module")
def of_labels():
    return prior_predictive(LOGISTIC, DESIGN, seed=0, num_replicates=4000)


def test_probability_of_positive_bags_matches_quadrature(of_labels):
    """P(T = 1) = [1 + (H − 1) P(max y = 1)]/(H + 1), and P(max y = 1) = 1 − E(1 − σ(u))ⁿ."""
    node, weight = hermegauss(60)
    none = (expit(-(-1.0 + 2.0 * node))[:, None] ** [1, 3, 6] * weight[:, None]).sum(0)
    expected = (1 + 99 * (1 - none / weight.sum())) / 101
    table = of_labels.table
    error = np.abs(table["prior_mean"] - expected) / table["prior_mean_error"]
    assert error.max() < LARGEST_Z
    assert table.index.tolist() == ["1", "3", "6"]
    assert table["num_bags"].tolist() == [2, 3, 1]


def test_targets_have_the_moments_of_the_prior():
    """Y = n u + noise, so that its variance is n² v + s²."""
    found = prior_predictive(SUMS, DESIGN, seed=0, num_replicates=4000)
    expected = np.sqrt(np.array([1, 9, 36]) * 4.0 + 0.5 / np.array([2, 3, 1]))
    spread = found.replicated.std(axis=0)
    np.testing.assert_allclose(spread, expected, rtol=LARGEST_Z / np.sqrt(2 * 4000))
    table = found.table
    assert np.abs(table["prior_mean"] / table["prior_mean_error"]).max() < LARGEST_Z
    assert "Before any target is seen, a bag's is" in found.sentences[0]


def test_labels_the_prior_does_not_expect_are_a_surprise(of_labels):
    many = Bags.from_list([np.repeat(POINT, 1 + b % 2, axis=0) for b in range(40)])
    sure = replace(LOGISTIC, kernel=RBF(0.1, 1.0), mean=3.0)
    negative = prior_predictive(sure, replace(many, labels=np.zeros(40, int)), seed=0)
    expectation, first, second = negative.sentences
    assert "in the data the fraction of positive bags is 0.00" in expectation
    assert first.startswith("Among bags of 1 instances the fraction of positive bags is 0.00")
    assert "Among bags of 2 instances" in second and "are a surprise" in second
    usual = (np.arange(40) % 20 != 0).astype(int)  # 0.95, as σ(3) is
    assert len(prior_predictive(sure, replace(many, labels=usual), seed=0).sentences) == 1
    assert of_labels.table["p"].isna().all() and len(of_labels.sentences) == 1


def test_many_sizes_are_grouped_into_five_classes():
    sizes = np.arange(1, 41)
    found = prior_predictive(
        LOGISTIC, Bags.from_list([np.repeat(POINT, n, axis=0) for n in sizes]), seed=0
    )
    assert found.sizes.tolist() == [[1, 8], [9, 16], [17, 24], [25, 32], [33, 40]]
    assert found.num_bags.tolist() == [8] * 5


def test_bags_of_like_size_share_a_program(of_labels):
    prior_predictive(LOGISTIC, DESIGN, seed=1)
    before = num_compilations()
    prior_predictive(replace(LOGISTIC, mean=-2.0), DESIGN.select(np.arange(5)), seed=2)
    assert num_compilations() == before


def test_p_value_is_two_sided_and_counts_the_data():
    replicated = np.repeat(np.arange(99.0)[:, None], 3, axis=1)
    found = PriorPredictive(
        "targets", np.array([[1, 1], [2, 2], [3, 3]]), np.ones(3, int), replicated, None
    )
    found = replace(found, observed=np.array([98.0, 49.0, -5.0]))
    assert found.table["p"].tolist() == pytest.approx([0.04, 1.0, 0.02])


def test_fractions_that_are_equal_are_ties():
    """Positive in all replicates and in the data: 1 is 1, of however many bags."""
    sure = replace(LOGISTIC, mean=60.0, sharpness=1e12)
    sizes = np.repeat([1, 2, 3, 4, 5], [3, 49, 5, 93, 1])
    bags = Bags.from_list([np.repeat(POINT, n, axis=0) for n in sizes], labels=(sizes < 5) * 1)
    p = prior_predictive(sure, bags, seed=0, num_replicates=999).table["p"]
    assert p.tolist() == pytest.approx([1.0, 1.0, 1.0, 1.0, 0.002])


@pytest.mark.parametrize(("number", "found"), [(1, 1), (3, 0)])
def test_surprises_are_corrected_for_the_number_of_classes(number, found):
    """p = 0.04 is rare in one class, and not as the smallest of three."""
    replicated = np.repeat(np.arange(99.0)[:, None], number, axis=1)
    sizes = np.arange(1, number + 1)[:, None].repeat(2, axis=1)
    observed = np.array([98.0, 49.0, 49.0])[:number]
    planted = PriorPredictive("targets", sizes, np.ones(number, int), replicated, observed)
    assert len(planted.surprises) == found


def test_bars_and_dots_are_the_numbers_of_the_table(of_labels):
    found = replace(of_labels, observed=np.array([0.5, 1.0, 0.0]))
    (panel,) = found.plot().axes
    table = found.table
    np.testing.assert_allclose([bar.get_y() for bar in panel.patches], table["prior_low"])
    ends = [bar.get_y() + bar.get_height() for bar in panel.patches]
    np.testing.assert_allclose(ends, table["prior_high"])
    mean, observed = panel.lines
    np.testing.assert_allclose(mean.get_ydata(), table["prior_mean"])
    np.testing.assert_allclose(observed.get_ydata(), [0.5, 1.0, 0.0])
    assert [label.get_text() for label in panel.get_xticklabels()] == ["1", "3", "6"]


def test_models_whose_prior_says_nothing_are_refused():
    random = np.random.default_rng(0)
    bags = Bags.from_list([random.normal(size=(3, 2)) for _ in range(8)], labels=np.arange(8) % 2)
    with pytest.raises(NotImplementedError, match="labels have no parameter"):
        prior_predictive(DPMIL.for_bags(bags), bags, seed=0)
    with pytest.raises(NotImplementedError, match="the program has a factor"):
        prior_predictive(replace(LOGISTIC, scale_mixture=GammaScaleMixture(1.0, 1.0)), bags, seed=0)
