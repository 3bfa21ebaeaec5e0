"""Small problems and their reference posteriors, shared by the tests of engines."""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from milzoo.datasets import Bags, simulate, simulate_instances
from milzoo.inference.closed_form import ClosedForm, Options, closed_form
from milzoo.inference.closed_form.sparse_gp import InducingFactor
from milzoo.models import VGPMIL
from milzoo.models.numerics.products import inverse_transposed
from milzoo.models.vwsgp import VWSGP
from numpyro.infer import Trace_ELBO
from scipy.special import expit


def ragged_bags(sizes: list[int], num_features: int, seed: int) -> Bags:
    random = np.random.default_rng(seed)
    return Bags.from_list([random.normal(size=(size, num_features)) for size in sizes])


@pytest.fixture(scope="session")
def small_problem() -> tuple[VGPMIL, Bags]:
    """Twelve bags of one to four instances, labels drawn from the model itself."""
    design = ragged_bags([1, 2, 3, 4] * 3, num_features=2, seed=3)
    model = VGPMIL.for_bags(design, num_inducing=4, variance=2.0, length_scale=1.5, mean=0.0)
    model = replace(model, mean=-0.7)
    bags, _ = simulate(model, design, seed=5)
    return model, bags


@pytest.fixture(scope="session")
def one_inducing_point() -> tuple[VGPMIL, Bags]:
    """A posterior of one dimension, for quadrature."""
    design = simulate_instances(8, 3, 2, seed=11)
    model = VGPMIL.for_bags(design, num_inducing=1, variance=3.0, length_scale=2.0, mean=0.0)
    model = replace(model, mean=-1.0)
    bags, _ = simulate(model, design, seed=6)
    return model, bags


@pytest.fixture(scope="session")
def accumulating_problem():
    """Function of the number of inducing points that gives a `VWSGP` and bags drawn from it."""

    def of(num_inducing: int, seed: int, **fields) -> tuple[VWSGP, Bags]:
        design = ragged_bags([1, 6, 2, 4, 3, 5] * 2, num_features=2, seed=seed)
        model = VWSGP.for_bags(design, num_inducing, variance=2.0, length_scale=1.5, **fields)
        return model, simulate(model, design, seed=seed)[0]

    return of


# ------------------------------------------------------------------ closed forms, step by step


class Iterate(NamedTuple):
    """A closed form with bags in memory, between two steps."""

    form: ClosedForm
    prepared: Any
    q: Any
    statistics: Any  # under q, but before the first step
    local: Any

    def after(self, steps: int) -> "Iterate":
        """So many steps later."""
        return _after(self, steps)

    @property
    def elbo(self) -> float:
        """The bound, from the first step on."""
        return float(self.form.elbo(self.q, self.statistics))


@jax.jit
def _after(given: Iterate, steps: int) -> Iterate:
    def one_step(_, state):
        _, statistics, local = state
        q = given.form.m_step(statistics)
        return q, *given.form.e_step(given.prepared, q, local)

    end = jax.lax.fori_loop(0, steps, one_step, given[2:])
    return Iterate(given.form, given.prepared, *end)


@pytest.fixture(scope="session")
def closed_form_start():
    """Function of a model, bags and options that gives the `Iterate` before the first step."""

    @jax.jit
    def begun(form, chunk, start):
        prepared = form.prepare(chunk)
        statistics, local = form.initial(prepared, start)
        return Iterate(form, prepared, form.m_step(statistics), statistics, local)

    def of(model, bags, *, key=None, **options) -> Iterate:
        form = closed_form(model, Options(**options)).in_memory(bags)
        key = jax.random.key(0) if key is None else key
        start = form.start(lambda rows, at_most: rows(bags), key)
        return begun(form, form.chunk(bags), start)

    return of


@pytest.fixture(scope="session")
def gradient_of_the_bound():
    """Function of an `Iterate` of a sparse GP that gives the gradient of its bound.

    In the mean, in the root of the precision and, where they are kept, in the labels. Whatever
    follows from q(u) is at its optimum on the way.
    """

    @jax.jit
    def gradient(given):
        def bound(mean, precision_cholesky, local):
            root = jnp.tril(precision_cholesky)
            q = InducingFactor(mean, root, inverse_transposed(root))
            return given.form.elbo(q, _statistics_of(given, q, local))

        arguments = (given.q.mean, given.q.precision_cholesky, given.local)
        return jax.grad(bound, argnums=(0, 1) if given.local is None else (0, 1, 2))(*arguments)

    return gradient


def _statistics_of(given: Iterate, q: Any, local: Any) -> Any:
    """Under labels as they are: `e_step` would update them."""
    if local is None:
        return given.form.e_step(given.prepared, q, None)[0]
    return given.form.e_step(given.prepared, q, local, updates_labels=False)[0]


@pytest.fixture(scope="session")
def bounds_of_steps():
    """Function of forms, what they prepared and a number of steps that gives the bounds (P, 1 + T).

    Problems are on the first axis of all arrays. The first bound is that of the start, the prior.
    """

    @partial(jax.jit, static_argnames="num_steps")
    def all_bounds(problems, num_steps):
        def run(problem):
            form, prepared, start = problem
            statistics, local = form.initial(prepared, start)

            def one_step(state, _):
                statistics, local = state
                q = form.m_step(statistics)
                statistics, local = form.e_step(prepared, q, local)
                return (statistics, local), form.elbo(q, statistics)

            later = jax.lax.scan(one_step, (statistics, local), length=num_steps)[1]
            return jnp.concatenate([form.elbo(start[0], statistics)[None], later])

        return jax.lax.map(run, problems)

    def of(forms, prepared, num_steps) -> np.ndarray:
        with jax.enable_x64(True):
            num_problems, size = len(prepared[0]), prepared[0].shape[-1]
            identity = np.stack([np.eye(size)] * num_problems)
            prior = InducingFactor(np.zeros((num_problems, size)), identity, identity)
            keys = jax.random.key_data(jax.random.split(jax.random.key(0), num_problems))
            problems = jax.tree.map(jnp.asarray, (forms, prepared, (prior, keys)))
            return np.asarray(all_bounds(problems, num_steps))

    return of


# ------------------------------------------------------------------ Monte Carlo


@pytest.fixture(scope="session")
def trace_elbo_draws():
    """Function of a posterior that gives 4,000 one-draw estimates of its bound by `Trace_ELBO`."""

    def of(posterior, bags) -> np.ndarray:
        with jax.enable_x64(True):
            program, guide, one = posterior.model.augmented(), posterior.guide, Trace_ELBO(1).loss
            keys = jax.random.split(jax.random.key(0), 4000)

            # It runs once: to optimise it takes longer than it saves.
            @partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
            def losses(keys):
                return jax.vmap(lambda key: one(key, {}, program, guide, bags))(keys)

            return -np.asarray(losses(keys))

    return of


# ------------------------------------------------------------------ one inducing value, exactly


@pytest.fixture(scope="session")
def log_likelihood_of_one():
    """log P(T | u) in plain NumPy for M = 1, at vectors (S,) of u and of hyper-parameters."""

    def log_likelihood(model, bags, inducing_value, variance, length_scale, mean):
        prior_variance = variance * (1 + model.jitter)
        distance = ((bags.instances - model.inducing_points[0]) ** 2).sum(axis=1)
        cross = variance[:, None] * np.exp(-0.5 * distance / length_scale[:, None] ** 2)
        weight = cross / prior_variance[:, None]  # A
        location = mean[:, None] + weight * inducing_value[:, None]
        scale = np.sqrt(variance[:, None] - weight * cross)  # √k̃
        nodes, step = np.linspace(-8.0, 8.0, 65, retstep=True)
        negative = sum(
            step * np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi) * expit(-location - scale * z)
            for z in nodes
        )
        none = np.multiply.reduceat(negative, bags.starts, axis=1)  # p0
        positive = (model.sharpness - (model.sharpness - 1) * none) / (model.sharpness + 1)
        return np.log(np.where(bags.labels, positive, 1 - positive)).sum(axis=1)

    return log_likelihood


class ExactPosterior(NamedTuple):
    """A posterior of one dimension on an equally spaced grid of whitened values ε = u/√K."""

    whitened: np.ndarray
    log_density: np.ndarray  # log p(ε, T), not normalised over ε
    scale: float  # √K

    @property
    def probability(self) -> np.ndarray:
        """Of each grid point."""
        weight = np.exp(self.log_density - self.log_density.max())
        return weight / weight.sum()

    @property
    def moments(self) -> np.ndarray:
        """Mean and sd of u, (2, 1)."""
        mean = self.probability @ self.whitened
        variance = self.probability @ (self.whitened - mean) ** 2
        return self.scale * np.array([[mean], [np.sqrt(variance)]])

    @property
    def log_evidence(self) -> float:
        """log P(T)."""
        step = self.whitened[1] - self.whitened[0]
        return float(np.log(np.exp(self.log_density).sum() * step))


@pytest.fixture(scope="session")
def exact_posterior(one_inducing_point, log_likelihood_of_one) -> ExactPosterior:
    """The posterior of `one_inducing_point` by quadrature, in plain NumPy."""
    model, bags = one_inducing_point
    whitened = np.linspace(-8.0, 8.0, 2001)
    scale = np.sqrt(model.kernel.variance * (1 + model.jitter))
    same = np.ones_like(whitened)
    log_likelihood = log_likelihood_of_one(
        *(model, bags, scale * whitened),
        *(model.kernel.variance * same, model.kernel.length_scale * same, model.mean * same),
    )
    log_prior = -0.5 * whitened**2 - 0.5 * np.log(2 * np.pi)
    return ExactPosterior(whitened, log_prior + log_likelihood, float(scale))
