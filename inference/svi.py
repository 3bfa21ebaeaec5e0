"""Stochastic variational inference on the marginal program, with NumPyro's guides."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any, Literal, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import (
    AutoContinuous,
    AutoDiagonalNormal,
    AutoIAFNormal,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
)

from ..datasets.arguments import check_counts
from ..datasets.bags import Bags
from ..models.model import Model, observations, random_key, split_key
from ..models.numerics.tracing import as_pytree
from ..models.parts.bag_latent import BagLatentModel
from .arguments import engine
from .flow import flow_of_guide
from .gaussian import (
    GaussianApproximation,
    TransportedNormal,
    WhitenedProgram,
    whitened_program,
)
from .posterior import (
    Posterior,
    Status,
    approximate_posterior,
)
from .quadrature_bound import QuadratureBound, WhitenedGaussian
from .runtime.densities import check_number_of_unknowns
from .runtime.programs import Stopwatch
from .runtime.progress import Progress
from .starts import compared_across_starts

__all__ = ["DrawsFit", "Guide", "Schedule", "check_ascent", "svi"]

type Expectation = Literal["monte_carlo", "quadrature"]
EXPECTATIONS: tuple[Expectation, ...] = ("monte_carlo", "quadrature")
type Guide = Literal["multivariate_normal", "normal", "low_rank_multivariate_normal", "flow"]
_GUIDES: dict[Guide, type[AutoContinuous]] = {
    "multivariate_normal": AutoMultivariateNormal,
    "normal": AutoDiagonalNormal,
    "low_rank_multivariate_normal": AutoLowRankMultivariateNormal,
    "flow": AutoIAFNormal,
}
# Guides that can do any Newton step in mean and covariance.
_FULL = ("multivariate_normal", "flow")
# Steps between two looks at the bar.
_BLOCK = 100
# Of the whitened q at the start, as NumPyro has it.
_START_SCALE = 0.1
_NUM_PARTICLES = 8
# Nats. The bound of a Gaussian whose mean has an error of one sd is lower by as much.
_NEGLIGIBLE_GAIN = 0.5
_GRADIENT_DRAWS = 512


@engine
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
    num_starts: int = 1,
    num_draws: int = 1000,
    progress: bool = False,
) -> Posterior:
    """Fit a Gaussian or a flow by stochastic gradients of the ELBO of the exact marginal program.

    The bound is the true ELBO of the marginal posterior: no Jaakkola, no mean field over labels.
    What the guide cannot say (skewness of a Gaussian, and correlations for ``"normal"``) is all
    that it loses: where a flow does much better, a Gaussian was to blame and not VI. Adam's
    learning rate falls to zero along a cosine.

    Parameters
    ----------
    model : Model
    bags : Bags
        With labels, or what the model learns from.
    seed : int or JAX key
    guide : {"multivariate_normal", "normal", "low_rank_multivariate_normal", "flow"}
        A Gaussian in whitened, unconstrained coordinates; or three inverse autoregressive flows
        (NumPyro's `AutoIAFNormal`), which have 2 coordinates or more and take more steps.
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
    num_starts : int
        Ascents, one after another, each from a random point. The one that ends highest is
        returned, and ``status`` tells R̂ across draws of those that end within 5 nats of it.
    num_draws : int
        Draws of the approximation kept in the tree.
    progress : bool
        Whether to draw a bar.

    Returns
    -------
    Posterior
        ``elbo`` is the bound by blocks: the mean of its estimates over 100 steps, or with
        ``"quadrature"`` the bound itself after each pass over the bags. ``status`` is
        ``converged`` if, by the gradient at the end, a Newton step in the mean and the covariance
        of q, as far as the guide has them free, would gain less than half a nat. (The trace ends
        flat in any case: the learning rate falls to zero.) Of a flow, the step is in the
        coordinates in which q is standard normal. ``disagreed`` if other starts that end as high
        have other draws.

    Raises
    ------
    ValueError
        If the guide or the expectation is unknown or does not fit the other or the model, or a
        count is not positive.

    References
    ----------
    Kandemir et al. (2016), section 4.3, for ``"quadrature"`` and the probit.

    Examples
    --------
    Positive bags have an instance near 3:

    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.inference import svi
    >>> from milzoo.models import RBF, VWSGP
    >>> bags = Bags.from_list([[[0.0], [3.0]], [[3.1]], [[0.2], [-0.1]], [[0.1]]], [1, 1, 0, 0])
    >>> model = VWSGP(RBF(variance=9.0, length_scale=1.0), np.array([[0.0], [3.0]]))
    >>> posterior = svi(model, bags, seed=0, max_steps=500)
    >>> new = Bags.from_list([[[2.9]], [[0.1]]])
    >>> posterior.predict(new).bag_probability.round(1)
    array([0.9, 0.2])
    """
    watch = Stopwatch()
    observations(model, bags, "svi")
    check_number_of_unknowns(model, "svi")
    _check(model, bags, guide, expectation, batch_size, num_particles)
    num_particles = _NUM_PARTICLES if num_particles is None else num_particles
    check_ascent(guide, learning_rate)
    check_counts(num_starts=num_starts)
    keys = split_key(random_key(seed), 3 + num_starts)
    run_key, draw_key, gradient_key, compare_key, *other_run_keys = keys
    with jax.enable_x64(True):
        target_density = jax.device_put(whitened_program(model, bags))
        if guide == "flow" and target_density.size < 2:
            raise ValueError(
                f"guide is 'flow', and {model.name} has 1 unknown number; expected 2 or more: take "
                "'multivariate_normal'"
            )
        schedule = Schedule(learning_rate, max_steps)
        started = Stopwatch.now()
        if isinstance(model, BagLatentModel) and expectation == "quadrature":
            bound = QuadratureBound.of(model, bags)
            fit = QuadratureFit(bound, schedule, batch_size or bags.num_bags)
        else:
            fit = DrawsFit(target_density, schedule, guide, num_particles)
        num_blocks = -(-max_steps // fit.steps_in_block)
        num_steps = num_blocks * fit.steps_in_block
        with Progress("svi", num_starts * num_steps, shown=progress) as bar:
            runs = [_ascended(fit, key, num_blocks, bar) for key in (run_key, *other_run_keys)]
        seconds = Stopwatch.now() - started
        bounds = np.nan_to_num([trace[-1] for _, trace in runs], nan=-np.inf)
        approximation, trace = runs[int(bounds.argmax())]
        gain = _newton_gain(
            target_density, approximation, gradient_key, has_full_covariance=guide in _FULL
        )
        status = _judge(float(gain), num_steps)
        if num_starts > 1 and status.kind != "failed":
            every = [q for q, _ in runs]
            status = compared_across_starts(status, model, bags, every, bounds, key=compare_key)
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
        elbo=trace,
    )


def _ascended(
    fit: Fit, key: Array, num_blocks: int, bar: Progress
) -> tuple[TransportedNormal, Float[np.ndarray, " T"]]:
    """The approximation after so many blocks, and the bound after each."""
    state, trace = _start(fit, key), []
    for _ in range(num_blocks):
        state, bound = _run_block(fit, state)
        trace.append(float(bound))
        bar.advance(fit.steps_in_block)
    return jax.tree.map(np.asarray, _approximation(fit, state)), np.array(trace)


@runtime_checkable
class Fit(Protocol):
    """An ascent as pure functions of its state; a pytree, so that compiled programs take it."""

    @property
    def steps_in_block(self) -> int:
        """Steps of a block."""
        ...

    def start(self, key: Array) -> Any:
        """The first state, from which all draws follow."""
        ...

    def run_block(self, state: Any) -> tuple[Any, Array]:
        """Run a block of steps; also returns the bound."""
        ...

    def approximation(self, state: Any) -> TransportedNormal:
        """The approximation that a state stands for."""
        ...


@jax.jit
def _start(fit: Fit, key: Array) -> Any:
    return fit.start(key)


@jax.jit
def _run_block(fit: Fit, state: Any) -> tuple[Any, Array]:
    return fit.run_block(state)


@jax.jit
def _approximation(fit: Fit, state: Any) -> TransportedNormal:
    return fit.approximation(state)


def check_ascent(guide: str, learning_rate: float) -> None:
    """Refuse an unknown guide, or a learning rate that is not positive and finite.

    Raises
    ------
    ValueError
    """
    _check_choice("guide", guide, tuple(_GUIDES))
    if not 0 < learning_rate < np.inf:
        raise ValueError(f"learning_rate is {learning_rate}; expected a positive finite number")


def _check_choice(argument: str, value: str, known: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in known:
        near = get_close_matches(str(value), known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{argument} is {value!r}; expected one of {', '.join(known)}{hint}")


@dataclass(frozen=True)
class Schedule:
    """Adam, its learning rate falling to zero along a cosine."""

    learning_rate: float
    max_steps: int

    def adam(self) -> optax.GradientTransformation:
        """The optimiser Adam with this schedule."""
        return optax.adam(optax.cosine_decay_schedule(self.learning_rate, self.max_steps))


@as_pytree("schedule", "num_particles")
@dataclass(frozen=True, eq=False)
class DrawsFit:
    """Stochastic variational inference by NumPyro's `SVI`.

    Attributes
    ----------
    target_density : WhitenedProgram
    schedule : Schedule
    guide : str
    num_particles : int
        Draws for each estimate of the gradient.
    """

    target_density: WhitenedProgram
    schedule: Schedule
    guide: Guide
    num_particles: int

    @property
    def steps_in_block(self) -> int:
        """Steps between two looks at the bar."""
        return _BLOCK

    def start(self, key: Array) -> Any:
        """The initial state of NumPyro's `SVI`."""
        return self._optimiser()[0].init(key, self.target_density.given)

    def run_block(self, state: Any) -> tuple[Any, Array]:
        """Run a block of steps; also returns the mean of the estimates of the bound."""
        optimiser, _ = self._optimiser_begun()

        def one_step(state: Any, _: None) -> tuple[Any, Array]:
            return optimiser.update(state, self.target_density.given)

        state, losses = jax.lax.scan(one_step, state, length=_BLOCK)
        return state, -jnp.mean(losses)

    def approximation(self, state: Any) -> TransportedNormal:
        """The guide's distribution, in the order of `WhitenedProgram`."""
        optimiser, guide = self._optimiser_begun()
        of_guide = flow_of_guide if isinstance(guide, AutoIAFNormal) else _gaussian_of_guide
        return of_guide(guide, optimiser.get_params(state))

    def _optimiser(self) -> tuple[SVI, AutoContinuous]:
        guide = _GUIDES[self.guide](self.target_density.program)
        loss = Trace_ELBO(self.num_particles)
        return SVI(self.target_density.program, guide, self.schedule.adam(), loss), guide

    def _optimiser_begun(self) -> tuple[SVI, AutoContinuous]:
        """A guide learns its sites when it starts; what else this computes is not used."""
        optimiser, guide = self._optimiser()
        optimiser.init(jax.random.key(0), self.target_density.given)
        return optimiser, guide


@as_pytree("schedule", "batch_size")
@dataclass(frozen=True, eq=False)
class QuadratureFit:
    """Steps on the bound without draws; a block is a pass over the bags, shuffled.

    Bags that fill no batch wait for another pass.

    Attributes
    ----------
    bound : QuadratureBound
    schedule : Schedule
    batch_size : int
    """

    bound: QuadratureBound
    schedule: Schedule
    batch_size: int

    @property
    def steps_in_block(self) -> int:
        """Whole batches of a pass."""
        return len(self.bound.observed) // self.batch_size

    def start(self, key: Array) -> Any:
        """A narrow Gaussian at the prior mean."""
        q = WhitenedGaussian.start(self.bound.projection.shape[1], _START_SCALE)
        return q, self.schedule.adam().init(q), key

    def run_block(self, state: Any) -> tuple[Any, Array]:
        """Run one pass over the bags; also returns the bound after it."""
        q, memory, key = state
        adam, steps = self.schedule.adam(), self.steps_in_block

        def one_step(state: tuple, chosen: Array) -> tuple[tuple, None]:
            q, memory = state
            gradient = jax.grad(lambda q: -self.bound.estimate(q, chosen))(q)
            change, memory = adam.update(gradient, memory, q)
            return (optax.apply_updates(q, change), memory), None

        key, shuffle_key = jax.random.split(key)
        order = jax.random.permutation(shuffle_key, len(self.bound.observed))
        batches = order[: steps * self.batch_size].reshape(steps, self.batch_size)
        (q, memory), _ = jax.lax.scan(one_step, (q, memory), batches)
        return (q, memory, key), self.bound(q)

    def approximation(self, state: Any) -> GaussianApproximation:
        """The Gaussian of the state."""
        return GaussianApproximation(state[0].mean, state[0].scale_tril)


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
    if not isinstance(model, BagLatentModel) or model.priors or guide != "multivariate_normal":
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
    if batch_size is not None and batch_size > bags.num_bags:
        raise ValueError(
            f"batch_size is {batch_size}; expected at most {bags.num_bags}, the number of bags"
        )


def _gaussian_of_guide(
    guide: AutoContinuous, parameters: dict[str, Array]
) -> GaussianApproximation:
    with numpyro.validation_enabled(False):  # parameters that diverged are told by the status
        posterior = guide.get_posterior(parameters)
    covariance = (
        jnp.atleast_2d(posterior.covariance_matrix)
        if hasattr(posterior, "covariance_matrix")
        else jnp.diag(posterior.variance)
    )
    # The guide has sites one after another as the program has them, a flat pytree by their names.
    index = jnp.arange(posterior.mean.shape[0])
    order = ravel_pytree(guide._unpack_latent(index))[0]
    scale_tril = jnp.linalg.cholesky(covariance[order][:, order])
    return GaussianApproximation(posterior.mean[order], scale_tril)


def _judge(gain: float, steps: int) -> Status:
    """Judge by the gradient whether the bound is at its maximum; the trace ends flat anyway."""
    if not np.isfinite(gain):
        return Status("failed", f"the bound or its gradient is not finite after {steps} steps")
    sentence = (
        f"after {steps} steps a Newton step in mean and covariance would raise the bound by about "
        f"{gain:.2g} nats"
    )
    return Status("converged" if gain < _NEGLIGIBLE_GAIN else "max_steps", sentence)


@partial(jax.jit, static_argnames="has_full_covariance")
def _newton_gain(
    target_density: WhitenedProgram, q: TransportedNormal, key: Array, *, has_full_covariance: bool
) -> Float[Array, ""]:
    """Gain of a Newton step in the mean and covariance of ε, if p is Gaussian where q is standard.

    With v = T(ε), ε ~ N(0, I), and g = ∇(log p(T(ε)) + log |dT/dε|), the gradients are s = E g and
    D = E gεᵀ + I; at the maximum both vanish. Of q = N(m, LLᵀ) T(ε) = m + Lε and g = Lᵀ∇log p(v).
    With curvatures −1 the gain is ½‖s‖² + ¼‖D‖². Of a q without a free covariance D is projected:
    on L⁻¹ e_j e_jᵀ L⁻ᵀ, variances by themselves, and on I, all together. Squares are products of
    two independent estimates, so that chance adds nothing on average.
    """
    draws = jax.random.normal(key, (_GRADIENT_DRAWS, q.size))  # ε

    def log_density_of(noise: Float[Array, " P"]) -> Float[Array, ""]:
        vector, log_jacobian = q.from_standard(noise)
        return target_density.log_density(vector) + log_jacobian

    gradients = jax.lax.map(jax.grad(log_density_of), draws, batch_size=16)
    # Where q is right g = −ε: the sum varies less than g, and has the same mean.
    halves = jnp.reshape(gradients + draws, (2, -1, q.size))
    shifts = jnp.mean(halves, axis=1)  # s, twice
    products = jnp.einsum("hki,hkj->hij", halves, jnp.reshape(draws, halves.shape))
    stretches = (products + jnp.swapaxes(products, 1, 2)) / _GRADIENT_DRAWS  # D, twice
    if has_full_covariance:
        of_covariance = jnp.sum(stretches[0] * stretches[1])
    else:
        assert isinstance(q, GaussianApproximation)
        of_covariance = _product_along_variances(jnp.asarray(q.scale_tril), *stretches)
    return jnp.maximum(0.5 * shifts[0] @ shifts[1] + 0.25 * of_covariance, 0.0)


def _product_along_variances(
    scale_tril: Float[Array, "P P"], one: Float[Array, "P P"], other: Float[Array, "P P"]
) -> Float[Array, ""]:
    """Inner product of two matrices, projected on c_j c_jᵀ, c_j = L⁻¹ e_j, for each j, and on I."""
    identity = jnp.eye(len(scale_tril), dtype=scale_tril.dtype)
    columns = solve_triangular(scale_tril, identity, lower=True).T  # c_j are rows

    def along(matrix: Float[Array, "P P"]) -> Float[Array, " K"]:
        return jnp.append(jnp.sum(columns @ matrix * columns, axis=1), jnp.trace(matrix))

    products = columns @ columns.T
    of_identity = jnp.append(jnp.diag(products), len(scale_tril))
    gram = jnp.zeros((len(of_identity),) * 2, scale_tril.dtype)
    gram = gram.at[:-1, :-1].set(products**2).at[-1].set(of_identity).at[:, -1].set(of_identity)
    return along(one) @ jnp.linalg.lstsq(gram, along(other))[0]
