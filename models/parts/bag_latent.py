"""Models whose bags have a latent function value, Gaussian given the inducing values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.infer.reparam import LocScaleReparam, Reparam, TransformReparam

from ...datasets.arguments import instance_of
from ...datasets.bags import Bags
from ...datasets.padding import padded
from ..model import Draws, Program, plate_of_bags
from ..numerics.quadrature import QuadratureRule, SigmoidTable
from .hyperpriors import Parameter
from .likelihoods import LIKELIHOODS, Likelihood, Logistic, Observations
from .settings import Constructor, Setting
from .sparse_gp import (
    InducingModel,
    PreparedBags,
    SparseConditional,
    draw_inducing_value,
    largest_scale,
)

__all__ = ["BagLatentModel", "FloatType"]

type FloatType = Literal["float64", "float32"]

# Observed site by the part of `Bags` that holds its values.
_SITES = {"labels": "bag_label", "targets": "bag_target"}
_LIKELIHOOD = instance_of(
    Likelihood,
    expected="a likelihood of milzoo.models, one of "
    + ", ".join(f"{one.__name__}()" for one in LIKELIHOODS.values()),
)


@dataclass(frozen=True, eq=False)
class BagLatentModel(InducingModel, ABC):
    """Base of models with a Gaussian latent function value s_b of each bag, for any kernel.

    .. code-block:: text

        u               ~ N(0, K)                                  inducing_value (inducing_point)
        s_b | u         ~ N(a_bᵀu, k̄_b)                            bag_latent   (bag)
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

    likelihood: Annotated[Likelihood, _LIKELIHOOD] = field(default=Logistic(), kw_only=True)

    observation_fields: ClassVar[tuple[str, ...]] = ("likelihood",)
    settings: ClassVar[Mapping[str, Setting]] = {
        "likelihood": Constructor(
            {
                (word, number): kind
                for word, kind in LIKELIHOODS.items()
                for number in range(len(fields(kind)) + 1)
            },
            f"one of {', '.join(LIKELIHOODS)}, with its numbers as in student_t:4,0.5",
        )
    }

    dims: ClassVar[dict[str, tuple[str, ...]]] = {
        "inducing_value": ("inducing_point",),
        "bag_latent": ("bag",),
        "augmentation": ("bag",),
        "latent_utility": ("bag",),
        "bag_label": ("bag",),
        "bag_target": ("bag",),
    }

    @property
    def observed_site(self) -> str:
        """``bag_label`` or ``bag_target``, by what the likelihood observes."""
        return _SITES[self.likelihood.observed_part]

    @property
    def observation(self) -> str:
        """The name of the likelihood on the command line."""
        return self.likelihood.name

    @property
    def hyperparameters(self) -> dict[str, Parameter]:
        """Hyper-parameters of the kernel and of the likelihood."""
        return super().hyperparameters | self.likelihood.hyperparameters

    def with_hyperparameters(self, values: dict) -> Self:
        """Replace hyper-parameters, of the kernel or the likelihood, by given values."""
        model = super().with_hyperparameters(values)
        return replace(model, likelihood=self.likelihood.with_values(values))

    def singles_without_hyperparameters(self, bags: Bags) -> Any:
        """Inputs of `conditional` that no hyper-parameter changes."""
        return bags

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
        return {"inducing_value": TransformReparam(), "bag_latent": LocScaleReparam(0.0)}

    # ------------------------------------------------------------------ what a model defines

    @abstractmethod
    def most_terms(self, bags: Bags) -> int:
        """Largest number of terms in s_b, each of at most the `largest_variance`."""
        ...

    @abstractmethod
    def accumulated(
        self, bags: Bags, dtype: FloatType = "float64", projector: Any = None
    ) -> SparseConditional:
        """a_b and k̄_b in whitened coordinates, a row for each bag."""
        ...

    @abstractmethod
    def conditional(self, bags: Bags) -> SparseConditional:
        """a and k̄ of bags of one instance each, a row for each instance."""
        ...

    # ------------------------------------------------------------------ preparation

    def conditional_of_rows(self, bags: Any) -> SparseConditional:
        """Conditional distribution of the bags given the inducing values."""
        return self.accumulated(bags)

    def rule_for(
        self, conditional: SparseConditional | None, bags: Bags
    ) -> QuadratureRule | SigmoidTable:
        """Quadrature rule of the likelihood given u, for all residual scales."""
        if conditional is not None:
            largest = float(np.asarray(conditional.residual_scale).max())
            rule = self.likelihood.quadrature_rule(largest)
            return self.likelihood.tabulated(rule, conditional.residual_scale)
        # k̄_b is at most the prior variance of s_b.
        return self.likelihood.quadrature_rule(
            float(np.sqrt(self.most_terms(bags) * self.largest_variance(bags, {})))
        )

    # ------------------------------------------------------------------ the three programs

    def __call__(self, bags: Bags | PreparedBags) -> None:
        """The paper's program u → s → T, or Y."""
        given = self.unpadded(bags)
        model = self.draw_hyperparameters()
        location, scale = model._bag_latent_given_inducing_values(given)
        with numpyro.plate("bag", given.bags.num_bags):
            latent = numpyro.sample("bag_latent", dist.Normal(location, scale))
        with plate_of_bags(given.bags):
            observation = model.likelihood.distribution(latent)
            numpyro.sample(model.observed_site, observation, obs=model._observed(given.bags))

    def marginal(self) -> Program:
        """The program with s_b integrated out, in closed form or by a 1-D integral for each bag.

        Returns
        -------
        callable
            A NumPyro program of ``bags``.
        """
        return self._marginal_program

    def augmented(self) -> Program:
        """The program with the auxiliary variables of the likelihood, as the ELBO has them.

        Logistic and negative binomial: s_b and a Pólya-Gamma ω_b. Student-t: s_b and a Gamma ω_b.
        Probit: the latent utility z_b ~ N(a_bᵀu, v_b) whose sign is the label. Gaussian: none.

        Returns
        -------
        callable
            A NumPyro program of ``bags``.
        """
        return self._augmented_program

    def _marginal_program(self, bags: Bags | PreparedBags) -> None:
        given = self.unpadded(bags)
        model = self.draw_hyperparameters()
        location, scale = model._bag_latent_given_inducing_values(given)
        observation = model.likelihood.marginal_distribution(location, scale, given.rule)
        with plate_of_bags(given.bags):
            numpyro.sample(model.observed_site, observation, obs=model._observed(given.bags))

    def _augmented_program(self, bags: Bags | PreparedBags) -> None:
        given = self.unpadded(bags)
        model = self.draw_hyperparameters()
        location, scale = model._bag_latent_given_inducing_values(given)
        with numpyro.plate("bag", given.bags.num_bags):
            model.likelihood.sample_augmented(
                location,
                scale,
                model._observed(given.bags),
                latent_site="bag_latent",
                observed_site=model.observed_site,
            )

    def _observed(self, bags: Bags) -> Array | None:
        """Labels or targets, or None where they are to be drawn."""
        if self.likelihood.observed_part == "labels":
            return None if bags.labels is None else jnp.asarray(bags.labels, dtype=int)
        return None if bags.targets is None else jnp.asarray(bags.targets)

    def _bag_latent_given_inducing_values(
        self, given: PreparedBags
    ) -> tuple[Float[Array, " B"], Float[Array, " B"]]:
        conditional = self.given_inducing_values(given)
        inducing_value = draw_inducing_value(conditional.cholesky)
        return conditional.mean(inducing_value), conditional.residual_scale

    # ------------------------------------------------------------------ predictions

    def predict(self, draws: Draws, bags: Bags) -> Draws:
        """Predict bags and instances under each draw; their latent values are integrated out.

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
        sites = {name: np.asarray(draws[name]) for name in self.latent_sites}
        with jax.enable_x64(True):
            given = padded(bags.without_labels())
            rows = self.without_hyperparameters(given), self.singles_without_hyperparameters(given)
            by_bag, by_instance = (
                PreparedBags(
                    given, None, self.likelihood.quadrature_rule(scale), None if of is given else of
                )
                for of, scale in zip(rows, self._largest_scales(sites, given), strict=True)
            )
            found = _predict(self, by_bag, by_instance, sites)
            return {
                name: np.asarray(of)[
                    :, : bags.num_bags if name.startswith("bag") else bags.num_instances
                ]
                for name, of in found.items()
            }

    def _largest_scales(self, draws: Draws, bags: Bags) -> tuple[float, float]:
        """The largest residual sd of bags, and of single instances."""
        largest = self.largest_variance(bags, draws)
        return largest_scale(largest, self.most_terms(bags)), largest_scale(largest)

    def predict_one(
        self, by_bag: PreparedBags, by_instance: PreparedBags, site: dict[str, Float[Array, "..."]]
    ) -> dict[str, Float[Array, " _"]]:
        """Bags and instances under one draw, traced."""
        model, value = self.with_hyperparameters(site), site["inducing_value"]
        bags = by_bag.conditional or model.accumulated(by_bag.conditioned_on)
        instances = by_instance.conditional or model.conditional(by_instance.conditioned_on)
        return model._describe_bags(
            bags.mean(value), bags.residual_scale, by_bag.rule
        ) | model._describe_instances(
            instances.mean(value), instances.residual_scale, by_instance.rule
        )

    def _describe_bags(
        self,
        location: Float[Array, " B"],
        scale: Float[Array, " B"],
        rule: QuadratureRule | SigmoidTable,
    ) -> dict[str, Float[Array, " B"]]:
        predictive = self.likelihood.marginal_distribution(location, scale, rule)
        if self.likelihood.observed_part == "labels":
            return {"bag_probability": predictive.mean}
        # Student-t targets with ν ≤ 1 have no mean, but are symmetric about one value.
        centre = jnp.where(jnp.isnan(predictive.mean), location, predictive.mean)
        described = {"bag_mean": centre, "bag_scale": jnp.sqrt(predictive.variance)}
        if not isinstance(predictive, dist.Normal):
            described |= {"bag_latent_mean": location, "bag_latent_scale": scale}
        return described

    def _describe_instances(
        self,
        location: Float[Array, " N"],
        scale: Float[Array, " N"],
        rule: QuadratureRule | SigmoidTable,
    ) -> dict[str, Float[Array, " N"]]:
        if self.likelihood.observed_part == "targets":
            return {"instance_mean": location, "instance_scale": scale}
        predictive = self.likelihood.marginal_distribution(location, scale, rule)
        return {"instance_probability": predictive.mean}

    def complete(self, draws: Draws, bags: Bags, *, seed: int | Array) -> Draws:
        """Draw the latent values s_b, which ``marginal()`` integrated out, given T or Y.

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
            The draws, with ``bag_latent`` (S, B) added.

        Raises
        ------
        ValueError
            If the bags have no labels (or targets).
        """
        (latent,) = self.completed(draws, bags, seed)
        return dict(draws) | {"bag_latent": latent[:, : bags.num_bags]}

    def complete_one(
        self, given: PreparedBags, key: Array, site: dict[str, Float[Array, "..."]]
    ) -> tuple[Float[Array, " B"]]:
        """Latent values of the bags for one draw."""
        model = self.with_hyperparameters(site)
        conditional = model.given_inducing_values(given)
        observed = model._observed(given.bags)
        assert observed is not None  # `complete` has checked it
        location = conditional.mean(site["inducing_value"])
        return (model.likelihood.draw_latent(key, observed, location, conditional.residual_scale),)


@jax.jit
def _predict(
    model: BagLatentModel,
    by_bag: PreparedBags,
    by_instance: PreparedBags,
    sites: dict[str, Float[Array, "S ..."]],
) -> dict[str, Float[Array, "S _"]]:
    if not model.priors:  # the same for all draws
        by_bag = _fixed(model, by_bag, model.accumulated(by_bag.conditioned_on))
        by_instance = _fixed(model, by_instance, model.conditional(by_instance.conditioned_on))
    return jax.lax.map(lambda site: model.predict_one(by_bag, by_instance, site), sites)


def _fixed(
    model: BagLatentModel, given: PreparedBags, conditional: SparseConditional
) -> PreparedBags:
    assert isinstance(given.rule, QuadratureRule)
    rule = model.likelihood.tabulated(given.rule, conditional.residual_scale)
    return given._replace(conditional=conditional, rule=rule)
