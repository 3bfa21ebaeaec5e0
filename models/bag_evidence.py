"""Models whose bags have an evidence that is Gaussian given the values at inducing points."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal, Self

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
from .distributions import LogOddsLabel, PolyaGamma, draw_above, draw_tilted_gaussian
from .gaussian_integrals import QuadratureRule, log_expected_sigmoid, logistic_rule
from .kernels import Parameter, may_be_positive
from .model import Draws, Program
from .settings import Choice, Setting
from .sparse_gp import (
    InducingModel,
    SparseConditional,
    draw_inducing_value,
    largest_variance,
)

__all__ = ["LIKELIHOODS", "BagEvidenceModel", "FloatType", "Likelihood"]

type Likelihood = Literal["bernoulli", "gaussian", "probit"]
LIKELIHOODS: tuple[Likelihood, ...] = ("bernoulli", "gaussian", "probit")
type FloatType = Literal["float64", "float32"]


@dataclass(frozen=True, eq=False)
class BagEvidenceModel(InducingModel, ABC):
    """What models of a Gaussian evidence of each bag have in common, whatever its kernel.

    .. code-block:: text

        u               ~ N(0, K)                                  inducing_value (inducing_point)
        s_b | u         ~ N(a_bᵀu, k̄_b)                            bag_evidence   (bag)
        T_b | s_b       ~ Bernoulli(σ(s_b))                        bag_label      (bag)

    The last line is another for other likelihoods:

    .. code-block:: text

        "probit"        Y_b ~ N(s_b, noise), T_b ~ Bernoulli(Φ(Y_b))
        "gaussian"      Y_b ~ N(s_b, noise)                        bag_target     (bag)

    Parameters
    ----------
    likelihood : {"bernoulli", "gaussian", "probit"}
    noise : float, Distribution or None

    Raises
    ------
    ValueError
        If a field is out of range.
    """

    likelihood: Likelihood = field(default="bernoulli", kw_only=True)
    noise: Parameter | None = field(default=None, kw_only=True)

    dims: ClassVar[dict[str, tuple[str, ...]]] = {
        "inducing_value": ("inducing_point",),
        "bag_evidence": ("bag",),
        "augmentation": ("bag",),
        "latent_utility": ("bag",),
        "bag_label": ("bag",),
        "bag_target": ("bag",),
    }
    observation_fields: ClassVar[tuple[str, ...]] = ("likelihood",)
    settings: ClassVar[Mapping[str, Setting]] = {"likelihood": Choice.of(*LIKELIHOODS)}

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        if self.likelihood not in LIKELIHOODS:
            raise ValueError(
                f"{name} likelihood is {self.likelihood!r}; expected one of "
                f"{', '.join(LIKELIHOODS)}"
            )
        if self.noise is None and self.likelihood != "bernoulli":
            object.__setattr__(self, "noise", 1.0)
        if isinstance(self.noise, np.number | np.ndarray) and np.ndim(self.noise) == 0:
            object.__setattr__(self, "noise", float(self.noise))
        expected = _problem_with_noise(self.likelihood, self.noise)
        if expected:
            raise ValueError(
                f"{name} noise is {self.noise} with likelihood={self.likelihood!r}; {expected}"
            )

    @property
    def observed_site(self) -> str:
        """``bag_target`` for the Gaussian likelihood, else ``bag_label``."""
        return "bag_target" if self.likelihood == "gaussian" else "bag_label"

    @property
    def observation(self) -> str:
        """The likelihood; ``"logistic"`` for ``"bernoulli"``."""
        return "logistic" if self.likelihood == "bernoulli" else self.likelihood

    @property
    def hyperparameters(self) -> dict[str, Parameter]:
        """Those of the kernel, and of the Gaussian likelihood the noise.

        That of the probit is none: a larger one is a smaller kernel variance.
        """
        noise = {"noise": self.noise} if self.likelihood == "gaussian" else {}
        return super().hyperparameters | noise

    def with_hyperparameters(self, values: dict) -> Self:
        """Replace hyper-parameters (``variance``, ``length_scale``, ``noise``) by given values."""
        model = super().with_hyperparameters(values)
        return replace(model, noise=values["noise"]) if "noise" in values else model

    def without_hyperparameters(self, bags: Bags) -> Any:
        """What of the bags no hyper-parameter changes."""
        return bags

    @property
    def noise_variance(self) -> Parameter:
        """The noise, of a likelihood that has one."""
        assert self.noise is not None
        return self.noise

    @property
    def reparametrisation(self) -> dict[str, Reparam]:
        """How samplers should whiten the sites: u = Lε, s = a_bᵀu + √k̄ η."""
        return {"inducing_value": TransformReparam(), "bag_evidence": LocScaleReparam(0.0)}

    # ------------------------------------------------------------------ what a model has to say

    @property
    @abstractmethod
    def variance(self) -> Parameter:
        """v, of each term of the evidence."""
        ...

    @abstractmethod
    def most_terms(self, bags: Bags) -> int:
        """How many terms the evidence of a bag has at most: its variance is at most as many v."""
        ...

    @abstractmethod
    def accumulated(self, bags: Bags, dtype: FloatType = "float64") -> SparseConditional:
        """a_b and k̄_b in whitened coordinates, a row for each bag."""
        ...

    @abstractmethod
    def conditional(self, bags: Bags) -> SparseConditional:
        """The same of bags that hold one instance each, a row for each instance."""
        ...

    # ------------------------------------------------------------------ the three programs

    def __call__(self, bags: Bags) -> None:
        """The paper's program u → s → T, or Y."""
        model = self.draw_hyperparameters()
        model._observe(model._law_given_evidence(model._draw_bag_evidence(bags)), bags)

    def marginal(self) -> Program:
        """The program with s_b integrated out.

        P(T_b = 1 | u) = E σ(s_b), or Φ(a_bᵀu/√v_b) with v_b = 1 + noise + k̄_b; or
        Y_b | u ~ N(a_bᵀu, k̄_b + noise).

        Returns
        -------
        callable
            A NumPyro program of ``bags``.
        """
        return self._marginal_program

    def augmented(self) -> Program:
        """What the closed-form bound bounds.

        Logistic: the program with s_b and the Pólya-Gamma ω_b of σ. Probit: with the latent
        utility z_b ~ N(a_bᵀu, v_b) whose sign is the label. Gaussian: nothing need be added, and
        it is ``marginal()``.

        Returns
        -------
        callable
            A NumPyro program of ``bags``.
        """
        match self.likelihood:
            case "bernoulli":
                return self._polya_gamma_program
            case "probit":
                return self._utility_program
        return self._marginal_program

    def _marginal_program(self, bags: Bags) -> None:
        model = self.draw_hyperparameters()
        location, scale = model._bag_evidence_given_inducing_values(bags)
        rule = self.quadrature_rule(scale, bags)
        model._observe(model.law_given_inducing_values(location, scale, rule), bags)

    def _polya_gamma_program(self, bags: Bags) -> None:
        evidence = self.draw_hyperparameters()._draw_bag_evidence(bags)
        with numpyro.plate("bag", bags.num_bags):
            numpyro.sample("augmentation", PolyaGamma(1, evidence))
        self._observe(self._law_given_evidence(evidence), bags)

    def _utility_program(self, bags: Bags) -> None:
        location, scale = self.draw_hyperparameters()._bag_evidence_given_inducing_values(bags)
        with numpyro.plate("bag", bags.num_bags):
            law = dist.Normal(location, jnp.sqrt(self.utility_variance(scale**2)))
            utility = numpyro.sample("latent_utility", law)
        self._observe(dist.Delta((utility > 0).astype(int)), bags)

    def utility_variance(self, residual_variance: Float[Array, "*K"]) -> Float[Array, "*K"]:
        """Of the probit's latent utility given u: v_b = 1 + noise + k̄_b."""
        return 1.0 + self.noise_variance + residual_variance

    def _bag_evidence_given_inducing_values(
        self, bags: Bags
    ) -> tuple[Float[Array, " B"], Float[Array, " B"]]:
        accumulated = self.accumulated(bags)
        inducing_value = draw_inducing_value(accumulated.cholesky)
        return accumulated.mean(inducing_value), accumulated.residual_scale

    def _draw_bag_evidence(self, bags: Bags) -> Float[Array, " B"]:
        location, scale = self._bag_evidence_given_inducing_values(bags)
        with numpyro.plate("bag", bags.num_bags):
            return numpyro.sample("bag_evidence", dist.Normal(location, scale))

    def _law_given_evidence(self, evidence: Float[Array, " B"]) -> dist.Distribution:
        match self.likelihood:
            case "bernoulli":
                return LogOddsLabel(logits=evidence)
            case "probit":
                return LogOddsLabel(
                    logits=_probit_logits(evidence / jnp.sqrt(1.0 + self.noise_variance))
                )
        return dist.Normal(evidence, jnp.sqrt(self.noise_variance))

    def law_given_inducing_values(
        self, location: Float[Array, "*K"], scale: Float[Array, "*K"], rule: QuadratureRule
    ) -> dist.Distribution:
        """The law of a label or a target where s ~ N(location, scale²).

        Parameters
        ----------
        location, scale : array
            a_bᵀu and √k̄_b.
        rule : QuadratureRule
            As from ``quadrature_rule``; used by the logistic likelihood only.

        Returns
        -------
        Distribution
        """
        if self.likelihood == "gaussian":
            return dist.Normal(location, jnp.sqrt(scale**2 + self.noise_variance))
        return LogOddsLabel(logits=self._label_logits(location, scale, rule))

    def _observe(self, law: dist.Distribution, bags: Bags) -> None:
        if self.likelihood == "gaussian":
            observed = None if bags.targets is None else jnp.asarray(bags.targets)
        else:
            observed = None if bags.labels is None else jnp.asarray(bags.labels, dtype=int)
        with numpyro.plate("bag", bags.num_bags):
            numpyro.sample(self.observed_site, law, obs=observed)

    def _label_logits(
        self, location: Float[Array, "*K"], scale: Float[Array, "*K"], rule: QuadratureRule
    ) -> Float[Array, "*K"]:
        """log P(T=1)/P(T=0) where s ~ N(location, scale²); through it both keep their digits."""
        if self.likelihood == "probit":
            return _probit_logits(location / jnp.sqrt(self.utility_variance(scale**2)))
        positive = log_expected_sigmoid(location, scale, rule)
        return positive - log_expected_sigmoid(-location, scale, rule)

    def quadrature_rule(self, scale: Float[Array, " B"], bags: Bags) -> QuadratureRule:
        """A rule that serves all these scales; traced ones by the largest that they may be."""
        if not isinstance(scale, Tracer):
            return logistic_rule(float(np.asarray(scale).max()))
        # k̄_b is at most the variance of the evidence.
        return logistic_rule(
            float(np.sqrt(self.most_terms(bags) * largest_variance(self.variance)))
        )

    # ------------------------------------------------------------------ what draws imply

    def predict(self, draws: Draws, bags: Bags) -> Draws:
        """Bags and instances under each draw, the new evidence integrated out.

        Parameters
        ----------
        draws : dict of arrays
            ``inducing_value`` (S, M), and (S,) for each hyper-parameter that has a prior.
        bags : Bags
            B bags with N instances; their labels and targets are not used.

        Returns
        -------
        dict of arrays
            Of labels: ``bag_probability`` (S, B), P(T* = 1 | u); ``instance_probability`` (S, N),
            that of a bag that holds this instance alone, as the model has no instance labels.
            Of targets: ``bag_mean`` and ``bag_scale`` (S, B) of Y* | u; ``instance_mean`` and
            ``instance_scale`` (S, N), those of a bag that holds this instance alone.
        """
        largest = float(np.max(draws.get("variance", self.variance)))
        rules = (
            logistic_rule(np.sqrt(self.most_terms(bags) * largest)),
            logistic_rule(np.sqrt(largest)),
        )
        with jax.enable_x64(True):
            sites = {name: jnp.asarray(draws[name]) for name in self.latent_sites}
            fixed = None if self.priors else (self.accumulated(bags), self.conditional(bags))
            one_draw = partial(self._predict_one, bags, rules)
            over_draws = jax.jit(lambda fixed, sites: jax.lax.map(partial(one_draw, fixed), sites))
            return {name: np.asarray(v) for name, v in over_draws(fixed, sites).items()}

    def _predict_one(
        self,
        bags: Bags,
        rules: tuple[QuadratureRule, QuadratureRule],
        fixed: tuple[SparseConditional, SparseConditional] | None,
        site: dict[str, Float[Array, "..."]],
    ) -> dict[str, Float[Array, " _"]]:
        model = self.with_hyperparameters(site)
        rows = fixed or (model.accumulated(bags), model.conditional(bags))
        bag, instance = ((r.mean(site["inducing_value"]), r.residual_scale) for r in rows)
        return model._describe_bags(*bag, rules[0]) | model._describe_instances(*instance, rules[1])

    def _describe_bags(
        self, location: Float[Array, " B"], scale: Float[Array, " B"], rule: QuadratureRule
    ) -> dict[str, Float[Array, " B"]]:
        law = self.law_given_inducing_values(location, scale, rule)
        if isinstance(law, dist.Normal):
            return {"bag_mean": law.mean, "bag_scale": law.scale}
        return {"bag_probability": law.mean}

    def _describe_instances(
        self, location: Float[Array, " N"], scale: Float[Array, " N"], rule: QuadratureRule
    ) -> dict[str, Float[Array, " N"]]:
        if self.likelihood == "gaussian":
            return {"instance_mean": location, "instance_scale": scale}
        return {"instance_probability": jax.nn.sigmoid(self._label_logits(location, scale, rule))}

    def complete(self, draws: Draws, bags: Bags, *, seed: int | Array) -> Draws:
        """Draw back what ``marginal()`` integrated out: the evidence of the bags given T or Y.

        Parameters
        ----------
        draws : dict of arrays
            As for ``predict``.
        bags : Bags
            With labels, or targets.
        seed : int or JAX key

        Returns
        -------
        dict of arrays
            The draws, with ``bag_evidence`` (S, B) added.

        Raises
        ------
        ValueError
            If the bags have no labels (or targets).
        """
        one_draw = partial(self._complete_one, bags)
        (evidence,) = self.over_draws(one_draw, draws, bags, seed)
        return dict(draws) | {"bag_evidence": evidence}

    def _complete_one(
        self, bags: Bags, key: Array, site: dict[str, Float[Array, "..."]]
    ) -> tuple[Float[Array, " B"]]:
        model = self.with_hyperparameters(site)
        accumulated = model.accumulated(bags)
        location, scale = accumulated.mean(site["inducing_value"]), accumulated.residual_scale
        if self.likelihood == "gaussian":
            return (model._draw_evidence_of_target(key, location, scale, bags),)
        sign = 2.0 * jnp.asarray(bags.labels) - 1.0
        draw = draw_tilted_gaussian if self.likelihood == "bernoulli" else self._draw_skew_gaussian
        return (sign * draw(key, sign * location, scale),)

    def _draw_evidence_of_target(
        self, key: Array, mean: Float[Array, " B"], scale: Float[Array, " B"], bags: Bags
    ) -> Float[Array, " B"]:
        """Draws of s_b | Y_b, u ~ N(a + g (Y − a), g noise) with g = k̄/(k̄ + noise)."""
        gain = scale**2 / (scale**2 + self.noise_variance)
        middle = mean + gain * (jnp.asarray(bags.targets) - mean)
        return dist.Normal(middle, jnp.sqrt(gain * self.noise_variance)).sample(key)

    def _draw_skew_gaussian(
        self, key: Array, mean: Float[Array, " B"], scale: Float[Array, " B"]
    ) -> Float[Array, " B"]:
        """Draws from p(s) ∝ N(s; a, k̄) Φ(s/√(1 + noise)), by way of z ~ N(s, 1 + noise), z > 0."""
        latent_key, evidence_key = jax.random.split(key)
        rest, variance = 1.0 + self.noise_variance, self.utility_variance(scale**2)
        deviation = jnp.sqrt(variance)
        above = draw_above(latent_key, -mean / deviation)
        noise = jax.random.normal(evidence_key, mean.shape, mean.dtype)
        # s | z ~ N(a + k̄ (z − a)/v, k̄ (1 + noise)/v)
        return mean + scale**2 / deviation * above + scale * jnp.sqrt(rest / variance) * noise


def _probit_logits(location: Float[Array, "*K"]) -> Float[Array, "*K"]:
    """log Φ(x) − log Φ(−x)."""
    return log_ndtr(location) - log_ndtr(-location)


def _problem_with_noise(likelihood: Likelihood, noise: Any) -> str:
    """What was expected in its place; empty if it is right."""
    is_number = isinstance(noise, int | float)
    match likelihood:
        case "bernoulli":
            return "" if noise is None else "that likelihood has none: leave it out"
        case "probit":
            if is_number and np.isfinite(noise) and noise >= 0:
                return ""
            return "expected a number of at least 0 (to infer it, put a prior on the variance)"
    if (is_number or isinstance(noise, dist.Distribution | Array)) and may_be_positive(noise):
        return ""
    return "expected a positive finite number or a NumPyro distribution of one, such as LogNormal"
