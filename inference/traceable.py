"""Traceable engines: posterior draws as a pure function of bags and a key.

An ordinary engine fits one set of bags, shows its progress and returns a `Posterior`. Fitted to
hundreds of data sets that differ in their labels alone, it would compile hundreds of times. A
traceable engine is traced once, and can be mapped over data sets.
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
from jaxtyping import Array, Bool

from ..datasets.arguments import POSITIVE, check, check_counts
from ..datasets.bags import Bags
from ..models.model import Model
from ..models.numerics.lbfgs import largest_derivative
from .closed_form.algorithm import ClosedForm, Options
from .closed_form.coordinate_ascent import checked_form
from .closed_form.drivers import Limits, ascend_traced
from .closed_form.linear_response import check_gaussian, is_at_rest, response_at
from .ensemble import sampled, warmed_up
from .gaussian import (
    GaussianApproximation,
    TransportedNormal,
    WhitenedProgram,
    whitened_program,
)
from .gibbs.interweaving import sweep_for
from .gibbs.sampler import GibbsChain, check_conjugate
from .modes import AT_REST, check_smooth, mode_of
from .nuts import NUTSChain
from .runtime.chains import Chain
from .runtime.densities import check_number_of_unknowns
from .svi import DrawsFit, Guide, Schedule, check_ascent
from .tempered_smc import run_to_posterior

__all__ = ["TraceableChain", "TraceableDraws", "TraceableEngine", "traceable_engine"]


class TraceableDraws(NamedTuple):
    """Draws of a traceable engine.

    Attributes
    ----------
    sites : dict of arrays
        Latent sites of ``model.marginal()``, draws first; others where the engine has them.
    has_converged : bool
        Whether an iteration with a stopping rule met it. Chains and SVI have no such rule: true if
        there is a distribution to draw from.
    """

    sites: dict[str, Array]
    has_converged: Bool[Array, ""]


@runtime_checkable
class TraceableEngine(Protocol):
    """An engine whose draws can be traced; a frozen dataclass of its options."""

    # Whether draws are, as those of an approximation, not of a chain.
    are_independent: ClassVar[bool]

    def check(self, model: Any, bags: Bags) -> None:
        """Refuse a model that the engine cannot fit, before anything is traced."""
        ...

    def draws(self, model: Any, bags: Bags, key: Array, num_draws: int) -> TraceableDraws:
        """Draw from the posterior; labels and targets of the bags may be tracers, sizes not."""
        ...


@dataclass(frozen=True)
class TraceableChain:
    """A thinned Markov chain.

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
    def nuts(cls, *, num_warmup: int = 500, thin: int = 1, **options: Any) -> TraceableChain:
        """A chain of NUTS, with options of `milzoo.inference.nuts`.

        Raises
        ------
        ValueError
            If ``mass_matrix`` is "auto", which is chosen by one set of bags.
        """
        if options.get("mass_matrix") == "auto":
            raise ValueError(
                "mass_matrix is 'auto', which is chosen by one set of bags, and this chain is for "
                "many; expected 'diagonal', 'dense', 'low_rank' or 'laplace'"
            )
        chain_for = partial(NUTSChain.for_model, num_warmup=num_warmup, **options)
        return cls(chain_for, num_warmup, thin)

    @classmethod
    def gibbs(
        cls, *, num_warmup: int = 500, thin: int = 1, interweave: bool = False
    ) -> TraceableChain:
        """A chain of Gibbs sweeps, as in `milzoo.inference.gibbs`."""
        return cls(partial(_conjugate_chain, interweave=interweave), num_warmup, thin)

    def check(self, model: Any, bags: Bags) -> None:
        """Refuse a model that has no such chain."""
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


@dataclass(frozen=True)
class TraceableSMC:
    """Tempered SMC, as `milzoo.inference.tempered_smc`.

    Attributes
    ----------
    thin : int
        Particles for each draw.
    num_moves : int
    dispersion : float
    """

    are_independent: ClassVar[bool] = False

    thin: int = 1
    num_moves: int = 5
    dispersion: float = 3.0

    def __post_init__(self) -> None:
        check_counts(thin=self.thin, num_moves=self.num_moves)
        check("dispersion", self.dispersion, POSITIVE)

    def check(self, model: Any, bags: Bags) -> None:
        """Refuse a model with too many unknown numbers."""
        check_number_of_unknowns(model, "tempered_smc")

    def draws(self, model: Any, bags: Bags, key: Array, num_draws: int) -> TraceableDraws:
        """Every ``thin``-th particle of a run."""
        target_density = whitened_program(model, bags)
        run = run_to_posterior(
            target_density, key, jnp.asarray(self.dispersion), num_draws * self.thin, self.num_moves
        )
        sites = jax.lax.map(target_density.constrain, run.vectors[:: self.thin])
        return TraceableDraws(sites, run.inverse_temperature >= 1)


@dataclass(frozen=True)
class TraceableEnsemble:
    """Many short chains, as `milzoo.inference.ensemble`; the last draw of each.

    Attributes
    ----------
    num_superchains : int
    num_warmup, num_samples : int
        Steps of every chain.
    """

    are_independent: ClassVar[bool] = False

    num_superchains: int = 4
    num_warmup: int = 200
    num_samples: int = 5

    def __post_init__(self) -> None:
        check_counts(
            num_superchains=self.num_superchains,
            num_warmup=self.num_warmup,
            num_samples=self.num_samples,
        )

    def check(self, model: Any, bags: Bags) -> None:
        """Refuse a model with too many unknown numbers."""
        check_number_of_unknowns(model, "ensemble")

    def draws(self, model: Any, bags: Bags, key: Array, num_draws: int) -> TraceableDraws:
        """The last draw of each of so many chains."""
        target_density = whitened_program(model, bags)
        warmup_key, sampling_key = jax.random.split(key)
        num_chains = self.num_superchains * -(-num_draws // self.num_superchains)
        tuned = warmed_up(
            target_density, warmup_key, num_chains, self.num_superchains, self.num_warmup
        )
        vectors, _ = sampled(target_density, tuned, sampling_key, self.num_samples)
        sites = jax.lax.map(target_density.constrain, vectors[:num_draws, -1])
        return TraceableDraws(sites, jnp.isfinite(tuned.step_size))


def _conjugate_chain(model: Any, bags: Bags, *, interweave: bool) -> Chain:
    check_conjugate(model)
    return GibbsChain(sweep_for(model, bags, interweave=interweave), ())


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
        Limits(self.max_steps, self.tolerance)

    def check(self, model: Any, bags: Bags) -> None:
        """Refuse models without a closed form, with priors, or with several starts.

        Raises
        ------
        ValueError
            If a hyper-parameter has a prior, or the label update is unknown.
        NotImplementedError
            If the model has no closed form, or one from many starts.
        """
        self._form(model)

    def _form(self, model: Any) -> ClosedForm:
        return checked_form(model, Options(self.label_update, is_traced=True))

    def draws(self, model: Any, bags: Bags, key: Array, num_draws: int) -> TraceableDraws:
        """Draws from the q(θ) at which the ascent ends."""
        start_key, draw_key = jax.random.split(key)
        form = self._form(model).in_memory(bags)
        prepared = form.prepare(bags)
        start = jax.tree.map(jnp.asarray, form.start(lambda rows, at_most: rows(bags), start_key))
        limits = {"max_steps": self.max_steps, "tolerance": self.tolerance}
        q, _, steps = ascend_traced(form, prepared, *form.initial(prepared, start), **limits)
        q, is_right = self.finished(form, prepared, q)
        has_converged = is_right & (steps < self.max_steps)
        return TraceableDraws(form.draw(q, draw_key, num_draws), has_converged)

    def finished(self, form: ClosedForm, prepared: Any, q: Any) -> tuple[Any, Bool[Array, ""]]:
        """q(θ) to draw from, given that of the ascent, and whether it may be drawn from."""
        return q, jnp.array(True)


@dataclass(frozen=True)
class TraceableResponse(TraceableAscent):
    """Coordinate ascent with the covariance of `milzoo.inference.linear_response`."""

    def check(self, model: Any, bags: Bags) -> None:
        """Refuse also a q(θ) that is no Gaussian, and labels with a state of their own.

        Raises
        ------
        ValueError
            As of the ascent, or if a label update was chosen.
        NotImplementedError
            If the model has no closed form, or no Gaussian one.
        """
        if self.label_update is not None:
            raise ValueError(
                f"label_update is {self.label_update!r}, but linear response corrects the closed "
                "form's own; leave it out"
            )
        check_gaussian(self._form(model))

    def finished(self, form: ClosedForm, prepared: Any, q: Any) -> tuple[Any, Bool[Array, ""]]:
        """q(θ) with the covariance by linear response."""
        gaussian = check_gaussian(form)
        found = response_at(gaussian, prepared, q)
        corrected = gaussian.with_moments(q, gaussian.location(q), found.covariance)
        return corrected, is_at_rest(found)


class TraceableApproximation(ABC):
    """An approximation in whitened, unconstrained coordinates; a frozen dataclass of options."""

    are_independent: ClassVar[bool] = True

    @abstractmethod
    def check(self, model: Model, bags: Bags) -> None:
        """Refuse a model that the engine cannot fit."""

    @abstractmethod
    def fitted(
        self, target_density: WhitenedProgram, key: Array
    ) -> tuple[TransportedNormal, Bool[Array, ""]]:
        """The approximation of the target density, and whether it has converged."""

    def draws(self, model: Model, bags: Bags, key: Array, num_draws: int) -> TraceableDraws:
        """Draw v = T(ε), ε ~ N(0, I), and transform v to sites of the model."""
        fit_key, draw_key = jax.random.split(key)
        target_density = whitened_program(model, bags)
        approximation, has_converged = self.fitted(target_density, fit_key)
        noise = jax.random.normal(draw_key, (num_draws, target_density.size))
        vectors = jax.vmap(lambda one: approximation.from_standard(one)[0])(noise)
        sites = jax.lax.map(target_density.constrain, vectors)
        return TraceableDraws(sites, has_converged)


@dataclass(frozen=True)
class TraceableLaplace(TraceableApproximation):
    """Laplace's approximation, as `milzoo.inference.laplace`, the mode by L-BFGS.

    Attributes
    ----------
    max_steps : int
    """

    max_steps: int = 200

    def __post_init__(self) -> None:
        check_counts(max_steps=self.max_steps)

    def check(self, model: Model, bags: Bags) -> None:
        """Refuse densities without curvature, or of too many numbers.

        Raises
        ------
        ValueError
        """
        check_number_of_unknowns(model, "laplace")
        check_smooth(whitened_program(model, bags))

    def fitted(
        self, target_density: WhitenedProgram, key: Array
    ) -> tuple[TransportedNormal, Bool[Array, ""]]:
        """N(mode, H⁻¹), H the curvature at the mode."""
        found = mode_of(target_density, jnp.asarray(target_density.origin), self.max_steps)
        factor = jnp.linalg.cholesky(found.hessian)  # H = RRᵀ
        identity = jnp.eye(target_density.size, dtype=found.point.dtype)
        root = solve_triangular(factor.T, identity, lower=False)  # R⁻ᵀ
        is_at_rest = largest_derivative(found.gradient) < AT_REST
        approximation = GaussianApproximation(found.point, root)
        return approximation, is_at_rest & jnp.isfinite(factor).all()


@dataclass(frozen=True)
class TraceableSVI(TraceableApproximation):
    """An approximation by stochastic gradients, as `milzoo.inference.svi`, without a stopping rule.

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

    def fitted(
        self, target_density: WhitenedProgram, key: Array
    ) -> tuple[TransportedNormal, Bool[Array, ""]]:
        """The approximation at which the steps end."""
        schedule = Schedule(self.learning_rate, self.max_steps)
        fit = DrawsFit(target_density, schedule, self.guide, self.num_particles)
        num_blocks = -(-self.max_steps // fit.steps_in_block)
        start = fit.start(key)
        end = jax.lax.fori_loop(0, num_blocks, lambda _, state: fit.run_block(state)[0], start)
        approximation = fit.approximation(end)
        is_finite = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(approximation)]
        return approximation, jnp.stack(is_finite).all()


_BY_NAME: dict[str, Callable[..., TraceableEngine]] = {
    "nuts": TraceableChain.nuts,
    "gibbs": TraceableChain.gibbs,
    "coordinate_ascent": TraceableAscent,
    "linear_response": TraceableResponse,
    "laplace": TraceableLaplace,
    "svi": TraceableSVI,
    "ensemble": TraceableEnsemble,
    "tempered_smc": TraceableSMC,
}


def traceable_engine(name: str, **options: Any) -> TraceableEngine:
    """Make a traceable engine by its name, with options.

    Parameters
    ----------
    name : str
        "nuts", "gibbs", "coordinate_ascent", "linear_response", "laplace", "svi", "ensemble" or
        "tempered_smc".
    **options
        Of `TraceableChain.nuts`, `TraceableChain.gibbs`, `TraceableAscent`, `TraceableResponse`,
        `TraceableLaplace`, `TraceableSVI`, `TraceableEnsemble` or `TraceableSMC`.

    Returns
    -------
    TraceableEngine

    Raises
    ------
    ValueError
        If there is no engine of that name.
    """
    if name not in _BY_NAME:
        raise ValueError(f"engine is {name!r}; expected one of {', '.join(_BY_NAME)}")
    return _BY_NAME[name](**options)
