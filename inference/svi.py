"""Stochastic variational inference on the marginal program, with NumPyro's guides."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import (
    AutoContinuous,
    AutoDiagonalNormal,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
)

from ..datasets.bags import Bags
from ..models.bag_evidence import BagEvidenceModel
from ..models.model import Model, Program, observations, random_key
from .chains import check_counts
from .gaussian import GaussianApproximation, WhitenedProgram, whitened_program
from .posterior import (
    Posterior,
    Status,
    approximate_posterior,
)
from .programs import check_number_of_unknowns
from .progress import Progress
from .quadrature_bound import QuadratureBound, WhiteGaussian
from .runtime.programs import Stopwatch

__all__ = ["Fit", "Guide", "check_ascent", "falling_adam", "fit_by_draws", "svi"]

type Expectation = Literal["monte_carlo", "quadrature"]
EXPECTATIONS: tuple[Expectation, ...] = ("monte_carlo", "quadrature")
type Guide = Literal["multivariate_normal", "normal", "low_rank_multivariate_normal"]
_GUIDES: dict[Guide, type[AutoContinuous]] = {
    "multivariate_normal": AutoMultivariateNormal,
    "normal": AutoDiagonalNormal,
    "low_rank_multivariate_normal": AutoLowRankMultivariateNormal,
}
# Steps between two looks at the bar.
_BLOCK = 100
# Of the whitened q at the start, as NumPyro has it.
_START_SCALE = 0.1
_NUM_PARTICLES = 8
# Nats. The bound of a Gaussian whose mean is one sd off is lower by as much.
_SETTLED = 0.5
_SLOPE_DRAWS = 256


def svi(
    model: Model,
    bags: Bags,
    *,
    seed: int | Array,
    guide: Guide = "multivariate_normal",
    expectation: Expectation = "monte_carlo",
    max_steps: int = 4000,
    learning_rate: float = 0.02,
    num_particles: int | None = None,
    batch_size: int | None = None,
    num_draws: int = 1000,
    progress: bool = False,
) -> Posterior:
    """Fit a Gaussian by stochastic gradients of the ELBO of the exact marginal program.

    The bound is the true ELBO of the marginal posterior: no Jaakkola, no mean field over labels.
    What the guide cannot say (skewness, and correlations for ``"normal"``) is all that it loses.
    Adam's learning rate falls to zero along a cosine.

    Parameters
    ----------
    model : Model
    bags : Bags
        With labels, or what the model learns from.
    seed : int or JAX key
    guide : {"multivariate_normal", "normal", "low_rank_multivariate_normal"}
        A Gaussian in whitened, unconstrained coordinates.
    expectation : {"monte_carlo", "quadrature"}
        Of the log likelihood under q: by draws, for every model; or by one 1-D integral for each
        bag (whose integrand is another one for the logistic likelihood), for VWSGP or
        CardinalityGP with numbers as hyper-parameters and a ``"multivariate_normal"``.
    max_steps : int
        Rounded up to whole blocks.
    learning_rate : float
        Of the first step.
    num_particles : int or None
        Draws per step of the gradient estimate, for ``"monte_carlo"``; 8 if left out.
    batch_size : int or None
        Bags per step, for ``"quadrature"``; all if left out.
    num_draws : int
        Draws of the approximation kept in the tree.
    progress : bool
        Whether to draw a bar.

    Returns
    -------
    Posterior
        ``elbo`` is the bound by blocks: the mean of its estimates over 100 steps, or with
        ``"quadrature"`` the bound itself after each pass over the bags. ``status`` is
        ``converged`` if by its slope at the end less than half a nat is lacking in the mean and
        the overall scale of q. (Its trace ends flat in any case: the learning rate falls to zero.)

    Raises
    ------
    ValueError
        If the guide or the expectation is unknown or does not fit the other or the model, or a
        count is not positive.

    References
    ----------
    Kandemir et al. (2016), section 4.3, for ``"quadrature"`` and the probit.
    """
    watch = Stopwatch()
    observations(model, bags, "svi")
    check_number_of_unknowns(model, "svi")
    _check(model, bags, guide, expectation, batch_size, num_particles)
    num_particles = _NUM_PARTICLES if num_particles is None else num_particles
    check_counts(max_steps=max_steps, num_particles=num_particles, num_draws=num_draws)
    check_ascent(guide, learning_rate)
    run_key, draw_key, slope_key = jax.random.split(random_key(seed), 3)
    with jax.enable_x64(True):
        target = whitened_program(model, bags)
        adam = falling_adam(learning_rate, max_steps)
        started = Stopwatch.now()
        if isinstance(model, BagEvidenceModel) and expectation == "quadrature":
            fit = _by_quadrature(model, bags, adam, batch_size or bags.num_bags, run_key)
        else:
            fit = fit_by_draws(target.program, bags, adam, guide, num_particles, run_key)
        run_block = jax.jit(fit.run_block).lower(fit.start).compile()
        started = Stopwatch.now()
        state, trace = fit.start, []
        num_blocks = -(-max_steps // fit.steps_in_block)
        with Progress("svi", num_blocks * fit.steps_in_block, shown=progress) as bar:
            for _ in range(num_blocks):
                state, bound = run_block(state)
                trace.append(float(bound))
                bar.advance(fit.steps_in_block)
        seconds = Stopwatch.now() - started
        approximation = GaussianApproximation(*map(np.asarray, fit.gaussian(state)))
        status = _judge(target, approximation, num_blocks * fit.steps_in_block, slope_key)
    return approximate_posterior(
        model,
        bags,
        approximation,
        engine="svi",
        key=draw_key,
        num_draws=num_draws,
        status=status,
        seconds=seconds,
        watch=watch,
        elbo=np.array(trace),
    )


class Fit(NamedTuple):
    """An ascent: a state, a block of steps on it, the law that a state stands for."""

    start: Any
    run_block: Callable[[Any], tuple[Any, Array]]  # state → state, the bound
    steps_in_block: int
    gaussian: Callable[[Any], tuple[Array, Array]]  # state → mean, scale_tril


def check_ascent(guide: str, learning_rate: float) -> None:
    """Refuse a guide that there is not, or a rate by which nothing is learned.

    Raises
    ------
    ValueError
    """
    _check_choice("guide", guide, tuple(_GUIDES))
    if not 0 < learning_rate < np.inf:
        raise ValueError(f"learning_rate is {learning_rate}; expected a positive finite number")


def _check_choice(argument: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        near = get_close_matches(value, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{argument} is {value!r}; expected one of {', '.join(known)}{hint}")


def falling_adam(learning_rate: float, max_steps: int) -> optax.GradientTransformation:
    """Adam, its learning rate falling to zero along a cosine."""
    return optax.adam(optax.cosine_decay_schedule(learning_rate, max_steps))


def fit_by_draws(
    program: Program,
    bags: Bags,
    adam: optax.GradientTransformation,
    guide: Guide,
    num_particles: int,
    key: Array,
) -> Fit:
    """NumPyro's SVI.

    Parameters
    ----------
    program : callable
        Whitened, a NumPyro program of ``bags``.
    bags : Bags
    adam : GradientTransformation
    guide : str
    num_particles : int
        Draws for each estimate of the slope.
    key : array
        Of all draws.

    Returns
    -------
    Fit
    """
    law = _GUIDES[guide](program)
    optimiser = SVI(program, law, adam, Trace_ELBO(num_particles))
    start = optimiser.init(key, bags)

    def block(state: object) -> tuple[object, Array]:
        state, losses = jax.lax.scan(lambda s, _: optimiser.update(s, bags), state, length=_BLOCK)
        return state, -jnp.mean(losses)

    return Fit(start, block, _BLOCK, lambda state: _gaussian(law, optimiser.get_params(state)))


def _by_quadrature(
    model: BagEvidenceModel,
    bags: Bags,
    adam: optax.GradientTransformation,
    batch_size: int,
    key: Array,
) -> Fit:
    """Steps on the bound without draws; a block is a pass over the bags, shuffled.

    Bags that fill no batch wait for another pass.
    """
    bound = QuadratureBound.of(model, bags)
    law = WhiteGaussian.start(bound.projection.shape[1], _START_SCALE)
    steps = bags.num_bags // batch_size

    def one_step(state: tuple, chosen: Array) -> tuple[tuple, None]:
        law, memory, key = state
        slope = jax.grad(lambda law: -bound.estimate(law, chosen))(law)
        change, memory = adam.update(slope, memory, law)
        return (optax.apply_updates(law, change), memory, key), None

    def one_pass(state: tuple) -> tuple[tuple, Array]:
        law, memory, key = state
        key, shuffle_key = jax.random.split(key)
        order = jax.random.permutation(shuffle_key, bags.num_bags)
        batches = order[: steps * batch_size].reshape(steps, batch_size)
        state, _ = jax.lax.scan(one_step, (law, memory, key), batches)
        return state, bound(state[0])

    start = (law, adam.init(law), key)
    return Fit(start, one_pass, steps, lambda state: (state[0].mean, state[0].scale_tril))


def _check(
    model: Model,
    bags: Bags,
    guide: str,
    expectation: str,
    batch_size: int | None,
    num_particles: int | None,
) -> None:
    _check_choice("expectation", expectation, EXPECTATIONS)
    if expectation == "monte_carlo":
        if batch_size is not None:
            raise ValueError(
                f"batch_size is {batch_size} with expectation='monte_carlo', which takes all bags "
                "at every step; leave it out, or use expectation='quadrature'"
            )
        return
    if not isinstance(model, BagEvidenceModel) or model.priors or guide != "multivariate_normal":
        raise ValueError(
            f"expectation='quadrature' with a {type(model).__name__} "
            f"{'with priors ' if model.priors else ''}and guide={guide!r}; expected a VWSGP or "
            "CardinalityGP with numbers as hyper-parameters and guide='multivariate_normal'"
        )
    if num_particles is not None:
        raise ValueError(
            f"num_particles is {num_particles} with expectation='quadrature', which draws "
            "nothing; leave it out"
        )
    if batch_size is not None:
        check_counts(batch_size=batch_size)
        if batch_size > bags.num_bags:
            raise ValueError(
                f"batch_size is {batch_size}; expected at most {bags.num_bags}, the number of bags"
            )


def _gaussian(law: AutoContinuous, parameters: dict[str, Array]) -> tuple[Array, Array]:
    with numpyro.validation_enabled(False):  # parameters that diverged are told by the status
        posterior = law.get_posterior(parameters)
    covariance = (
        jnp.atleast_2d(posterior.covariance_matrix)
        if hasattr(posterior, "covariance_matrix")
        else jnp.diag(posterior.variance)
    )
    # The guide has sites one after another as the program has them, a flat pytree by their names.
    place = jnp.arange(posterior.mean.shape[0])
    order = ravel_pytree(law._unpack_latent(place))[0]
    return posterior.mean[order], jnp.linalg.cholesky(covariance[order][:, order])


def _judge(
    target: WhitenedProgram, approximation: GaussianApproximation, steps: int, key: Array
) -> Status:
    """Whether the bound is at its top: by its slope there, as its trace stands still anyway."""
    gain = _newton_gain(target, approximation, key)
    if not np.isfinite(gain):
        return Status("failed", f"the bound or its slope is not finite after {steps} steps")
    sentence = (
        f"after {steps} steps a Newton step in mean and scale would raise the bound by about "
        f"{gain:.2g} nats"
    )
    return Status("converged" if gain < _SETTLED else "max_steps", sentence)


def _newton_gain(target: WhitenedProgram, law: GaussianApproximation, key: Array) -> float:
    """What the bound lacks in the mean and the overall scale of q = N(m, LLᵀ), if p is Gaussian.

    With v = m + Lε, ε ~ N(0, I) and g = Lᵀ∇log p(v) the slopes are s = E g and d = E gᵀε + P; at
    the top both vanish. The curvatures there are −1 and −2P, hence the gain ½‖s‖² + d²/(4P).
    """
    mean, scale_tril = jnp.asarray(law.mean), jnp.asarray(law.scale_tril)
    white = jax.random.normal(key, (_SLOPE_DRAWS, mean.size), mean.dtype)  # ε

    def scaled_slope(noise: Array) -> Array:
        return scale_tril.T @ jax.grad(target.log_density)(mean + scale_tril @ noise)

    slopes = jax.jit(lambda w: jax.lax.map(scaled_slope, w, batch_size=16))(white)
    # Where q is right g = −ε: the sum varies less than g, and has the same mean.
    centred = slopes + white
    by_chance = jnp.sum(jnp.var(centred, axis=0)) / _SLOPE_DRAWS
    in_mean = 0.5 * jnp.maximum(jnp.sum(jnp.mean(centred, axis=0) ** 2) - by_chance, 0.0)
    stretch = jnp.mean(jnp.sum(slopes * white, axis=1) + mean.size)  # d
    return float(in_mean + stretch**2 / (4 * mean.size))
