"""The draw of u that the Gibbs samplers of all sparse GP models share; whitened, u = Lε."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float

from ...models.numerics.products import weighted_gram

__all__ = ["draw_latent", "draw_whitened"]


def draw_whitened(
    key: Array,
    projection: Float[Array, "K M"],
    residual_variance: Float[Array, " K"],
    omega: Float[Array, " K"],
    linear_term: Float[Array, " K"],
) -> Float[Array, " M"]:
    """Draw the whitened inducing values ε | ω, with the Gaussian latent values integrated out.

    ε ~ N(P⁻¹ Vᵀ(p/(1 + ωk̃)), P⁻¹), P = I + Vᵀ diag(ω/(1 + ωk̃)) V, where the likelihood of
    a latent value g given ω is e^{pg − ωg²/2} up to a constant.

    Parameters
    ----------
    key : JAX key
    projection, residual_variance : array (K, M), (K,)
        V and k̃ of instances, or of bags.
    omega, linear_term : array (K,)
        ω and p.

    Returns
    -------
    array (M,)
    """
    weight = 1.0 / (1.0 + omega * residual_variance)
    gram = weighted_gram(projection, omega * weight)
    linear = (linear_term * weight) @ projection
    cholesky = jnp.linalg.cholesky(jnp.eye(gram.shape[0], dtype=gram.dtype) + gram)  # P = RRᵀ
    noise = jax.random.normal(key, linear.shape, linear.dtype)
    return cho_solve((cholesky, True), linear) + solve_triangular(
        cholesky, noise, lower=True, trans="T"
    )


def draw_latent(
    key: Array,
    location: Float[Array, " K"],
    residual_variance: Float[Array, " K"],
    omega: Float[Array, " K"],
    linear_term: Float[Array, " K"],
) -> Float[Array, " K"]:
    """Draw latent values g | u, ω ~ N((a + k̃p)/(1 + ωk̃), k̃/(1 + ωk̃)), independently.

    Parameters
    ----------
    key : JAX key
    location, residual_variance : array (K,)
        a and k̃: mean and variance of g given u.
    omega, linear_term : array (K,)
        As for `draw_whitened`.

    Returns
    -------
    array (K,)
    """
    weight = 1.0 / (1.0 + omega * residual_variance)
    noise = jax.random.normal(key, location.shape, location.dtype)
    mean = (location + residual_variance * linear_term) * weight
    return mean + jnp.sqrt(residual_variance * weight) * noise
