"""GPMIL: a Gaussian process with the soft maximum of its latent values over each bag."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.nn import softplus
from jaxtyping import Array, Float

from ..datasets.bags import Bags
from .model import Draws, Program
from .numerics.quadrature import (
    QuadratureRule,
    SigmoidTable,
    log_expected_sigmoid,
    logistic_rule,
    sigmoid_table,
)
from .numerics.tracing import as_pytree
from .parts.bag_labels import observe_log_odds
from .parts.instance_gp import InstanceGPModel
from .parts.soft_maximum import (
    SoftMaximumRule,
    draw_given_soft_maximum,
    log_odds_of_soft_maximum,
    soft_maximum_rule,
)
from .parts.sparse_gp import PreparedBags, SparseConditional
from .parts.witnesses import log_sum_over_bags
from .registry import register

__all__ = ["GPMIL"]


class PredictiveRule(NamedTuple):
    """Quadrature rules for predictions.

    Attributes
    ----------
    bags : SoftMaximumRule
    instances : QuadratureRule or SigmoidTable
    """

    bags: SoftMaximumRule
    instances: QuadratureRule | SigmoidTable


@register
@as_pytree()
@dataclass(frozen=True, eq=False)
class GPMIL(InstanceGPModel):
    """Gaussian-process multiple-instance learning with a soft maximum.

    .. code-block:: text

        u               ~ N(0, K_ZZ)                               inducing_value (inducing_point)
        f_n | u         ~ N(μ0 + A_n u, k̃_n)                       latent       (instance)
        T_b | f         ~ Bernoulli(σ(log Σ_{n∈b} e^{f_n}))        bag_label      (bag)

    with A = K_XZ K_ZZ⁻¹ and k̃_n = k(x_n, x_n) − (A K_ZX)_nn (FITC). The log of the sum is the
    paper's smooth maximum of the f_n; a bag of one is logistic regression. The label is also that
    of a soft-max over the instances and one more choice, of value 0: the bag is negative if none
    of its instances is chosen.

    The paper's GPMIL has f at the training instances alone: ``for_bags(bags, num_inducing=None)``,
    with an inducing point at each. With fewer inducing points it is GPMIL-S.

    ===============  ======  =====================================================
    field            symbol  meaning
    ===============  ======  =====================================================
    kernel           k       such as ``RBF(variance, length_scale)``: v and ℓ
    inducing_points  Z       (M, D)
    mean             μ0      constant prior mean of f
    ===============  ======  =====================================================

    Calling the model runs this program. ``marginal()`` has f integrated out: only u remains. There
    is no closed-form ELBO, and ``augmented()`` is the program itself. ``laplace`` is the paper's
    engine.

    Parameters
    ----------
    kernel : Kernel
        Such as ``RBF(variance, length_scale)``.
    inducing_points : array (M, D)
    mean : float or Distribution
        μ0; 0 as in the paper makes long bags positive a priori, with probability n/(n + 1) where f
        has little variance; `for_bags` finds another. A NumPyro distribution makes it the site
        ``mean``.
    jitter : float
        Added to the diagonal of K_ZZ, as a fraction of the average number there.

    Raises
    ------
    ValueError
        If a field is out of range.

    References
    ----------
    Kim and De la Torre (2010), Gaussian processes multiple instance learning, ICML. GPMIL-S:
    Kandemir et al. (2016), Variational weakly supervised Gaussian processes, BMVC, section 4.

    Examples
    --------
    >>> from milzoo.datasets import load
    >>> from milzoo.inference import laplace
    >>> from milzoo.models import GPMIL
    >>> train, test = load("kandemir2014").standardize().split(0.7, seed=0)
    >>> prediction = laplace(GPMIL.for_bags(train, num_inducing=20), train, seed=0).predict(test)
    >>> test.labels[:4], prediction.bag_probability[:4].round(1)
    (array([1, 0, 1, 1]), array([0.5, 0.5, 0.6, 0.6]))
    """

    name: ClassVar[str] = "gpmil"
    instance_note: ClassVar[str] = (
        "an instance's probability is that of a bag that holds it alone; the model has no "
        "instance labels"
    )
    usual_engines: ClassVar[tuple[str, ...]] = ("laplace", "svi", "nuts")

    # ------------------------------------------------------------------ the programs

    def __call__(self, bags: Bags | PreparedBags) -> None:
        """The program u → f → T."""
        given = self.unpadded(bags)
        location, scale = self.latent_given_inducing_values(given)
        with numpyro.plate("instance", scale.shape[0]):
            latent = numpyro.sample("latent", dist.Normal(location, scale))
        total = log_sum_over_bags(latent, given.bags.bag_index, given.bags.num_bags)
        observe_log_odds(total, given.bags)

    def marginal(self) -> Program:
        """The program with f integrated out: only u and hyper-parameters with priors remain.

        Given u the f_n are independent, and 1/(1 + S) is an integral of e^{−t(1 + S)}, in which
        they separate (`milzoo.models.parts.soft_maximum`).

        Returns
        -------
        callable
            A NumPyro program of ``bags``.
        """
        return self._marginal_program

    def augmented(self) -> Program:
        """The program itself: there are no auxiliary variables.

        Returns
        -------
        callable
            A NumPyro program of ``bags``.
        """
        return self.__call__

    def _marginal_program(self, bags: Bags | PreparedBags) -> None:
        given = self.unpadded(bags)
        location, scale = self.latent_given_inducing_values(given)
        observe_log_odds(_log_odds(location, scale, given.bags, given.rule), given.bags)

    def rule_for(self, conditional: SparseConditional | None, bags: Bags) -> SoftMaximumRule:
        """Quadrature rule for the bag labels given u."""
        if conditional is None:
            return soft_maximum_rule(float(np.sqrt(self.largest_variance(bags, {}))))
        return soft_maximum_rule(float(np.asarray(conditional.residual_scale).max()))

    # ------------------------------------------------------------------ given latent values

    def log_none_positive(self, latent: Float[Array, "N ..."], bags: Bags) -> Float[Array, "B ..."]:
        """log P(T = 0 | f) = −softplus(log Σ e^{f_n})."""
        return -softplus(log_sum_over_bags(latent, bags.bag_index, bags.num_bags))

    def predictive_rule(self, draws: Draws, bags: Bags) -> PredictiveRule:
        """Quadrature rules for the labels of new bags and instances given u."""
        # Nodes grow with s²: the coarse grid of `largest_scale` would double them.
        largest = float(np.sqrt(self.largest_variance(bags, draws)))
        return PredictiveRule(soft_maximum_rule(largest), logistic_rule(largest))

    def tabulated(self, rule: PredictiveRule, scale: Float[Array, " N"]) -> PredictiveRule:
        """The rules, that of instances with its exponentials evaluated."""
        assert isinstance(rule.instances, QuadratureRule)
        return rule._replace(instances=sigmoid_table(scale, rule.instances))

    def probabilities(
        self, location: Float[Array, " N"], scale: Float[Array, " N"], given: PreparedBags
    ) -> tuple[Float[Array, " B"], Float[Array, " N"]]:
        """P(T* = 1 | u) of bags, and E[σ(f*) | u] of instances."""
        rules: PredictiveRule = given.rule
        log_odds = _log_odds(location, scale, given.bags, rules.bags)
        return jax.nn.sigmoid(log_odds), jnp.exp(
            log_expected_sigmoid(location, scale, rules.instances)
        )

    def complete(self, draws: Draws, bags: Bags, *, seed: int | Array) -> Draws:
        """Draw the latent values, which ``marginal()`` integrated out, given u and T.

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
            The draws, with ``latent`` (S, N) added.

        Raises
        ------
        ValueError
            If the bags have no labels.
        """
        (latent,) = self.completed(draws, bags, seed)
        return dict(draws) | {"latent": latent[:, : bags.num_instances]}

    def complete_one(
        self, given: PreparedBags, key: Array, site: dict[str, Float[Array, "..."]]
    ) -> tuple[Float[Array, " N"]]:
        """Latent values of one draw."""
        model, bags = self.with_hyperparameters(site), given.bags
        conditional = model.given_inducing_values(given)
        location = model.mean + conditional.mean(site["inducing_value"])
        is_positive = jnp.asarray(bags.labels) == 1
        scale = conditional.residual_scale
        return (
            draw_given_soft_maximum(key, location, scale, bags.bag_index, is_positive, given.rule),
        )


def _log_odds(
    location: Float[Array, " N"], scale: Float[Array, " N"], bags: Bags, rule: SoftMaximumRule
) -> Float[Array, " B"]:
    return log_odds_of_soft_maximum(location, scale, bags.bag_index, bags.num_bags, rule)
