"""A Gaussian in the whitened, unconstrained coordinates of a model's marginal program."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.distributions import biject_to
from numpyro.handlers import block, reparam, seed, substitute, trace
from numpyro.infer.util import constrain_fn, initialize_model, potential_energy

from ..datasets.bags import Bags
from ..models.model import Draws, Model, Program
from ..models.numerics.draws import over_draws
from ..models.numerics.tracing import as_pytree
from . import serialization

__all__ = [
    "FlatApproximation",
    "GaussianApproximation",
    "TransportedNormal",
    "WhitenedProgram",
    "kinks",
    "log_densities",
    "sites_of",
    "whitened_draws",
    "whitened_program",
]

type Sites = dict[str, Array]

_RADIUS = 2.0


@as_pytree("shapes")
@dataclass(frozen=True, eq=False)
class WhitenedProgram:
    """A model's marginal program as a density of one flat real vector.

    A pytree: compiled programs take it as an argument.

    Attributes
    ----------
    model : Model
    given : pytree
        The bags, as ``model.prepare`` makes them.
    shapes : tuple
        Name and shape of each site in whitened, unconstrained coordinates, in the vector's order.
    """

    model: Model
    given: Any
    shapes: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def program(self) -> Program:
        """The reparametrised NumPyro program."""
        return reparam(self.model.marginal(), config=self.model.reparametrisation)

    @property
    def size(self) -> int:
        """The number of coordinates P."""
        return sum(prod(shape) for _, shape in self.shapes)

    @property
    def origin(self) -> Float[np.ndarray, " P"]:
        """The zero vector: u at its prior mean, parameters at the unconstrained zero."""
        return np.zeros(self.size)

    def unconstrained(self, vector: Float[Array, " P"]) -> Sites:
        """Sites of the whitened program, from the flat vector."""
        ends = np.cumsum([prod(shape) for _, shape in self.shapes])
        parts = jnp.split(vector, ends[:-1])
        named = zip(parts, self.shapes, strict=True)
        return {name: part.reshape(shape) for part, (name, shape) in named}

    def flat(self, sites: Sites) -> Float[Array, " P"]:
        """The flat vector of sites of the whitened program."""
        return jnp.concatenate([jnp.ravel(sites[name]) for name, _ in self.shapes])

    def log_density(self, vector: Float[Array, " P"]) -> Float[Array, ""]:
        """Log joint density of the flat vector, in whitened coordinates."""
        return -potential_energy(self.program, (self.given,), {}, self.unconstrained(vector))

    def random_starts(self, key: Array, number: int) -> Float[Array, "N P"]:
        """Points uniform between −2 and 2 in each coordinate, where NumPyro's NUTS begins too."""
        return jax.random.uniform(key, (number, self.size), minval=-_RADIUS, maxval=_RADIUS)

    def prior_draw(self, key: Array) -> Float[Array, " P"]:
        """A draw of the flat vector from its prior."""
        traced = trace(seed(self.program, key)).get_trace(self.given)
        return self.flat(
            {
                name: biject_to(traced[name]["fn"].support)._inverse(traced[name]["value"])
                for name, _ in self.shapes
            }
        )

    def constrain(self, vector: Float[Array, " P"]) -> Sites:
        """Values of the model's own latent sites."""
        sites, program = self.unconstrained(vector), self.program
        values = constrain_fn(program, (self.given,), {}, sites, return_deterministic=True)
        return {name: values[name] for name in self.model.latent_sites}

    def kinks(self) -> Float[Array, " P"]:
        """1/b of coordinates with a prior Laplace(0, b), which has a kink at 0; else 0."""
        traced = trace(seed(self.program, jax.random.key(0))).get_trace(self.given)
        return self.flat(
            {
                name: jnp.full(shape, _gradient_at_kink(traced[name]["fn"]))
                for name, shape in self.shapes
            }
        )

    def whitened(self, site: Sites) -> tuple[Float[Array, " P"], Float[Array, ""]]:
        """The flat vector behind values of the sites, and log |d sites / d vector|."""
        program = seed(substitute(self.model.marginal(), data=site), jax.random.key(0))
        traced = trace(program).get_trace(self.given)
        vector, log_jacobian = {}, jnp.zeros(())
        for name in self.model.latent_sites:
            prior, is_whitened = traced[name]["fn"], name in self.model.reparametrisation
            while is_whitened and isinstance(prior, dist.Independent):
                prior = prior.base_dist
            transform = prior.transforms[0] if is_whitened else biject_to(prior.support)
            value = transform._inverse(site[name])
            log_jacobian += jnp.sum(transform.log_abs_det_jacobian(value, site[name]))
            vector[f"{name}_base" if is_whitened else name] = value
        return self.flat(vector), log_jacobian


def whitened_program(model: Model, bags: Bags) -> WhitenedProgram:
    """Flatten the marginal program of a model: u = Lε, parameters unconstrained.

    Parameters
    ----------
    model : Model
    bags : Bags

    Returns
    -------
    WhitenedProgram
    """
    given = model.prepare(bags)
    found = _origin.eval_shape(model, given)
    return WhitenedProgram(model, given, tuple((n, found[n].shape) for n in sorted(found)))


def whitened_draws(target_density: WhitenedProgram, sites: Draws) -> Float[np.ndarray, "S P"]:
    """The flat vectors behind draws of the model's latent sites.

    Parameters
    ----------
    target_density : WhitenedProgram
    sites : dict of arrays
        Draws first.

    Returns
    -------
    array (S, P)
    """
    return over_draws(_whitened, sites, target_density)


def _whitened(site: Sites, target_density: WhitenedProgram) -> Float[Array, " P"]:
    return target_density.whitened(site)[0]


def sites_of(target_density: WhitenedProgram, vectors: Float[np.ndarray | Array, "S P"]) -> Draws:
    """Draws of the model's latent sites from flat vectors; `whitened_draws` leads back.

    Parameters
    ----------
    target_density : WhitenedProgram
    vectors : array (S, P)

    Returns
    -------
    dict of arrays
        Draws first.
    """
    return over_draws(_constrained, {"vector": vectors}, target_density)


def _constrained(site: Sites, target_density: WhitenedProgram) -> Sites:
    return target_density.constrain(site["vector"])


def log_densities(
    target_density: WhitenedProgram, vectors: Float[np.ndarray, "S P"]
) -> Float[np.ndarray, " S"]:
    """Log joint densities of flat vectors, in whitened coordinates.

    Parameters
    ----------
    target_density : WhitenedProgram
    vectors : array (S, P)

    Returns
    -------
    array (S,)
    """
    return over_draws(_log_density_of_vector, {"vector": vectors}, target_density)


def _log_density_of_vector(site: Sites, target_density: WhitenedProgram) -> Float[Array, ""]:
    return target_density.log_density(site["vector"])


@jax.jit
def _origin(model: Model, given: Any) -> Sites:
    """A value of each site in whitened, unconstrained coordinates, for its shape."""
    program = reparam(model.marginal(), config=model.reparametrisation)
    # Only the structure is wanted: no draw that this key makes is used.
    return initialize_model(jax.random.key(0), program, model_args=(given,)).param_info.z


@jax.jit
def kinks(target_density: WhitenedProgram) -> Float[Array, " P"]:
    """Compute `WhitenedProgram.kinks` in a compiled program."""
    return target_density.kinks()


def _gradient_at_kink(prior: dist.Distribution) -> Float[Array, ""] | float:
    while isinstance(prior, dist.Independent | dist.ExpandedDistribution):
        prior = prior.base_dist
    return jnp.max(1.0 / prior.scale) if isinstance(prior, dist.Laplace) else 0.0


class FlatApproximation(ABC):
    """An approximation q over the flat vector of ``whitened_program``, with draws of the sites."""

    @abstractmethod
    def distribution(self) -> dist.Distribution:
        """q over the flat vector."""

    def draws(self, model: Model, bags: Bags, key: Array, num_draws: int) -> Draws:
        """Draws of the model's latent sites."""
        with jax.enable_x64(True):
            sites = _draws(self, whitened_program(model, bags), key, num_draws)
            return {name: np.asarray(value) for name, value in sites.items()}

    def log_density(self, model: Model, bags: Bags, draws: Draws) -> Float[np.ndarray, " S"]:
        """log q of each draw, in the space of the model's sites."""
        with jax.enable_x64(True):
            sites = {name: np.asarray(draws[name]) for name in model.latent_sites}
            return np.asarray(_log_density(self, whitened_program(model, bags), sites))

    def guide(self, model: Model) -> Program:
        """q as a guide of ``model.marginal()``."""

        def guide(bags: Bags) -> None:
            vector = numpyro.sample("whitened", self.distribution(), infer={"is_auxiliary": True})
            with block():  # the sites of the program itself are none of the guide's
                target_density = whitened_program(model, bags)
                sites = target_density.constrain(vector)
                log_jacobian = target_density.whitened(sites)[1]
            # q of the sites is q of the vector over the Jacobian; the first site carries it.
            for name, value in sites.items():
                numpyro.sample(name, dist.Delta(value, -log_jacobian, event_dim=value.ndim))
                log_jacobian = jnp.zeros(())

        return guide


@partial(jax.jit, static_argnames="num_draws")
def _draws(
    approximation: FlatApproximation, target_density: WhitenedProgram, key: Array, num_draws: int
) -> Sites:
    return jax.lax.map(
        target_density.constrain, approximation.distribution().sample(key, (num_draws,))
    )


@jax.jit
def _log_density(
    approximation: FlatApproximation, target_density: WhitenedProgram, sites: Sites
) -> Float[Array, " S"]:
    q = approximation.distribution()

    def one(site: Sites) -> Float[Array, ""]:
        vector, log_jacobian = target_density.whitened(site)
        return q.log_prob(vector) - log_jacobian

    return jax.lax.map(one, sites)


class TransportedNormal(FlatApproximation):
    """An approximation q of v = T(ε), ε ~ N(0, I)."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of coordinates P."""

    @abstractmethod
    def from_standard(
        self, noise: Float[Array, " P"]
    ) -> tuple[Float[Array, " P"], Float[Array, ""]]:
        """T(ε), the flat vector of a draw, and log |dT/dε|."""


@serialization.register
@as_pytree()
@dataclass(frozen=True, eq=False)
class GaussianApproximation(TransportedNormal):
    """q = N(mean, scale_tril scale_trilᵀ) over the flat vector of ``whitened_program``.

    Attributes
    ----------
    mean : array (P,)
    scale_tril : array (P, P)
    """

    mean: Float[np.ndarray | Array, " P"]
    scale_tril: Float[np.ndarray | Array, "P P"]

    @property
    def size(self) -> int:
        """The number of coordinates P."""
        return len(self.mean)

    def distribution(self) -> dist.MultivariateNormal:
        """q over the flat vector."""
        return dist.MultivariateNormal(
            jnp.asarray(self.mean), scale_tril=jnp.asarray(self.scale_tril), validate_args=False
        )

    def from_standard(
        self, noise: Float[Array, " P"]
    ) -> tuple[Float[Array, " P"], Float[Array, ""]]:
        """m + Lε and log |L|."""
        scale_tril = jnp.asarray(self.scale_tril)
        log_jacobian = jnp.sum(jnp.log(jnp.abs(jnp.diag(scale_tril))))
        return jnp.asarray(self.mean) + scale_tril @ noise, log_jacobian
