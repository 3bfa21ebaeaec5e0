"""PyMC's samplers on PyMC programs: another program and another sampler, the same posterior.

The one statistical test is seeded and looks at 20 numbers with |z| ≤ 5.5: false alarm below 1e-6.
"""

import importlib.metadata
import sys
from dataclasses import replace
from types import SimpleNamespace

import arviz as az
import numpy as np
import pytest
from milzoo.datasets import simulate, simulate_instances
from milzoo.inference import nuts
from milzoo.inference.pymc_nuts import pymc_nuts
from milzoo.models import VGPMIL

LARGEST_Z = 5.5


@pytest.fixture(scope="module")
def problem():
    design = simulate_instances(20, range(1, 6), num_features=2, seed=8)
    model = VGPMIL.for_bags(design, num_inducing=10, variance=3.0, length_scale=1.2, mean=0.0)
    return model, simulate(model, design, seed=9)[0]


@pytest.fixture(scope="module")
def nutpie_posterior(problem):
    return pymc_nuts(*problem, seed=1)


def mean_and_sd_with_errors(posterior):
    draws = posterior.tree["posterior"].to_dataset()[["inducing_value"]]
    ess = az.ess(draws)["inducing_value"]
    assert ess.min() > 2000
    errors = [az.mcse(draws, method=method)["inducing_value"] for method in ("mean", "sd")]
    values = draws["inducing_value"]
    estimates = [values.mean(("chain", "draw")), values.std(("chain", "draw"))]
    return np.concatenate(estimates), np.concatenate(errors)


@pytest.mark.slow
def test_nutpie_on_pymc_agrees_with_nuts_on_numpyro(problem, nutpie_posterior):
    ours, our_errors = mean_and_sd_with_errors(nuts(*problem, seed=2))
    theirs, their_errors = mean_and_sd_with_errors(nutpie_posterior)
    z = (ours - theirs) / np.hypot(our_errors, their_errors)
    assert np.abs(z).max() <= LARGEST_Z


@pytest.mark.slow
def test_the_posterior_of_nutpie_is_that_of_any_sampler(problem, nutpie_posterior):
    _, bags = problem
    tree = nutpie_posterior.tree
    assert nutpie_posterior.engine == "pymc_nuts"
    assert nutpie_posterior.is_mcmc
    assert nutpie_posterior.status.kind == "converged"
    assert dict(tree["posterior"].sizes) == {"chain": 4, "draw": 1000, "inducing_point": 10}
    assert set(tree["posterior"].data_vars) == {"inducing_value"}
    assert set(tree["sample_stats"].data_vars) == {
        *("diverging", "energy", "acceptance_rate", "n_steps", "step_size")
    }
    assert nutpie_posterior.log_likelihood.shape == (4, 1000, bags.num_bags)
    assert nutpie_posterior.predict(bags).bag_probability.shape == (bags.num_bags,)
    sampler = tree["sample_stats"].attrs
    assert sampler["inference_library"] == "nutpie"
    assert sampler["inference_library_version"] == importlib.metadata.version("nutpie")


@pytest.mark.slow
def test_nutpies_low_rank_matrix_gives_the_same_posterior(problem, nutpie_posterior):
    posterior = pymc_nuts(*problem, seed=1, mass_matrix="low_rank")
    ours, theirs = (p.tree["sample_stats"] for p in (posterior, nutpie_posterior))
    assert ours.attrs["mass_matrix"] == "low_rank" and theirs.attrs["mass_matrix"] == "diagonal"
    # The same seed: only another matrix makes other trajectories.
    assert (ours["n_steps"] != theirs["n_steps"]).any()
    found, our_errors = mean_and_sd_with_errors(posterior)
    expected, their_errors = mean_and_sd_with_errors(nutpie_posterior)
    assert np.abs((found - expected) / np.hypot(our_errors, their_errors)).max() <= LARGEST_Z


@pytest.mark.slow
def test_seconds_of_compilation_warmup_and_sampling_are_told_apart(nutpie_posterior):
    assert nutpie_posterior.compile_seconds > 0
    assert 0 < nutpie_posterior.sampling_seconds < nutpie_posterior.seconds


@pytest.mark.slow
def test_pymcs_own_sampler_samples_the_full_program(problem):
    model, bags = problem
    posterior = pymc_nuts(
        model,
        bags,
        seed=3,
        num_warmup=200,
        num_samples=150,
        num_chains=1,
        program="full",
        sampler="pymc",
    )
    tree = posterior.tree
    assert posterior.status.kind != "failed"
    assert set(tree["posterior"].data_vars) == {"inducing_value", "latent"}
    assert tree["posterior"]["latent"].shape == (1, 150, bags.num_instances)
    assert tree["sample_stats"]["n_steps"].mean() > 1
    assert tree["sample_stats"].attrs["inference_library"] == "pymc"
    assert posterior.compile_seconds > 0
    assert 0 < posterior.sampling_seconds < posterior.seconds


# ---------------------------------------------------------------- refusals


@pytest.mark.in_ci
@pytest.mark.parametrize(("given", "nearest"), [("nutpy", "nutpie"), ("pmc", "pymc")])
def test_an_unknown_sampler_is_refused_with_the_nearest_name(problem, given, nearest):
    message = rf"sampler is '{given}'; expected 'nutpie' or 'pymc' \(nearest: '{nearest}'\)"
    with pytest.raises(ValueError, match=message):
        pymc_nuts(*problem, seed=0, sampler=given)


@pytest.mark.in_ci
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mass_matrix": "dense"}, "mass_matrix is 'dense'; expected one of diagonal, low_rank"),
        ({"mass_matrix": "low_rank", "sampler": "pymc"}, "PyMC's own sampler does not have"),
    ],
)
def test_a_mass_matrix_that_the_sampler_lacks_is_refused(problem, options, message):
    with pytest.raises(ValueError, match=message):
        pymc_nuts(*problem, seed=0, **options)


def test_an_unknown_program_is_refused(problem):
    with pytest.raises(ValueError, match="program is 'joint'; expected one of marginal, full"):
        pymc_nuts(*problem, seed=0, program="joint")


@pytest.mark.parametrize(
    ("argument", "value"), [("num_samples", 0), ("num_chains", 0), ("num_warmup", 0)]
)
def test_a_count_out_of_range_is_refused_by_name(problem, argument, value):
    with pytest.raises(
        ValueError, match=f"{argument} is {value}; expected an integer of at least 1"
    ):
        pymc_nuts(*problem, seed=0, **{argument: value})


def test_bags_without_labels_are_refused(problem):
    model, bags = problem
    with pytest.raises(ValueError, match="bags have no labels; pymc_nuts needs one for each bag"):
        pymc_nuts(model, replace(bags, labels=None), seed=0)


def test_model_without_a_pymc_program_is_refused(problem):
    with pytest.raises(
        NotImplementedError,
        match=r"SimpleNamespace has no program in PyMC, BMIL, .* VWSGP.* nuts",
    ):
        pymc_nuts(SimpleNamespace(marginal=None), problem[1], seed=0)


def test_without_nutpie_the_message_says_what_to_install(problem, monkeypatch):
    monkeypatch.setitem(sys.modules, "nutpie", None)
    with pytest.raises(ImportError, match=r"nutpie is not installed.*pip install 'milzoo\[pymc\]'"):
        pymc_nuts(*problem, seed=0)
