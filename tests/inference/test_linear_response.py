"""Linear response against the response itself, exact posteriors and the grid."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from milzoo.datasets import simulate, simulate_instances
from milzoo.inference import coordinate_ascent, grid, laplace, linear_response, nuts
from milzoo.inference.closed_form import Options, closed_form
from milzoo.inference.closed_form.linear_response import check_gaussian
from milzoo.inference.runtime.programs import num_compilations
from milzoo.inference.traceable import traceable_engine
from milzoo.models import DPMIL, Gaussian, Probit

pytestmark = pytest.mark.in_ci


def covariance_of(posterior):
    tril = posterior.approximation.scale_tril
    return tril @ tril.T


def assert_equals_the_response(model, bags, closed_form_start):
    """Of the mean, to tᵀu in the log joint density, by differences of whole ascents."""
    corrected = linear_response(coordinate_ascent(model, bags, seed=0, tolerance=1e-14), seed=0)
    assert corrected.status.kind == "converged", corrected.status
    with jax.enable_x64(True):
        start = closed_form_start(model, bags)
        cholesky = np.asarray(model.inducing_cholesky())

        @jax.jit
        def mean_under(given, direction):
            def one_step(_, statistics):
                # tᵀu = (Lᵀt)ᵀε, in the linear term of q(ε).
                linear_term = statistics.linear_term + direction
                q = given.form.m_step(statistics._replace(linear_term=linear_term))
                return given.form.e_step(given.prepared, q, None)[0]

            end = jax.lax.fori_loop(0, 3000, one_step, given.statistics)
            linear_term = end.linear_term + direction
            return given.form.m_step(end._replace(linear_term=linear_term)).mean

        for row, expected in zip(np.eye(len(cholesky)), covariance_of(corrected), strict=True):
            step = 1e-4 * cholesky.T @ row
            moved = mean_under(start, jnp.asarray(step)) - mean_under(start, jnp.asarray(-step))
            found = cholesky @ np.asarray(moved) / 2e-4
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_vgpmil_has_the_response_of_its_mean(small_problem, closed_form_start):
    assert_equals_the_response(*small_problem, closed_form_start)


@pytest.mark.slow
@pytest.mark.slow_but_first
@pytest.mark.parametrize("fields", [{}, {"likelihood": Probit()}], ids=["logistic", "probit"])
def test_vwsgp_has_the_response_of_its_mean(accumulating_problem, closed_form_start, fields):
    assert_equals_the_response(*accumulating_problem(3, seed=4, **fields), closed_form_start)


def test_a_gaussian_posterior_keeps_its_covariance(accumulating_problem):
    model, _ = accumulating_problem(3, seed=4)
    model = replace(model, likelihood=Gaussian(0.5))
    targets, _ = simulate(model, simulate_instances(20, range(1, 4), 2, seed=1), seed=2)
    exact = coordinate_ascent(model, targets, seed=0)
    corrected = linear_response(exact, seed=0)
    np.testing.assert_allclose(covariance_of(corrected), covariance_of(exact), rtol=1e-8)
    np.testing.assert_allclose(corrected.approximation.mean, exact.approximation.mean, rtol=1e-8)


def test_it_comes_close_to_the_sds_of_a_grid(small_problem):
    model, bags = small_problem
    model = replace(model, inducing_points=model.inducing_points[:2])
    ascent = coordinate_ascent(model, bags, seed=0)
    sd = grid(model, bags, seed=0).draws(20_000, seed=1)["inducing_value"].std(axis=0)
    given, corrected = (
        np.sqrt(np.diagonal(covariance_of(one))) / sd
        for one in (ascent, linear_response(ascent, seed=0))
    )
    print(given, corrected)
    assert given.max() < 0.9
    np.testing.assert_allclose(corrected, 1.0, atol=0.1)


def test_the_mean_stays_and_the_status_says_so(small_problem):
    ascent = coordinate_ascent(*small_problem, seed=0)
    corrected = linear_response(ascent, seed=0, num_draws=4000)
    np.testing.assert_allclose(
        corrected.approximation.mean, ascent.approximation.mean, rtol=1e-10, atol=1e-12
    )
    assert corrected.engine == "linear_response" and corrected.elbo is None
    assert "the mean is that of coordinate_ascent; asymmetry" in corrected.status.sentence
    drawn = np.cov(corrected.stored_draws()["inducing_value"].T)
    np.testing.assert_allclose(drawn, covariance_of(corrected), rtol=0.15, atol=0.1)


def test_an_ascent_cut_short_is_told(small_problem):
    short = coordinate_ascent(*small_problem, seed=0, max_steps=2)
    status = linear_response(short, seed=0).status
    assert status.kind == "max_steps"
    assert "another step of the ascent would move by" in status.sentence


def test_what_is_no_covariance_is_refused(small_problem):
    """Far from a maximum, where the bound is not concave."""
    ascent = coordinate_ascent(*small_problem, seed=0)
    far = replace(ascent.approximation, mean=np.zeros(4), scale_tril=20.0 * np.eye(4))
    found = linear_response(replace(ascent, approximation=far), seed=0)
    assert found.status.kind == "failed"
    assert "coordinate_ascent is at no strict maximum of its bound" in found.status.sentence
    np.testing.assert_array_equal(found.approximation.scale_tril, far.scale_tril)


def test_a_second_problem_of_the_size_compiles_nothing(small_problem):
    model, bags = small_problem
    linear_response(coordinate_ascent(model, bags, seed=0), seed=0)
    other, _ = simulate(model, bags.without_labels(), seed=8)
    ascent = coordinate_ascent(replace(model, mean=-0.3), other, seed=0)
    before = num_compilations()
    linear_response(ascent, seed=1)
    assert num_compilations() == before


def test_its_traced_draws_have_the_same_covariance(small_problem):
    model, bags = small_problem
    expected = covariance_of(linear_response(coordinate_ascent(model, bags, seed=0), seed=0))
    engine = traceable_engine("linear_response")
    engine.check(model, bags)
    with jax.enable_x64(True):
        drawn = jax.jit(lambda key: engine.draws(model, bags, key, 4000))(jax.random.key(0))
    assert bool(drawn.has_converged)
    np.testing.assert_allclose(
        np.cov(np.asarray(drawn.sites["inducing_value"]).T), expected, rtol=0.15, atol=0.1
    )


@pytest.mark.slow
def test_posteriors_without_a_gaussian_closed_form_are_refused(small_problem):
    model, bags = small_problem
    chains = nuts(model, bags, seed=0, num_warmup=10, num_samples=10, num_chains=1)
    with pytest.raises(ValueError, match="nuts is a set of draws, whose covariance needs no"):
        linear_response(chains, seed=0)
    with pytest.raises(ValueError, match="approximation is a GaussianApproximation; expected q"):
        linear_response(laplace(model, bags, seed=0), seed=0)
    labelled = coordinate_ascent(model, bags, seed=0, label_update="mean_field")
    with pytest.raises(ValueError, match="a LabelledApproximation; expected q"):
        linear_response(labelled, seed=0)
    with pytest.raises(NotImplementedError, match="q of DPMIL is no Gaussian"):
        check_gaussian(closed_form(DPMIL.for_bags(bags, 2), Options()))
    with pytest.raises(ValueError, match="linear response corrects the closed form's own"):
        traceable_engine("linear_response", label_update="plug_in_max").check(model, bags)
