"""SVI against the optimum that quadrature finds, and its bound against the exact evidence."""

import re
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from milzoo.inference import laplace, svi
from milzoo.inference.gaussian import GaussianApproximation, WhitenedProgram
from milzoo.inference.runtime.densities import log_joint
from milzoo.inference.svi import _newton_gain
from numpyro import distributions as dist
from numpyro.infer import Trace_ELBO
from scipy.optimize import minimize


@pytest.fixture(scope="module")
def best_gaussian(exact_posterior):
    """Mean, sd (whitened) and ELBO of the Gaussian closest to the posterior in KL(q‖p)."""
    whitened, log_density = exact_posterior.whitened, exact_posterior.log_density
    step = whitened[1] - whitened[0]

    def negative_elbo(parameters):
        mean, log_deviation = parameters
        z = (whitened - mean) / np.exp(log_deviation)
        log_q = -0.5 * z**2 - log_deviation - 0.5 * np.log(2 * np.pi)
        return step * np.exp(log_q) @ (log_q - log_density)

    found = minimize(negative_elbo, [0.0, 0.0], method="Nelder-Mead", options={"fatol": 1e-12})
    return found.x[0], np.exp(found.x[1]), -found.fun


@pytest.fixture(scope="module")
def one_dimensional(one_inducing_point):
    return svi(*one_inducing_point, seed=0, guide="multivariate_normal")


@pytest.fixture(scope="module")
def fits(small_problem):
    names = ("multivariate_normal", "normal", "low_rank_multivariate_normal")
    return {name: svi(*small_problem, seed=1, guide=name) for name in names}


# ------------------------------------------------------------------ the right optimum


@pytest.mark.slow
def test_mean_and_sd_are_those_of_the_closest_gaussian(one_dimensional, best_gaussian):
    # What is left of the gradient noise when the learning rate has gone to zero: at ten seeds the
    # mean has an error of 0.013 sd and the sd of 0.9 % (root mean square). Five times that.
    mean, deviation, _ = best_gaussian
    found = one_dimensional.approximation
    assert found.mean[0] == pytest.approx(mean, abs=0.065 * deviation)
    assert abs(found.scale_tril[0, 0]) == pytest.approx(deviation, rel=0.045)


@pytest.mark.in_ci
def test_laplace_is_not_the_closest_gaussian(one_inducing_point, best_gaussian):
    mean, deviation, _ = best_gaussian
    found = laplace(*one_inducing_point, seed=0).approximation
    assert abs(found.mean[0] - mean) > 1.5 * 0.065 * deviation


@pytest.mark.slow
def test_bound_is_the_exact_elbo_and_below_the_evidence(
    one_dimensional, best_gaussian, exact_posterior
):
    # ``elbo`` holds means over 100 steps of 8 draws; the last blocks are at the optimum.
    last = one_dimensional.elbo[-10:]
    error = last.std(ddof=1) / np.sqrt(last.size)
    assert abs(last.mean() - best_gaussian[2]) < 6.5 * error + 1e-3  # t with 9 degrees: 1e-4
    assert best_gaussian[2] < exact_posterior.log_evidence
    assert last.mean() < exact_posterior.log_evidence + 6.5 * error


@pytest.mark.slow
def test_labels_that_say_nothing_leave_the_prior(small_problem):
    # KL(q‖prior) of what is left of the gradient noise: below 0.0017 at six seeds.
    model, bags = small_problem
    posterior = svi(replace(model, sharpness=1.0), bags, seed=0)
    mean, scale_tril = posterior.approximation.mean, posterior.approximation.scale_tril
    log_determinant = 2 * np.linalg.slogdet(scale_tril)[1]
    divergence = 0.5 * ((scale_tril**2).sum() + mean @ mean - mean.size - log_determinant)
    assert 0 <= divergence < 0.008
    assert posterior.elbo[-1] == pytest.approx(-bags.num_bags * np.log(2), abs=0.02)


@pytest.mark.slow
def test_richer_guides_have_the_better_bound(fits, small_problem):
    model, bags = small_problem
    bounds = {}
    for name, posterior in fits.items():
        draws = posterior.draws(20_000, seed=2)
        log_ratio = log_joint(model, "marginal", draws, bags) - posterior.log_density(draws)
        bounds[name] = log_ratio.mean(), log_ratio.std() / np.sqrt(log_ratio.size)
    full, error = bounds["multivariate_normal"]
    for name in ("normal", "low_rank_multivariate_normal"):
        assert full > bounds[name][0] - 4.5 * np.hypot(error, bounds[name][1])
    # On this problem the loss of the diagonal one is measurable.
    assert full > bounds["normal"][0] + 4.5 * np.hypot(error, bounds["normal"][1])
    scale_tril = fits["normal"].approximation.scale_tril
    np.testing.assert_array_equal(scale_tril, np.diag(np.diag(scale_tril)))
    assert (np.tril(fits["multivariate_normal"].approximation.scale_tril, -1) != 0).any()


# ------------------------------------------------------------------ the guide


@pytest.mark.slow
@pytest.mark.parametrize("guide", ["multivariate_normal", "normal"])
def test_trace_elbo_in_32_bit_is_the_log_ratio(fits, small_problem, guide):
    # Two looks at 4.5 standard errors: a false alarm in 1.4e-5 of all runs.
    model, bags = small_problem
    posterior = fits[guide]
    draws = posterior.draws(4000, seed=3)
    log_ratio = log_joint(model, "marginal", draws, bags) - posterior.log_density(draws)
    program, q = model.marginal(), posterior.guide
    assert not jax.config.jax_enable_x64
    one = Trace_ELBO(1).loss
    keys = jax.random.split(jax.random.key(4), 4000)
    losses = jax.jit(lambda k: jax.lax.map(lambda k: one(k, {}, program, q, bags), k))(keys)
    elbo = -np.asarray(losses, float)
    assert losses.dtype == np.float32
    error = np.sqrt((elbo.var(ddof=1) + log_ratio.var(ddof=1)) / 4000)
    assert abs(elbo.mean() - log_ratio.mean()) < 4.5 * error


# ------------------------------------------------------------------ how it ends


@pytest.mark.slow
def test_bound_does_not_depend_on_the_order_of_sites(small_problem):
    """Sites of the program are not in the order of their names: a mixed-up q has a large error."""
    model, bags = small_problem
    kernel = replace(
        model.kernel, variance=dist.LogNormal(0.0, 0.3), length_scale=dist.LogNormal(2.0, 0.1)
    )
    model = replace(model, kernel=kernel, mean=dist.Normal(-3.0, 0.2))
    posterior = svi(model, bags, seed=0, max_steps=1000, num_particles=4)
    draws = posterior.stored_draws()
    gap = log_joint(model, "marginal", draws, bags) - posterior.log_density(draws)
    # The last block of the trace has 100 estimates of four draws, when q no longer moves.
    error = gap.std() * np.sqrt(1 / gap.size + 1 / 400)
    assert abs(gap.mean() - posterior.elbo[-1]) < 5 * error
    # The prior says where the length scale is, and the bags say little of it.
    assert draws["length_scale"].mean() == pytest.approx(np.exp(2.0), rel=0.1)


@pytest.mark.slow
def test_status_tells_a_finished_fit_from_one_cut_short(fits, small_problem):
    assert fits["multivariate_normal"].status.kind == "converged"
    assert re.match(r"after 4000 steps a Newton step", fits["multivariate_normal"].status.sentence)
    assert len(fits["multivariate_normal"].elbo) == 40
    slow = svi(*small_problem, seed=0, max_steps=200, learning_rate=1e-2, num_draws=5)
    assert slow.status.kind == "max_steps"
    single = svi(*small_problem, seed=0, max_steps=1, num_draws=5)
    assert single.status.kind == "max_steps"


@pytest.mark.slow
def test_flat_trace_without_progress_is_no_convergence(small_problem):
    still = svi(*small_problem, seed=0, max_steps=400, learning_rate=1e-9, num_draws=5)
    assert np.ptp(still.elbo) < 0.2 * abs(still.elbo[-1])
    assert still.status.kind == "max_steps"


@jax.tree_util.register_static
@dataclass(frozen=True)
class StandardNormal(WhitenedProgram):
    def log_density(self, vector):
        return -0.5 * vector @ vector


@jax.tree_util.register_static
@dataclass(frozen=True)
class Correlated(WhitenedProgram):
    def log_density(self, vector):
        return -0.5 * vector @ jnp.array([[1.0, 0.8], [0.8, 1.0]]) @ vector


@pytest.mark.in_ci
def test_newton_gain_is_the_divergence_from_a_gaussian():
    # Where p = N(0, I): m off by δ costs ‖δ‖²/2, and Σ costs ‖I − LᵀL‖²/4.
    turned = np.array([[1.0, 0.0], [0.8, 0.6]])  # of sds 1, a correlation of 0.8
    cases = {
        "right": (np.zeros(4), np.eye(4), 0.0),
        "mean": (np.full(4, 2.0), np.eye(4), 8.0),
        "scale": (np.zeros(4), 1.5 * np.eye(4), 4 * 1.25**2 / 4),
        # The mean and the overall scale are right in these: tr LᵀL = P.
        "variances": (np.zeros(4), np.diag([1.9, 0.1, 1.9, 0.1]) ** 0.5, 4 * 0.9**2 / 4),
        "correlation": (np.zeros(2), turned, 2 * 0.8**2 / 4),
    }
    target = StandardNormal(model=None, given=None, shapes=())

    def gain(mean, scale_tril, **options):
        q = GaussianApproximation(mean, scale_tril)
        with jax.enable_x64(True):
            keys = jax.random.split(jax.random.key(0), 20)
            return np.array([_newton_gain(target, q, key, **options) for key in keys])

    for case, (mean, scale_tril, expected) in cases.items():
        found = gain(mean, scale_tril, has_full_covariance=True)
        error = found.std(ddof=1) / np.sqrt(20)
        assert found.mean() == pytest.approx(expected, abs=4.5 * error + 1e-12), case
        if case in ("scale", "variances"):  # they are free without correlations too
            alone = gain(mean, scale_tril, has_full_covariance=False)
            error = alone.std(ddof=1) / np.sqrt(20)
            assert alone.mean() == pytest.approx(expected, abs=4.5 * error), case


def test_a_guide_without_correlations_is_not_blamed_for_them():
    # p = N(0, Λ⁻¹), q with the best variances 1/Λ_jj: nothing is left to gain without correlations.
    target = Correlated(model=None, given=None, shapes=())
    q = GaussianApproximation(np.zeros(2), np.eye(2))
    with jax.enable_x64(True):
        alone, free = (
            float(_newton_gain(target, q, jax.random.key(0), has_full_covariance=full))
            for full in (False, True)
        )
    # D has 0.8 off its diagonal; that of its diagonal has an sd of 0.8/√256.
    assert alone < 4.5**2 * 2 * 0.8**2 / 256 / 4
    assert free == pytest.approx(2 * 0.8**2 / 4, rel=4.5 * 2 / 16)


@pytest.mark.slow
def test_a_bound_that_is_not_finite_is_a_failure(small_problem):
    posterior = svi(*small_problem, seed=0, max_steps=100, learning_rate=1e200, num_draws=5)
    assert posterior.status.kind == "failed"
    assert "not finite after 100 steps" in posterior.status.sentence


# ------------------------------------------------------------------ refusals


def test_unknown_guide_is_refused_with_the_nearest_name(small_problem, without_type_checks):
    message = (
        r"guide is 'multivariate_norml'; expected one of multivariate_normal, normal, "
        r"low_rank_multivariate_normal, flow; did you mean 'multivariate_normal'\?"
    )
    with pytest.raises(ValueError, match=message):
        svi(*small_problem, seed=0, guide="multivariate_norml")
    with pytest.raises(ValueError, match=r"guide is 'x'; expected one of .*, flow$"):
        svi(*small_problem, seed=0, guide="x")


@pytest.mark.parametrize("name", ["max_steps", "num_particles", "num_draws"])
def test_a_count_out_of_range_is_refused_by_name(small_problem, name):
    with pytest.raises(ValueError, match=f"{name} is 0; expected an integer of at least 1"):
        svi(*small_problem, seed=0, **{name: 0})


@pytest.mark.slow
def test_bags_without_labels_are_refused(small_problem):
    model, bags = small_problem
    with pytest.raises(ValueError, match="bags have no labels; svi needs one for each bag"):
        svi(model, replace(bags, labels=None), seed=0)
