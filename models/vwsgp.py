"""VWSGP: sparse Gaussian processes whose evidence accumulates over a bag."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.core import Tracer
from jax.scipy.special import log_ndtr
from jaxtyping import Array, Float
from numpyro.infer.reparam import LocScaleReparam, Reparam, TransformReparam

from ..datasets.bags import Bags
from .distributions import PolyaGamma, draw_tilted_gaussian
from .gaussian_integrals import QuadratureRule, log_expected_sigmoid, logistic_rule
from .model import Draws, Program
from .sparse_gp import (
    SparseConditional,
    SparseGPModel,
    accumulated_conditional,
    draw_inducing_value,
    largest_variance,
)

__all__ = ["VWSGP"]

type Likelihood = Literal["bernoulli", "probit"]
LIKELIHOODS: tuple[Likelihood, ...] = ("bernoulli", "probit")


@dataclass(frozen=True, eq=False)
class VWSGP(SparseGPModel):
    """Sparse-GP weakly supervised learning by accumulated evidence.

    .. code-block:: text

        u               ~ N(0, K_ZZ)                               inducing_value (inducing_point)
        f_n | u         ~ N(A_n u, k̃_n)
        s_b             = Σ_{n∈b} f_n ~ N(a_bᵀu, k̄_b)              bag_evidence   (bag)
        T_b | s_b       ~ Bernoulli(σ(s_b))                        bag_label      (bag)

    with A = K_XZ K_ZZ⁻¹, k̃_n = k(x_n, x_n) − (A K_ZX)_nn, a_b = Σ_{n∈b} A_n and k̄_b = Σ_{n∈b} k̃_n.
    The instances enter by their sums alone.

    ===============  ======  =====================================================
    field            symbol  meaning
    ===============  ======  =====================================================
    kernel           k       ``RBF(variance, length_scale)``: v and ℓ
    inducing_points  Z       (M, D)
    likelihood               ``"bernoulli"``: σ; ``"probit"``: Y_b ~ N(s_b, noise), Φ(Y_b)
    noise            1/α     variance of Y_b, for ``"probit"`` only
    ===============  ======  =====================================================

    Calling it is the paper's program with s_b as sites; ``marginal()`` has them integrated out, so
    that only u remains; ``augmented()`` has s_b and the Pólya-Gamma ω_b of σ.

    Parameters
    ----------
    kernel : RBF
    inducing_points : array (M, D)
    likelihood : {"bernoulli", "probit"}
    noise : float
    jitter : float
        Added to the diagonal of K_ZZ, as a share of the kernel variance.

    Raises
    ------
    ValueError
        If a field is out of range.

    References
    ----------
    Kandemir et al. (2016), Variational weakly supervised Gaussian processes, BMVC.
    """

    likelihood: Likelihood = "bernoulli"
    noise: float = 1.0

    name: ClassVar[str] = "vwsgp"
    dims: ClassVar[dict[str, tuple[str, ...]]] = {
        "inducing_value": ("inducing_point",),
        "bag_evidence": ("bag",),
        "augmentation": ("bag",),
        "bag_label": ("bag",),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.likelihood not in LIKELIHOODS:
            raise ValueError(
                f"VWSGP likelihood is {self.likelihood!r}; expected one of {', '.join(LIKELIHOODS)}"
            )
        if not (np.isfinite(self.noise) and self.noise >= 0):
            raise ValueError(f"VWSGP noise is {self.noise}; expected a number of at least 0")

    @property
    def reparametrisation(self) -> dict[str, Reparam]:
        """How samplers should whiten the sites: u = Lε, s = a_bᵀu + √k̄ η."""
        return {"inducing_value": TransformReparam(), "bag_evidence": LocScaleReparam(0.0)}

    def accumulated(self, bags: Bags) -> SparseConditional:
        """a_b and k̄_b in whitened coordinates, in one pass over the instances.

        Raises
        ------
        ValueError
            If the bags have another number of features than the inducing points.
        """
        self.check_width(bags)
        return accumulated_conditional(self.kernel, self.inducing_points, bags, self.jitter)

    # ------------------------------------------------------------------ the three programs

    def __call__(self, bags: Bags) -> None:
        """The paper's program u → s → T."""
        self._label_given_evidence(self._draw_bag_evidence(bags), bags)

    def marginal(self) -> Program:
        """The program with s_b integrated out: P(T_b = 1 | u) = E σ(s_b) or Φ(a_bᵀu/√v_b).

        Returns
        -------
        callable
            A NumPyro program of ``bags``; v_b = 1 + noise + k̄_b.
        """
        return self._marginal_program

    def augmented(self) -> Program:
        """The program with s_b and ω_b in it: what the closed-form bound bounds.

        Returns
        -------
        callable
            A NumPyro program of ``bags``.

        Raises
        ------
        NotImplementedError
            If the likelihood is not the logistic one.
        """
        if self.likelihood != "bernoulli":
            raise NotImplementedError(
                f"likelihood={self.likelihood!r} of VWSGP has no augmented program; use "
                "likelihood='bernoulli', or an engine that does not augment (nuts, laplace, svi)"
            )
        return self._augmented_program

    def _marginal_program(self, bags: Bags) -> None:
        location, scale = self._bag_evidence_given_inducing_values(bags)
        logits = self._label_logits(location, scale, self._quadrature_rule(scale, bags))
        _observe_labels(dist.Bernoulli(logits=logits), bags)

    def _augmented_program(self, bags: Bags) -> None:
        evidence = self._draw_bag_evidence(bags)
        with numpyro.plate("bag", bags.num_bags):
            numpyro.sample("augmentation", PolyaGamma(1, evidence))
        self._label_given_evidence(evidence, bags)

    def _bag_evidence_given_inducing_values(
        self, bags: Bags
    ) -> tuple[Float[Array, " B"], Float[Array, " B"]]:
        accumulated = self.draw_hyperparameters().accumulated(bags)
        inducing_value = draw_inducing_value(accumulated.cholesky)
        return accumulated.mean(inducing_value), accumulated.residual_scale

    def _draw_bag_evidence(self, bags: Bags) -> Float[Array, " B"]:
        location, scale = self._bag_evidence_given_inducing_values(bags)
        with numpyro.plate("bag", bags.num_bags):
            return numpyro.sample("bag_evidence", dist.Normal(location, scale))

    def _label_given_evidence(self, evidence: Float[Array, " B"], bags: Bags) -> None:
        if self.likelihood == "bernoulli":
            logits = evidence
        else:
            logits = _probit_logits(evidence / jnp.sqrt(1.0 + self.noise))
        _observe_labels(dist.Bernoulli(logits=logits), bags)

    def _label_logits(
        self, location: Float[Array, " K"], scale: Float[Array, " K"], rule: QuadratureRule
    ) -> Float[Array, " K"]:
        """log P(T=1)/P(T=0) where s ~ N(location, scale²); through it both keep their digits."""
        if self.likelihood == "probit":
            return _probit_logits(location / jnp.sqrt(1.0 + self.noise + scale**2))
        positive = log_expected_sigmoid(location, scale, rule)
        return positive - log_expected_sigmoid(-location, scale, rule)

    def _quadrature_rule(self, scale: Float[Array, " B"], bags: Bags) -> QuadratureRule:
        if not isinstance(scale, Tracer):
            return logistic_rule(float(np.asarray(scale).max()))
        # k̄_b is at most N_b v.
        longest = int(bags.bag_sizes.max())
        return logistic_rule(float(np.sqrt(longest * largest_variance(self.kernel))))

    # ------------------------------------------------------------------ what draws imply

    def predict(self, draws: Draws, bags: Bags) -> Draws:
        """Bag and instance probabilities under each draw, the new evidence integrated out.

        Parameters
        ----------
        draws : dict of arrays
            ``inducing_value`` (S, M), and (S,) for each hyper-parameter that has a prior.
        bags : Bags
            B bags with N instances; their labels are not used.

        Returns
        -------
        dict of arrays
            ``bag_probability`` (S, B): P(T* = 1 | u), exactly, as s* given u is one Gaussian;
            ``instance_probability`` (S, N): P(T* = 1 | u) of a bag that holds this instance alone.
            The model has no instance labels.
        """
        largest = float(np.max(draws.get("variance", self.kernel.variance)))
        longest = int(bags.bag_sizes.max())
        rules = (logistic_rule(np.sqrt(longest * largest)), logistic_rule(np.sqrt(largest)))
        with jax.enable_x64(True):
            sites = {name: jnp.asarray(draws[name]) for name in self.latent_sites}
            fixed = None if self.priors else (self.accumulated(bags), self.conditional(bags))
            one_draw = partial(self._probabilities, bags, rules)
            over_draws = jax.jit(lambda fixed, sites: jax.lax.map(partial(one_draw, fixed), sites))
            bag, instance = over_draws(fixed, sites)
            return {
                "bag_probability": np.asarray(bag),
                "instance_probability": np.asarray(instance),
            }

    def _probabilities(
        self,
        bags: Bags,
        rules: tuple[QuadratureRule, QuadratureRule],
        fixed: tuple[SparseConditional, SparseConditional] | None,
        site: dict[str, Float[Array, "..."]],
    ) -> tuple[Float[Array, " B"], Float[Array, " N"]]:
        if fixed is None:
            model = self.with_hyperparameters(site)
            fixed = model.accumulated(bags), model.conditional(bags)
        bag, instance = (
            self._label_logits(rows.mean(site["inducing_value"]), rows.residual_scale, rule)
            for rows, rule in zip(fixed, rules, strict=True)
        )
        return jax.nn.sigmoid(bag), jax.nn.sigmoid(instance)

    def complete(self, draws: Draws, bags: Bags, *, seed: int | Array) -> Draws:
        """Draw back what ``marginal()`` integrated out: the evidence of the bags given T.

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
            The draws, with ``bag_evidence`` (S, B) added.

        Raises
        ------
        ValueError
            If the bags have no labels.
        """
        one_draw = partial(self._complete_one, bags)
        (evidence,) = self.over_draws(one_draw, draws, bags, seed)
        return dict(draws) | {"bag_evidence": evidence}

    def _complete_one(
        self, bags: Bags, key: Array, site: dict[str, Float[Array, "..."]]
    ) -> tuple[Float[Array, " B"]]:
        sign = 2.0 * jnp.asarray(bags.labels) - 1.0
        accumulated = self.with_hyperparameters(site).accumulated(bags)
        location = sign * accumulated.mean(site["inducing_value"])
        scale = accumulated.residual_scale
        draw = draw_tilted_gaussian if self.likelihood == "bernoulli" else self._draw_skew_gaussian
        return (sign * draw(key, location, scale),)

    def _draw_skew_gaussian(
        self, key: Array, mean: Float[Array, " B"], scale: Float[Array, " B"]
    ) -> Float[Array, " B"]:
        """Draws from p(s) ∝ N(s; a, k̄) Φ(s/√(1 + noise)), by way of z ~ N(s, 1 + noise), z > 0."""
        latent_key, evidence_key = jax.random.split(key)
        rest, variance = 1.0 + self.noise, 1.0 + self.noise + scale**2  # v_b
        deviation = jnp.sqrt(variance)
        above = jax.random.truncated_normal(latent_key, -mean / deviation, jnp.inf)
        noise = jax.random.normal(evidence_key, mean.shape, mean.dtype)
        # s | z ~ N(a + k̄ (z − a)/v, k̄ (1 + noise)/v)
        return mean + scale**2 / deviation * above + scale * jnp.sqrt(rest / variance) * noise


def _observe_labels(law: dist.Distribution, bags: Bags) -> None:
    labels = None if bags.labels is None else jnp.asarray(bags.labels, dtype=int)
    with numpyro.plate("bag", bags.num_bags):
        numpyro.sample("bag_label", law, obs=labels)


def _probit_logits(location: Float[Array, " K"]) -> Float[Array, " K"]:
    """log Φ(x) − log Φ(−x)."""
    return log_ndtr(location) - log_ndtr(-location)
