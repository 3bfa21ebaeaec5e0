"""Known answers planted in posteriors: copies, halved sds, shifted means, other targets."""

from dataclasses import replace

import arviz as az
import numpy as np
import pytest
from milzoo.diagnostics import compare
from milzoo.diagnostics.convergence import convergence
from milzoo.inference import coordinate_ascent, laplace
from milzoo.models import GammaMixing


def sampled(posterior, values):
    """The sampler's posterior with other draws in the place of its own."""
    tree = posterior.tree.copy(deep=True)
    tree["posterior"]["inducing_value"].values[:] = values
    return replace(posterior, tree=tree)


@pytest.fixture(scope="module")
def chains(posteriors):
    """Stand-ins for a sampler of a law that is known: independent standard normal draws."""

    def make(seed, shift=0.0, scale=1.0):
        shape = posteriors["nuts"].tree["posterior"]["inducing_value"].shape
        draws = np.random.default_rng(seed).standard_normal(shape)
        return sampled(posteriors["nuts"], shift + scale * draws)

    return make


def test_a_posterior_agrees_with_its_own_copy_exactly(posteriors):
    row = compare({"a": posteriors["nuts"], "b": posteriors["nuts"]}, reference="a").table.loc["b"]
    assert row["mean_error"] == row["worst_error"] == row["largest_z"] == 0
    assert row["sd_ratio"] == 1
    assert row["error_mcse"] > 0


def test_two_samplers_of_one_law_agree_within_their_monte_carlo_errors(chains):
    comparison = compare({"a": chains(0), "b": chains(1)}, reference="a")
    row = comparison.table.loc["b"]
    # 2,000 independent draws on each side: each error has standard error √(2/2000).
    assert row["error_mcse"] == pytest.approx(np.sqrt(2 / 2000), rel=0.1)
    assert row["worst_error"] < 4.5 * row["error_mcse"]
    assert "agrees with a" in comparison.sentences["b"]
    assert f"largest |z| {row['largest_z']:.1f}" in comparison.sentences["b"]


def test_a_mean_shifted_by_one_sd_is_one_sd_off(chains):
    comparison = compare({"a": chains(0), "b": chains(1, shift=1.0)}, reference="a")
    row = comparison.table.loc["b"]
    assert row["mean_error"] == pytest.approx(1, abs=4.5 * row["error_mcse"])
    assert row["sd_ratio"] == pytest.approx(1, abs=0.05)
    assert row["largest_z"] > 20
    assert "does not agree with a" in comparison.sentences["b"]


def test_a_halved_sd_is_measured_as_half_and_said_so(posteriors):
    whole = posteriors["cavi"]
    half = replace(
        whole,
        approximation=replace(whole.approximation, scale_tril=0.5 * whole.approximation.scale_tril),
    )
    comparison = compare({"whole": whole, "half": half}, reference="whole")
    row = comparison.table.loc["half"]
    # 4,000 draws on each side: the ratio of sds has relative standard error 1/√4000 at most.
    assert row["sd_ratio"] == pytest.approx(0.5, rel=4.5 / np.sqrt(4000))
    assert "intervals from it are half as wide as they should be" in comparison.sentences["half"]
    assert "0.50 of whole's" in comparison.sentences["half"]


def test_khat_tells_a_narrow_approximation_from_a_good_one(problem, posteriors):
    training, _, model = problem
    good = laplace(model, training, seed=0)
    narrow = replace(
        good,
        approximation=replace(good.approximation, scale_tril=0.4 * good.approximation.scale_tril),
    )
    comparison = compare({"good": good, "narrow": narrow, "nuts": posteriors["nuts"]})
    khat = comparison.table["khat"]
    assert khat["narrow"] > 0.7 > khat["good"]
    assert np.isnan(khat["nuts"])
    assert "cannot mend it" in comparison.sentences["narrow"]
    assert f"k̂ = {khat['narrow']:.2f}" in comparison.sentences["narrow"]


def test_the_table_has_a_row_for_each_engine_and_nothing_where_it_does_not_apply(comparison):
    table = comparison.table
    assert list(table.index) == ["cavi", "nuts", "gibbs"]
    for_chains = ["rhat", "ess_bulk", "ess_tail", "ess_per_second"]
    assert table.loc["cavi", [*for_chains, "divergences", "largest_z"]].isna().all()
    assert table.loc[["nuts", "gibbs"], for_chains].notna().all(axis=None)
    assert table.loc[["nuts", "gibbs"], ["khat", "elbo"]].isna().all(axis=None)
    assert np.isnan(table.loc["gibbs", "divergences"]) and table.loc["nuts", "divergences"] == 0
    scores = ["log_loss", "brier", "auc", "accuracy", "instance_auc", "instance_auc_pr"]
    assert table[scores].notna().all(axis=None)
    assert "target" not in table


def test_the_diagnostics_are_those_of_arviz(comparison, posteriors):
    tree, row = posteriors["gibbs"].tree, comparison.table.loc["gibbs"]
    site = "inducing_value"
    assert row["rhat"] == float(az.rhat(tree)[site].max())
    assert row["ess_bulk"] == float(az.ess(tree, method="bulk")[site].min())
    assert row["ess_tail"] == float(az.ess(tree, method="tail")[site].min())
    assert row["ess_per_second"] == row["ess_bulk"] / posteriors["gibbs"].sampling_seconds


def test_the_reference_is_the_sampler_with_the_largest_smallest_ess(comparison):
    ess = comparison.table[["ess_bulk", "ess_tail"]].min(axis=1)
    assert comparison.reference == ess.idxmax()
    assert f"{ess.max():,.0f}" in comparison.reference_sentence
    assert np.isnan(comparison.table.loc[comparison.reference, "mean_error"])


def test_without_a_sampler_there_is_no_reference_and_no_error(posteriors):
    comparison = compare({"cavi": posteriors["cavi"]})
    assert comparison.reference is None
    assert "No sampler" in comparison.reference_sentence
    assert np.isnan(comparison.table.loc["cavi", "mean_error"])
    assert np.isfinite(comparison.table.loc["cavi", "khat"])


def test_chains_that_have_not_mixed_are_not_to_be_used(posteriors):
    values = posteriors["nuts"].tree["posterior"]["inducing_value"].to_numpy()
    apart = values + 10 * values.std() * np.arange(len(values))[:, None, None]
    comparison = compare({"stuck": sampled(posteriors["nuts"], apart)})
    assert comparison.table.loc["stuck", "status"] == "not mixed"
    rhat = comparison.table.loc["stuck", "rhat"]
    assert f"worst R̂ {rhat:.3f}" in comparison.sentences["stuck"]
    assert "Do not use them" in comparison.sentences["stuck"]
    assert "has not mixed" in comparison.reference_sentence


def test_chains_that_agree_but_are_short_are_too_few(chains):
    # Every half of every chain has the same 25 values, in some order, each ten times running.
    random = np.random.default_rng(0)
    values = random.standard_normal((25, 8))
    halves = [np.repeat(random.permutation(values), 10, axis=0) for _ in range(8)]
    comparison = compare({"short": sampled(chains(0), np.reshape(halves, (4, 500, 8)))})
    assert comparison.table.loc["short", "status"] == "too short"
    ess = comparison.table.loc["short", ["ess_bulk", "ess_tail"]].min()
    assert "are too few (worst R̂" in comparison.sentences["short"]
    assert f"smallest ESS {ess:,.0f}, should be above 400" in comparison.sentences["short"]


def test_divergences_are_complained_about(posteriors):
    tree = posteriors["nuts"].tree.copy(deep=True)
    tree["sample_stats"]["diverging"].values[0, :3] = True
    comparison = compare({"nuts": replace(posteriors["nuts"], tree=tree)})
    assert comparison.table.loc["nuts", "divergences"] == 3
    assert "3 divergences" in comparison.sentences["nuts"]


def test_draws_that_are_not_finite_are_a_failure_and_no_reference(posteriors):
    values = posteriors["nuts"].tree["posterior"]["inducing_value"].to_numpy().copy()
    values[0, 0, 0] = np.nan
    broken = sampled(posteriors["nuts"], values)
    comparison = compare({"broken": broken, "nuts": posteriors["nuts"]})
    assert comparison.reference == "nuts"
    assert comparison.table.loc["broken", "status"] == "failed"
    assert comparison.sentences["broken"].startswith("broken failed")


def test_posteriors_of_other_models_are_told_apart_and_a_runaway_is_shown(posteriors, problem):
    training, test, model = problem
    gamma = replace(model, mixing=GammaMixing(1.0, 1.0))
    far = 30.0 + posteriors["nuts"].tree["posterior"]["inducing_value"].to_numpy()
    comparison = compare(
        {
            "nuts": posteriors["nuts"],
            "gamma cavi": coordinate_ascent(gamma, training, seed=0),
            "gamma nuts": replace(sampled(posteriors["nuts"], far), model=gamma),
        },
        reference="nuts",
        test=test,
    )
    table = comparison.table
    assert list(table["target"]) == ["logistic", *2 * ["GammaMixing(alpha=1.0, beta=1.0)"]]
    assert table.loc["gamma cavi", "own_reference"] == "gamma nuts"
    assert table.loc["gamma cavi", "own_mean_error"] > 10
    text = comparison.sentences["gamma cavi"]
    assert "is another model than nuts's" in text
    assert "has run away from it" in text and f"{table.loc['gamma nuts', 'size']:,.0f}" in text
    assert "as they should be" not in text


def test_learned_hyperparameters_are_no_other_target(posteriors, problem):
    training, _, model = problem
    moved = coordinate_ascent(model.with_hyperparameters({"variance": 5.0}), training, seed=0)
    assert "target" not in compare({"cavi": moved, "nuts": posteriors["nuts"]}).table


def test_predictions_are_compared_with_the_reference(comparison, posteriors, problem):
    test = problem[1]
    ours = posteriors["cavi"].predict(test).bag_probability
    theirs = posteriors[comparison.reference].predict(test).bag_probability
    apart = np.abs(ours - theirs).mean()
    assert comparison.table.loc["cavi", "probability_difference"] == pytest.approx(apart)
    assert f"{apart:.3f} from {comparison.reference}'s on average" in comparison.sentences["cavi"]


def test_comparing_twice_gives_the_same_table(comparison, posteriors, problem):
    assert compare(posteriors, test=problem[1]).table.equals(comparison.table)


# ---------------------------------------------------------------- bad input


def test_no_posteriors_are_refused():
    with pytest.raises(ValueError, match="posteriors is empty; expected at least one"):
        compare({})


def test_an_unknown_reference_is_refused_with_the_nearest_name(posteriors):
    with pytest.raises(ValueError, match="'nutz', none of the posteriors; did you mean 'nuts'"):
        compare(posteriors, reference="nutz")


def test_test_bags_without_labels_are_refused(posteriors, problem):
    unlabelled = replace(problem[1], labels=None, instance_labels=None)
    with pytest.raises(ValueError, match="test bags have no labels"):
        compare(posteriors, test=unlabelled)


def test_posteriors_of_different_bags_are_refused(posteriors, problem):
    _, test, model = problem
    other = coordinate_ascent(model, test, seed=0)
    with pytest.raises(ValueError, match=r"'nuts' and 'other' are of different bags \(their bag_"):
        compare({"nuts": posteriors["nuts"], "other": other})


def test_posteriors_with_other_inducing_points_are_refused(posteriors, problem):
    training, _, model = problem
    moved = replace(model, inducing_points=model.inducing_points + 0.1)
    other = coordinate_ascent(moved, training, seed=0)
    with pytest.raises(ValueError, match="have different inducing_points"):
        compare({"nuts": posteriors["nuts"], "other": other})


def test_the_chains_of_an_approximation_are_not_judged(posteriors):
    with pytest.raises(ValueError, match="coordinate_ascent is an approximation"):
        convergence(posteriors["cavi"])


def test_traces_of_an_approximation_are_refused(comparison):
    with pytest.raises(ValueError, match="expected a sampler of this comparison: nuts, gibbs"):
        comparison.plot_trace("cavi")
