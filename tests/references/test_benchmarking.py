"""Engines on kept references: exact ones have no error, others the error that they have."""

import math
from dataclasses import replace

import numpy as np
import pytest
from milzoo.diagnostics.joint import two_sample_of
from milzoo.diagnostics.verdict import gather, judge
from milzoo.inference import coordinate_ascent, laplace
from milzoo.references import benchmark_engine, load_reference

GAUSSIAN = "vwsgp-gaussian-simulated-9"


@pytest.mark.in_ci
def test_an_exact_engine_has_no_error():
    """Errors are those of 10,000 draws: of the largest of nine means, 3.5 / 100 sds."""
    row = benchmark_engine(coordinate_ascent, seed=0, tags=["exact"]).loc[GAUSSIAN]
    assert row["status"] == "converged"
    assert row["worst_error"] < 0.035
    assert row["sd_ratio"] == pytest.approx(1.0, abs=0.02)
    assert row["kl"] == pytest.approx(0.0, abs=0.02)
    assert row["classifier_accuracy"] == pytest.approx(0.5, abs=0.06)


@pytest.mark.in_ci
def test_a_classifier_compiles_nothing_after_khat(compilations):
    """Both ask for densities at 4,000 points; a second number of them would be compiled anew."""
    reference = load_reference(GAUSSIAN)
    exact, found = (
        gather(one, test=None, num_draws=4000, seed=0)
        for one in (reference.posterior, laplace(*reference.entry.problem(), seed=0))
    )
    named = {"laplace": found, "exact": exact}
    verdict = judge("laplace", named, dict.fromkeys(named, ""), reference="exact", test=None)
    before = compilations.number
    assert two_sample_of(verdict, random=np.random.default_rng(0)) is not None
    assert compilations.number == before


@pytest.mark.in_ci
def test_a_mean_that_is_wrong_is_measured_in_sds():
    def shifted(model, bags, *, seed):
        found = coordinate_ascent(model, bags, seed=seed)
        q = found.approximation
        sd = np.linalg.norm(q.scale_tril, axis=1)
        return replace(found, approximation=replace(q, mean=q.mean + 0.5 * sd))

    row = benchmark_engine(shifted, seed=0, tags=["exact"]).loc[GAUSSIAN]
    assert row["mean_error"] == pytest.approx(0.5, abs=0.03)
    assert row["kl"] > 0.1


def test_an_engine_that_refuses_has_its_message():
    def refuses(model, bags, *, seed):
        raise NotImplementedError("no model of this kind")

    row = benchmark_engine(refuses, seed=0, tags=["exact"]).loc[GAUSSIAN]
    assert row["status"] == "no model of this kind" and math.isnan(row["mean_error"])


def test_unknown_tags_and_empty_folders_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"unknown tag 'exactly'.*'exact'"):
        benchmark_engine(laplace, seed=0, tags=["exactly"])
    with pytest.raises(ValueError, match="milzoo reference make NAME"):
        benchmark_engine(laplace, seed=0, folder=tmp_path)
