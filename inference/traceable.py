"""Engines inside a compiled program: draws as a pure function of bags and a key.

An engine proper fits one set of bags, watches how that goes and wraps up what it found. Where
hundreds of data sets are to be fitted that differ in their labels alone, it would compile hundreds
of times. What stands here is traced once, and may be mapped over data sets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float

from ..datasets.bags import Bags
from ..models.model import Model
from ..models.numerics.arguments import check_counts
from ..models.numerics.lbfgs import steepest
from .closed_form.algorithm import ClosedForm, Options
from .closed_form.coordinate_ascent import checked_form
from .closed_form.drivers import ascend_traced, check_limits
from .gaussian import WhitenedProgram, whitened_program
from .gibbs.sampler import GibbsChain, check_conjugate
from .gibbs.sweep import sweep_of
from .laplace import AT_REST, check_smooth, mode_of
from .nuts import TARGET_ACCEPT, NUTSChain
from .runtime.chains import Chain
from .runtime.densities import check_number_of_unknowns
from .svi import DrawsFit, Guide, Schedule, check_ascent

__all__ = [
    "TraceableAscent",
    "TraceableChain",
    "TraceableDraws",
    "TraceableEngine",
    "TraceableGaussian",
    "TraceableLaplace",
    "TraceableSVI",
    "traceable_engine",
]


class TraceableDraws(NamedTuple):
    """What an engine inside a program gives.

    Attributes
    ----------
    sites : dict of arrays
        Latent sites of ``model.marginal()``, draws first; others where the engine has them.
    has_converged : bool
        Whether an iteration that ends by itself did; of chains and of SVI, which do not, whether
        there is anything to draw from.
    """

    sites: dict[str, Array]
    has_converged: Bool[Array, ""]


@runtime_checkable
class TraceableEngine(Protocol):
    """An engine whose draws can be traced; a frozen dataclass of its options."""

    # Whether draws are, as those of an approximation, not of a chain.
    are_independent: ClassVar[bool]

    def check(self, model: Any, bags: Bags) -> None:
        """Refuse a model that the engine has no way with; before anything is traced."""
        ...

    def draws(self, model: Any, bags: Bags, key: Array, num_draws: int) -> TraceableDraws:
        """So many draws; what is observed of the bags may be a tracer, their sizes may not."""
        ...


@dataclass(frozen=True)
class TraceableChain:
    """One chain, some steps of which are left out.

    Attributes
    ----------
    chain_for : callable
        (model, bags) → `Chain`.
    num_warmup : int
        Steps before the first draw.
    thin : int
        Steps for each draw.
    """

    are_independent: ClassVar[bool] = False

    chain_for: Callable[[Any, Bags], Chain]
    num_warmup: int = 500
    thin: int = 1

    def __post_init__(self) -> None:
        check_counts(num_warmup=self.num_warmup, thin=self.thin)

    @classmethod
    def nuts(
        cls,
        *,
        num_warmup: int = 500,
        thin: int = 1,
        program: str = "marginal",
        target_accept: float = TARGET_ACCEPT,
    ) -> TraceableChain:
        """As `milzoo.inference.nuts`."""
        options = {"num_warmup": num_warmup, "program": program, "target_accept": target_accept}
        return cls(partial(NUTSChain.for_model, **options), num_warmup, thin)

    @classmethod
    def gibbs(cls, *, num_warmup: int = 500, thin: int = 1) -> TraceableChain:
        """As `milzoo.inference.gibbs`."""
        return cls(_conjugate_chain, num_warmup, thin)

    def check(self, model: Any, bags: Bags) -> None:
        """What makes a chain of the model refuses it."""
        self.chain_for(model, bags)

    def draws(self, model: Any, bags: Bags, key: Array, num_draws: int) -> TraceableDraws:
        """Every ``thin``-th state after warm-up."""
        chain = self.chain_for(model, bags)

        def advance(state: Any, steps: int) -> Any:
            return jax.lax.fori_loop(0, steps, lambda _, s: chain.step(s), state)

        def retain(state: Any, _: None) -> tuple[Any, dict[str, Array]]:
            state = advance(state, self.thin)
            return state, chain.sites(state)

        start = advance(chain.init(key), self.num_warmup)
        return TraceableDraws(jax.lax.scan(retain, start, length=num_draws)[1], jnp.array(True))


def _conjugate_chain(model: Any, bags: Bags) -> Chain:
    check_conjugate(model)
    return GibbsChain(sweep_of(model, bags), ())


@dataclass(frozen=True)
class TraceableAscent:
    """Closed-form coordinate ascent, as `milzoo.inference.coordinate_ascent`.

    Attributes
    ----------
    label_update : str or None
    max_steps : int
    tolerance : float
    """

    are_independent: ClassVar[bool] = True

    label_update: str | None = None
    max_steps: int = 1000
    tolerance: float = 1e-8

    def __post_init__(self) -> None:
        check_limits(self.max_steps, self.tolerance)

    def check(self, model: Any, bags: Bags) -> None:
        """Refuse models without a closed form, with priors, and those of several starts.

        Raises
        ------
        ValueError
            If a hyper-parameter has a prior, or the label update is unknown.
        NotImplementedError
            If the model has no closed form, or one from many starts.
        """
        self._form(model).check_traceable()

    def _form(self, model: Any) -> ClosedForm:
        return checked_form(model, Options(self.label_update))

    def draws(self, model: Any, bags: Bags, key: Array, num_draws: int) -> TraceableDraws:
        """Draws from the q(θ) at which the ascent ends."""
        start_key, draw_key = jax.random.split(key)
        form = self._form(model).in_memory(bags)
        prepared = form.prepare(bags)
        start = jax.tree.map(jnp.asarray, form.start(lambda rows, at_most: rows(bags), start_key))
        end, _, steps = ascend_traced(
            form,
            prepared,
            *form.initial(prepared, start),
            max_steps=self.max_steps,
            tolerance=self.tolerance,
        )
        return TraceableDraws(form.draw(end, draw_key, num_draws), steps < self.max_steps)


class TraceableGaussian(ABC):
    """A Gaussian in whitened, unconstrained coordinates; a frozen dataclass of its options."""

    are_independent: ClassVar[bool] = True

    @abstractmethod
    def check(self, model: Model, bags: Bags) -> None:
        """Refuse a model that it has no way with."""

    @abstractmethod
    def law(self, target: WhitenedProgram, bags: Bags, key: Array) -> _GaussianLaw:
        """What approximates the density of the target."""

    def draws(self, model: Model, bags: Bags, key: Array, num_draws: int) -> TraceableDraws:
        """v = m + Sz, z ~ N(0, I), and the sites that v stands for."""
        law_key, draw_key = jax.random.split(key)
        target = whitened_program(model, bags)
        law = self.law(target, bags, law_key)
        noise = jax.random.normal(draw_key, (num_draws, law.mean.size), law.mean.dtype)
        sites = jax.lax.map(target.constrain, law.mean + noise @ law.root.T)
        return TraceableDraws(sites, law.has_converged)


class _GaussianLaw(NamedTuple):
    """N(m, SSᵀ), and whether an iteration that ends by itself came to an end there."""

    mean: Float[Array, " P"]  # m
    root: Float[Array, "P P"]  # S
    has_converged: Bool[Array, ""]


@dataclass(frozen=True)
class TraceableLaplace(TraceableGaussian):
    """Laplace's approximation, as `milzoo.inference.laplace`, the mode by L-BFGS.

    Attributes
    ----------
    max_steps : int
    """

    max_steps: int = 200

    def __post_init__(self) -> None:
        check_counts(max_steps=self.max_steps)

    def check(self, model: Model, bags: Bags) -> None:
        """Refuse densities without curvature, and of too many numbers.

        Raises
        ------
        ValueError
        """
        check_number_of_unknowns(model, "laplace")
        check_smooth(whitened_program(model, bags))

    def law(self, target: WhitenedProgram, bags: Bags, key: Array) -> _GaussianLaw:
        """N(mode, H⁻¹), H the curvature there."""
        found = mode_of(target, self.max_steps)
        factor = jnp.linalg.cholesky(found.hessian)  # H = RRᵀ
        identity = jnp.eye(target.size, dtype=found.point.dtype)
        root = solve_triangular(factor.T, identity, lower=False)  # R⁻ᵀ
        is_at_rest = steepest(found.gradient) < AT_REST
        return _GaussianLaw(found.point, root, is_at_rest & jnp.isfinite(factor).all())


@dataclass(frozen=True)
class TraceableSVI(TraceableGaussian):
    """A Gaussian by stochastic gradients, as `milzoo.inference.svi`; it never ends by itself.

    Attributes
    ----------
    guide : str
    max_steps : int
        Rounded up to whole blocks.
    learning_rate : float
    num_particles : int
    """

    guide: Guide = "multivariate_normal"
    max_steps: int = 4000
    learning_rate: float = 0.02
    num_particles: int = 8

    def __post_init__(self) -> None:
        check_counts(max_steps=self.max_steps, num_particles=self.num_particles)
        check_ascent(self.guide, self.learning_rate)

    def check(self, model: Model, bags: Bags) -> None:
        """Refuse densities of too many numbers.

        Raises
        ------
        ValueError
        """
        check_number_of_unknowns(model, "svi")

    def law(self, target: WhitenedProgram, bags: Bags, key: Array) -> _GaussianLaw:
        """Where the steps end."""
        schedule = Schedule(self.learning_rate, self.max_steps)
        fit = DrawsFit(target, schedule, self.guide, self.num_particles)
        num_blocks = -(-self.max_steps // fit.steps_in_block)
        start = fit.start(key)
        end = jax.lax.fori_loop(0, num_blocks, lambda _, state: fit.run_block(state)[0], start)
        mean, scale_tril = fit.gaussian(end)
        return _GaussianLaw(mean, scale_tril, jnp.isfinite(scale_tril).all())


_BY_NAME: dict[str, Callable[..., TraceableEngine]] = {
    "nuts": TraceableChain.nuts,
    "gibbs": TraceableChain.gibbs,
    "coordinate_ascent": TraceableAscent,
    "laplace": TraceableLaplace,
    "svi": TraceableSVI,
}


def traceable_engine(name: str, **options: Any) -> TraceableEngine:
    """An engine by its name, with options.

    Parameters
    ----------
    name : {"nuts", "gibbs", "coordinate_ascent", "laplace", "svi"}
    **options
        Of `TraceableChain.nuts`, `TraceableChain.gibbs`, `TraceableAscent`, `TraceableLaplace`, `TraceableSVI`.

    Returns
    -------
    TraceableEngine

    Raises
    ------
    ValueError
        If there is none of that name.
    """
    if name not in _BY_NAME:
        raise ValueError(f"engine is {name!r}; expected one of {', '.join(_BY_NAME)}")
    return _BY_NAME[name](**options)
