"""Tempered SMC against closed forms, grids and quadrature: evidence, moments, and every mode."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from milzoo.datasets import Bags, simulate, simulate_instances
from milzoo.inference import coordinate_ascent, grid, log_evidence, tempered_smc
from milzoo.inference.gaussian import WhitenedProgram, whitened_program
from milzoo.inference.posterior import Posterior, Status
from milzoo.inference.tempered_smc import (
    _judged,
    _log_ratios,
    _Reference,
    _reference,
    _start,
    run_to_posterior,
)
from milzoo.models import RBF, VGPMIL, VWSGP, DiverseDensity, GammaScaleMixture, Gaussian
from scipy.stats import norm

POINTS = np.array([[-0.8, 0.3], [0.7, 0.8], [0.4, -0.9]])
DESIGN = simulate_instances(16, range(1, 5), num_features=2, seed=3)
GAUSSIAN = VWSGP(RBF(4.0, 1.0), POINTS, likelihood=Gaussian(0.5))


@pytest.fixture(scope="module")
def targets() -> Bags:
    return simulate(GAUSSIAN, DESIGN, seed=1)[0]


@pytest.fixture(scope="module")
def two_concepts() -> tuple[DiverseDensity, Bags]:
    """Concepts at 3 and −3, between which nothing in the data chooses."""
    jitter = 0.1 * np.random.default_rng(1).normal(size=(4, 1, 1))
    pairs = [np.concatenate([3.0 + one, -3.0 - one]) for one in jitter]
    others = [np.full((1, 1), value) for value in (0.2, -0.2, 6.0, -6.0)]
    bags = Bags.from_list([*pairs, *others], labels=[1] * 4 + [0] * 4)
    return DiverseDensity(concept_prior=dist.Normal(0.0, 3.0)), bags


@pytest.fixture(scope="module")
def three_modes() -> tuple[VGPMIL, Bags]:
    """One inducing value; the mode at 0 and the far ones of a Gamma scale mixture, all with mass.

    p(f) ∝ N(f) Π ψ(f_n)·2cosh(f_n/2): of so few instances the barrier is low.
    """
    bags = Bags.from_list([np.full((3, 1), 0.1 * b) for b in range(4)], labels=[0, 1, 0, 1])
    model = VGPMIL(
        RBF(4.4, 3.0), np.zeros((1, 1)), mean=0.0, scale_mixture=GammaScaleMixture(1.0, 1.0)
    )
    return model, bags


def mean_in_standard_errors(posterior: Posterior, site: str, exact: float, function) -> float:
    """|z| of the mean over runs, whose own means are independent."""
    by_run = function(posterior.tree["posterior"][site].to_numpy()).mean(axis=1)
    return abs(by_run.mean() - exact) / (by_run.std(ddof=1) / len(by_run) ** 0.5)


# ------------------------------------------------------------------ the start


@pytest.mark.slow
def test_draws_of_the_prior_are_standard(targets):
    model = replace(GAUSSIAN, kernel=RBF(dist.LogNormal(0.5, 0.7), 1.0))
    with jax.enable_x64(True):
        target = whitened_program(model, targets)
        draws = np.asarray(jax.vmap(target.prior_draw)(jax.random.split(jax.random.key(0), 4000)))
        known = {name: jnp.full(shape, float(name == "variance")) for name, shape in target.shapes}
        is_variance = np.asarray(target.flat(known), bool)
    assert is_variance.sum() == 1 < len(is_variance)
    standard = np.where(is_variance, (draws - 0.5) / 0.7, draws)  # log v ~ N(0.5, 0.7²)
    # 4.9 standard errors of a mean, and of a variance.
    assert np.abs(standard.mean(axis=0)).max() < 4.9 / 4000**0.5
    assert np.abs(standard.var(axis=0) - 1).max() < 4.9 * (2 / 4000) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize("dispersion", [1.0, 3.0])
def test_particles_begin_at_so_many_sds_of_the_prior(targets, dispersion):
    model = replace(GAUSSIAN, kernel=RBF(dist.LogNormal(0.5, 0.7), 1.0))
    with jax.enable_x64(True):
        target = whitened_program(model, targets)
        reference = _reference(target, jax.random.key(0), np.asarray(dispersion))
        vectors = np.asarray(_start(target, reference, jax.random.key(1), 4000).vectors)
        log_density = jax.vmap(reference.log_density)(vectors)
    known = {
        name: np.full(shape, 0.7 if name == "variance" else 1.0) for name, shape in target.shapes
    }
    sds = np.concatenate([known[name].ravel() for name, _ in target.shapes])
    # Quantiles of 512 draws have an error of 6 %, at five standard errors 30 %.
    assert np.asarray(reference.scale) == pytest.approx(dispersion * sds, rel=0.3)
    standard = (vectors - np.asarray(reference.centre)) / np.asarray(reference.scale)
    assert np.abs(standard.mean(axis=0)).max() < 4.9 / 4000**0.5
    assert np.abs(standard.var(axis=0) - 1).max() < 4.9 * (2 / 4000) ** 0.5
    expected = norm.logpdf(vectors, reference.centre, reference.scale).sum(axis=1)
    np.testing.assert_allclose(log_density, expected, rtol=1e-12)


@jax.tree_util.register_static
@dataclass(frozen=True)
class HalfUndefined(WhitenedProgram):
    def log_density(self, vector):
        return jnp.where(vector[0] > 0, jnp.nan, -0.5 * vector @ vector)


def test_what_is_not_a_number_has_no_density():
    target = HalfUndefined(model=None, given=None, shapes=(("v", (1,)),))
    with jax.enable_x64(True):
        reference = _Reference(jnp.zeros(1), jnp.ones(1))
        found = _log_ratios(target, reference, jnp.array([[-1.0], [1.0]]))
    # The two densities differ by the constant of the Gaussian.
    np.testing.assert_allclose(found, [0.5 * np.log(2 * np.pi), -np.inf])


# ------------------------------------------------------------------ one mode


@pytest.mark.in_ci
def test_a_conjugate_posterior_has_its_moments_and_evidence(targets):
    exact = coordinate_ascent(GAUSSIAN, targets, seed=0)
    posterior = tempered_smc(GAUSSIAN, targets, seed=0, num_chains=8)
    assert posterior.status.kind == "converged"
    found = log_evidence(posterior, seed=0)
    assert found.method == "tempered SMC" and found.error < 0.1
    # Student's t of seven degrees of freedom exceeds 10 once in 50,000.
    assert abs(found.value - exact.elbo[-1]) < 10 * found.error
    known = exact.draws(100_000, seed=1)["inducing_value"]
    for power in (1, 2):
        for m, moment in enumerate((known**power).mean(axis=0)):
            z = mean_in_standard_errors(
                posterior, "inducing_value", moment, lambda x, m=m, p=power: x[..., m] ** p
            )
            assert z < 12


@pytest.mark.slow
def test_the_evidence_is_the_mean_of_the_runs(targets):
    posterior = tempered_smc(GAUSSIAN, targets, seed=0, num_particles=50, num_chains=3)
    by_run = np.array(posterior.tree["sample_stats"].attrs["log_evidence"])
    found = log_evidence(posterior, seed=0)
    assert found.value == pytest.approx(np.log(np.exp(by_run).mean()))
    ratio = np.exp(by_run - found.value)
    assert found.error == pytest.approx(ratio.std(ddof=1) / 3**0.5)


@pytest.mark.in_ci
def test_a_single_run_has_an_unknown_error(targets):
    posterior = tempered_smc(GAUSSIAN, targets, seed=0, num_particles=50, num_chains=1)
    assert log_evidence(posterior, seed=0).error == np.inf


def test_draws_know_their_ancestors(targets):
    posterior = tempered_smc(GAUSSIAN, targets, seed=0, num_particles=50, num_chains=3)
    statistics = posterior.tree["sample_stats"]
    assert all(1 < number < 30 for number in statistics.attrs["num_temperatures"])
    ancestor = statistics["ancestor"].to_numpy()
    assert ancestor.shape == (3, 50)
    assert (np.diff(ancestor, axis=1) >= 0).all()
    fewest = min(len(set(row)) for row in ancestor)
    assert 1 < fewest < 50 and f"{fewest} ancestors" in posterior.status.sentence


# ------------------------------------------------------------------ several modes


def log_mean_density(target, points: np.ndarray, cell: float) -> tuple[float, np.ndarray]:
    """Log evidence by the sum over even points, and the probability of each."""
    with jax.enable_x64(True):
        log_density = np.asarray(jax.jit(jax.vmap(target.log_density))(points))
    log_evidence = np.logaddexp.reduce(log_density) + np.log(cell)
    return log_evidence, np.exp(log_density + np.log(cell) - log_evidence)


def in_each_mode(first: np.ndarray) -> tuple[np.ndarray, ...]:
    return first < -3, np.abs(first) < 3, first > 3


@pytest.mark.slow
def test_every_mode_of_a_gamma_mixture_has_its_mass(three_modes):
    model, bags = three_modes
    target = whitened_program(model, bags)
    points = np.linspace(-30.0, 30.0, 3001)
    exact, mass = log_mean_density(target, points[:, None], points[1] - points[0])
    expected = [mass[mode].sum() for mode in in_each_mode(points)]
    assert min(expected) > 0.1
    posterior = tempered_smc(model, bags, seed=0, num_chains=8)
    assert log_evidence(posterior, seed=0).value == pytest.approx(exact, abs=0.5)
    by_standard = posterior.tree["posterior"]["inducing_value"].to_numpy()[..., 0] / 4.4**0.5
    for fraction, is_there in zip(expected, in_each_mode(by_standard), strict=True):
        by_run = is_there.mean(axis=1)
        assert abs(by_run.mean() - fraction) < 10 * by_run.std(ddof=1) / len(by_run) ** 0.5


@pytest.fixture(scope="module")
def of_two_concepts(two_concepts):
    return tempered_smc(*two_concepts, seed=0, num_chains=8)


@pytest.mark.slow
def test_planted_modes_have_equal_masses(two_concepts, of_two_concepts):
    exact = grid(*two_concepts, seed=0)
    mass = (exact.draws(100_000, seed=0)["concept"] > 0).mean()
    z = mean_in_standard_errors(of_two_concepts, "concept", mass, lambda values: values[..., 0] > 0)
    assert z < 10
    found = log_evidence(of_two_concepts, seed=0)
    assert abs(found.value - exact.elbo[-1]) < 10 * found.error and found.error < 0.1


@pytest.mark.in_ci
def test_the_highest_mode_is_that_of_the_grid(two_concepts, of_two_concepts):
    model, bags = two_concepts
    target = whitened_program(model, bags)
    concept, log_scale = np.meshgrid(np.linspace(-8, 8, 641), np.linspace(-3, 3, 121))
    points = np.stack([concept.ravel(), log_scale.ravel()], axis=1)
    with jax.enable_x64(True):
        density = jax.jit(jax.vmap(target.log_density))
        on_grid = np.asarray(density(points))
        draws = of_two_concepts.tree["posterior"]
        flat = np.stack(
            [
                draws["concept"].to_numpy().ravel(),
                np.log(draws["scale"].to_numpy().ravel()),
            ],
            axis=1,
        )
        of_draws = np.asarray(density(flat))
    assert np.abs(np.abs(flat[of_draws.argmax()]) - np.abs(points[on_grid.argmax()])).max() < 0.2
    assert on_grid.max() - of_draws.max() < 0.1


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize("option", ["num_particles", "num_chains", "num_moves"])
def test_counts_are_checked(targets, option):
    with pytest.raises(ValueError, match=f"{option} is 0"):
        tempered_smc(GAUSSIAN, targets, seed=0, **{option: 0})


@pytest.mark.slow
def test_a_run_that_ended_early_is_a_failure(targets):
    with jax.enable_x64(True):
        target = whitened_program(GAUSSIAN, targets)
        run = run_to_posterior(target, jax.random.key(0), np.asarray(3.0), 20, 1)
    fine = Status("converged", "worst R̂ 1.000")
    assert _judged(fine, [run]).kind == "converged"
    halfway = run._replace(inverse_temperature=np.asarray(0.5))
    assert "a run ended at λ = 0.5" in _judged(fine, [run, halfway]).sentence
    nowhere = run._replace(log_evidence=np.asarray(-np.inf))
    for bad in (halfway, nowhere):
        assert _judged(fine, [run, bad]).kind == "failed"


@pytest.mark.slow
def test_the_step_size_suits_a_gaussian(targets):
    """Where the covariance is I; a step size that fell or rose at each move is far off."""
    with jax.enable_x64(True):
        target = whitened_program(GAUSSIAN, targets)
        run = run_to_posterior(target, jax.random.key(0), np.asarray(3.0), 200, 10)
    assert 0.7 < float(run.step_size) < 2.0
