"""Engines on kept references: exact ones have no error, others the error that they have."""

import math
from dataclasses import replace

import numpy as np
import pytest
from milzoo.diagnostics.joint import two_sample_of
from milzoo.diagnostics.verdict import gather, judge
from milzoo.inference import coordinate_ascent, laplace
from milzoo.inference.runtime.densities import log_joint
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
def test_judging_takes_one_program_for_draws_and_densities(compilations):
    """Of 4,000 draws for k̂, and of as many for a classifier, half of them the reference's."""
    reference = load_reference(GAUSSIAN)
    exact = gather(reference.posterior, test=None, num_draws=4000, seed=0)
    found = laplace(*reference.entry.problem(), seed=0)
    draws = found.draws(4000, seed=1)
    found.log_density(draws)
    log_joint(found.model, "marginal", draws, found.bags)
    before = compilations.number
    named = {"laplace": gather(found, test=None, num_draws=4000, seed=0), "exact": exact}
    verdict = judge("laplace", named, dict.fromkeys(named, ""), reference="exact", test=None)
    assert two_sample_of(verdict, random=np.random.default_rng(0)) is not None
    assert compilations.number == before


@pytest.mark.in_ci
def test_a_wrong_mean_is_measured_in_sds_and_nats():
    """Of two Gaussians N(m + d, S) and N(m, S) that is KL = ½ dᵀS⁻¹d."""
    expected = []

    def shifted(model, bags, *, seed):
        found = coordinate_ascent(model, bags, seed=seed)
        q = found.approximation
        shift = 0.5 * np.linalg.norm(q.scale_tril, axis=1)
        expected.append(0.5 * np.sum(np.linalg.solve(q.scale_tril, shift) ** 2))
        return replace(found, approximation=replace(q, mean=q.mean + shift))

    row = benchmark_engine(shifted, seed=0, tags=["exact"]).loc[GAUSSIAN]
    assert row["mean_error"] == pytest.approx(0.5, abs=0.03)
    # The log ratio has an sd of √(2 KL), over 16,000 draws; the evidence an error of 0.01.
    assert row["kl"] == pytest.approx(
        expected[0], abs=0.05 + 4.5 * np.sqrt(2 * expected[0] / 16000)
    )


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
