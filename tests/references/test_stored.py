"""Reference posteriors that are made, kept and read again, and those that stand in the house."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from milzoo.diagnostics import compare
from milzoo.diagnostics.measures.accuracy import accuracy
from milzoo.inference import coordinate_ascent, gibbs, grid, nuts
from milzoo.inference.runtime.densities import log_joint
from milzoo.references import (
    ENTRIES,
    Length,
    entry_named,
    load_reference,
    make_reference,
    save_reference,
)
from milzoo.references.stored import DATABASE, is_kept, largest_difference, moments_of, save_entry

REPOSITORY = Path(__file__).resolve().parents[2]
KEPT = sorted(name for name in ENTRIES if is_kept(name))
EXACT = "vwsgp-gaussian-simulated-9"


@pytest.fixture(scope="module")
def short():
    """A reference that is made in seconds."""
    length = Length(num_chains=4, num_warmup=200, num_draws=100, most_thinning=3)
    return make_reference(entry_named(EXACT), seed=0, length=length)


@pytest.mark.in_ci
def test_a_reference_comes_back_from_its_files(short, tmp_path):
    save_reference(short, tmp_path)
    again = load_reference(EXACT, tmp_path)
    np.testing.assert_array_equal(again.draws["inducing_value"], short.draws["inducing_value"])
    for name in ("gates", "moments", "made"):
        assert getattr(again, name) == getattr(short, name), name
    assert [one[:3] for one in again.log_evidences] == [one[:3] for one in short.log_evidences]
    np.testing.assert_array_equal(again.log_density, short.log_density)
    assert again.largest_density_error() < 1e-12


@pytest.mark.in_ci
def test_a_density_that_has_changed_is_seen(short):
    moved = replace(short, log_density=short.log_density * (1 + 1e-6))
    assert moved.largest_density_error() == pytest.approx(1e-6, rel=1e-3)


@pytest.mark.in_ci
def test_moments_are_those_of_numpy(short):
    draws = short.draws["inducing_value"].to_numpy().reshape(-1, 9)
    third = short.moments["inducing_value[3]"]
    assert third["mean"] == pytest.approx(draws[:, 3].mean())
    assert third["sd"] == pytest.approx(draws[:, 3].std(ddof=1))
    assert third["quantile_05"] == pytest.approx(np.quantile(draws[:, 3], 0.05))
    assert third["mean_mcse"] == pytest.approx(draws[:, 3].std() / np.sqrt(len(draws)), rel=0.5)


def test_entries_without_draws_say_how_to_make_them(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"milzoo reference make {EXACT}"):
        load_reference(EXACT, tmp_path)
    with pytest.raises(ValueError, match=EXACT):
        load_reference(f"{EXACT}0", tmp_path)


def test_standard_errors_are_those_of_independent_draws():
    """1/√n of a mean, 1/√(2n) of an sd."""
    values = np.random.default_rng(0).normal(size=(4, 1000))
    found = moments_of(xr.Dataset({"u": (["chain", "draw"], values)}))["u"]
    assert found["mean_mcse"] == pytest.approx(1 / np.sqrt(4000), rel=0.1)
    assert found["sd_mcse"] == pytest.approx(1 / np.sqrt(8000), rel=0.1)


def test_moments_differ_by_their_standard_errors():
    one = {"u": {"mean": 1.0, "mean_mcse": 0.3, "sd": 2.0, "sd_mcse": 0.1}}
    other = {"u": {"mean": 2.0, "mean_mcse": 0.4, "sd": 2.0, "sd_mcse": 0.1}}
    assert largest_difference(one, other) == largest_difference(other, one) == pytest.approx(2.0)


def test_a_reason_stands_where_draws_would(tmp_path):
    (entry,) = (entry for entry in ENTRIES.values() if entry.reason)
    save_entry(entry, folder=tmp_path)
    told = json.loads((tmp_path / "posteriors" / f"{entry.name}.json").read_text("utf-8"))
    assert (told["reference_posterior_name"], told["reason"]) == (None, entry.reason)
    with pytest.raises(FileNotFoundError, match="nats lower"):
        load_reference(entry.name, tmp_path)


@pytest.mark.in_ci
def test_the_runaway_is_where_its_reason_says(data_folder):
    """Far out all f_n are negative and gain −f_n/2 each: u = −½ K_ZX 1."""
    model, bags = entry_named("vgpmil-gamma-digits-50").problem()
    near = coordinate_ascent(model, bags, seed=0).approximation.mean
    covariance = model.kernel.covariance(model.inducing_points, np.asarray(bags.instances))
    far = -0.5 * np.asarray(covariance).sum(axis=1)
    both = {"inducing_value": np.stack([near, far])}
    of_near, of_far = log_joint(model, "marginal", both, bags)
    assert of_far - of_near > 60_000
    assert np.abs(far).mean() / np.sqrt(model.kernel.variance) > 200


def test_entries_are_kept_and_stand_on_the_page():
    written = {path.stem for path in (DATABASE / "posteriors").glob("*.json")}
    assert written == set(ENTRIES) == {*KEPT, *(e.name for e in ENTRIES.values() if e.reason)}
    assert len(KEPT) >= 17
    page = (REPOSITORY / "docs" / "reference_posteriors.md").read_text("utf-8")
    for entry in ENTRIES.values():
        assert f"| `{entry.name}` | {entry.about} | {entry.data} |" in page
        assert entry.reason in page
        described = (DATABASE / "posteriors" / f"{entry.name}.json").read_text("utf-8")
        assert " object at 0x" not in described  # an address in memory in place of a prior


@pytest.mark.in_ci
@pytest.mark.parametrize("name", KEPT)
def test_kept_references_pass_gates_and_have_todays_density(name, data_folder):
    reference = load_reference(name)
    assert reference.passed, [str(gate) for gate in reference.gates if not gate.passed]
    assert reference.draws.sizes["chain"] * reference.draws.sizes["draw"] == 10_000
    assert reference.largest_density_error() < 1e-8


@pytest.mark.in_ci
def test_the_exact_posterior_is_that_of_the_reference():
    """Of Gaussian targets the closed form is exact, and shares no code with any sampler."""
    reference = load_reference(EXACT)
    model, bags = reference.entry.problem()
    exact = coordinate_ascent(model, bags, seed=0)
    judge = compare({"ascent": exact}, reference=reference).verdicts["ascent"].reference
    assert judge.name == EXACT and judge.accuracy.agrees
    assert exact.elbo[-1] == pytest.approx(reference.log_evidences[0].value, abs=0.02)


@pytest.mark.in_ci
@pytest.mark.parametrize("name", KEPT)
def test_a_short_run_agrees_with_its_reference(name, data_folder):
    reference = load_reference(name)
    model, bags = reference.entry.problem()
    length = {"num_warmup": 300, "num_samples": 500}
    match reference.entry.first:
        case "grid":
            quick = grid(model, bags, seed=5, num_points=151, num_draws=2000)
        case "gibbs":
            quick = gibbs(model, bags, seed=5, **length, **reference.entry.sampler_settings)
        case _:
            quick = nuts(model, bags, seed=5, **length, **reference.entry.sampler_settings)
    found = accuracy(
        quick.tree["posterior"].to_dataset()[list(model.latent_sites)], reference.draws
    )
    assert found.agrees, (found.worst_site, found.largest_z)
