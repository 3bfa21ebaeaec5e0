"""Predictive checks against known distributions, coverage, and the influence of a prior."""

from dataclasses import replace

import jax
import numpy as np
import pandas as pd
import pytest
from milzoo.datasets import Bags, simulate, simulate_instances
from milzoo.diagnostics import (
    PredictiveCheck,
    interval_coverage,
    predictive_check,
    prior_sensitivity,
)
from milzoo.diagnostics.checks.criticism import (
    correlation_with_farthest,
    correlation_with_size,
    positive_fraction,
)
from milzoo.inference import coordinate_ascent, gibbs
from milzoo.inference.runtime.densities import log_joint
from milzoo.models import DPMIL, RBF, VGPMIL, GammaScaleMixture, Gaussian
from milzoo.models.vwsgp import VWSGP

INDUCING_POINTS = np.array([[-0.8, 0.3], [0.7, 0.8], [0.4, -0.9]])
DESIGN = simulate_instances(40, range(1, 5), num_features=2, seed=3)
GAUSSIAN = VWSGP(RBF(4.0, 1.0), INDUCING_POINTS, likelihood=Gaussian(0.5))
LOGISTIC = VGPMIL(RBF(4.0, 1.3), INDUCING_POINTS, mean=-0.8)
WITH_TARGETS, TRUTH = simulate(GAUSSIAN, DESIGN, seed=1)
# Seed 4 draws labels that are usual under the prior: 27 of 40 positive.
WITH_LABELS, _ = simulate(LOGISTIC, DESIGN, seed=4)


@pytest.fixture(scope="module")
def exact():
    return coordinate_ascent(GAUSSIAN, WITH_TARGETS, seed=0, num_draws=4000)


@pytest.fixture(scope="module")
def sampled():
    return gibbs(LOGISTIC, WITH_LABELS, seed=0, num_warmup=200, num_samples=1000, num_chains=2)


# --------------------------------------------------------------------- predictive checks


def test_statistics_of_labels_match_their_names():
    bags = Bags.from_list([np.zeros((1, 1)), np.ones((3, 1)), -np.ones((2, 1))])
    labels = np.array([[0.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    assert positive_fraction(labels, bags).tolist() == pytest.approx([1 / 3, 1.0])
    expected = np.corrcoef(labels[0], [1, 3, 2])[0, 1]
    # Where all are positive nothing goes with anything.
    assert correlation_with_size(labels, bags).tolist() == pytest.approx([expected, 0.0])
    mean = (0 + 3 - 2) / 6
    distances = np.abs(np.array([0.0, 1.0, -1.0]) - mean)
    expected = np.corrcoef(labels[0], distances)[0, 1]
    assert correlation_with_farthest(labels, bags).tolist() == pytest.approx([expected, 0.0])


@pytest.mark.slow
def test_replicated_targets_have_the_known_distribution(exact):
    """A mean over bags is Gaussian: under the prior from its covariance, and by the posterior."""
    check = predictive_check(exact, seed=0, num_replicates=20_000)
    projection, cholesky, noise = _mean_of_bags()
    prior_sd = float(np.sqrt(projection @ projection + noise))
    assert check.prior["mean"].mean() == pytest.approx(0.0, abs=5 * prior_sd / 141)
    assert check.prior["mean"].std() == pytest.approx(prior_sd, rel=5 / 200)
    approximation = exact.approximation
    to_whitened = np.linalg.solve(cholesky.T, projection)  # aᵀu = (L⁻ᵀ v)ᵀu
    sd = float(np.sqrt(np.sum((approximation.scale_tril.T @ to_whitened) ** 2) + noise))
    # Posterior draws are 4,000.
    assert check.posterior["mean"].mean() == pytest.approx(
        float(to_whitened @ approximation.mean), abs=5 * sd / 63
    )
    assert check.posterior["mean"].std() == pytest.approx(sd, rel=0.06)
    assert check.observed["mean"] == pytest.approx(WITH_TARGETS.targets.mean())


def _mean_of_bags():
    """Of the mean of all targets: its weights on ε, u = Lε with L, and the variance beside it."""
    with jax.enable_x64(True):
        rows = GAUSSIAN.accumulated(WITH_TARGETS)
    num = WITH_TARGETS.num_bags
    beside = (np.asarray(rows.residual_variance) + GAUSSIAN.likelihood.noise).sum() / num**2
    return np.asarray(rows.projection).mean(axis=0), np.asarray(rows.cholesky), beside


@pytest.mark.slow
def test_check_passes_labels_of_the_model_and_no_others(sampled):
    """The others depend on the sizes of bags."""
    right = predictive_check(sampled, seed=0)
    assert (right.table["prior_p"] > 0.2).all()
    assert (right.table["posterior_p"] > 0.2).all()
    assert right.sentences == []
    sizes = np.asarray(DESIGN.bag_sizes)
    by_size = replace(WITH_LABELS, labels=(sizes < np.median(sizes)).astype(int))
    wrong = gibbs(LOGISTIC, by_size, seed=0, num_warmup=200, num_samples=500, num_chains=2)
    check = predictive_check(wrong, seed=0)
    assert check.table.loc["correlation with size", "posterior_p"] < 0.01
    assert any("correlation with size" in sentence for sentence in check.sentences)
    assert "the model does not make data like these" in " ".join(check.sentences)


def test_p_value_is_two_sided_and_counts_the_data():
    replicates = np.arange(99.0)
    check = PredictiveCheck(
        {"a": 98.0, "b": 49.0, "c": -5.0}, *[dict.fromkeys("abc", replicates)] * 2
    )
    table = check.table
    assert table.loc["a", "posterior_p"] == pytest.approx(2 * 2 / 100)  # itself, and the highest
    assert table.loc["b", "posterior_p"] == 1.0
    assert table.loc["c", "prior_p"] == pytest.approx(2 / 100)


@pytest.mark.parametrize(("number", "found"), [(1, 1), (3, 0)])
def test_p_values_are_corrected_for_their_number(number, found):
    # p = 0.04 is rare for one statistic, and not for the smallest of three.
    names = "abc"[:number]
    observed = dict.fromkeys(names, 49.0) | {"a": 98.0}
    check = PredictiveCheck(observed, *[dict.fromkeys(names, np.arange(99.0))] * 2)
    assert len(check.sentences) == found


@pytest.mark.slow
def test_one_s_own_statistic_is_asked(exact):
    check = predictive_check(
        exact, seed=0, statistics={"first": lambda targets, bags: targets[:, 0]}, num_replicates=50
    )
    assert check.observed == {"first": WITH_TARGETS.targets[0]}
    assert check.prior["first"].shape == check.posterior["first"].shape == (50,)


@pytest.mark.slow
def test_sizes_that_are_all_equal_have_no_panel():
    bags, _ = simulate(LOGISTIC, simulate_instances(20, 3, num_features=2, seed=3), seed=4)
    check = predictive_check(coordinate_ascent(LOGISTIC, bags, seed=0), seed=0, num_replicates=50)
    assert list(check.observed) == [
        "fraction of positive bags",
        "correlation with farthest instance",
    ]


@pytest.mark.slow
def test_plot_has_a_panel_for_each_statistic(sampled):
    figure = predictive_check(sampled, seed=0).plot()
    titles = [panel.get_title() for panel in figure.axes if panel.get_title()]
    assert titles == [
        "fraction of positive bags",
        "correlation with size",
        "correlation with farthest instance",
    ]


def test_a_model_that_is_not_normalised_is_refused():
    # NumPyro leaves the factor out: f would be of N, where p(f) ∝ N(f) ψ(f)/sech.
    model = replace(LOGISTIC, scale_mixture=GammaScaleMixture(1.0, 1.0))
    posterior = coordinate_ascent(model, WITH_LABELS, seed=0, max_steps=2)
    with pytest.raises(NotImplementedError, match=r"the program has a factor \(scale_mixture\)"):
        predictive_check(posterior, seed=0)


@pytest.mark.slow
def test_a_model_of_instances_is_refused():
    model = DPMIL(np.zeros(2), np.eye(2), 4.0, max_components=1)
    bags, _ = simulate(model, simulate_instances(4, 2, num_features=2, seed=0), seed=0)
    limits = {"num_starts": 1, "num_draws": 10, "max_steps": 2}
    posterior = coordinate_ascent(model, bags, seed=0, **limits)
    with pytest.raises(NotImplementedError, match="DPMIL generates instances given labels"):
        predictive_check(posterior, seed=0)


# --------------------------------------------------------------------- coverage


def test_coverage_counts_numbers_inside_their_intervals():
    draws = {"a": np.arange(100.0)[:, None] * np.ones(3), "only here": np.zeros(100)}
    # From the middle: 0.01, 0.89 (95 of 100 below), and beyond all.
    table = interval_coverage(draws, {"a": np.array([49.6, 94.5, 200.0]), "there": np.zeros(2)})
    assert table["num_values"].tolist() == [3, 3, 3, 3]
    assert table["covered"].tolist() == pytest.approx([1 / 3, 1 / 3, 2 / 3, 2 / 3])


@pytest.mark.in_ci
def test_intervals_of_an_exact_posterior_cover_over_many_truths():
    below = []
    for seed in range(30):
        bags, truth = simulate(GAUSSIAN, DESIGN, seed=seed)
        posterior = coordinate_ascent(GAUSSIAN, bags, seed=0, num_draws=500)
        below.append(interval_coverage(posterior.stored_draws(), truth, levels=(0.8,)))
    # Ninety values, three and three dependent: sd at most √(0.16/30).
    assert np.mean([one["covered"] for one in below]) == pytest.approx(0.8, abs=4 * 0.073)


def test_bad_input_of_coverage_is_refused():
    with pytest.raises(ValueError, match=r"level is 95; expected a number between 0 and 1"):
        interval_coverage({"a": np.zeros(3)}, {"a": np.array(0.0)}, levels=(95,))
    labels = {"label": np.array([0.0, 1.0, 1.0])}
    with pytest.raises(ValueError, match="label has the values 0 and 1 alone, and central interv"):
        interval_coverage(labels, {"label": np.array(1.0)})
    with pytest.raises(ValueError, match="truth has b, and draws have a; expected a site"):
        interval_coverage({"a": np.zeros(3)}, {"b": np.array(0.0)})


# --------------------------------------------------------------------- prior sensitivity


@pytest.mark.slow
def test_prior_sensitivity_finds_conflicts_of_prior_and_labels(sampled):
    """It finds none where many labels outweigh the prior."""
    site = "inducing_value"
    usual = prior_sensitivity(sampled)
    assert len(usual) == len(INDUCING_POINTS)
    many = simulate_instances(400, range(1, 5), num_features=2, seed=5)
    drowned, _ = simulate(replace(LOGISTIC, kernel=RBF(2.0, 1.3)), many, seed=2)
    wide = replace(LOGISTIC, kernel=RBF(400.0, 1.3))
    counts = {"num_warmup": 200, "num_samples": 500, "num_chains": 2}
    weak = prior_sensitivity(gibbs(wide, drowned, seed=0, **counts))
    strong = prior_sensitivity(
        gibbs(replace(LOGISTIC, kernel=RBF(0.05, 1.3)), drowned, seed=0, **counts)
    )
    assert weak["prior"].max() < 0.5 * strong["prior"].max()
    assert all(str(name).startswith(site) for name in usual.index)


@pytest.mark.in_ci
def test_prior_and_likelihood_sum_to_the_joint_density(sampled, monkeypatch):
    """What is handed to ArviZ adds up to the density of the program."""
    import arviz as az

    handed = {}

    def catch(tree, **_):
        handed["tree"] = tree
        return pd.DataFrame()

    monkeypatch.setattr(az, "psense_summary", catch)
    prior_sensitivity(sampled)
    tree = handed["tree"]
    both = tree["log_prior"]["prior"] + tree["log_likelihood"]["bag_label"].sum("bag")
    sites = {"inducing_value": sampled.stored_draws()["inducing_value"]}
    expected = log_joint(LOGISTIC, "marginal", sites, WITH_LABELS)
    np.testing.assert_allclose(np.ravel(both), expected, rtol=1e-12)
