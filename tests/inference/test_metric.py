"""Mass matrices of NUTS: what they are of a Gaussian, and that draws are right with each.

Statistical tests are seeded; those of samplers look at 24 numbers with |z| ≤ 5.5 Monte-Carlo
standard errors.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from milzoo.datasets import simulate, simulate_instances
from milzoo.inference import laplace, nuts
from milzoo.inference.gaussian import WhitenedProgram, whitened_program
from milzoo.inference.metric import (
    LARGEST_DENSE,
    FisherMoments,
    curvature_and_misfit,
    curvature_metric,
    low_rank_metric,
)
from milzoo.inference.modes import mode_from
from milzoo.inference.nuts import NUTSChain
from milzoo.inference.traceable import TraceableChain
from milzoo.models import VWSGP, CardinalityModel, Gaussian
from milzoo.models.numerics.tracing import as_pytree

LARGEST_Z = 5.5


@as_pytree("shapes")
@dataclass(frozen=True, eq=False)
class Target(WhitenedProgram):
    """log p(x) = −½ xᵀ P x − a Σ x⁴; ``given`` is (P, a)."""

    @classmethod
    def of(cls, precision, quartic=0.0):
        return cls(None, (precision, quartic), (("x", (len(precision),)),))

    def log_density(self, vector):
        precision, quartic = self.given
        return -0.5 * vector @ precision @ vector - quartic * jnp.sum(vector**4)


def correlated(size: int) -> np.ndarray:
    """A covariance with a plane of correlation 0.99, and sds from 0.1 to 10."""
    covariance = np.eye(size)
    covariance[0, 1] = covariance[1, 0] = 0.99
    deviation = np.logspace(-1, 1, size)
    return covariance * np.outer(deviation, deviation)


def moments_of(draws: np.ndarray, gradients: np.ndarray):
    with jax.enable_x64(True):
        moments = FisherMoments.empty(draws.shape[1])
        for draw, gradient in zip(draws, gradients, strict=True):
            moments = moments.with_draw(jnp.asarray(draw), jnp.asarray(gradient))
        return moments


def gaussian_moments(covariance: np.ndarray, num_draws: int):
    """Of draws of N(3, Σ), with gradients −Σ⁻¹(x − 3)."""
    noise = np.random.default_rng(0).normal(size=(num_draws, len(covariance)))
    deviations = noise @ np.linalg.cholesky(covariance).T
    return moments_of(3.0 + deviations, -np.linalg.solve(covariance, deviations.T).T)


# ------------------------------------------------------------------ of draws and gradients


def test_moments_are_means_and_scatter_of_all_draws():
    draws, gradients = np.random.default_rng(1).normal(size=(2, 7, 3))
    found = moments_of(draws, gradients)
    for (mean, scatter, number), given in zip(found, (draws, gradients), strict=True):
        assert int(number) == 7
        np.testing.assert_allclose(mean, given.mean(axis=0), atol=1e-14)
        np.testing.assert_allclose(scatter, 7 * np.cov(given.T, ddof=0), atol=1e-13)


def test_a_gaussian_has_its_covariance_after_few_draws():
    # cov(x) = Σ cov(g) Σ of any ten draws; 1e-5 of the diagonal metric's variances is added.
    covariance = correlated(6)
    with jax.enable_x64(True):
        found = np.asarray(low_rank_metric(gaussian_moments(covariance, num_draws=10)))
    scale = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
    np.testing.assert_allclose(found / scale, covariance / scale, atol=0.02)


def test_directions_without_draws_keep_the_diagonal():
    covariance = np.diag(np.logspace(-2, 2, 40))
    with jax.enable_x64(True):
        found = np.asarray(low_rank_metric(gaussian_moments(covariance, num_draws=12)))
    # Var g = Var x / σ⁴ draw by draw, so that the diagonal is exact; no correction is seen.
    np.testing.assert_allclose(found, covariance, rtol=1e-3, atol=1e-6)


def test_a_coordinate_that_never_moved_gives_a_finite_metric():
    draws, gradients = np.random.default_rng(2).normal(size=(2, 20, 3))
    draws[:, 0] = gradients[:, 0] = 1.0
    with jax.enable_x64(True):
        found = np.asarray(low_rank_metric(moments_of(draws, gradients)))
    assert np.isfinite(found).all()
    assert (np.linalg.eigvalsh(found) > 0).all()


# ------------------------------------------------------------------ of the curvature


def test_the_curvature_of_a_gaussian_is_its_covariance():
    covariance = correlated(4)
    with jax.enable_x64(True):
        target = Target.of(np.linalg.inv(covariance))
        # Floored at a curvature of 0.01: the widest sd is 10.
        np.testing.assert_allclose(curvature_metric(target), covariance, rtol=1e-6, atol=1e-9)
        metric, misfit = curvature_and_misfit(target, jax.random.key(0))
        np.testing.assert_allclose(metric, covariance, rtol=1e-6, atol=1e-9)
        assert float(misfit) < 1e-12


def test_misfit_is_the_fisher_divergence_of_a_quartic():
    # ∇log p − ∇log q = −4a x³ at the mode 0, where q = N(0, I): D = 16a² E x⁶ = 240a².
    with jax.enable_x64(True):
        found = float(curvature_and_misfit(Target.of(np.eye(200), 0.05), jax.random.key(1))[1])
    error = np.sqrt((10_395 - 15**2) / (100 * 200)) / 15  # E x¹² = 10,395
    assert abs(found / (240 * 0.05**2) - 1.0) < LARGEST_Z * error


def test_a_saddle_gives_a_positive_definite_metric():
    with jax.enable_x64(True):
        saddle = Target.of(np.diag([2.0, 0.0, -0.5]))
        np.testing.assert_allclose(curvature_metric(saddle), np.diag([0.5, 100.0, 2.0]))


# ------------------------------------------------------------------ in the sampler


@pytest.fixture(scope="module")
def with_priors(small_problem):
    """Several sites: a metric must have their coordinates in NumPyro's order."""
    model, bags = small_problem
    priors = {"variance": dist.LogNormal(0.5, 0.5), "length_scale": dist.LogNormal(0.3, 0.3)}
    return model.with_hyperparameters(priors), bags


def started(chain):
    return jax.jit(lambda chain, key: chain.init(key))(chain, jax.random.key(3)).trajectory


def after_steps(chain, number):
    def walk(chain, key):
        return jax.lax.fori_loop(0, number, lambda _, state: chain.step(state), chain.init(key))

    return jax.jit(walk)(chain, jax.random.key(0))


@pytest.mark.slow
def test_the_curvature_has_the_coordinates_of_the_sampler(with_priors):
    model, bags = with_priors
    with jax.enable_x64(True):
        chain = NUTSChain.for_model(model, bags, num_warmup=10, mass_matrix="laplace")
        target, start = whitened_program(model, bags), started(chain)
        flat = jax.flatten_util.ravel_pytree(start.z)[0]
        np.testing.assert_array_equal(flat, target.flat(start.z))
        metric = np.asarray(curvature_metric(target))
        [used] = start.adapt_state.inverse_mass_matrix.values()
        np.testing.assert_array_equal(used, metric)
        curvature = jax.hessian(target.log_density)(mode_from(target, target.origin, 200).point)
    np.testing.assert_allclose(metric, np.linalg.inv(-curvature), rtol=1e-5, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(("mass_matrix", "rank"), [("diagonal", 1), ("dense", 2), ("low_rank", 2)])
def test_a_matrix_has_covariances_or_none(gaussian_problem, mass_matrix, rank):
    with jax.enable_x64(True):
        chain = NUTSChain.for_model(*gaussian_problem, num_warmup=10, mass_matrix=mass_matrix)
        [matrix] = started(chain).adapt_state.inverse_mass_matrix.values()
    assert matrix.ndim == rank


@pytest.mark.in_ci
@pytest.mark.slow_but_first
@pytest.mark.parametrize("mass_matrix", ["dense", "low_rank", "laplace", "auto"])
def test_draws_agree_with_those_of_a_diagonal(with_priors, diagonal, moments, mass_matrix):
    posterior = nuts(*with_priors, seed=5, mass_matrix=mass_matrix)
    for name in ("inducing_value", "variance", "length_scale"):
        ours, theirs = (p.tree["posterior"][name].to_numpy() for p in (posterior, diagonal))
        shape = (*ours.shape[:2], -1)
        other = moments(theirs.reshape(shape))
        assert moments(ours.reshape(shape)).largest_z(other) <= LARGEST_Z
    assert posterior.status.kind == "converged"
    used = posterior.tree["sample_stats"].attrs["mass_matrix"]
    assert used == ("laplace" if mass_matrix == "auto" else mass_matrix)
    assert posterior.status.sentence.endswith("; mass matrix: laplace") == (mass_matrix == "auto")


@pytest.fixture(scope="module")
def diagonal(with_priors):
    return nuts(*with_priors, seed=4)


@pytest.mark.in_ci
def test_warm_up_learns_the_covariance_of_a_gaussian(gaussian_problem):
    model, bags = gaussian_problem
    with jax.enable_x64(True):
        chain = NUTSChain.for_model(model, bags, num_warmup=150, mass_matrix="low_rank")
        state = after_steps(chain, 150)
        exact = curvature_metric(whitened_program(model, bags))
        [learned] = state.trajectory.adapt_state.inverse_mass_matrix.values()
        relative = np.linalg.eigvals(np.linalg.solve(exact, learned)).real
    # Of the draws since the last window, at 0.6 of 150, each with its own gradient.
    (_, draws, number), (_, gradients, _) = state.moments
    assert int(number) == 60
    exact, draws, gradients = map(np.asarray, (exact, draws, gradients))
    np.testing.assert_allclose(draws, exact @ gradients @ exact, rtol=1e-5, atol=1e-6)
    # Factors of up to 2 are left to the step size.
    assert 1 / 2.2 < relative.min() <= relative.max() < 2.2
    assert np.linalg.cond(exact) > 10


@pytest.mark.slow
@pytest.mark.parametrize("mass_matrix", ["low_rank", "laplace"])
def test_acceptance_ends_near_its_target(gaussian_problem, mass_matrix):
    # NumPyro's own windows end at 0.91 to 0.93; over three seeds these varied by 0.013.
    options = {"num_warmup": 500, "num_samples": 500, "target_accept": 0.8}
    posterior = nuts(*gaussian_problem, seed=0, mass_matrix=mass_matrix, **options)
    acceptance = posterior.tree["sample_stats"]["acceptance_rate"].mean()
    assert abs(float(acceptance) - 0.8) < 0.08


@pytest.fixture(scope="module")
def gaussian_problem():
    """A VWSGP of targets with Gaussian noise, whose posterior is a Gaussian."""
    design = simulate_instances(30, 2, num_features=2, seed=1)
    model = VWSGP.for_bags(design, num_inducing=6, likelihood=Gaussian(0.3))
    return model, simulate(model, design, seed=2)[0]


@pytest.mark.slow
def test_a_gaussian_posterior_has_no_misfit(gaussian_problem):
    with jax.enable_x64(True):
        target = jax.device_put(whitened_program(*gaussian_problem))
        assert float(curvature_and_misfit(target, jax.random.key(0))[1]) < 1e-12


@pytest.mark.in_ci
def test_the_curvature_is_found_by_the_program_of_laplace(gaussian_problem, compilations):
    """A search for a mode is the longest of them to compile; but one inverse is left."""
    laplace(*gaussian_problem, seed=0)
    with jax.enable_x64(True):
        target = jax.device_put(whitened_program(*gaussian_problem))
        before = compilations.number
        curvature_metric(target)
    assert compilations.number - before <= 1


# ------------------------------------------------------------------ "auto", and what is refused


def chain_for(problem, mass_matrix, **options):
    with jax.enable_x64(True):
        return NUTSChain.for_model(*problem, num_warmup=10, mass_matrix=mass_matrix, **options)


@pytest.mark.in_ci
def test_auto_takes_the_curvature_of_a_gaussian(gaussian_problem):
    chain = chain_for(gaussian_problem, "auto")
    assert chain.mass_matrix == "laplace"
    assert chain.curvature_metric is not None


@pytest.mark.in_ci
def test_auto_learns_where_the_curvature_misleads(small_problem):
    model, bags = small_problem
    vague = {"variance": dist.LogNormal(0.5, 1.5), "length_scale": dist.LogNormal(0.3, 1.5)}
    problem = model.with_hyperparameters(vague), bags
    with jax.enable_x64(True):
        target = jax.device_put(whitened_program(*problem))
        metric, misfit = curvature_and_misfit(target, jax.random.key(0))
        assert float(misfit) > 0.5
        chain = chain_for(problem, "auto")
        assert chain.mass_matrix == "low_rank"
        [begun_with] = started(chain).adapt_state.inverse_mass_matrix.values()
        np.testing.assert_array_equal(begun_with, metric)
        later = after_steps(chain, 2)
    # Until three tenths of warm-up are over; without a curvature two windows have ended by now.
    [kept] = later.trajectory.adapt_state.inverse_mass_matrix.values()
    np.testing.assert_array_equal(kept, metric)
    assert int(later.moments.draws[2]) == 2


@pytest.mark.slow
def test_auto_learns_where_there_is_no_curvature(kinked_problem):
    assert chain_for(kinked_problem, "auto").mass_matrix == "low_rank"


def test_auto_learns_for_the_full_program(small_problem):
    assert chain_for(small_problem, "auto", program="full").mass_matrix == "low_rank"


def test_auto_keeps_many_coordinates_diagonal(wide_problem):
    assert chain_for(wide_problem, "auto").mass_matrix == "diagonal"


@pytest.fixture(scope="module")
def kinked_problem(small_problem):
    _, bags = small_problem
    return CardinalityModel.for_bags(bags, weight_prior="laplace"), bags


@pytest.fixture(scope="module")
def wide_problem(small_problem):
    _, bags = small_problem
    wide = replace(bags, instances=np.tile(bags.instances, (1, LARGEST_DENSE // 2 + 1)))
    return CardinalityModel.for_bags(wide), wide


def test_a_large_dense_matrix_is_refused(wide_problem):
    with pytest.raises(ValueError, match=r"mass_matrix is 'dense', of 100\d coordinates; expected"):
        chain_for(wide_problem, "dense")


def test_a_mode_of_the_full_program_is_refused(small_problem):
    with pytest.raises(ValueError, match="of the marginal program, and program is 'full'"):
        chain_for(small_problem, "laplace", program="full")


def test_a_mode_with_a_kink_is_refused(kinked_problem):
    with pytest.raises(ValueError, match="no curvature"):
        chain_for(kinked_problem, "laplace")


def test_an_unknown_matrix_is_refused_by_name(small_problem):
    with pytest.raises(ValueError, match=r"mass_matrix is 'diag'; expected one of auto, diagonal"):
        nuts(*small_problem, seed=0, mass_matrix="diag")


@pytest.mark.in_ci
def test_a_chain_for_many_bags_chooses_no_matrix():
    with pytest.raises(ValueError, match="mass_matrix is 'auto', which is chosen by one set"):
        TraceableChain.nuts(mass_matrix="auto")


@pytest.mark.slow
@pytest.mark.parametrize("mass_matrix", ["auto", "low_rank"])
def test_a_second_chain_compiles_nothing(gaussian_problem, compilations, mass_matrix):
    model, bags = gaussian_problem
    options = {"num_warmup": 20, "num_samples": 4, "num_chains": 1, "mass_matrix": mass_matrix}
    nuts(model, bags, seed=0, **options)
    before = compilations.number
    nuts(model, bags.with_targets(bags.targets[::-1]), seed=1, **options)
    assert compilations.number == before
