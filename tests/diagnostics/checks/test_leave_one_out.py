"""Leaving bags out by weights against the exact answer: evidence of all, less that of others."""

from copy import copy
from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest
import xarray as xr
from arviz_stats.utils import ELPDData
from milzoo.datasets import simulate, simulate_instances
from milzoo.diagnostics.checks.leave_one_out import (
    held_out_calibration,
    leave_one_out,
    leave_one_out_of_all,
    leave_one_out_sentences,
    leave_one_out_table,
)
from milzoo.diagnostics.measures.reliability import reliability
from milzoo.inference import coordinate_ascent, grid, maximum_a_posteriori, nuts
from milzoo.inference.posterior import Status, approximate_posterior
from milzoo.inference.runtime.programs import Stopwatch
from milzoo.models import DPMIL, RBF, VGPMIL, VWSGP, Gaussian
from scipy import stats


@pytest.fixture(scope="module")
def small():
    """Twelve bags and two unknown numbers, whose evidence can be summed up."""
    design = simulate_instances(12, 2, num_features=1, seed=1)
    model = VGPMIL(RBF(2.0, 1.0), np.array([[-0.7], [0.7]]), mean=-0.9)
    return model, simulate(model, design, seed=3)[0]


@pytest.fixture(scope="module")
def exact(small):
    """log p(label of a bag | the others), by bag."""
    model, bags = small
    whole = grid(model, bags, seed=0, num_points=101).elbo[-1]

    def without(bag):
        others = bags.select(np.arange(bags.num_bags) != bag)
        return grid(model, others, seed=0, num_points=101).elbo[-1]

    return whole - np.array([without(bag) for bag in range(3)])


def changed(model, bags, *, bias, width):
    """An approximation with planted faults: a bias, in sds, and a wrong width."""
    approximation = coordinate_ascent(model, bags, seed=0).approximation
    mean = approximation.mean + bias * np.diag(approximation.scale_tril)
    return approximate_posterior(
        model,
        bags,
        replace(approximation, mean=mean, scale_tril=width * approximation.scale_tril),
        engine="by hand",
        key=jax.random.key(0),
        num_draws=4000,
        status=Status("converged", "by hand"),
        seconds=1.0,
        watch=Stopwatch(),
        elbo=None,
    )


def narrow(model, bags):
    return changed(model, bags, bias=0.0, width=0.3)


ENGINES = {
    "biased": partial(changed, bias=0.7, width=1.7),
    "grid": lambda *problem: grid(*problem, seed=0, num_points=101, num_draws=4000),
    "nuts": lambda *problem: nuts(*problem, seed=0, num_warmup=300, num_samples=1000),
}


@pytest.fixture(scope="module", params=list(ENGINES))
def posterior(request, small):
    return ENGINES[request.param](*small)


@pytest.mark.slow
def test_leave_one_out_equals_fits_without_each_bag(posterior, exact):
    found = leave_one_out(posterior)
    by_draw = np.exp(posterior.log_likelihood.to_numpy()).reshape(-1, 12)
    # Of the mean of 1/p over independent draws, relative, and half as many draws for chains and for
    # the approximation's own weights; 5.5 of it: 9 numbers, false alarms below 1e-5.
    error = np.std(1 / by_draw, axis=0) / np.mean(1 / by_draw, axis=0) / np.sqrt(len(by_draw) / 2)
    assert np.all(found.pareto_k < found.good_k)
    z = (found.elpd_i.to_numpy()[:3] - exact) / error[:3]
    assert np.abs(z).max() < 5.5, z


def failed(posterior):
    return replace(posterior, status=Status("failed", "the bound is not finite"))


@pytest.mark.slow
def test_posteriors_without_leave_one_out_say_why(small):
    model, bags = small
    point = maximum_a_posteriori(model, bags, seed=0)
    with pytest.raises(ValueError, match="is a point, without draws"):
        leave_one_out(point)
    closed = coordinate_ascent(model, bags, seed=0)
    with pytest.raises(ValueError, match=r"failed \(the bound is not finite\)"):
        leave_one_out(failed(closed))
    with pytest.raises(ValueError, match=r"has 24 draws; .* needs at least 25"):
        leave_one_out(coordinate_ascent(model, bags, seed=0, num_draws=24))
    assert leave_one_out(coordinate_ascent(model, bags, seed=0, num_draws=25)).n_samples == 25
    clusters = coordinate_ascent(DPMIL.for_bags(bags), bags, seed=0)
    with pytest.raises(NotImplementedError, match="instances given labels"):
        leave_one_out(clusters)
    found = leave_one_out_of_all({"point": point, "failed": failed(closed), "closed": closed})
    assert set(found) == {"closed"}
    assert leave_one_out_table({}).empty


def elpd_of(by_bag):
    """Leave-one-out predictions of bags, all by good weights."""
    values = xr.DataArray(np.asarray(by_bag, float), dims="bag")
    error = np.sqrt(values.size * np.var(values.to_numpy()))
    return ELPDData(
        elpd=float(values.sum()),
        se=error,
        p=1.0,
        n_samples=2000,
        n_data_points=values.size,
        scale="log",
        warning=False,
        good_k=0.7,
        elpd_i=values,
        pareto_k=0 * values,
    )


@pytest.mark.parametrize(
    ("behind", "expected"),
    [
        (np.zeros(12), "cannot tell from no difference"),
        (0.01 * (-1.0) ** np.arange(12) + 0.004, "cannot tell from no difference"),
        (0.01 * (-1.0) ** np.arange(12) + 0.1, "predicts held-out bags better than"),
    ],
)
def test_two_standard_errors_make_a_model_better(behind, expected):
    best = -0.5 - 0.1 * np.arange(12)
    found = {"a": elpd_of(best), "b": elpd_of(best - behind)}
    (text,) = leave_one_out_sentences(found, {"a": "one", "b": "other"})
    assert expected in text
    error = np.sqrt(12) * np.std(behind)
    assert f"{behind.sum():.1f} ± {error:.1f} nats" in text


def test_held_out_bags_of_unmixed_chains_are_provisional():
    found = {"a": elpd_of(-np.ones(12)), "b": elpd_of(-np.ones(12))}
    first, _ = leave_one_out_sentences(found, {"a": "one", "b": "one"}, unmixed=["b"])
    assert first == "b's chains have not mixed: its sum over held-out bags is provisional."


@pytest.mark.slow
def test_models_are_compared_by_their_soundest_posteriors(small):
    model, bags = small
    other = replace(model, mean=6.0)  # as if nearly all bags were positive
    posteriors = {
        "exact": ENGINES["grid"](model, bags),
        "narrow": narrow(model, bags),
        "other": ENGINES["grid"](other, bags),
    }
    found = leave_one_out_of_all(posteriors)
    table = leave_one_out_table(found)
    assert table.loc["narrow", "bad_bags"] == 12 and table.loc["exact", "bad_bags"] == 0
    targets = {"exact": "mean=-0.9", "narrow": "mean=-0.9", "other": "mean=6.0"}
    provisional, better = leave_one_out_sentences(found, targets)
    assert provisional.startswith("narrow cannot leave out 12 of 12 bags by weights")
    by_bag = found["exact"].elpd_i.to_numpy() - found["other"].elpd_i.to_numpy()
    ahead, error = by_bag.sum(), np.sqrt(12) * by_bag.std()
    assert better == (  # 1.2 standard errors
        f"mean=-0.9 (by exact) is ahead of mean=6.0 (by other) by {ahead:.1f} ± {error:.1f} nats "
        "on held-out bags, which these bags cannot tell from no difference."
    )
    # However high it is, a sum that means nothing is no measure for others.
    higher = copy(found["exact"])
    higher.elpd, higher.elpd_i = found["exact"].elpd + 12, found["exact"].elpd_i + 1
    higher.pareto_k = found["narrow"].pareto_k
    table = leave_one_out_table({"higher": higher, "exact": found["exact"]})
    assert list(table.index) == ["exact", "higher"] and table.loc["exact", "elpd_diff"] == 0
    (alike,) = leave_one_out_sentences({"exact": found["exact"]}, targets)
    assert alike == "All have one target density: differences between them come from the engines."


# ------------------------------------------------------------------ calibration of held-out bags


@pytest.fixture(scope="module")
def approximate(small):
    return coordinate_ascent(*small, seed=0)


@pytest.mark.in_ci
def test_held_out_labels_have_the_calibration_of_their_probabilities(approximate):
    labels = np.asarray(approximate.bags.labels)
    positive = np.linspace(0.05, 0.95, 12)
    found = held_out_calibration(
        approximate, elpd_of(np.log(np.where(labels == 1, positive, 1 - positive)))
    )
    expected = reliability(positive, labels)
    assert (found.num_bags, found.num_influential) == (12, 0)
    assert found.error == pytest.approx(expected.error)
    assert found.by_chance == pytest.approx(expected.error_if_calibrated)
    assert found.p_value == pytest.approx(expected.p_value)


@pytest.mark.slow
def test_labels_that_belie_their_probabilities_are_found(approximate):
    """Said are 0.02 and 0.98, the wrong way round, so that regression pools all bags."""
    wrong = held_out_calibration(approximate, elpd_of(np.full(12, np.log(0.02))))
    labels = np.asarray(approximate.bags.labels)
    said = np.where(labels == 1, 0.02, 0.98)
    assert wrong.error == pytest.approx(np.abs(labels.mean() - said).mean())
    assert wrong.p_value < 0.01


@pytest.mark.in_ci
def test_bags_too_influential_for_weights_are_not_counted(approximate):
    found = elpd_of(np.full(12, np.log(0.5)))
    found.pareto_k[0] = 0.9
    counted = held_out_calibration(approximate, found)
    assert (counted.num_bags, counted.num_influential) == (11, 1)
    found.pareto_k[1] = 0.9  # more than a tenth
    assert held_out_calibration(approximate, found) is None


@pytest.mark.slow
def test_pit_of_targets_is_of_fits_without_them():
    """Conjugate: Y_b given the other targets is Gaussian, by a fit without the bag."""
    design = simulate_instances(10, 2, num_features=1, seed=1)
    model = VWSGP(RBF(2.0, 1.0), np.array([[-0.7], [0.7]]), likelihood=Gaussian(0.5))
    bags, _ = simulate(model, design, seed=3)

    def exact(bag):
        others = bags.select(np.arange(bags.num_bags) != bag)
        fit = coordinate_ascent(model, others, seed=0, num_draws=4000)
        predicted = fit.predict(bags.select([bag]))
        return stats.norm.cdf(bags.targets[bag], predicted.bag_mean, predicted.bag_scale).mean()

    posterior = coordinate_ascent(model, bags, seed=0, num_draws=8000)
    found = held_out_calibration(posterior, leave_one_out(posterior))
    pit = np.array([exact(bag) for bag in range(bags.num_bags)])
    expected = stats.kstest(pit, "uniform")
    # A fraction of 8,000 weighted replicates, and a mean over 4,000 draws: errors of 0.01.
    assert found.error == pytest.approx(expected.statistic, abs=0.05)
    assert found.by_chance == pytest.approx(stats.kstwo.mean(10))
    assert found.p_value == pytest.approx(expected.pvalue, abs=0.15)


@pytest.mark.slow
def test_a_bag_that_is_certain_is_left_out(small):
    """Its weights are equal, and ArviZ fits no tail to such."""
    model, bags = small
    posterior = copy(nuts(model, bags, seed=0, num_warmup=50, num_samples=50, num_chains=2))
    values = posterior.log_likelihood.copy()
    values[:, :, 3] = -0.25
    posterior.__dict__["log_likelihood"] = values
    found = leave_one_out(posterior)
    assert float(found.elpd_i[3]) == pytest.approx(-0.25, abs=1e-9)
    assert np.isfinite(found.elpd_i).all() and float(found.pareto_k[3]) < 0.5
