"""The bound without draws, and SVI on it.

Monte-Carlo checks are seeded, 72 numbers at 5 standard errors: a false alarm in 4e-5 of all seeds.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from milzoo.inference import coordinate_ascent, svi
from milzoo.inference.quadrature_bound import QuadratureBound, WhitenedGaussian
from milzoo.inference.runtime.densities import log_likelihood
from milzoo.models import Gaussian, Logistic, NegativeBinomial, Probit, StudentT
from milzoo.models.numerics.quadrature import trapezoid_rule
from scipy.special import logsumexp

LIKELIHOODS = [Logistic(), Probit(0.5), Gaussian(0.5), StudentT(), NegativeBinomial(2)]


@pytest.fixture(scope="module", params=LIKELIHOODS)
def problem(request, accumulating_problem):
    return accumulating_problem(num_inducing=3, seed=4, likelihood=request.param)


def random_gaussian(num_inducing, seed):
    random = np.random.default_rng(seed)
    return WhitenedGaussian(
        jnp.asarray(random.normal(size=num_inducing)),
        jnp.asarray(-random.gamma(1.0, size=num_inducing)),
        jnp.asarray(0.2 * random.normal(size=(num_inducing, num_inducing))),
    )


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1.0, 60.0])
def test_expected_log_likelihood_is_that_of_draws(problem, factor):
    model, bags = problem
    model = model.with_hyperparameters({"variance": 2.0 * factor})
    with jax.enable_x64(True):
        q, bound = random_gaussian(3, seed=1), QuadratureBound.of(model, bags)
        found = np.asarray(bound.expected_log_likelihood(q, jnp.arange(bags.num_bags)))
        draws = np.random.default_rng(0).normal(size=(20_000, 3)) @ np.asarray(q.scale_tril).T
        draws += np.asarray(q.mean)
        draws = draws @ np.asarray(model.accumulated(bags).cholesky).T
        by_draw = log_likelihood(model, "marginal", {"inducing_value": draws}, bags)
    error = by_draw.std(axis=0) / np.sqrt(len(draws))
    assert (np.abs(found - by_draw.mean(axis=0)) < 5 * error).all()


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1.0, 60.0])
def test_nodes_are_close_enough_for_the_broadest_gaussian(problem, factor):
    # Under the prior q is as broad as the rule is made for; ten times as many nodes are the judge.
    model, bags = problem
    model = model.with_hyperparameters({"variance": 2.0 * factor})
    with jax.enable_x64(True):
        q, bound = WhitenedGaussian.start(3, 1.0), QuadratureBound.of(model, bags)
        finer = trapezoid_rule(
            10 * float(jnp.linalg.norm(bound.projection, axis=1).max()),
            distance_to_pole=np.pi,
            tilt=(0.0, 0.0),
        )
        everyone = jnp.arange(bags.num_bags)
        found = bound.expected_log_likelihood(q, everyone)
        expected = replace(bound, outer=finer).expected_log_likelihood(q, everyone)
    # Six standard deviations hold all but 2e-9 of the mass, on which log p falls like a square.
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_divergence_is_that_of_dense_algebra():
    with jax.enable_x64(True):
        q = random_gaussian(3, seed=2)
        covariance = np.asarray(q.scale_tril @ q.scale_tril.T)
        mean = np.asarray(q.mean)
        expected = np.trace(covariance) + mean @ mean - 3 - np.linalg.slogdet(covariance)[1]
        np.testing.assert_allclose(q.divergence, expected / 2, rtol=1e-12)


@pytest.mark.in_ci
@pytest.mark.slow_but_first
def test_bags_in_batches_have_the_values_of_all(problem, monkeypatch):
    with jax.enable_x64(True):
        q, bound = random_gaussian(3, seed=1), QuadratureBound.of(*problem)
        together = bound(q)
        monkeypatch.setattr("milzoo.inference.quadrature_bound._NODES", 1)
        np.testing.assert_allclose(bound(q), together, rtol=1e-12)


@pytest.mark.in_ci
@pytest.mark.slow_but_first
def test_every_choice_of_bags_is_right_on_average(problem):
    with jax.enable_x64(True):
        q, bound = random_gaussian(3, seed=3), QuadratureBound.of(*problem)
        pairs = jnp.arange(bound.projection.shape[0]).reshape(-1, 2)
        estimates = [bound.estimate(q, pair) for pair in pairs]
        np.testing.assert_allclose(np.mean(estimates), bound(q), rtol=1e-12)


def whitened_gaussian(state):
    """A closed form's q(ε) as coordinates of this bound."""
    precision = state.precision_cholesky @ state.precision_cholesky.T
    factor = jnp.linalg.cholesky(jnp.linalg.inv(precision))
    return WhitenedGaussian(state.mean, jnp.log(jnp.diagonal(factor)), factor)


@pytest.mark.in_ci
@pytest.mark.slow_but_first
@pytest.mark.parametrize("likelihood", [Logistic(), Probit()])
def test_closed_forms_are_lower_bounds_at_the_same_q(
    accumulating_problem, closed_form_start, likelihood
):
    model, bags = accumulating_problem(num_inducing=3, seed=4, likelihood=likelihood)
    with jax.enable_x64(True):
        state = closed_form_start(model, bags)
        bound = QuadratureBound.of(model, bags)
        for _ in range(6):
            state = state.after(1)
            assert state.elbo < bound(whitened_gaussian(state.q)) - 1e-3


@pytest.mark.in_ci
def test_of_targets_it_is_the_closed_form(accumulating_problem, closed_form_start):
    model, bags = accumulating_problem(num_inducing=3, seed=4, likelihood=Gaussian())
    with jax.enable_x64(True):
        state = closed_form_start(model, bags).after(1)
        bound = QuadratureBound.of(model, bags)
        np.testing.assert_allclose(bound(whitened_gaussian(state.q)), state.elbo, rtol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", [Logistic(), Probit()])
@pytest.mark.parametrize("num_inducing", [1, 2])
def test_maximum_lies_between_closed_form_and_evidence(
    accumulating_problem, likelihood, num_inducing
):
    model, bags = accumulating_problem(num_inducing, seed=4, likelihood=likelihood)
    fitted = svi(model, bags, seed=0, expectation="quadrature", max_steps=1500)
    assert fitted.status.kind == "converged"
    closed = coordinate_ascent(model, bags, seed=0)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    draws = np.stack(np.meshgrid(*[nodes] * num_inducing), axis=-1).reshape(-1, num_inducing)
    log_weights = sum(np.meshgrid(*[np.log(weights / weights.sum())] * num_inducing)).ravel()
    with jax.enable_x64(True):
        cholesky = np.asarray(model.accumulated(bags).cholesky)
    draws = {"inducing_value": draws @ cholesky.T}
    by_node = log_likelihood(model, "marginal", draws, bags).sum(axis=1)
    evidence = logsumexp(by_node + log_weights)
    assert closed.elbo[-1] < fitted.elbo[-1] < evidence


@pytest.mark.slow
def test_batches_of_bags_reach_the_same_optimum(accumulating_problem):
    model, bags = accumulating_problem(num_inducing=3, seed=4, likelihood=Probit())
    whole = svi(model, bags, seed=0, expectation="quadrature", max_steps=1500)
    batched = svi(model, bags, seed=1, expectation="quadrature", max_steps=9000, batch_size=4)
    assert len(batched.elbo) == 9000 / 3  # a pass is three steps
    # A fit whose gradient is small enough to count as converged misses the maximum by half a nat.
    assert abs(batched.elbo[-1] - whole.elbo[-1]) < 0.5
    # Its last entry is a mean of estimates over 100 steps, each with the noise of 8 draws.
    by_draws = svi(model, bags, seed=2)
    noise = by_draws.elbo[-10:].std(ddof=1)
    assert abs(by_draws.elbo[-1] - whole.elbo[-1]) < 0.5 + 5 * noise


@pytest.mark.slow
def test_of_targets_it_finds_the_exact_posterior(accumulating_problem):
    model, bags = accumulating_problem(num_inducing=3, seed=4, likelihood=Gaussian())
    exact = coordinate_ascent(model, bags, seed=0)
    fitted = svi(model, bags, seed=0, expectation="quadrature", max_steps=4000)
    np.testing.assert_allclose(fitted.elbo[-1], exact.elbo[-1], atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"expectation": "quadratur"}, "expectation is 'quadratur'; .* did you mean 'quadrature'"),
        ({"batch_size": 2}, "batch_size is 2 with expectation='monte_carlo'"),
        ({"expectation": "quadrature", "batch_size": 0}, "batch_size is 0; expected an integer"),
        ({"expectation": "quadrature", "batch_size": 13}, "is 13; expected at most 12, the number"),
        ({"expectation": "quadrature", "num_particles": 4}, "num_particles is 4 with expectation="),
        ({"expectation": "quadrature", "guide": "normal"}, "a VWSGP and guide='normal'; expected"),
    ],
    ids=["name", "by draws", "none", "too many", "particles", "guide"],
)
def test_options_that_do_not_fit_are_refused(problem, options, message, without_type_checks):
    with pytest.raises(ValueError, match=message):
        svi(*problem, seed=0, **options)


def test_models_without_one_number_for_each_bag_are_refused(small_problem):
    with pytest.raises(ValueError, match="expectation='quadrature' with a VGPMIL"):
        svi(*small_problem, seed=0, expectation="quadrature")


@pytest.mark.slow
def test_leftover_bags_are_used_in_another_pass(accumulating_problem):
    model, bags = accumulating_problem(num_inducing=3, seed=4, likelihood=Gaussian())
    exact = coordinate_ascent(model, bags, seed=0)
    fitted = svi(model, bags, seed=0, expectation="quadrature", max_steps=4000, batch_size=7)
    # Without the five bags that fill no batch it would end 1.5 nats lower.
    assert fitted.elbo[-1] > exact.elbo[-1] - 0.1
