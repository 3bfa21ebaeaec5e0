"""Known answers planted in posteriors: copies, halved sds, biased means, other targets."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import arviz as az
import numpy as np
import numpyro.distributions as dist
import pytest
from milzoo.datasets import simulate, simulate_instances
from milzoo.diagnostics import compare
from milzoo.diagnostics import verdict as verdict_module
from milzoo.diagnostics.measures.convergence import convergence
from milzoo.diagnostics.measures.scores import PredictionDifference
from milzoo.diagnostics.measures.target_densities import is_logistic
from milzoo.diagnostics.sentences import sentence
from milzoo.inference import coordinate_ascent, grid, laplace, nuts
from milzoo.inference.importance import weighted_evidence
from milzoo.models import VWSGP, GammaScaleMixture, Gaussian, Probit, ScaleMixture
from scipy.signal import lfilter


def sampled(posterior, values):
    """The sampler's posterior with other draws instead of its own."""
    tree = posterior.tree.copy(deep=True)
    tree["posterior"]["inducing_value"].values[:] = values
    return replace(posterior, tree=tree)


@pytest.fixture(scope="module")
def chains(posteriors):
    """Stand-ins for a sampler of a known distribution: independent standard normal draws."""

    def make(seed, bias=0.0, scale=1.0):
        shape = posteriors["nuts"].tree["posterior"]["inducing_value"].shape
        draws = np.random.default_rng(seed).standard_normal(shape)
        return sampled(posteriors["nuts"], bias + scale * draws)

    return make


@pytest.mark.slow
def test_a_posterior_agrees_with_its_own_copy_exactly(posteriors):
    row = compare({"a": posteriors["nuts"], "b": posteriors["nuts"]}, reference="a").table.loc["b"]
    assert row["mean_error"] == row["worst_error"] == row["largest_z"] == 0
    assert row["sd_ratio"] == 1
    assert row["error_mcse"] > 0


@pytest.mark.slow
def test_equal_samplers_agree_within_monte_carlo_error(chains):
    comparison = compare({"a": chains(0), "b": chains(1)}, reference="a")
    row = comparison.table.loc["b"]
    # 2,000 independent draws on each side: each error has standard error √(2/2000).
    assert row["error_mcse"] == pytest.approx(np.sqrt(2 / 2000), rel=0.1)
    assert row["worst_error"] < 4.5 * row["error_mcse"]
    assert "agrees with a" in comparison.sentences["b"]
    assert f"largest |z| {row['largest_z']:.1f}" in comparison.sentences["b"]


@pytest.mark.slow
def test_mean_biased_by_one_sd_has_that_error(chains):
    comparison = compare({"a": chains(0), "b": chains(1, bias=1.0)}, reference="a")
    row = comparison.table.loc["b"]
    assert row["mean_error"] == pytest.approx(1, abs=4.5 * row["error_mcse"])
    assert row["sd_ratio"] == pytest.approx(1, abs=0.05)
    assert row["largest_z"] > 20
    assert "does not agree with a" in comparison.sentences["b"]


@pytest.mark.slow
def test_halved_sd_is_measured_and_reported(posteriors):
    whole = posteriors["cavi"]
    half = replace(
        whole,
        approximation=replace(whole.approximation, scale_tril=0.5 * whole.approximation.scale_tril),
    )
    comparison = compare({"whole": whole, "half": half}, reference="whole")
    row = comparison.table.loc["half"]
    # 4,000 draws on each side: the ratio of sds has relative standard error 1/√4000 at most.
    assert row["sd_ratio"] == pytest.approx(0.5, rel=4.5 / np.sqrt(4000))
    said = r"its sd is on average 0\.50 ± 0\.0\d+ of whole's"
    assert re.search(said, comparison.sentences["half"])
    # What an approximation says is no measure of what should be.
    assert (
        "Its 90 % intervals are half as wide as whole's and hold 59 ± "
        in (comparison.sentences["half"])
    )


@pytest.mark.slow
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
    assert "cannot correct it" in comparison.sentences["narrow"]
    assert f"k̂ = {khat['narrow']:.2f}" in comparison.sentences["narrow"]


@pytest.mark.slow
def test_khat_is_the_mean_of_independent_replicates(posteriors, monkeypatch):
    seen, told = [], iter([0.1, 0.2, 0.3, 0.8])

    def recorded(log_target_density, log_approximation):
        seen.append(log_target_density)
        return weighted_evidence(log_target_density, log_approximation)._replace(khat=next(told))

    monkeypatch.setattr(verdict_module, "weighted_evidence", recorded)
    row = compare({"cavi": posteriors["cavi"]}).table.loc["cavi"]
    assert row["khat"] == pytest.approx(0.35)
    # Four times 4,000 draws, each with a tail of 3 √4000 ratios.
    assert row["khat_error"] == pytest.approx(1.35 / np.sqrt(4 * 3 * np.sqrt(4000)))
    assert len(np.unique(np.concatenate(seen))) == 4 * 4000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("khat", "words"),
    [
        (0.38, "can easily correct it"),
        (0.45, "can reliably correct it"),
        (0.58, "can reliably correct it"),
        (0.62, "borderline, importance weighting corrects it up to 0.70"),
        (0.78, "borderline, importance weighting corrects it up to 0.70"),
        (0.82, "cannot correct it"),
    ],
)
def test_khat_near_a_limit_is_borderline(comparison, khat, words):
    verdict = comparison.verdicts["cavi"]
    assessment = replace(verdict.assessment, khat=khat, khat_error=0.05)
    said = sentence("cavi", replace(verdict, assessment=assessment))
    assert f"k̂ = {khat:.2f} ± 0.05: " in said and words in said


@pytest.mark.slow
def test_table_has_a_row_for_each_engine(comparison):
    """Cells are NaN where a measure does not apply."""
    table = comparison.table
    assert list(table.index) == ["cavi", "nuts", "gibbs"]
    for_chains = ["rhat", "ess_bulk", "ess_tail", "ess_per_second"]
    assert table.loc["cavi", [*for_chains, "divergences", "largest_z"]].isna().all()
    assert table.loc[["nuts", "gibbs"], for_chains].notna().all(axis=None)
    assert table.loc[["nuts", "gibbs"], ["khat", "elbo"]].isna().all(axis=None)
    assert np.isnan(table.loc["gibbs", "divergences"]) and table.loc["nuts", "divergences"] == 0
    scores = ["log_loss", "brier", "auc", "accuracy", "instance_auc", "instance_auc_pr"]
    assert table[scores].notna().all(axis=None)
    assert "target_density" not in table


@pytest.mark.slow
def test_the_diagnostics_are_those_of_arviz(comparison, posteriors):
    tree, row = posteriors["gibbs"].tree, comparison.table.loc["gibbs"]
    site = "inducing_value"
    assert row["rhat"] == float(az.rhat(tree)[site].max())
    assert row["ess_bulk"] == float(az.ess(tree, method="bulk")[site].min())
    assert row["ess_tail"] == float(az.ess(tree, method="tail")[site].min())
    assert row["ess_per_second"] == row["ess_bulk"] / posteriors["gibbs"].sampling_seconds


@pytest.mark.in_ci
def test_reference_is_the_sampler_with_the_largest_ess(comparison):
    """Of each sampler the smallest ESS over sites counts."""
    ess = comparison.table[["ess_bulk", "ess_tail"]].min(axis=1)
    assert comparison.reference == ess.idxmax()
    assert f"{ess.max():,.0f}" in comparison.reference_sentence
    assert np.isnan(comparison.table.loc[comparison.reference, "mean_error"])


def diverging(posterior, number=3):
    tree = posterior.tree.copy(deep=True)
    tree["sample_stats"]["diverging"].values[0, :number] = True
    return replace(posterior, tree=tree)


def slow(posterior):
    """Every draw twice, so that the ESS per draw is a half."""
    half = posterior.tree["posterior"]["inducing_value"].to_numpy()[:, :250]
    return sampled(posterior, np.repeat(half, 2, axis=1))


@pytest.mark.in_ci
def test_mixed_sampler_beats_one_with_a_larger_ess(chains):
    comparison = compare({"diverging": diverging(chains(0)), "slow": slow(chains(1))})
    ess = comparison.table["ess_bulk"]
    assert ess["slow"] < ess["diverging"]
    assert comparison.reference == "slow"
    assert "of those that show no sign of poor mixing" in comparison.reference_sentence


@pytest.mark.in_ci
def test_two_reliable_samplers_that_disagree_suspend_judgement(chains, posteriors):
    fits = {"a": chains(0), "b": chains(1, bias=1.0), "cavi": posteriors["cavi"]}
    compared = compare(fits, reference="a")
    assert "but b, without a sign of poor mixing, disagrees with it" in compared.reference_sentence
    assert "should be" not in compared.sentences["cavi"]
    assert "as wide as a's and hold" in compared.sentences["cavi"]
    agreeing = compare(fits | {"b": chains(1)}, reference="a")
    assert "disagrees" not in agreeing.reference_sentence
    assert "they should be" in agreeing.sentences["cavi"]


@pytest.mark.in_ci
def test_logistic_sampler_is_the_preferred_reference(chains, problem):
    gamma = replace(problem[2], scale_mixture=GammaScaleMixture(1.0, 1.0))
    comparison = compare({"gamma": replace(chains(0), model=gamma), "logistic": slow(chains(1))})
    assert comparison.reference == "logistic"
    assert "of the logistic model" in comparison.reference_sentence


def test_one_chain_cannot_be_judged_by_rhat(posteriors, chains):
    tree = chains(0).tree.isel(chain=[0])
    one = replace(posteriors["nuts"], tree=tree)
    comparison = compare({"one": one, "cavi": posteriors["cavi"]})
    assert comparison.table.loc["one", "status"] == "one chain"
    text = comparison.sentences["one"]
    assert "R̂ cannot judge one's 1 × 500 draws: one chain, run four" in text
    assert "it has one chain, too few for R̂" in comparison.reference_sentence
    for words in (comparison.reference_sentence, text):
        assert "not mixed" not in words and "Do not use" not in words


def test_comparison_without_a_sampler_has_no_errors(posteriors):
    comparison = compare({"cavi": posteriors["cavi"]})
    assert comparison.reference is None
    assert "No sampler" in comparison.reference_sentence
    assert np.isnan(comparison.table.loc["cavi", "mean_error"])
    assert np.isfinite(comparison.table.loc["cavi", "khat"])


def test_unmixed_chains_are_not_to_be_used(posteriors):
    values = posteriors["nuts"].tree["posterior"]["inducing_value"].to_numpy()
    apart = values + 10 * values.std() * np.arange(len(values))[:, None, None]
    comparison = compare({"stuck": sampled(posteriors["nuts"], apart)})
    assert comparison.table.loc["stuck", "status"] == "not mixed"
    rhat = comparison.table.loc["stuck", "rhat"]
    assert f"worst R̂ {rhat:.3f}" in comparison.sentences["stuck"]
    assert "Do not use them" in comparison.sentences["stuck"]
    assert "has not mixed" in comparison.reference_sentence


@pytest.fixture
def short(chains):
    """Every half of every chain has the same 25 values, in some order, each ten times running."""
    random = np.random.default_rng(0)
    values = random.standard_normal((25, 8))
    halves = [np.repeat(random.permutation(values), 10, axis=0) for _ in range(8)]
    return sampled(chains(0), np.reshape(halves, (4, 500, 8)))


def test_chains_that_agree_but_are_short_are_too_few(short):
    comparison = compare({"short": short})
    assert comparison.table.loc["short", "status"] == "too short"
    ess = comparison.table.loc["short", ["ess_bulk", "ess_tail"]].min()
    assert "are too few (worst R̂" in comparison.sentences["short"]
    assert f"smallest ESS {ess:,.0f}, should be above 400" in comparison.sentences["short"]
    assert "but it is too short (smallest ESS" in comparison.reference_sentence
    assert "not mixed" not in comparison.reference_sentence


def test_divergences_are_complained_about(posteriors):
    comparison = compare({"nuts": diverging(posteriors["nuts"])})
    assert comparison.table.loc["nuts", "divergences"] == 3
    assert comparison.table.loc["nuts", "status"] == "divergent"
    assert "3 divergences, should be no more than 1 in 1,000" in comparison.sentences["nuts"]
    assert "Do not use them" in comparison.sentences["nuts"]
    assert "not mixed" not in comparison.sentences["nuts"] + comparison.reference_sentence


def test_one_divergence_is_named_and_no_fault(chains):
    comparison = compare({"nuts": diverging(chains(0), 1)})
    assert comparison.table.loc["nuts", "status"] == "converged"
    assert "show no sign of poor mixing" in comparison.sentences["nuts"]
    assert "tail, 1 divergence)" in comparison.sentences["nuts"]


def test_infinite_draws_are_a_failure_and_no_reference(posteriors):
    values = posteriors["nuts"].tree["posterior"]["inducing_value"].to_numpy().copy()
    values[0, 0, 0] = np.nan
    broken = sampled(posteriors["nuts"], values)
    comparison = compare({"broken": broken, "nuts": posteriors["nuts"]})
    assert comparison.reference == "nuts"
    assert comparison.table.loc["broken", "status"] == "failed"
    assert comparison.sentences["broken"].startswith("broken failed")


# ---------------------------------------------------------------- in whose name it is said


@pytest.fixture
def judged(posteriors, chains, problem):
    """An approximation beside a sampler that is long enough to judge it."""
    comparison = compare({"cavi": posteriors["cavi"], "a": chains(0)}, test=problem[1])
    assert comparison.verdicts["a"].assessment.convergence.is_reference
    return comparison


def with_width_ratios(verdict, ratios):
    """The verdict with these for its sites, one after another."""
    peer = verdict.reference
    accuracy = replace(peer.accuracy, width_ratio=np.resize(ratios, len(peer.accuracy.names)))
    return replace(verdict, reference=replace(peer, accuracy=accuracy))


@pytest.mark.slow_but_first
@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ([0.5], "half as wide as"),
        ([0.95, 1.05], "as wide as"),
        ([0.45, 1.55], "0.45 to 1.55 times as wide as"),
        ([0.3, 0.7], "0.30 to 0.70 times as wide as"),
    ],
)
def test_mean_width_is_told_where_sites_agree(judged, ratios, expected):
    text = sentence("cavi", with_width_ratios(judged.verdicts["cavi"], ratios))
    assert f"Its 90 % intervals are {expected} they should be and hold " in text


@pytest.mark.in_ci
def test_unmixed_sampler_is_no_standard_for_others(chains, posteriors):
    bad = diverging(chains(0, bias=1.0))
    kinds = {"cavi": posteriors["cavi"], "bad": bad, "b": chains(1)}
    compared = compare(kinds, reference="bad")
    texts = compared.sentences
    assert "bad's chains have not mixed: its sum over held-out bags is provisional." in (
        compared.loo_sentences
    )
    assert "should be" not in texts["cavi"]
    assert "as wide as bad's and hold" in texts["cavi"]
    assert "does not agree with bad" in texts["b"]
    assert "is wrong" not in texts["b"]
    assert "have not both mixed for long enough to say which is right" in texts["b"]


def test_samplers_that_have_not_mixed_agree_with_nothing(posteriors, chains):
    """One of four chains is 300 sds away: the Monte-Carlo error hides means 75 sds apart."""
    good = chains(0)
    values = chains(1).tree["posterior"]["inducing_value"].to_numpy().copy()
    values[-1] += 300.0
    stuck = sampled(posteriors["nuts"], values)
    compared = compare({"good": good, "stuck": stuck}, reference="good")
    assert compared.table.loc["stuck", "mean_error"] > 70
    assert compared.verdicts["stuck"].reference.accuracy.agrees
    text = compared.sentences["stuck"]
    assert "It cannot be said to agree with good, as they have not both mixed" in text
    assert "It agrees" not in text


def test_a_site_frozen_by_one_sampler_is_no_agreement(posteriors, chains):
    values = chains(1).tree["posterior"]["inducing_value"].to_numpy().copy()
    values[..., 3] = 0.0
    frozen = sampled(posteriors["nuts"], values)
    texts = compare({"a": chains(0), "b": frozen}, reference="a").sentences
    assert (
        "does not agree with a: inducing_value[3] varies under one of the two alone" in (texts["b"])
    )


def test_engines_may_leave_out_different_constants(posteriors, chains):
    """A site that two of three engines freeze at one value is shown for the third."""

    def frozen(seed):
        values = chains(seed).tree["posterior"]["inducing_value"].to_numpy().copy()
        values[..., 3] = 0.0
        return sampled(posteriors["nuts"], values)

    compared = compare({"a": frozen(0), "b": frozen(1), "c": chains(2)}, reference="a")
    sites = [len(compared.verdicts[name].reference.accuracy.names) for name in ("b", "c")]
    assert sites[1] == sites[0] + 1
    labels = [text.get_text() for text in compared.plot_forest(1).axes[0].texts]
    assert labels == ["inducing_value[3]"]


def test_a_narrow_sampler_is_found_out_by_its_limit(chains):
    """Of 16 means and sds, |z| is above 4.5 by chance with probability 1e-4."""
    compared = compare({"a": chains(0), "b": chains(1, scale=0.92)}, reference="a")
    assert 4.5 < compared.table.loc["b", "largest_z"] < 5.5
    assert "does not agree with a" in compared.sentences["b"]


def test_agreement_tells_the_errors_that_it_excludes(chains):
    """2,000 independent draws a side: a standard error of √(2/2000), 4.5 of them and the error."""
    compared = compare({"a": chains(0), "b": chains(1)}, reference="a")
    largest = compared.verdicts["b"].reference.accuracy.largest_possible_error
    assert 4.5 * np.sqrt(2 / 2000) * 0.9 < largest < 9 * np.sqrt(2 / 2000)
    assert f"which excludes errors of a mean above {largest:.2f} sd." in compared.sentences["b"]


@pytest.mark.in_ci
def test_of_two_good_samplers_that_disagree_one_is_wrong(chains, posteriors):
    texts = compare({"a": chains(0), "b": chains(1, bias=1.0)}, reference="a").sentences
    assert "so one of the two is wrong." in texts["b"]
    texts = compare({"cavi": posteriors["cavi"], "b": chains(1)}, reference="cavi").sentences
    assert "does not agree with cavi" in texts["b"] and "cavi is an approximation" in texts["b"]


# ---------------------------------------------------------------- other targets


@pytest.mark.slow
def test_posteriors_of_other_models_are_told_apart(posteriors, problem):
    """The sentences name a runaway."""
    training, test, model = problem
    gamma = replace(model, scale_mixture=GammaScaleMixture(1.0, 1.0))
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
    assert list(table["target_density"]) == [
        "logistic",
        *2 * ["GammaScaleMixture(alpha=1.0, beta=1.0)"],
    ]
    assert table.loc["gamma cavi", "own_reference"] == "gamma nuts"
    assert table.loc["gamma cavi", "own_mean_error"] > 10
    text = comparison.sentences["gamma cavi"]
    assert "is another model than nuts's" in text
    assert "has run away from it" in text and f"{table.loc['gamma nuts', 'size']:,.0f}" in text
    assert "as they should be" not in text


@pytest.mark.slow
def test_runaway_is_shown_where_target_densities_are_equal(posteriors, problem):
    training, _, model = problem
    gamma = replace(model, scale_mixture=GammaScaleMixture(1.0, 1.0))
    far = 30.0 + posteriors["nuts"].tree["posterior"]["inducing_value"].to_numpy()
    comparison = compare(
        {
            "cavi": coordinate_ascent(gamma, training, seed=0),
            "nuts": replace(sampled(posteriors["nuts"], far), model=gamma),
        }
    )
    name = "GammaScaleMixture(alpha=1.0, beta=1.0)"
    assert set(comparison.table["target_density"]) == {name}
    assert f"All are about {name}, not the logistic model" in comparison.reference_sentence
    text = comparison.sentences["cavi"]
    assert f"{name}, has run away from it" in text
    assert f"{comparison.table.loc['nuts', 'size']:,.0f} under nuts" in text
    assert "does not see that" in text or "cannot correct it" in text


@pytest.mark.slow
def test_sampler_near_the_start_hides_no_runaway(posteriors, chains, problem):
    training, _, model = problem
    gamma = replace(model, scale_mixture=GammaScaleMixture(1.0, 1.0))
    comparison = compare(
        {
            "logistic": chains(0),
            "cavi": coordinate_ascent(gamma, training, seed=0),
            "home": replace(chains(1), model=gamma),
            "far": replace(slow(chains(2, bias=100.0)), model=gamma),
        }
    )
    texts = comparison.sentences
    assert comparison.reference == "logistic"
    assert comparison.table.loc["cavi", "own_reference"] == "home"
    for name in ("cavi", "home"):
        assert "has run away from it: typical |value| 100 under far" in texts[name]
    assert "home's chains agree with each other, but never came there." in texts["home"]
    assert "run away" not in texts["far"]
    assert "On its own target density it does not agree with home" in texts["far"]
    assert "so one of the two is wrong." in texts["far"]


@pytest.mark.in_ci
def test_other_values_of_hyperparameters_are_another_target_density(chains, problem):
    model = problem[2].with_hyperparameters({"variance": 5.0})
    comparison = compare({"a": chains(0), "b": replace(chains(1, bias=1.0), model=model)})
    assert list(comparison.table["target_density"]) == ["variance=4.0", "variance=5.0"]
    (text,) = (comparison.sentences[name] for name in "ab" if name != comparison.reference)
    assert "is wrong" not in text and "agree" not in text
    assert "Its hyper-parameters, variance=" in text


PRIORS = {
    "number": 4.0,
    "log-normal": dist.LogNormal(0.0, 1.0),
    "wider log-normal": dist.LogNormal(0.0, 2.0),
    "truncated": dist.TruncatedNormal(0.0, 1.0, low=0.0),
    "wider truncated": dist.TruncatedNormal(0.0, 2.0, low=0.0),
    "transformed": dist.TransformedDistribution(
        dist.Normal(0.0, 1.0), dist.transforms.ExpTransform()
    ),
    "wider transformed": dist.TransformedDistribution(
        dist.Normal(0.0, 2.0), dist.transforms.ExpTransform()
    ),
}


def test_only_different_priors_make_different_target_densities(chains, problem):
    kernel = problem[2].kernel

    def planted(prior):
        model = replace(problem[2], kernel=replace(kernel, variance=prior))
        return replace(chains(0), model=model)

    targets = compare({name: planted(prior) for name, prior in PRIORS.items()}).table[
        "target_density"
    ]
    assert targets.nunique() == len(PRIORS)
    assert targets["wider log-normal"] == "variance=LogNormal(loc=0.0, scale=2.0)"
    assert not targets.str.contains("0x").any()
    again = [planted(dist.LogNormal(0.0, 1.0)) for _ in range(2)]
    assert "target_density" not in compare({"a": again[0], "b": again[1]}).table


def test_two_functions_in_the_model_are_two_target_densities(chains, problem):
    def planted(rate):
        psi = ScaleMixture.from_log_density(lambda f: -rate * f**2)
        return replace(chains(0), model=replace(problem[2], scale_mixture=psi))

    assert compare({"a": planted(0.1), "b": planted(0.2)}).table["target_density"].nunique() == 2


@pytest.mark.in_ci
def test_learned_hyperparameters_are_named_as_another_target(posteriors, problem):
    training, _, model = problem
    moved = coordinate_ascent(model.with_hyperparameters({"variance": 5.0}), training, seed=0)
    comparison = compare({"cavi": moved, "nuts": posteriors["nuts"]})
    text = comparison.sentences["cavi"]
    assert (
        "Its hyper-parameters, variance=5.0, were learned or given otherwise than nuts's, "
        "variance=4.0" in text
    )
    assert "should be" not in text and "another model" not in text


# Two likelihoods of labels, as another person would set them up.


@pytest.fixture(scope="module")
def likelihoods():
    """An approximation for each likelihood and kernel variance, of the same bags."""
    design = simulate_instances(40, range(1, 5), num_features=2, seed=0)
    logistic = VWSGP.for_bags(design, 5, variance=2.0, length_scale=1.5)
    bags, _ = simulate(logistic, design, seed=1)
    probit = replace(logistic, likelihood=Probit())
    models = {
        "logistic": logistic,
        "probit": probit,
        "wide probit": probit.with_hyperparameters({"variance": 5.0}),
        "noisy probit": replace(probit, likelihood=Probit(3.0)),
    }
    return {name: laplace(model, bags, seed=0) for name, model in models.items()}


@pytest.mark.slow
def test_another_likelihood_is_another_model_and_not_other_hyperparameters(likelihoods):
    kinds = {name: likelihoods[name] for name in ("logistic", "probit")}
    comparison = compare(kinds, reference="logistic")
    assert list(comparison.table["target_density"]) == ["logistic", "probit, noise=1.0"]
    text = comparison.sentences["probit"]
    assert "Its target density, probit, noise=1.0, is another model than logistic's" in text
    assert "hyper-parameters" not in text and "should be" not in text
    kinds = {name: likelihoods[name] for name in ("probit", "noisy probit")}
    text = compare(kinds, reference="probit").sentences["noisy probit"]
    # The noise is fixed, not learned.
    assert "Its target density, noise=3.0, is another model than probit's" in text


@pytest.mark.slow
def test_posteriors_of_one_likelihood_name_no_target_density(likelihoods):
    comparison = compare({"a": likelihoods["probit"], "b": likelihoods["probit"]}, reference="a")
    assert "target_density" not in comparison.table
    assert "logistic" not in comparison.reference_sentence
    kinds = {"a": likelihoods["probit"], "b": likelihoods["wide probit"]}
    comparison = compare(kinds, reference="a")
    assert list(comparison.table["target_density"]) == ["variance=2.0", "variance=5.0"]
    assert "Its hyper-parameters, variance=5.0, were learned or" in comparison.sentences["b"]


def test_other_odds_of_the_maximum_are_another_model(chains, problem):
    blunt = replace(chains(1), model=replace(problem[2], sharpness=5.0))
    comparison = compare({"a": chains(0), "b": blunt}, reference="a")
    assert (
        "Its target density, sharpness=5.0, is another model than a's" in comparison.sentences["b"]
    )


@pytest.mark.in_ci
def test_only_logistic_labels_belong_to_the_logistic_model(likelihoods, problem):
    assert is_logistic(problem[2]) and is_logistic(likelihoods["logistic"].model)
    assert not is_logistic(likelihoods["probit"].model)
    assert not is_logistic(replace(likelihoods["probit"].model, likelihood=Gaussian()))
    assert not is_logistic(replace(problem[2], scale_mixture=GammaScaleMixture(1.0, 1.0)))


@pytest.mark.in_ci
def test_predictions_are_compared_with_the_reference(comparison, posteriors, problem):
    test = problem[1]
    ours = posteriors["cavi"].predict(test).bag_probability
    theirs = posteriors[comparison.reference].predict(test).bag_probability
    apart = np.abs(ours - theirs).mean()
    assert comparison.table.loc["cavi", "probability_difference"] == pytest.approx(apart)
    assert f"{apart:.3f} from {comparison.reference}'s on average" in comparison.sentences["cavi"]


def difference(mean=0.001, worst=0.002, log_loss=0.001, error=0.001):
    return PredictionDifference(mean, worst, log_loss, error)


LARGER_ERROR = "predictions here are better for it, though its posterior has the larger error"


@pytest.mark.slow_but_first
@pytest.mark.parametrize(
    ("planted", "expected"),
    [
        (difference(), "for predictions here it makes no difference"),
        (difference(worst=0.3), "on average it makes no difference, but it does for some bags"),
        (difference(mean=0.1, worst=0.3, error=0.1), "these bags cannot tell which are better"),
        (difference(log_loss=0.2, error=0.01), "predictions here are worse for it"),
        (difference(log_loss=-0.2, error=0.01), LARGER_ERROR),
        (difference(error=np.nan), "(+0.001): one bag cannot tell which is better"),
    ],
)
def test_consequences_of_other_predictions_are_stated(judged, planted, expected):
    text = sentence("cavi", replace(judged.verdicts["cavi"], difference=planted))
    assert text.endswith(f"{expected}.")
    assert "nan" not in text


@pytest.mark.slow
def test_only_an_approximation_has_the_larger_error(judged, posteriors, chains, problem):
    """The sentence appears only where the reference is reliable."""
    training, test, model = problem
    gamma = coordinate_ascent(
        replace(model, scale_mixture=GammaScaleMixture(1.0, 1.0)), training, seed=0
    )
    better = difference(log_loss=-0.2, error=0.01)
    for name, posterior, reference in (
        ("a sampler", chains(1), chains(0)),
        ("another target", gamma, chains(0)),
        ("reference no sampler", posteriors["cavi"], posteriors["cavi"]),
    ):
        comparison = compare({name: posterior, "a": reference}, reference="a", test=test)
        text = sentence(name, replace(comparison.verdicts[name], difference=better))
        assert text.endswith("predictions here are better for it."), name


def test_single_test_bag_has_no_standard_error(posteriors, chains, problem):
    test = problem[1].select([0])
    text = compare({"cavi": posteriors["cavi"], "a": chains(0)}, test=test).sentences["cavi"]
    assert "one bag cannot tell" in text and "nan" not in text


@pytest.mark.in_ci
def test_comparing_twice_gives_the_same_table(comparison, posteriors, problem):
    assert compare(posteriors, test=problem[1]).table.equals(comparison.table)


def test_errors_stand_beside_their_measures(comparison):
    columns = list(comparison.table.columns)
    assert columns[columns.index("mean_error") + 1] == "error_mcse"


# ---------------------------------------------------------------- bad input


@pytest.mark.usefixtures("without_type_checks")
def test_posteriors_without_names_are_refused(posteriors):
    with pytest.raises(TypeError, match=r"posteriors is a list; expected a mapping .* \{'nuts'"):
        compare(list(posteriors.values()))


def test_no_draws_to_judge_by_are_refused(posteriors):
    with pytest.raises(ValueError, match="num_draws is 0; expected an integer of at least 1"):
        compare(posteriors, num_draws=0)


def test_few_draws_give_no_khat_and_say_so(posteriors):
    comparison = compare({"cavi": posteriors["cavi"]}, num_draws=26)
    assert np.isnan(comparison.table.loc["cavi", "khat"])
    assert "k̂ needs at least 100 draws of it, and there are 26" in comparison.sentences["cavi"]


def test_no_posteriors_are_refused():
    with pytest.raises(ValueError, match="posteriors is empty; expected at least one"):
        compare({})


def test_a_kept_posterior_joins_as_the_reference(posteriors):
    kept = SimpleNamespace(name="kept", posterior=posteriors["nuts"])
    others = {name: one for name, one in posteriors.items() if name != "nuts"}
    found = compare(others, reference=kept)
    assert found.reference == "kept" and not found.is_chosen
    own = compare(posteriors, reference="nuts")
    for name in others:
        assert found.table.loc[name, "mean_error"] == own.table.loc[name, "mean_error"]
    with pytest.raises(ValueError, match="'nuts' besides the reference of that name"):
        compare(posteriors, reference=SimpleNamespace(name="nuts", posterior=posteriors["nuts"]))


def test_a_reference_that_is_none_is_refused(posteriors, without_type_checks):
    with pytest.raises(TypeError, match=r"reference is a int; .*load_reference"):
        compare(posteriors, reference=7)


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


# ------------------------------------------------------------------ targets


@pytest.fixture(scope="module")
def regression_comparison():
    design = simulate_instances(40, range(1, 5), num_features=2, seed=0)
    model = VWSGP.for_bags(design, 5, variance=2.0, length_scale=1.5, likelihood=Gaussian(0.3))
    train, test = simulate(model, design, seed=1)[0].split(0.7, seed=0)
    exact = coordinate_ascent(model, train, seed=0)
    wrong = coordinate_ascent(replace(model, likelihood=Gaussian(30.0)), train, seed=0)
    sampled = nuts(model, train, seed=0, num_samples=1500)
    return compare({"exact": exact, "wrong": wrong, "nuts": sampled}, test=test)


@pytest.mark.slow
def test_posteriors_of_targets_are_scored_by_their_errors(regression_comparison):
    table = regression_comparison.table
    assert {"log_loss", "rmse"} <= set(table.columns)
    assert not {"auc", "accuracy", "brier", "instance_auc"} & set(table.columns)
    assert table.loc["wrong", "rmse"] > table.loc["exact", "rmse"]
    assert table.loc["wrong", "log_loss"] > table.loc["exact", "log_loss"]
    assert "predictive sds from exact's on average" in regression_comparison.sentences["nuts"]


@pytest.mark.slow
def test_target_differences_have_their_own_column(regression_comparison, comparison):
    table = regression_comparison.table
    assert "probability_difference" not in table and "target_difference" not in comparison.table
    wrong = regression_comparison.verdicts["wrong"]
    assert table.loc["wrong", "target_difference"] == wrong.difference.mean > 0
    assert np.isnan(wrong.row()["probability_difference"])
    assert np.isnan(comparison.verdicts["cavi"].row()["target_difference"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "expected"),
    [
        (difference(mean=0.08, worst=0.2), "for predictions here it makes no difference"),
        (difference(mean=0.08, worst=0.3), "but it does for some bags"),
        (difference(mean=0.2, worst=0.3, error=0.1), "the targets differ, but these bags cannot"),
    ],
)
def test_distances_of_targets_have_limits_of_their_own(regression_comparison, planted, expected):
    verdict = regression_comparison.verdicts["nuts"]
    assert expected in sentence("nuts", replace(verdict, difference=planted))


@pytest.mark.slow
def test_posteriors_of_labels_and_of_targets_are_not_compared(regression_comparison):
    exact = regression_comparison.posteriors["exact"]
    bags = exact.bags
    both = replace(bags, labels=(bags.targets > 0).astype(int))
    labels = coordinate_ascent(replace(exact.model, likelihood=Probit()), both, seed=0)
    expected = "posterior 'a' predicts targets and 'b' predicts labels; expected all of one kind"
    with pytest.raises(ValueError, match=expected):
        compare({"a": exact, "b": labels}, test=both)


@pytest.mark.in_ci
def test_an_exact_posterior_ranks_before_any_sampler(regression_comparison):
    assert regression_comparison.reference == "exact"
    assert regression_comparison.reference_sentence.startswith(
        "The reference is exact, the exact posterior: its density is the model's at every draw."
    )
    assert "agrees with exact" in regression_comparison.sentences["nuts"]
    fits = regression_comparison.posteriors  # of two exact ones, that of the target most have
    assert compare({name: fits[name] for name in ("wrong", "exact", "nuts")}).reference == "exact"


@pytest.mark.slow
def test_an_unmixed_sampler_is_no_reference_before_a_grid(problem, chains, posteriors):
    training, _, model = problem
    small = replace(model, inducing_points=model.inducing_points[:2])
    fits = {
        "nuts": nuts(small, training, seed=1, num_warmup=10, num_samples=20),
        "cavi": coordinate_ascent(small, training, seed=0),
        "grid": grid(small, training, seed=0, num_points=61),
    }
    compared = compare(fits)
    assert compared.reference == "grid"
    assert "they should be" in compared.sentences["cavi"]


def test_noise_is_a_hyperparameter_of_targets(regression_comparison):
    text = regression_comparison.sentences["wrong"]
    assert "Its hyper-parameters, noise=30.0, were learned or given otherwise than exact's" in text
    assert "logistic" not in regression_comparison.reference_sentence


def test_plot_of_targets_has_a_panel_for_each_posterior(regression_comparison):
    panels = [panel for panel in regression_comparison.plot_targets().axes if panel.get_title()]
    truth = np.asarray(regression_comparison.test.targets)
    for panel, (name, posterior) in zip(
        panels, regression_comparison.posteriors.items(), strict=True
    ):
        prediction = posterior.predict(regression_comparison.test)
        low, high = prediction.bag_interval(0.9)
        inside = ((low <= truth) & (truth <= high)).sum()
        assert panel.get_title() == f"{name}: {inside} of {len(truth)} inside"
        dots = np.concatenate([container[0].get_xydata() for container in panel.containers])
        expected = np.column_stack([truth, prediction.bag_target])
        np.testing.assert_array_equal(np.sort(dots, axis=0), np.sort(expected, axis=0))


def test_plots_of_other_predictions_are_refused(regression_comparison, comparison):
    for picture in (
        regression_comparison.plot_probabilities,
        regression_comparison.plot_calibration,
    ):
        with pytest.raises(
            ValueError, match=r"predict targets, so there are no prob.* plot_targets"
        ):
            picture()
    with pytest.raises(ValueError, match=r"predict labels, so there are no targets .* plot_prob"):
        comparison.plot_targets()
    with pytest.raises(ValueError, match="no test bags, so no targets to draw; pass test="):
        compare({"exact": regression_comparison.posteriors["exact"]}).plot_targets()


@pytest.mark.slow
def test_an_exact_posterior_is_called_exact(regression_comparison, tmp_path):
    assert regression_comparison.table.loc["exact", "khat"] == -np.inf
    assert "that of the exact posterior at every draw" in regression_comparison.sentences["exact"]
    assert "exact posterior at every draw" in regression_comparison.sentences["wrong"]  # of its own
    page = regression_comparison.save_report(tmp_path).read_text(encoding="utf-8")
    assert "root mean squared error" in page and "of good intervals nine in ten hold" in page
    pictures = {path.name for path in tmp_path.glob("*.png")}
    assert "targets.png" in pictures
    assert not {"probabilities.png", "calibration.png"} & pictures
    rows = json.loads((tmp_path / "metrics.json").read_text("utf-8"))["engines"]
    assert rows["exact"]["khat"] == "-inf"  # a result …
    assert rows["nuts"]["khat"] is None  # … and no result


def test_test_bags_without_targets_are_refused(regression_comparison):
    bare = replace(regression_comparison.test, targets=None)
    with pytest.raises(ValueError, match="test bags have no targets; compare scores predictions"):
        compare(regression_comparison.posteriors, test=bare)


def autocorrelated(posterior, shift):
    """Chains of autocorrelation 0.7, of which the first is shifted by some sds."""
    noise = np.random.default_rng(1).normal(size=(4, 500, 8)) * np.sqrt(1 - 0.7**2)
    values = lfilter([1.0], [1.0, -0.7], noise, axis=1)
    values[0] += shift
    return sampled(posterior, values)


def marked(figure):
    """The number of dots in each panel: draws by which chains differ."""
    return [sum(len(dots.get_offsets()) for dots in panel.collections) for panel in figure.axes]


def test_ranks_are_marked_where_a_chain_differs(posteriors):
    alike, apart = (
        compare({"nuts": autocorrelated(posteriors["nuts"], shift)}).plot_rank() for shift in (0, 1)
    )
    assert marked(alike) == [0, 0, 0]
    assert all(marked(apart))


def test_lines_of_ranks_are_differences_of_distribution_functions(posteriors):
    posterior = autocorrelated(posteriors["nuts"], 1)
    panel = compare({"nuts": posterior}).plot_rank().axes[0]
    site = int(panel.get_title().split()[-1].strip("]").split("[")[-1])
    draws = posterior.tree["posterior"]["inducing_value"].to_numpy()[..., site]
    shown = len(panel.lines[0].get_xdata())
    assert 50 < shown < 150  # of 500: an ESS of 0.18 a draw
    thinned = draws[:, :: round(500 / shown)]
    for line, chain in zip(panel.lines, thinned, strict=True):
        at = np.quantile(thinned, line.get_xdata())
        expected = (chain <= at[:, None]).mean(axis=1) - line.get_xdata()
        np.testing.assert_allclose(line.get_ydata(), expected, atol=2.5 / shown)


def test_halves_of_a_single_chain_are_ranked(posteriors):
    posterior = autocorrelated(posteriors["nuts"], 0)
    drifting = autocorrelated(posteriors["nuts"], 0)
    drifting.tree["posterior"]["inducing_value"].values[:, 250:] += 2.0
    counts = []
    for one in (posterior, drifting):
        single = replace(one, tree=one.tree.isel(chain=[0], missing_dims="ignore"))
        figure = compare({"nuts": single}).plot_rank("nuts")
        assert "dots where halves of its chain differ" in figure.get_suptitle()
        counts.append(marked(figure))
    alike, apart = counts
    assert alike == [0, 0, 0] and all(apart)
