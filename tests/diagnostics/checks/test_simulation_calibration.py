"""Calibration by simulation: what it finds, what it passes, and how a killed run goes on.

The engine that must pass is exact: a Gaussian likelihood's closed form. False alarm below 1e-4 in
each look; faults are found at seeds that are fixed.
"""

import json
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from milzoo.datasets import simulate_instances
from milzoo.diagnostics import SimulationCalibration, simulation_calibration
from milzoo.inference import coordinate_ascent, laplace, svi
from milzoo.inference.runtime.checkpoint import Journal
from milzoo.inference.traceable import (
    TraceableAscent,
    TraceableDraws,
    TraceableLaplace,
    TraceableSVI,
)
from milzoo.models import DPMIL, RBF, VGPMIL, CardinalityModel, GammaScaleMixture, Gaussian
from milzoo.models.vwsgp import VWSGP
from scipy import stats

INDUCING_POINTS = np.array([[-0.8, 0.3], [0.7, 0.8], [0.4, -0.9]])
DESIGN = simulate_instances(12, range(1, 5), num_features=2, seed=3)
EXACT = VWSGP(RBF(4.0, 1.0), INDUCING_POINTS, likelihood=Gaussian(0.5))
LOGISTIC = VGPMIL(RBF(4.0, 1.3), INDUCING_POINTS, mean=-0.8)


@dataclass(frozen=True)
class Distorted:
    """A planted fault: draws of an exact engine, biased and stretched around their mean."""

    bias: float = 0.0
    stretch: float = 1.0
    has_converged: bool = True
    are_independent = True

    def check(self, model, bags):
        pass

    def draws(self, model, bags, key, num_draws):
        sites = TraceableAscent().draws(model, bags, key, num_draws).sites
        distorted = {}
        for name, site in sites.items():
            mean, sd = site.mean(axis=0), site.std(axis=0)
            distorted[name] = mean + self.bias * sd + self.stretch * (site - mean)
        return TraceableDraws(distorted, jnp.array(self.has_converged))


def _calibrated(engine, simulations=1000, **options):
    return simulation_calibration(EXACT, engine, DESIGN, seed=1, simulations=simulations, **options)


@pytest.fixture(scope="module")
def right():
    return _calibrated("coordinate_ascent")


@pytest.fixture(scope="module")
def too_narrow():
    return _calibrated(Distorted(stretch=0.7))


@pytest.mark.slow
def test_an_exact_engine_passes(right):
    assert right.is_calibrated
    assert right.table["is_symmetric"].all()
    # Rms of S standard normal numbers, sds estimated from 99 draws: 1.01 ± 0.02.
    assert right.table["rms_deviation"].to_numpy() == pytest.approx(1.01, abs=0.1)
    assert right.relative_efficiency == 1.0
    (sentence,) = right.sentences
    assert sentence.startswith("coordinate_ascent on vwsgp: nothing found in 1000 simulations of 4")


@pytest.mark.slow
def test_narrow_posterior_is_found_and_its_ranks_are_symmetric(too_narrow):
    """Sds are 0.7 times the exact ones."""
    assert not too_narrow.is_calibrated
    table = too_narrow.table
    latent = [name for name in table.index if name.startswith("inducing_value")]
    assert set(latent) <= set(too_narrow.not_uniform)
    assert table.loc[latent, "is_symmetric"].all()
    assert table.loc[latent, "rms_deviation"].to_numpy() == pytest.approx(1 / 0.7, abs=0.15)
    assert (table.loc[latent, "p_coverage"] < table.loc[latent, "p_uniform"]).all()
    assert "its ranks are symmetric" in " ".join(too_narrow.sentences)


@pytest.mark.slow
def test_biased_mean_is_found_by_ranks_and_their_symmetry():
    biased = _calibrated(Distorted(bias=0.5))
    table = biased.table
    latent = [name for name in table.index if name.startswith("inducing_value")]
    assert set(latent) <= set(biased.not_uniform)
    assert not table.loc[latent, "is_symmetric"].any()
    assert table.loc[latent, "mean_deviation"].to_numpy() == pytest.approx(-0.5, abs=0.15)
    assert "one-sided" in " ".join(biased.sentences)


@pytest.mark.slow
def test_engine_that_did_not_converge_is_not_calibrated():
    cut_off = _calibrated(Distorted(has_converged=False), simulations=8)
    assert not cut_off.is_calibrated
    assert "did not converge in 8 of 8 simulations" in cut_off.sentences[0]


@pytest.mark.slow
def test_dependent_draws_of_a_chain_are_told(right):
    chained = SimulationCalibration(**(vars(right) | {"relative_efficiency": 0.3}))
    assert not chained.is_calibrated
    assert "raise thin" in chained.sentences[0]
    unknown = SimulationCalibration(**(vars(right) | {"relative_efficiency": np.nan}))
    assert not unknown.is_calibrated
    assert "raise thin" in unknown.sentences[0]


@pytest.mark.slow
def test_jaakkolas_bound_is_found_to_be_too_narrow():
    found = simulation_calibration(
        LOGISTIC, "coordinate_ascent", DESIGN, seed=1, simulations=400, tolerance=1e-6
    )
    table = found.table
    assert found.not_uniform
    assert (table.loc[found.not_uniform, "rms_deviation"] > 1.1).all()


# --------------------------------------------------------------------- the measure itself


@pytest.mark.in_ci
def test_pit_is_the_fraction_of_draws_below():
    """Among draws that equal the truth, its rank is uniform."""

    @dataclass(frozen=True)
    class Counting:
        """Draws 0, 1, …, 8, whatever the bags are."""

        are_independent = True

        def check(self, model, bags):
            pass

        def draws(self, model, bags, key, num_draws):
            count = jnp.arange(float(num_draws))
            return TraceableDraws({"inducing_value": count[:, None] * jnp.ones(3)}, jnp.array(True))

    def quantities(bags, sites):
        first = sites["inducing_value"][0]
        is_draw = first == jnp.round(first)  # a true value is no whole number
        value = jnp.where(is_draw, first, 3.5)
        return {
            "count": value,
            "pairs": jnp.where(is_draw, jnp.floor(first / 2), 1.0),  # 0 0 1 1 2 2 3 3 4, and 1
            "always 0": 0.0 * first,
        }

    found = _calibrated(Counting(), simulations=200, num_draws=9, quantities=quantities)
    # Four of nine draws are below 3.5: (4 + u)/10.
    assert (found.pit["count"] >= 0.4).all()
    assert (found.pit["count"] < 0.5).all()
    np.testing.assert_allclose(found.deviation["count"], (3.5 - 4.0) / np.std(range(9), ddof=1))
    # Two are below 1 and two are equal to it: (2 + 3u)/10.
    assert stats.kstest((found.pit["pairs"] - 0.2) / 0.3, "uniform").pvalue > 1e-4
    assert (found.pit["pairs"] >= 0.2).all()
    assert (found.pit["pairs"] < 0.5).all()
    # All are equal: anywhere.
    assert stats.kstest(found.pit["always 0"], "uniform").pvalue > 1e-4


def _with_pit(pit):
    return SimulationCalibration(
        subject="made up",
        pit={"one": pit, "other": np.linspace(0.001, 0.999, len(pit))},
        deviation={"one": stats.norm.ppf(pit), "other": np.zeros(len(pit))},
        has_converged=np.ones(len(pit), bool),
        num_draws=99,
        relative_efficiency=1.0,
        false_alarm_rate=1e-4,
    )


def test_quantities_that_leave_the_band_are_not_uniform():
    steps = (np.arange(400) + 0.5) / 400  # an ECDF within 1/800 of uniform
    gap = _with_pit(steps).smallest_gap
    # Two tests of each of two quantities.
    assert stats.kstwo.sf(gap, 400) == pytest.approx(1e-4 / 4, rel=0.01)
    # Half of a gap g in the ranks is one of g in their distance from the middle, and the reverse.
    for factor, is_uniform in ((0.95, True), (1.05, False)):
        edge = factor * gap - 1 / 800
        toward_one_side = edge + (1 - edge) * steps
        assert _with_pit(toward_one_side).table.loc["one", "is_uniform"] == is_uniform
        outward = np.where(steps < 0.5, (1 - edge) * steps, 1 - (1 - edge) * (1 - steps))
        assert _with_pit(outward).table.loc["one", "is_uniform"] == is_uniform
    assert _with_pit(toward_one_side).not_uniform == ["one"]


def test_symmetry_is_judged_by_signed_ranks():
    outward = np.concatenate([np.linspace(0.001, 0.1, 100), 1 - np.linspace(0.001, 0.1, 100)])
    table = _with_pit(outward).table
    assert table.loc["one", "p_symmetric"] > 0.5
    assert not table.loc["one", "is_uniform"]
    upward = np.linspace(0.3, 0.999, 200)
    assert not _with_pit(upward).table.loc["one", "is_symmetric"]


@pytest.mark.slow
def test_model_of_instances_keeps_the_labels():
    """Its clusters have no names: the log likelihood alone is ranked."""
    model = DPMIL(np.zeros(2), np.eye(2) / 4, 4.0, mean_strength=0.2, max_components=2)
    labelled = simulate_instances(4, 2, num_features=2, seed=0)
    labelled = type(labelled).from_arrays(labelled.instances, labelled.bag_index, [0, 1, 0, 1])

    def given_labels(bags, sites):
        return {"first label": bags.labels[0] + 0.0, "second label": bags.labels[1] + 0.0}

    run = partial(simulation_calibration, model, "gibbs", labelled, seed=0, simulations=3)
    found = run(num_warmup=1, quantities=given_labels, num_draws=5)
    assert set(found.pit) == {"first label", "second label"}
    assert set(run(num_warmup=1, num_draws=5).pit) == {"log likelihood"}


# --------------------------------------------------------------------- traceable engines


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "traceable"),
    [
        (coordinate_ascent, TraceableAscent()),
        (laplace, TraceableLaplace()),
        (partial(svi, max_steps=2000), TraceableSVI(max_steps=2000)),
    ],
    ids=["coordinate_ascent", "laplace", "svi"],
)
def test_traced_engine_finds_what_the_untraced_one_finds(engine, traceable):
    labels = np.arange(DESIGN.num_bags) % 2
    bags = type(DESIGN).from_arrays(DESIGN.instances, DESIGN.bag_index, labels)
    outside = engine(LOGISTIC, bags, seed=0).draws(4000, seed=1)["inducing_value"]
    with jax.enable_x64(True):
        found = traceable.draws(LOGISTIC, bags, jax.random.key(2), 4000)
    assert bool(found.has_converged)
    draws, sd = np.asarray(found.sites["inducing_value"]), outside.std(axis=0)
    # Means of 4,000 draws twice, 0.022 sds; SVI ends within 0.1 sd of where it is going.
    tolerance = 0.11 + (0.15 if isinstance(traceable, TraceableSVI) else 0.0)
    assert np.abs(draws.mean(axis=0) - outside.mean(axis=0)) / sd == pytest.approx(
        0.0, abs=tolerance
    )
    np.testing.assert_allclose(draws.std(axis=0), sd, rtol=tolerance)


@pytest.mark.slow
def test_engine_as_a_function_fits_data_sets_in_turn():
    found = _calibrated(coordinate_ascent, simulations=4, num_draws=49, num_starts=None)
    assert found.num_simulations == 4
    assert found.has_converged.all()
    # With options, it is a `partial`.
    assert found.subject == "coordinate_ascent on vwsgp"
    assert all((np.abs(deviation) < 5).all() for deviation in found.deviation.values())


# --------------------------------------------------------------------- killed, and gone on


@pytest.mark.in_ci
def test_killed_run_resumes_and_ends_as_an_unbroken_one(tmp_path):
    unbroken = _calibrated("coordinate_ascent", simulations=12)
    path = tmp_path / "calibration.jsonl"
    _calibrated("coordinate_ascent", simulations=7, checkpoint=path)
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 8  # the first is of which run it is
    # Killed while the seventh was written.
    path.write_bytes(b"".join(lines[:7]) + lines[7][:20])
    whole = _calibrated("coordinate_ascent", simulations=12, checkpoint=path)
    for name, pit in unbroken.pit.items():
        assert whole.pit[name].tolist() == pit.tolist()
        assert whole.deviation[name].tolist() == unbroken.deviation[name].tolist()
    # What was finished was not done again.
    assert path.read_bytes().startswith(b"".join(lines[:7]))


@pytest.mark.in_ci
def test_a_finished_run_is_read_and_not_run(tmp_path):
    path = tmp_path / "calibration.jsonl"
    first = _calibrated("coordinate_ascent", simulations=5, checkpoint=path)

    run = json.loads(path.read_text().splitlines()[0])["milzoo"]
    entries = Journal(path, run).entries
    entries[0]["pit"]["log likelihood"] = 0.125
    path.unlink()
    rewritten = Journal(path, run)
    for entry in entries:
        rewritten.append(entry)
    again = _calibrated("coordinate_ascent", simulations=5, checkpoint=path)
    assert again.pit["log likelihood"][0] == 0.125
    assert again.pit["log likelihood"][1:].tolist() == first.pit["log likelihood"][1:].tolist()
    # Fewer than there are.
    assert _calibrated("coordinate_ascent", simulations=2, checkpoint=path).num_simulations == 2


@pytest.mark.in_ci
def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    path = tmp_path / "calibration.jsonl"
    _calibrated("coordinate_ascent", simulations=2, checkpoint=path)
    with pytest.raises(ValueError, match=r"is of another run, in its engine"):
        _calibrated("coordinate_ascent", simulations=2, checkpoint=path, max_steps=7)
    with pytest.raises(ValueError, match=r"in its num_draws \(num_draws was 99, is 50\)"):
        _calibrated("coordinate_ascent", simulations=2, checkpoint=path, num_draws=50)
    path.write_text("something else\n")
    with pytest.raises(ValueError, match="holds no run of milzoo"):
        _calibrated("coordinate_ascent", simulations=2, checkpoint=path)


# --------------------------------------------------------------------- what it refuses, its picture


@pytest.mark.parametrize(
    ("engine", "options", "message"),
    [
        ("nut", {}, r"engine is 'nut'; expected one of nuts, gibbs"),
        ("laplace", {"simulations": 0}, r"simulations is 0; expected an integer of at least 1"),
        ("laplace", {"num_draws": 3}, r"num_draws is 3; expected at least 4"),
        ("laplace", {"false_alarm_rate": 0.0}, r"false_alarm_rate is 0.0; expected a number"),
        ("nuts", {"target_accept": 3.0}, r"target_accept is 3.0; expected a number between"),
        ("nuts", {"program": "margnal"}, r"program is 'margnal'; expected 'marginal' or 'full'"),
        ("nuts", {"thin": 0}, r"thin is 0; expected an integer of at least 1"),
        ("svi", {"guide": "x"}, r"guide is 'x'; expected one of multivariate_normal"),
        ("svi", {"learning_rate": 0.0}, r"learning_rate is 0.0; expected a positive finite"),
        (
            "coordinate_ascent",
            {"tolerance": -1.0},
            r"tolerance is -1.0; expected a finite",
        ),
        ("coordinate_ascent", {"label_update": "x"}, r"has no instance labels to update"),
        (Distorted(), {"max_steps": 3}, r"Distorted was given with max_steps; its options are"),
    ],
)
def test_bad_input_is_refused_and_leaves_no_checkpoint(
    engine, options, message, tmp_path, without_type_checks
):
    path = tmp_path / "calibration.jsonl"
    with pytest.raises(ValueError, match=message):
        _calibrated(engine, **({"simulations": 2, "checkpoint": path} | options))
    assert not path.exists()


@pytest.mark.slow
def test_models_that_an_engine_cannot_fit_are_refused():
    run = partial(simulation_calibration, bags=DESIGN, seed=0, simulations=2)
    with pytest.raises(NotImplementedError, match="CardinalityModel has no Gibbs sampler"):
        run(CardinalityModel(), "gibbs")
    with pytest.raises(NotImplementedError, match="give coordinate_ascent itself"):
        run(DPMIL(np.zeros(2), np.eye(2), 4.0), "coordinate_ascent")
    with pytest.raises(ValueError, match="density has a kink at 0"):
        run(CardinalityModel(weight_prior="laplace"), "laplace")
    with pytest.raises(ValueError, match="of the model have priors, but coordinate_ascent needs"):
        run(replace(LOGISTIC, kernel=RBF(dist.LogNormal(0.0, 1.0), 1.3)), "coordinate_ascent")
    large = DPMIL(np.zeros(40), np.eye(40), 50.0, max_components=5)
    for engine in ("nuts", "laplace", "svi"):
        with pytest.raises(ValueError, match=f"{engine} would have to find"):
            run(large, engine, bags=simulate_instances(3, 2, num_features=40, seed=0))


@pytest.mark.slow
def test_plot_has_a_panel_for_each_quantity(right, too_narrow):
    """Titles name those that fail."""
    titles = [panel.get_title() for panel in too_narrow.plot().axes if panel.get_title()]
    assert titles[0] == "inducing_value 0: not uniform"
    assert len(titles) == 4
    gap = right.smallest_gap
    for panel in right.plot().axes[:4]:
        for line in panel.lines[1:]:
            assert np.abs(line.get_ydata()).max() < gap


@pytest.mark.slow
def test_the_tree_is_as_arviz_has_it(right):
    group = right.tree()["prior_sbc"]
    assert group["log likelihood"].dims == ("chain", "draw")
    assert group["log likelihood"].shape == (1, 1000)


def test_a_model_that_is_not_normalised_is_refused(tmp_path):
    path = tmp_path / "calibration.jsonl"
    model = VGPMIL(RBF(4.0, 1.3), np.zeros((3, 2)), scale_mixture=GammaScaleMixture(1.0, 1.0))
    with pytest.raises(NotImplementedError, match=r"a factor .* forward simulation ignores"):
        simulation_calibration(model, "gibbs", DESIGN, seed=1, simulations=10, checkpoint=path)
    assert not path.exists()
