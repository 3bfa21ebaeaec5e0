"""A Gaussian in the whitened, unconstrained coordinates of a model's marginal program."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float
from numpyro.distributions import biject_to
from numpyro.handlers import block, reparam, seed, substitute, trace
from numpyro.infer.util import constrain_fn, initialize_model

from ..datasets.bags import Bags
from ..models.model import Draws, Model, Program
from . import archive

__all__ = [
    "FlatApproximation",
    "GaussianApproximation",
    "WhitenedProgram",
    "slopes_at_kinks",
    "whitened_program",
]

type Sites = dict[str, Array]


class WhitenedProgram(NamedTuple):
    """A model's marginal program as a density of one flat real vector.

    Attributes
    ----------
    program : callable
        The reparametrised NumPyro program.
    log_density : callable
        Flat vector → log joint density, in that space.
    constrain : callable
        Flat vector → values of the model's own latent sites.
    origin : array (P,)
        Zero: u at its prior mean, parameters at the unconstrained zero.
    """

    program: Program
    log_density: Callable[[Float[Array, " P"]], Float[Array, ""]]
    constrain: Callable[[Float[Array, " P"]], Sites]
    origin: Float[Array, " P"]


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
    program = reparam(model.marginal(), config=model.reparametrisation)
    # Only the structure is wanted: no draw that this key makes is used.
    info = initialize_model(jax.random.key(0), program, model_args=(bags,))
    flat, unravel = ravel_pytree(info.param_info.z)

    def constrain(vector: Float[Array, " P"]) -> Sites:
        values = constrain_fn(program, (bags,), {}, unravel(vector), return_deterministic=True)
        return {name: values[name] for name in model.latent_sites}

    return WhitenedProgram(
        program=program,
        log_density=lambda vector: -info.potential_fn(unravel(vector)),
        constrain=constrain,
        origin=jnp.zeros_like(flat),
    )


def slopes_at_kinks(program: Program, bags: Bags) -> Float[np.ndarray, " P"]:
    """1/b of coordinates with a prior Laplace(0, b), whose density has no slope at 0; else 0.

    Parameters
    ----------
    program : callable
        Reparametrised, as in `WhitenedProgram`.
    bags : Bags

    Returns
    -------
    array (P,)
    """
    traced = trace(seed(program, jax.random.key(0))).get_trace(bags)
    latent = {
        name: np.full(_unconstrained_shape(site), _slope_at_kink(site["fn"]))
        for name, site in traced.items()
        if site["type"] == "sample" and not site["is_observed"]
    }
    return np.asarray(ravel_pytree(latent)[0])


def _unconstrained_shape(site: dict[str, Any]) -> tuple[int, ...]:
    return biject_to(site["fn"].support).inverse_shape(np.shape(site["value"]))


def _slope_at_kink(law: dist.Distribution) -> float:
    while isinstance(law, dist.Independent | dist.ExpandedDistribution):
        law = law.base_dist
    return float(np.max(1.0 / law.scale)) if isinstance(law, dist.Laplace) else 0.0


def _to_whitened(
    model: Model, bags: Bags, site: Sites
) -> tuple[Float[Array, " P"], Float[Array, ""]]:
    """The flat vector behind values of the sites, and log |d sites / d vector|."""
    program = seed(substitute(model.marginal(), data=site), jax.random.key(0))
    traced = trace(program).get_trace(bags)
    vector, log_jacobian = {}, jnp.zeros(())
    for name in model.latent_sites:
        law, whitened = traced[name]["fn"], name in model.reparametrisation
        while whitened and isinstance(law, dist.Independent):
            law = law.base_dist
        transform = law.transforms[0] if whitened else biject_to(law.support)
        value = transform._inverse(site[name])
        jacobian = transform.log_abs_det_jacobian(value, site[name])
        log_jacobian += jnp.sum(jacobian)
        vector[f"{name}_base" if whitened else name] = value
    return ravel_pytree(vector)[0], log_jacobian


class FlatApproximation(ABC):
    """A law q over the flat vector of ``whitened_program``, and what follows for the sites."""

    @abstractmethod
    def law(self) -> dist.Distribution:
        """q over the flat vector."""

    def draws(self, model: Model, bags: Bags, key: Array, num_draws: int) -> Draws:
        """Draws of the model's latent sites."""
        with jax.enable_x64(True):
            constrain = whitened_program(model, bags).constrain
            vectors = self.law().sample(key, (num_draws,))
            sites = jax.jit(lambda v: jax.lax.map(constrain, v))(vectors)
            return {name: np.asarray(value) for name, value in sites.items()}

    def log_density(self, model: Model, bags: Bags, draws: Draws) -> Float[np.ndarray, " S"]:
        """log q of each draw, in the space of the model's sites."""

        def one(site: Sites) -> Float[Array, ""]:
            vector, log_jacobian = _to_whitened(model, bags, site)
            return self.law().log_prob(vector) - log_jacobian

        with jax.enable_x64(True):
            sites = {name: jnp.asarray(draws[name]) for name in model.latent_sites}
            return np.asarray(jax.jit(lambda s: jax.lax.map(one, s))(sites))

    def guide(self, model: Model) -> Program:
        """q as a guide of ``model.marginal()``."""

        def guide(bags: Bags) -> None:
            vector = numpyro.sample("whitened", self.law(), infer={"is_auxiliary": True})
            with block():  # the sites of the program itself are none of the guide's
                sites = whitened_program(model, bags).constrain(vector)
                log_jacobian = _to_whitened(model, bags, sites)[1]
            # q of the sites is q of the vector over the Jacobian; the first site carries it.
            for name, value in sites.items():
                numpyro.sample(name, dist.Delta(value, -log_jacobian, event_dim=value.ndim))
                log_jacobian = jnp.zeros(())

        return guide


@archive.register
@dataclass(frozen=True, eq=False)
class GaussianApproximation(FlatApproximation):
    """q = N(mean, scale_tril scale_trilᵀ) over the flat vector of ``whitened_program``.

    Attributes
    ----------
    mean : array (P,)
    scale_tril : array (P, P)
    """

    mean: Float[np.ndarray, " P"]
    scale_tril: Float[np.ndarray, "P P"]

    def law(self) -> dist.MultivariateNormal:
        """q over the flat vector."""
        return dist.MultivariateNormal(
            jnp.asarray(self.mean), scale_tril=jnp.asarray(self.scale_tril), validate_args=False
        )
