"""ProbitGPMIL: a Gaussian process whose probit labels of instances have the bag's as maximum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.nn import sigmoid
from jax.scipy.special import log_ndtr, ndtr
from jaxtyping import Array, Float, Num

from ..datasets.bags import Bags
from .model import Draws, Program, given_labels, plate_of_bags
from .numerics.quadrature import NO_RULE, QuadratureRule
from .numerics.tracing import as_pytree
from .parts.bag_labels import observe_log_odds, probit_log_odds
from .parts.bag_utilities import BagUtilities
from .parts.instance_gp import InstanceGPModel
from .parts.sparse_gp import PreparedBags, SparseConditional
from .parts.witnesses import log_odds_of_some, sum_over_bags
from .registry import register

__all__ = ["ProbitGPMIL"]


@register
@as_pytree()
@dataclass(frozen=True, eq=False)
class ProbitGPMIL(InstanceGPModel):
    """Gaussian-process multiple-instance learning with probit labels of instances.

    .. code-block:: text

        u               ~ N(0, K_ZZ)                      inducing_value (inducing_point)
        f_n | u         ~ N(μ0 + A_n u, k̃_n)              latent       (instance)
        g_n | f_n       ~ N(f_n, 1)                       latent_utility (instance)
        T_b             = [max_{n∈b} g_n > 0]             bag_label      (bag)

    with A = K_XZ K_ZZ⁻¹ and k̃_n = k(x_n, x_n) − (A K_ZX)_nn (FITC). An instance is positive with
    probability Φ(f_n), and a bag is negative with probability Π Φ(−f_n): it is `VGPMIL` with a
    probit for the logistic function, and no errors of bag labels.

    Given u all integrals have a closed form. So has the ELBO of q(u) q(g), without a bound on the
    likelihood: q(g) of a bag is a product of normals, cut to the side of its label.

    ===============  ======  =====================================================
    field            symbol  meaning
    ===============  ======  =====================================================
    kernel           k       such as ``RBF(variance, length_scale)``: v and ℓ
    inducing_points  Z       (M, D)
    mean             μ0      constant prior mean of f
    ===============  ======  =====================================================

    Calling the model runs this program with g summed out. ``marginal()`` has f integrated out too:
    only u remains. ``augmented()`` has g as a site, and f integrated out.

    Parameters
    ----------
    kernel : Kernel
        Such as ``RBF(variance, length_scale)``.
    inducing_points : array (M, D)
    mean : float or Distribution
        μ0; a NumPyro distribution makes it the site ``mean``.
    jitter : float

    Raises
    ------
    ValueError
        If a field is out of range.

    References
    ----------
    Wang and Pinar (2021), The multiple instance learning Gaussian process probit model, AISTATS.
    Augmentation: Albert and Chib (1993).

    Examples
    --------
    >>> from milzoo.datasets import load
    >>> from milzoo.inference import coordinate_ascent
    >>> from milzoo.models import ProbitGPMIL
    >>> train, test = load("kandemir2014").standardize().split(0.7, seed=0)
    >>> model = ProbitGPMIL.for_bags(train, num_inducing=20)
    >>> prediction = coordinate_ascent(model, train, seed=0).predict(test)
    >>> test.labels[:4], prediction.bag_probability[:4].round(1)
    (array([1, 0, 1, 1]), array([0.5, 0.4, 0.8, 0.7]))
    """

    name: ClassVar[str] = "probit_gpmil"
    dims: ClassVar[dict[str, tuple[str, ...]]] = InstanceGPModel.dims | {
        "latent_utility": ("instance",)
    }

    # ------------------------------------------------------------------ the programs

    def __call__(self, bags: Bags | PreparedBags) -> None:
        """The program u → f → T."""
        given = self.unpadded(bags)
        location, scale = self.latent_given_inducing_values(given)
        with numpyro.plate("instance", scale.shape[0]):
            latent = numpyro.sample("latent", dist.Normal(location, scale))
        observe_log_odds(_log_odds(latent, given.bags), given.bags)

    def marginal(self) -> Program:
        """The program with f integrated out: P(T = 0 | u) = Π Φ(−a_n/s_n), s_n² = 1 + k̃_n.

        Returns
        -------
        callable
            A NumPyro program of ``bags``.
        """
        return self._marginal_program

    def augmented(self) -> Program:
        """The program u → g → T, with f integrated out.

        Returns
        -------
        callable
            A NumPyro program of ``bags``.
        """
        return self._augmented_program

    def _marginal_program(self, bags: Bags | PreparedBags) -> None:
        given = self.unpadded(bags)
        location, scale = self.latent_given_inducing_values(given)
        observe_log_odds(_log_odds(location / utility_scale(scale), given.bags), given.bags)

    def _augmented_program(self, bags: Bags | PreparedBags) -> None:
        given = self.unpadded(bags)
        location, scale = self.latent_given_inducing_values(given)
        # One event: under q(g) the utilities of a bag are dependent.
        joint = dist.Normal(location, utility_scale(scale)).to_event(1)
        utility = numpyro.sample("latent_utility", joint)
        positives = _sum_over_bags((utility > 0).astype(int), given.bags)
        with plate_of_bags(given.bags):
            label = dist.Delta((positives > 0).astype(int))
            numpyro.sample("bag_label", label, obs=given_labels(given.bags))

    def rule_for(self, conditional: SparseConditional | None, bags: Bags) -> QuadratureRule:
        """No quadrature is needed."""
        return NO_RULE

    # ------------------------------------------------------------------ given latent values

    def log_none_positive(self, latent: Float[Array, "N ..."], bags: Bags) -> Float[Array, "B ..."]:
        """log P(T = 0 | f) = Σ log Φ(−f_n)."""
        return _sum_over_bags(log_ndtr(-latent), bags)

    def predictive_rule(self, draws: Draws, bags: Bags) -> QuadratureRule:
        """No quadrature is needed."""
        return NO_RULE

    def probabilities(
        self, location: Float[Array, " N"], scale: Float[Array, " N"], given: PreparedBags
    ) -> tuple[Float[Array, " B"], Float[Array, " N"]]:
        """P(T* = 1 | u) = 1 − Π Φ(−a/s) of bags, and Φ(a/s) of instances."""
        ratio = location / utility_scale(scale)
        return sigmoid(_log_odds(ratio, given.bags)), ndtr(ratio)

    def complete(self, draws: Draws, bags: Bags, *, seed: int | Array) -> Draws:
        """Draw the latent values and utilities, which ``marginal()`` integrated out, given u and T.

        Parameters
        ----------
        draws : dict of arrays
            As for ``predict``.
        bags : Bags
            With labels.
        seed : int or JAX key

        Returns
        -------
        dict of arrays
            The draws, with ``latent`` (S, N) and ``latent_utility`` (S, N) added.

        Raises
        ------
        ValueError
            If the bags have no labels.
        """
        latent, utility = self.completed(draws, bags, seed)
        rows = slice(bags.num_instances)
        return dict(draws) | {"latent": latent[:, rows], "latent_utility": utility[:, rows]}

    def complete_one(
        self, given: PreparedBags, key: Array, site: dict[str, Float[Array, "..."]]
    ) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
        """Latent values and utilities of one draw."""
        model, bags = self.with_hyperparameters(site), given.bags
        conditional = model.given_inducing_values(given)
        location = model.mean + conditional.mean(site["inducing_value"])
        variance = conditional.residual_variance
        scale = utility_scale(conditional.residual_scale)
        utility_key, evidence_key = jax.random.split(key)
        joint = BagUtilities(location, scale, bags.bag_index, jnp.asarray(bags.labels))
        utility = joint.sample(utility_key)
        # f | g, u ~ N((a + k̃g)/(1 + k̃), k̃/(1 + k̃))
        noise = jax.random.normal(evidence_key, location.shape, location.dtype)
        mean = (location + variance * utility) / scale**2
        return mean + jnp.sqrt(variance) / scale * noise, utility


def utility_scale(residual_scale: Float[Array, " N"]) -> Float[Array, " N"]:
    """s = √(1 + k̃), the sd of a utility given u."""
    return jnp.sqrt(1.0 + residual_scale**2)


def _sum_over_bags(values: Num[Array, "N ..."], bags: Bags) -> Num[Array, "B ..."]:
    return sum_over_bags(values, bags.bag_index, bags.num_bags)


def _log_odds(ratio: Float[Array, " N"], bags: Bags) -> Float[Array, " B"]:
    """log P(T = 1) − log P(T = 0) by z = a/s of the instances."""
    return log_odds_of_some(probit_log_odds(ratio), bags.bag_index, bags.num_bags)
