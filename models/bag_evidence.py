"""Models whose bags have an evidence that is Gaussian given the values at inducing points."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.core import Tracer
from jaxtyping import Array, Float
from numpyro.infer.reparam import LocScaleReparam, Reparam, TransformReparam

from ..datasets.bags import Bags
from .gaussian_integrals import QuadratureRule
from .kernels import Parameter
from .likelihoods import LIKELIHOODS, Likelihood, Logistic, Observations
from .model import Draws, Program
from .sparse_gp import (
    InducingModel,
    SparseConditional,
    draw_inducing_value,
    largest_variance,
)

__all__ = ["BagEvidenceModel", "FloatType"]

type FloatType = Literal["float64", "float32"]

# The observed site by the part of `Bags` that it is observed from.
_SITES = {"labels": "bag_label", "targets": "bag_target"}


@dataclass(frozen=True, eq=False)
class BagEvidenceModel(InducingModel, ABC):
    """What models of a Gaussian evidence of each bag have in common, whatever its kernel.

    .. code-block:: text

        u               ~ N(0, K)                                  inducing_value (inducing_point)
        s_b | u         ~ N(a_bᵀu, k̄_b)                            bag_evidence   (bag)
        T_b | s_b       ~ likelihood                               bag_label      (bag)
        or Y_b | s_b    ~ likelihood                               bag_target     (bag)

    Parameters
    ----------
    likelihood : Likelihood
        Of labels ``Logistic()`` or ``Probit()``; of targets ``Gaussian()``, ``StudentT()`` or
        ``NegativeBinomial()``.

    Raises
    ------
    ValueError
        If a field is out of range.
    """

    likelihood: Likelihood = field(default=Logistic(), kw_only=True)

    dims: ClassVar[dict[str, tuple[str, ...]]] = {
        "inducing_value": ("inducing_point",),
        "bag_evidence": ("bag",),
        "augmentation": ("bag",),
        "latent_utility": ("bag",),
        "bag_label": ("bag",),
        "bag_target": ("bag",),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        # JAX puts bare objects where it unflattens pytrees of placeholders.
        if not isinstance(self.likelihood, Likelihood) and type(self.likelihood) is not object:
            known = ", ".join(f"{one.__name__}()" for one in LIKELIHOODS.values())
            raise ValueError(
                f"{type(self).__name__} likelihood is {self.likelihood!r}; expected a likelihood "
                f"of milzoo.models, one of {known}"
            )

    @property
    def observed_site(self) -> str:
        """``bag_label`` or ``bag_target``, by what the likelihood observes."""
        return _SITES[self.likelihood.observed_part]

    @property
    def hyperparameters(self) -> dict[str, Parameter]:
        """Those of the kernel and of the likelihood."""
        return super().hyperparameters | self.likelihood.hyperparameters

    def with_hyperparameters(self, values: dict) -> Self:
        """Replace hyper-parameters, of the kernel or the likelihood, by given values."""
        model = super().with_hyperparameters(values)
        return replace(model, likelihood=self.likelihood.with_values(values))

    def check_observed(self, values: Observations) -> None:
        """Refuse labels or targets that the likelihood cannot have produced.

        Raises
        ------
        ValueError
        """
        self.likelihood.check_observed(values)

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
        location, scale = model._bag_evidence_given_inducing_values(bags)
        with numpyro.plate("bag", bags.num_bags):
            evidence = numpyro.sample("bag_evidence", dist.Normal(location, scale))
            observation = model.likelihood.distribution(evidence)
            numpyro.sample(model.observed_site, observation, obs=model._observed(bags))

    def marginal(self) -> Program:
        """The program with s_b integrated out, in closed form or by a 1-D integral for each bag.

        Returns
        -------
        callable
            A NumPyro program of ``bags``.
        """
        return self._marginal_program

    def augmented(self) -> Program:
        """The program with the auxiliary variables of the likelihood, which the ELBO is of.

        Logistic and negative binomial: s_b and a Pólya-Gamma ω_b. Student-t: s_b and a Gamma ω_b.
        Probit: the latent utility z_b ~ N(a_bᵀu, v_b) whose sign is the label. Gaussian: none.

        Returns
        -------
        callable
            A NumPyro program of ``bags``.
        """
        return self._augmented_program

    def _marginal_program(self, bags: Bags) -> None:
        model = self.draw_hyperparameters()
        location, scale = model._bag_evidence_given_inducing_values(bags)
        rule = self.quadrature_rule(scale, bags)
        observation = model.likelihood.marginal_distribution(location, scale, rule)
        with numpyro.plate("bag", bags.num_bags):
            numpyro.sample(model.observed_site, observation, obs=model._observed(bags))

    def _augmented_program(self, bags: Bags) -> None:
        model = self.draw_hyperparameters()
        location, scale = model._bag_evidence_given_inducing_values(bags)
        with numpyro.plate("bag", bags.num_bags):
            model.likelihood.sample_augmented(
                location,
                scale,
                model._observed(bags),
                latent_site="bag_evidence",
                observed_site=model.observed_site,
            )

    def _observed(self, bags: Bags) -> Array | None:
        """Labels or targets, or None where they are to be drawn."""
        if self.likelihood.observed_part == "labels":
            return None if bags.labels is None else jnp.asarray(bags.labels, dtype=int)
        return None if bags.targets is None else jnp.asarray(bags.targets)

    def _bag_evidence_given_inducing_values(
        self, bags: Bags
    ) -> tuple[Float[Array, " B"], Float[Array, " B"]]:
        accumulated = self.accumulated(bags)
        inducing_value = draw_inducing_value(accumulated.cholesky)
        return accumulated.mean(inducing_value), accumulated.residual_scale

    def quadrature_rule(self, scale: Float[Array, " B"], bags: Bags) -> QuadratureRule:
        """A rule that serves all these scales; traced ones by the largest that they may be."""
        if not isinstance(scale, Tracer):
            return self.likelihood.quadrature_rule(float(np.asarray(scale).max()))
        # k̄_b is at most the variance of the evidence.
        return self.likelihood.quadrature_rule(
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
            ``instance_scale`` (S, N) of f*_n | u, the latent value of a bag that holds this
            instance alone. Of targets that are not Gaussian given u also ``bag_latent_mean`` and
            ``bag_latent_scale`` (S, B), of s* | u.
        """
        largest = float(np.max(draws.get("variance", self.variance)))
        rules = (
            self.likelihood.quadrature_rule(float(np.sqrt(self.most_terms(bags) * largest))),
            self.likelihood.quadrature_rule(float(np.sqrt(largest))),
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
        predictive = self.likelihood.marginal_distribution(location, scale, rule)
        if self.likelihood.observed_part == "labels":
            return {"bag_probability": predictive.mean}
        described = {"bag_mean": predictive.mean, "bag_scale": jnp.sqrt(predictive.variance)}
        if not isinstance(predictive, dist.Normal):
            described |= {"bag_latent_mean": location, "bag_latent_scale": scale}
        return described

    def _describe_instances(
        self, location: Float[Array, " N"], scale: Float[Array, " N"], rule: QuadratureRule
    ) -> dict[str, Float[Array, " N"]]:
        if self.likelihood.observed_part == "targets":
            return {"instance_mean": location, "instance_scale": scale}
        predictive = self.likelihood.marginal_distribution(location, scale, rule)
        return {"instance_probability": predictive.mean}

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
        observed = model._observed(bags)
        assert observed is not None  # `complete` has checked it
        location, scale = accumulated.mean(site["inducing_value"]), accumulated.residual_scale
        return (model.likelihood.draw_latent(key, observed, location, scale),)
