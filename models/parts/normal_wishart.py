"""Conjugate distributions of the mean and precision of Gaussians, full or diagonal.

All coordinates are whitened: the prior is N(μ; 0, (β0Λ)⁻¹) times a Wishart distribution of scale 1
and ν0 degrees of freedom. Leading axes are components. N, Σx and Σ xxᵀ are sufficient statistics of
a component, so that updates are sums over instances.

============================  ==============================================================
code                          symbol (Bishop 2006, section 10.2)
============================  ==============================================================
``strength``                  β = β0 + N
``degrees_of_freedom``        ν = ν0 + N (the DPMIL paper prints one more)
``mean``                      m = Σx/β
``scatter_cholesky``          C, with CCᵀ = W⁻¹ = 1 + Σ xxᵀ − β mmᵀ
``scatter``                   the diagonal of W⁻¹, where precisions are diagonal
============================  ==============================================================
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import digamma, gammaln, multigammaln
from jaxtyping import Array, Float

__all__ = [
    "COVARIANCES",
    "Covariance",
    "NormalGamma",
    "NormalWishart",
    "Statistics",
    "family",
    "log_predictive",
]

type Covariance = Literal["full", "diagonal"]
COVARIANCES: tuple[str, ...] = ("full", "diagonal")

_LOG_2PI = math.log(2 * math.pi)


class Statistics(NamedTuple):
    """Sufficient statistics of the instances of each component, weighted by responsibilities."""

    occupancy: Float[np.ndarray | Array, "*K"]  # N_k
    total: Float[np.ndarray | Array, "*K D"]  # Σ r_nk x_n
    moment: Float[np.ndarray | Array, "*K P"]  # Σ r_nk φ(x_n), φ as in ``second_moments``


class NormalWishart(NamedTuple):
    """μ | Λ ~ N(m, (βΛ)⁻¹), Λ ~ Wishart(W, ν)."""

    mean: Float[Array, "*K D"]
    strength: Float[Array, "*K"]
    scatter_cholesky: Float[Array, "*K D D"]
    degrees_of_freedom: Float[Array, "*K"]

    @staticmethod
    def second_moments(instances: Float[Array, "N D"]) -> Float[Array, "N P"]:
        """φ(x): the D(D + 1)/2 products x_i x_j with i ≤ j, row by row of the upper triangle."""
        first, second = np.triu_indices(instances.shape[1])
        return instances[:, first] * instances[:, second]

    @classmethod
    def posterior(
        cls, statistics: Statistics, strength: float | Array, degrees_of_freedom: float | Array
    ) -> Self:
        """The conjugate posterior under the prior (0, β0, 1, ν0); Bishop 10.60–10.63."""
        occupancy, total, products = map(jnp.asarray, statistics)
        beta = strength + occupancy
        mean = total / beta[..., None]
        num_features = mean.shape[-1]
        upper = np.triu_indices(num_features)
        half = jnp.zeros((*beta.shape, num_features, num_features)).at[..., *upper].set(products)
        moment = half + jnp.triu(half, 1).mT
        outer = mean[..., :, None] * mean[..., None, :]
        scatter = jnp.eye(num_features) + moment - beta[..., None, None] * outer  # W⁻¹
        return cls(mean, beta, jnp.linalg.cholesky(scatter), degrees_of_freedom + occupancy)

    @property
    def num_features(self) -> int:
        """Number D of features."""
        return self.mean.shape[-1]

    def scale_root(self) -> Float[Array, "*K D D"]:
        """C⁻¹, lower triangular: W = C⁻ᵀC⁻¹."""
        identity = jnp.broadcast_to(jnp.eye(self.num_features), self.scatter_cholesky.shape)
        return solve_triangular(self.scatter_cholesky, identity, lower=True)

    def scale_cholesky(self) -> Float[Array, "*K D D"]:
        """R, lower triangular, with RRᵀ = W."""
        root = self.scale_root()
        return jnp.linalg.cholesky(root.mT @ root)

    def log_determinant(self) -> Float[Array, "*K"]:
        """Log determinant of the scale matrix W."""
        diagonal = jnp.diagonal(self.scatter_cholesky, axis1=-2, axis2=-1)
        return -2 * jnp.sum(jnp.log(diagonal), axis=-1)

    def expected_log_determinant(self) -> Float[Array, "*K"]:
        """E log |Λ| = Σ_i Ψ((ν + 1 − i)/2) + D log 2 + log |W|."""
        order = jnp.arange(self.num_features)
        digammas = digamma((self.degrees_of_freedom[..., None] - order) / 2)
        return jnp.sum(digammas, axis=-1) + self.num_features * math.log(2) + self.log_determinant()

    def expected_log_density(
        self,
    ) -> tuple[Float[Array, "*K"], Float[Array, "*K D"], Float[Array, "*K P"]]:
        """Coefficients of E log N(x; μ, Λ⁻¹): constant, those of x and of φ(x); Bishop 10.64."""
        root = self.scale_root()
        precision = self.degrees_of_freedom[..., None, None] * (root.mT @ root)  # νW = E Λ
        linear = jnp.einsum("...ij,...j->...i", precision, self.mean)
        upper = np.triu_indices(self.num_features)
        # x_i x_j with i < j stands for two entries of the matrix.
        quadratic = precision[..., *upper] * np.where(upper[0] == upper[1], -0.5, -1.0)
        constant = -0.5 * jnp.sum(linear * self.mean, axis=-1) - 0.5 * self.num_features * (
            1 / self.strength + _LOG_2PI
        )
        return constant + 0.5 * self.expected_log_determinant(), linear, quadratic

    def divergence_from_prior(
        self, strength: float | Array, degrees_of_freedom: float | Array
    ) -> Float[Array, "*K"]:
        """KL divergence of this distribution from the prior (0, β0, 1, ν0)."""
        num_features, nu = self.num_features, self.degrees_of_freedom
        root = self.scale_root()
        trace = jnp.sum(root**2, axis=(-2, -1))  # tr W

        def log_constant(nu: Array, log_determinant: Array) -> Array:  # log B(W, ν)
            return -0.5 * nu * (log_determinant + num_features * math.log(2)) - multigammaln(
                nu / 2, num_features
            )

        of_precision = (
            log_constant(nu, self.log_determinant())
            - log_constant(jnp.asarray(degrees_of_freedom), jnp.zeros(()))
            + 0.5 * (nu - degrees_of_freedom) * self.expected_log_determinant()
            + 0.5 * nu * (trace - num_features)
        )
        whitened = jnp.einsum("...ij,...j->...i", root, self.mean)
        distance = nu * jnp.sum(whitened**2, axis=-1)  # E mᵀΛm
        return of_precision + _divergence_of_mean(num_features, self.strength, strength, distance)

    def draw(self, key: Array) -> tuple[Float[Array, "*K D"], Float[Array, "*K D D"]]:
        """A draw of μ and of L, lower triangular with LLᵀ = Λ."""
        diagonal_key, below_key, mean_key = jax.random.split(key, 3)
        freedom = self.degrees_of_freedom[..., None] - jnp.arange(self.num_features)
        # Bartlett: Λ = C⁻ᵀAAᵀC⁻¹.
        chi = jnp.sqrt(2 * jax.random.gamma(diagonal_key, freedom / 2))
        below = jax.random.normal(below_key, self.scatter_cholesky.shape)
        bartlett = jnp.tril(below, -1) + chi[..., None] * jnp.eye(self.num_features)
        root = self.scale_root().mT @ bartlett
        cholesky = jnp.linalg.cholesky(root @ root.mT)
        noise = jax.random.normal(mean_key, self.mean.shape) / jnp.sqrt(self.strength)[..., None]
        deviation = solve_triangular(cholesky, noise[..., None], trans="T", lower=True)
        return self.mean + deviation[..., 0], cholesky


class NormalGamma(NamedTuple):
    """Diagonal precisions: `NormalWishart` of D = 1 for each feature, λ_d ~ Γ(ν/2, 1/(2w_d))."""

    mean: Float[Array, "*K D"]
    strength: Float[Array, "*K"]
    scatter: Float[Array, "*K D"]  # 1/w
    degrees_of_freedom: Float[Array, "*K"]

    @staticmethod
    def second_moments(instances: Float[Array, "N D"]) -> Float[Array, "N P"]:
        """φ(x): the squares x_d²."""
        return instances**2

    @classmethod
    def posterior(
        cls, statistics: Statistics, strength: float | Array, degrees_of_freedom: float | Array
    ) -> Self:
        """The conjugate posterior under the prior (0, β0, 1, ν0)."""
        occupancy, total, squares = map(jnp.asarray, statistics)
        beta = strength + occupancy
        mean = total / beta[..., None]
        scatter = 1 + squares - beta[..., None] * mean**2
        return cls(mean, beta, scatter, degrees_of_freedom + occupancy)

    @property
    def num_features(self) -> int:
        """Number D of features."""
        return self.mean.shape[-1]

    def scale_cholesky(self) -> Float[Array, "*K D"]:
        """√w, the root of W."""
        return 1 / jnp.sqrt(self.scatter)

    def expected_log_determinant(self) -> Float[Array, "*K"]:
        """E log |Λ| = Σ_d [Ψ(ν/2) + log 2 + log w_d]."""
        each = digamma(self.degrees_of_freedom / 2) + math.log(2)
        return self.num_features * each - jnp.sum(jnp.log(self.scatter), axis=-1)

    def expected_log_density(
        self,
    ) -> tuple[Float[Array, "*K"], Float[Array, "*K D"], Float[Array, "*K P"]]:
        """Coefficients of E log N(x; μ, Λ⁻¹): constant, those of x and of φ(x)."""
        precision = self.degrees_of_freedom[..., None] / self.scatter  # E λ
        linear = precision * self.mean
        constant = -0.5 * jnp.sum(linear * self.mean, axis=-1) - 0.5 * self.num_features * (
            1 / self.strength + _LOG_2PI
        )
        return constant + 0.5 * self.expected_log_determinant(), linear, -0.5 * precision

    def divergence_from_prior(
        self, strength: float | Array, degrees_of_freedom: float | Array
    ) -> Float[Array, "*K"]:
        """KL divergence of this distribution from the prior (0, β0, 1, ν0)."""
        nu, nu_0 = self.degrees_of_freedom, jnp.asarray(degrees_of_freedom)
        # Γ(ν/2, 1/(2w)) from Γ(ν0/2, 1/2), for each feature.
        by_feature = (
            0.5 * ((nu - nu_0) * digamma(nu / 2))[..., None]
            + 0.5 * nu_0 * jnp.log(self.scatter)
            + 0.5 * nu[..., None] * (1 / self.scatter - 1)
        )
        gammas = self.num_features * (gammaln(nu_0 / 2) - gammaln(nu / 2))
        distance = nu * jnp.sum(self.mean**2 / self.scatter, axis=-1)
        of_mean = _divergence_of_mean(self.num_features, self.strength, strength, distance)
        return jnp.sum(by_feature, axis=-1) + gammas + of_mean

    def draw(self, key: Array) -> tuple[Float[Array, "*K D"], Float[Array, "*K D"]]:
        """A draw of μ and of λ."""
        precision_key, mean_key = jax.random.split(key)
        shape = jnp.broadcast_to(self.degrees_of_freedom[..., None] / 2, self.mean.shape)
        precision = 2 * jax.random.gamma(precision_key, shape) / self.scatter
        noise = jax.random.normal(mean_key, self.mean.shape)
        return self.mean + noise / jnp.sqrt(self.strength[..., None] * precision), precision


def log_predictive(
    instances: Float[Array, "N D"],
    mean: Float[Array, "K D"],
    root: Float[Array, "K ..."],
    strength: Float[Array, " K"],
    degrees_of_freedom: Float[Array, " K"],
) -> Float[Array, "K N"]:
    """The log predictive density of a new instance, a Student t for each component.

    log St(x; m, (ν + 1 − D)β/(1 + β) W, ν + 1 − D) for a normal-Wishart distribution, and the sum
    over d of log St(x_d; m_d, νβ/(1 + β) w_d, ν) for diagonal precisions.

    Parameters
    ----------
    instances : array (N, D)
    mean : array (K, D)
        m.
    root : array (K, D, D) or (K, D)
        Any R with RRᵀ = W; √w for diagonal precisions.
    strength, degrees_of_freedom : array (K,)
        β and ν.

    Returns
    -------
    array (K, N)

    References
    ----------
    Bishop (2006), 10.81–10.82; Kandemir and Hamprecht (2014), appendix.
    """
    is_full = root.ndim > mean.ndim
    # The dimension of each Student t: one of D dimensions, or D of one.
    dimension = mean.shape[1] if is_full else 1

    def of_one(component: tuple[Array, ...]) -> Float[Array, " N"]:
        mean, root, strength, nu = component
        shrink = strength / (1 + strength)
        if is_full:
            distance = jnp.sum(((instances - mean) @ root) ** 2, axis=1, keepdims=True)
            log_root = jnp.linalg.slogdet(root)[1][None]
        else:
            distance, log_root = ((instances - mean) * root) ** 2, jnp.log(root)
        constant = gammaln((nu + 1) / 2) - gammaln((nu + 1 - dimension) / 2)
        constant += 0.5 * dimension * jnp.log(shrink / math.pi)
        return jnp.sum(constant + log_root - 0.5 * (nu + 1) * jnp.log1p(shrink * distance), axis=1)

    return jax.lax.map(of_one, (mean, root, strength, degrees_of_freedom))


def family(covariance: str) -> type[NormalWishart] | type[NormalGamma]:
    """The class of conjugate distribution for covariances that are ``full`` or ``diagonal``."""
    return NormalWishart if covariance == "full" else NormalGamma


def _divergence_of_mean(
    num_features: int, strength: Array, prior_strength: float | Array, distance: Array
) -> Float[Array, "*K"]:
    """E KL of N(m, (βΛ)⁻¹) from N(0, (β0Λ)⁻¹), with E mᵀΛm given."""
    ratio = prior_strength / strength
    return 0.5 * (num_features * (ratio - 1 - jnp.log(ratio)) + prior_strength * distance)
