"""The move of u between Gibbs sweeps: its density, that it leaves the posterior, what it gains.

Statistical tests are seeded and look at fewer than 1,000 numbers with |z| ≤ 5.5 Monte-Carlo
standard errors.
"""

from dataclasses import replace
from itertools import product

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from milzoo.datasets import load
from milzoo.inference import gibbs, nuts
from milzoo.inference.gibbs import interweaving
from milzoo.inference.gibbs.interweaving import Interweaved
from milzoo.inference.gibbs.vgpmil import VGPMILGibbs
from milzoo.inference.traceable import traceable_engine
from milzoo.models import DPMIL, RBF, VGPMIL, GammaScaleMixture

LARGEST_Z = 5.5


def sites(posterior, name="inducing_value"):
    return posterior.tree["posterior"][name].to_numpy()


def smallest_size(posterior):
    """The smallest effective sample size of the inducing values."""
    return float(az.ess(posterior.tree)["inducing_value"].min())


# ------------------------------------------------------------------ the density of the move


@pytest.fixture(params=["logistic", "gamma scale mixture"])
def problem(request, small_problem):
    model, bags = small_problem
    if request.param == "gamma scale mixture":
        model = replace(model, kernel=RBF(0.4, 1.5), scale_mixture=GammaScaleMixture(1.0, 2.5))
    return model, bags


def test_its_density_is_the_sum_over_all_labels(problem):
    model, bags = problem
    with jax.enable_x64(True):
        sweep = VGPMILGibbs.for_model(model, bags)
        state = sweep.init(jax.random.key(0))
        random = np.random.default_rng(1)
        others = [random.normal(size=len(state.whitened)) for _ in range(3)]
        found = [float(sweep.log_density_given_noise(state, jnp.asarray(e))) for e in others]
        latents = [sweep.with_noise_kept(state, jnp.asarray(e)).latent for e in others]
        log_psi = [np.asarray(model.scale_mixture.log_density(f)) for f in latents]
    expected = [
        log_sum_over_labels(model, bags, np.asarray(latent), psi) - 0.5 * whitened @ whitened
        for whitened, latent, psi in zip(others, latents, log_psi, strict=True)
    ]
    np.testing.assert_allclose(np.diff(found), np.diff(expected), atol=1e-9)


def log_sum_over_labels(model, bags, latent, log_psi):
    """log Σ_y Π_n ψ(f_n) e^{(y_n − ½)f_n} Π_b H^{[T_b = max y]}, vector by vector."""
    total = 0.0
    for start, size, label in zip(bags.starts, bags.bag_sizes, bags.labels, strict=True):
        own = latent[start : start + size]
        terms = [
            (np.array(y) - 0.5) @ own + (max(y) == label) * np.log(model.sharpness)
            for y in product((0, 1), repeat=int(size))
        ]
        total += np.logaddexp.reduce(terms) + log_psi[start : start + size].sum()
    return total


def test_the_noise_of_the_latent_values_is_kept(small_problem):
    model, bags = small_problem
    with jax.enable_x64(True):
        sweep = VGPMILGibbs.for_model(model, bags)
        state = sweep.init(jax.random.key(0))
        moved = sweep.with_noise_kept(state, -2.0 * state.whitened)
        projection = np.asarray(sweep.conditional.projection)
    noise = [np.asarray(s.latent) - projection @ np.asarray(s.whitened) for s in (state, moved)]
    np.testing.assert_allclose(noise[0], noise[1], atol=1e-12)
    assert np.abs(np.asarray(moved.latent - state.latent)).max() > 0.1


def test_a_step_moves_latent_values_with_the_inducing_values(small_problem):
    """Else draws of u alone were right, and as slow to mix as those of the sweeps."""
    with jax.enable_x64(True):
        chain = Interweaved.for_model(*small_problem)
        after, swept = jax.jit(_steps)(chain, jax.random.split(jax.random.key(1), 20))
        projection = chain.sweep.conditional.projection
        change = np.asarray((after.whitened - swept.whitened) @ projection.T)
    assert (np.abs(change).max(axis=1) > 0.01).sum() >= 5, "hardly a move was accepted"
    np.testing.assert_allclose(after.latent - swept.latent, change, atol=1e-9)


def _steps(chain, keys):
    """States after a step, and after the sweep in it, for each key."""
    starts = jax.vmap(chain.init)(keys)
    return jax.vmap(chain.step)(starts).of_sweep, jax.vmap(chain.sweep.step)(starts.of_sweep)


def test_absent_bags_do_not_count(small_problem):
    """Bags are padded for compiled programs; their density must be that of the bags alone."""
    model, bags = small_problem
    with jax.enable_x64(True):
        sweep, alone = Interweaved.for_model(model, bags).sweep, VGPMILGibbs.for_model(model, bags)
        state, ours = alone.init(jax.random.key(0)), sweep.init(jax.random.key(0))
        assert len(ours.latent) > len(state.latent)
        latent = ours.latent.at[: len(state.latent)].set(state.latent)
        ours = ours._replace(latent=latent, whitened=state.whitened)
        other = state.whitened + 1.0
        change = [
            float(s.log_density_given_noise(at, other) - s.log_density_given_noise(at, at.whitened))
            for s, at in ((sweep, ours), (alone, state))
        ]
    assert change[0] == pytest.approx(change[1], abs=1e-9)


# ------------------------------------------------------------------ the right posterior


@pytest.mark.in_ci
def test_one_inducing_value_has_the_moments_of_quadrature(
    one_inducing_point, exact_posterior, moments
):
    posterior = gibbs(*one_inducing_point, seed=3, num_samples=3000, interweave=True)
    ours = moments(sites(posterior))
    assert ours.largest_z(exact_posterior.moments) <= LARGEST_Z
    assert ours.largest_z(np.array([[0.0], [exact_posterior.scale]])) > 3 * LARGEST_Z


@pytest.mark.slow
def test_evidence_and_labels_are_those_drawn_back_from_nuts(small_problem, moments):
    model, bags = small_problem
    keep = ("latent", "instance_label")
    ours = gibbs(model, bags, seed=1, num_samples=3000, keep=keep, interweave=True)
    other = nuts(model, bags, seed=1)
    assert moments(sites(ours)).largest_z(moments(sites(other))) <= LARGEST_Z
    completed = model.complete(other.stored_draws(), bags, seed=6)
    for name in keep:
        drawn_back = completed[name].reshape(4, 1000, -1)
        assert moments(sites(ours, name)).largest_z(moments(drawn_back)) <= LARGEST_Z


@pytest.mark.slow
def test_gamma_scale_mixture_agrees_with_nuts(small_problem, moments):
    model, bags = small_problem
    tame, few = (
        replace(model, kernel=RBF(0.4, 1.5), scale_mixture=GammaScaleMixture(1.0, 2.5)),
        bags.select(np.arange(4)),
    )
    ours = gibbs(tame, few, seed=7, num_samples=4000, interweave=True)
    other = nuts(tame, few, seed=9)
    assert moments(sites(ours)).largest_z(moments(sites(other))) <= LARGEST_Z


# ------------------------------------------------------------------ what it gains, and what not


@pytest.fixture(scope="module")
def digits_problem():
    """Where nearly all labels are 0 and hold the function: the Gibbs sampler's hard case."""
    bags = load("digits").split(0.7, seed=0)[0].standardize()
    return VGPMIL.as_published(bags, variance=5.0, mean=-3.0), bags


@pytest.mark.slow
def test_effective_draws_on_digits_are_five_times_as_many(digits_problem):
    """Measured are eleven to twenty times; a sweep takes half as long again."""
    counts = {"num_warmup": 300, "num_samples": 1000}
    plain, ours = (
        gibbs(*digits_problem, seed=0, interweave=interweave, **counts)
        for interweave in (False, True)
    )
    assert smallest_size(ours) > 5 * smallest_size(plain)
    acceptance = ours.tree["sample_stats"]["acceptance_rate"]
    assert acceptance.dims == ("chain", "draw")
    assert 0.7 < float(acceptance.mean()) < 0.9
    assert "sample_stats" not in plain.tree


def test_without_a_curvature_the_prior_scales_the_move():
    with jax.enable_x64(True):
        for covariance, expected in ((np.full((2, 2), np.nan), np.eye(2)), (4 * np.eye(2), 2)):
            factor = interweaving._factor(jnp.asarray(covariance))
            np.testing.assert_array_equal(factor, expected * np.eye(2))


@pytest.mark.in_ci
def test_a_second_fit_compiles_nothing(small_problem, compilations):
    model, bags = small_problem
    counts = {"num_warmup": 10, "num_samples": 10, "num_chains": 2, "interweave": True}
    gibbs(model, bags, seed=0, **counts)
    other = bags.select(np.arange(bags.num_bags - 1))
    before = compilations.number
    gibbs(replace(model, mean=-0.5), other, seed=1, **counts)
    assert compilations.number == before


def test_calibration_can_have_the_move(small_problem):
    with jax.enable_x64(True):
        plain, ours = (
            traceable_engine("gibbs", interweave=interweave).chain_for(*small_problem)
            for interweave in (False, True)
        )
    assert isinstance(ours.sweep, Interweaved)
    assert isinstance(plain.sweep, VGPMILGibbs)


# ------------------------------------------------------------------ refusals


def test_models_without_such_a_move_are_refused_by_name(small_problem, accumulating_problem):
    message = r"interweave is True, and the Gibbs sampler of {} has no move.*leave interweave out"
    with pytest.raises(NotImplementedError, match=message.format("VWSGP")):
        gibbs(*accumulating_problem(2, 0), seed=0, interweave=True)
    _, bags = small_problem
    mixture = DPMIL.for_bags(bags, max_components=2)
    with pytest.raises(NotImplementedError, match=message.format("DPMIL")):
        gibbs(mixture, bags, seed=0, interweave=True)
