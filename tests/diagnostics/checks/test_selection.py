"""Choosing among models: what is computed, against fits without each bag; and what disagrees."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from milzoo.datasets import simulate, simulate_instances
from milzoo.diagnostics import Prepared, Selection, select
from milzoo.diagnostics.checks.leave_one_out import leave_one_out
from milzoo.diagnostics.measures.scores import bag_log_loss
from milzoo.inference import coordinate_ascent, gibbs, grid, maximum_a_posteriori, nuts
from milzoo.models import (
    DPMIL,
    RBF,
    VGPMIL,
    CardinalityGP,
    CardinalityKernel,
    CardinalityModel,
    GammaScaleMixture,
    Gaussian,
    NeighbourScore,
    ScoreThreshold,
    scored,
)
from milzoo.models.vwsgp import VWSGP
from scipy import stats

pytestmark = pytest.mark.in_ci

INDUCING_POINTS = np.array([[-0.8, 0.3], [0.7, 0.8], [0.4, -0.9]])
DESIGN = simulate_instances(16, range(1, 5), num_features=2, seed=3)
GAUSSIAN = VWSGP(RBF(4.0, 1.0), INDUCING_POINTS, likelihood=Gaussian(0.5))
LOGISTIC = VGPMIL(RBF(4.0, 1.3), INDUCING_POINTS, mean=-0.8)
WITH_TARGETS, _ = simulate(GAUSSIAN, DESIGN, seed=1)
WITH_LABELS, _ = simulate(LOGISTIC, DESIGN, seed=1)


@pytest.fixture(scope="module")
def by_closed_form():
    models = {"as simulated": GAUSSIAN, "noise of 5": replace(GAUSSIAN, likelihood=Gaussian(5.0))}
    return models, select(models, WITH_TARGETS, seed=0, num_folds=16, num_draws=4000)


def _left_out(model, bags):
    """log p(target of a bag | the others), exactly: the evidence of all less that of the others."""
    whole = coordinate_ascent(model, bags, seed=0).elbo[-1]
    index = np.arange(bags.num_bags)
    return np.array(
        [whole - coordinate_ascent(model, bags.select(index != b), seed=0).elbo[-1] for b in index]
    )


@pytest.mark.slow
def test_predictive_criteria_equal_those_of_fits_without_each_bag(by_closed_form):
    models, found = by_closed_form
    for name, model in models.items():
        exact = _left_out(model, WITH_TARGETS)
        # Weights of 4,000 draws; their error is that of a mean of p(y | draw) by bag.
        np.testing.assert_allclose(found.elpd["loo"][name], exact, atol=0.05)
        # Sixteen folds of sixteen bags leave one out too, in another order.
        np.testing.assert_allclose(
            np.sort(found.elpd["cross_validation"][name]), np.sort(exact), atol=0.05
        )


def test_an_approximation_is_refitted_without_each_bag():
    # Weights of draws of q say how q would change, had it been exact: this q is too narrow.
    found = select({"logistic": LOGISTIC}, WITH_LABELS, seed=0, criteria=("loo",))
    index, refitted = np.arange(WITH_LABELS.num_bags), []
    for bag in index:
        posterior = coordinate_ascent(LOGISTIC, WITH_LABELS.select(index != bag), seed=0)
        left_out = WITH_LABELS.select(index == bag)
        refitted.append(-bag_log_loss(posterior.predict(left_out), left_out)[0])
    np.testing.assert_allclose(found.elpd["loo"]["logistic"], refitted, rtol=1e-10)
    assert found.num_refitted["logistic"] == WITH_LABELS.num_bags


@pytest.mark.slow
def test_differences_have_the_paired_error_over_bags(by_closed_form):
    _, found = by_closed_form
    best, other = found.chosen, next(name for name in found.elbo if name != found.chosen)
    difference = found.elpd["loo"][best] - found.elpd["loo"][other]
    row = found.table.loc[other]
    assert row["loo_behind"] == pytest.approx(difference.sum())
    assert row["loo_behind_error"] == pytest.approx(stats.sem(difference) * len(difference))
    assert found.table.index[0] == best
    assert found.table.loc[best, "loo_behind"] == 0.0


def test_all_criteria_choose_the_true_model(by_closed_form):
    _, found = by_closed_form
    assert set(found.chosen_by.values()) == {"as simulated"}
    assert found.sentences == ["as simulated is chosen by loo and cross_validation and elbo"]
    assert found.num_refitted == {"as simulated": 16, "noise of 5": 16}


def test_bags_with_large_khat_are_refitted():
    """One target far out: no draw of the posterior with it says what the others alone would."""
    targets = WITH_TARGETS.targets.copy()
    targets[3] += 40.0
    bags = replace(WITH_TARGETS, targets=targets)
    sampler = partial(gibbs, num_warmup=20, num_samples=500, num_chains=2)
    found = select({"outlier": GAUSSIAN}, bags, seed=0, criteria=("loo",), engine=sampler)
    assert 1 <= found.num_refitted["outlier"] < bags.num_bags
    is_left_out = np.arange(bags.num_bags) == 3
    without = sampler(GAUSSIAN, bags.select(~is_left_out), seed=0)
    left_out = bags.select(is_left_out)
    expected = -bag_log_loss(without.predict(left_out), left_out)[0]
    assert found.elpd["loo"]["outlier"][3] == pytest.approx(expected, rel=1e-12)
    # The mean of a density over 1,000 draws, 23 sds out, is known to some nats.
    assert expected == pytest.approx(_left_out(GAUSSIAN, bags)[3], rel=0.05)


@pytest.mark.slow
def test_leaving_labels_out_by_weights_equals_refitting():
    options = {"num_warmup": 200, "num_samples": 1000, "num_chains": 2}
    found = select(
        {"logistic": LOGISTIC}, WITH_LABELS, seed=0, criteria=("loo",), engine=nuts, **options
    )
    assert np.isnan(found.elbo["logistic"])
    index = np.arange(WITH_LABELS.num_bags)
    without = nuts(LOGISTIC, WITH_LABELS.select(index != 7), seed=5, **options)
    left_out = WITH_LABELS.select(index == 7)
    expected = -bag_log_loss(without.predict(left_out), left_out)[0]
    # 2,000 draws on each side, an ESS of some hundreds: P is known to 0.02.
    assert found.elpd["loo"]["logistic"][7] == pytest.approx(expected, abs=0.15)


def test_disagreeing_criteria_are_reported_with_their_loss():
    bag = np.arange(4.0)
    elpd = {"loo": {"a": -bag, "b": -bag - np.array([0.0, 1.0, 0.0, 1.0])}}
    found = Selection("loo", elpd, {"a": -9.0, "b": -7.0}, {"a": 0, "b": 0})
    assert found.chosen_by == {"loo": "a", "elbo": "b"}
    first, second = found.sentences
    assert first == "a is chosen by loo"
    # Differences 0, 1, 0, 1: sum 2, sd 1/√3 by four bags.
    assert second.startswith("elbo chooses b, which predicts worse by 2.0 ± 1.2 nats")
    assert second.endswith(": within two standard errors")
    assert found.table.loc["b", "chosen_by"] == "elbo"
    by_bound = Selection("elbo", elpd, {"a": -9.0, "b": -7.0}, {"a": 0, "b": 0})
    assert by_bound.chosen == "b"
    assert by_bound.sentences == ["b is chosen by elbo", "loo chooses a"]


@pytest.mark.slow
def test_a_bound_up_to_a_constant_chooses_nothing():
    """With another ψ than the logistic one the density, and so its bound, lacks its constant."""
    models = {
        "logistic": LOGISTIC,
        "gamma": replace(LOGISTIC, scale_mixture=GammaScaleMixture(1.0, 3.0)),
    }
    found = select(models, WITH_LABELS, seed=0, criteria=("loo", "elbo"))
    assert np.isnan(found.elbo["gamma"]) and np.isfinite(found.elbo["logistic"])
    assert found.chosen_by["elbo"] == "logistic"
    with pytest.raises(ValueError, match=r"no bound on the evidence is known for 'gamma'"):
        select(models, WITH_LABELS, seed=0, by="elbo", criteria=("elbo",))


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="models is empty"):
        select({}, WITH_LABELS, seed=0)
    with pytest.raises(ValueError, match="criterion 'waic' is unknown"):
        select({"a": LOGISTIC}, WITH_LABELS, seed=0, by="waic")
    with pytest.raises(ValueError, match=r"by is 'loo', which is not among criteria"):
        select({"a": LOGISTIC}, WITH_LABELS, seed=0, criteria=("elbo",))
    with pytest.raises(ValueError, match="bags have no labels; select needs one for each bag"):
        select({"a": LOGISTIC}, replace(WITH_LABELS, labels=None), seed=0)
    model = DPMIL(np.zeros(2), np.eye(2), 4.0)
    with pytest.raises(NotImplementedError, match="DPMIL's likelihood is of instances"):
        select({"a": model}, WITH_LABELS, seed=0)


# ---------------------------------------------------------------- what is learned from labels

NOISE = simulate_instances(24, 3, num_features=30, seed=5)
NOISE = replace(NOISE, labels=np.random.default_rng(6).permutation(np.arange(24) % 2))
COIN = 24 * np.log(0.5)
SCORE = NeighbourScore(3)
FOLDS = {"by": "cross_validation", "criteria": ("cross_validation",), "num_folds": 4}


def _kernel_from(bags):
    """A process whose kernel is learned from the labels of these bags."""
    mode = maximum_a_posteriori(CardinalityModel(), bags, seed=0)
    weights = mode.stored_draws()["weights"][0]
    kernel = CardinalityKernel(CardinalityModel(), weights, RBF(1.0, 8.0))
    return CardinalityGP.at_bags(kernel, bags, 4.0)


def _scores_from(bags):
    """A threshold on scores made from the labels of these bags, scaled by them."""
    raw = scored([SCORE], bags)
    return Prepared(
        ScoreThreshold(),
        raw.standardize(),
        lambda other: scored([SCORE], bags, other).standardize(raw),
    )


@pytest.mark.slow
def test_a_kernel_learned_from_all_labels_is_refused():
    model = _kernel_from(NOISE)
    with pytest.raises(ValueError, match="'kernel' was given with a kernel whose weights may be"):
        select({"kernel": model}, NOISE, seed=0)
    with pytest.raises(ValueError, match="weights cannot leave a bag out"):
        leave_one_out(coordinate_ascent(model, NOISE, seed=0))
    # By the bound alone no bag is held out.
    assert select({"kernel": model}, NOISE, seed=0, by="elbo", criteria=("elbo",)).chosen


@pytest.mark.slow
def test_a_kernel_without_weights_may_be_selected():
    kernel = CardinalityKernel(CardinalityModel(), np.zeros(30), RBF(1.0, 8.0))
    model = CardinalityGP.at_bags(kernel, NOISE, 4.0)
    found = select({"plain": model}, NOISE, seed=0, **FOLDS)
    assert found.elpd["cross_validation"]["plain"].sum() < COIN + 2.0


def test_scores_of_all_labels_are_refused():
    made = _scores_from(NOISE)
    with pytest.raises(ValueError, match="scores learned from labels"):
        select({"scores": made.model}, made.bags, seed=0, criteria=("loo",))


@pytest.mark.slow
def test_a_kernel_refitted_inside_folds_cannot_predict_noise():
    found = select({"kernel": _kernel_from}, NOISE, seed=0, **FOLDS)
    assert found.elpd["cross_validation"]["kernel"].sum() < COIN + 2.0
    # One kernel of all labels is what leaks: it beats a coin by far.
    model, leaked = _kernel_from(NOISE), 0.0
    for train, test in NOISE.folds(4, seed=0):
        posterior = coordinate_ascent(model, train, seed=0)
        leaked -= bag_log_loss(posterior.predict(test), test).sum()
    assert leaked > COIN + 4.0


def test_a_recipe_is_called_again_without_each_bag():
    """Also for a sampler, whose weights would not leave a bag out of what the recipe learned."""
    short, seen = partial(gibbs, num_warmup=20, num_samples=20, num_chains=1), []

    def recipe(bags):
        seen.append(bags.num_bags)
        return LOGISTIC

    found = select({"a": recipe}, WITH_LABELS, seed=0, criteria=("loo",), engine=short)
    assert seen == [16] + 16 * [15] and found.num_refitted == {"a": 16}


@pytest.mark.slow
def test_scores_refitted_inside_folds_cannot_predict_noise():
    found = select({"scores": _scores_from}, NOISE, seed=0, engine=grid, **FOLDS)
    assert found.elpd["cross_validation"]["scores"].sum() < COIN + 2.0


def test_bags_are_prepared_without_their_labels():
    def recipe(bags):
        def prepare(other):
            assert other.labels is None
            return other

        return Prepared(LOGISTIC, bags, prepare)

    found = select({"a": recipe, "b": LOGISTIC}, WITH_LABELS, seed=0, criteria=("loo",))
    np.testing.assert_array_equal(found.elpd["loo"]["a"], found.elpd["loo"]["b"])
