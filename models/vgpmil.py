"""ψ-VGPMIL: a sparse Gaussian process with instance labels and a noisy maximum over each bag."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Annotated, Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.nn import softplus
from jaxtyping import Array, Float, Num
from numpyro.infer.reparam import LocScaleReparam, Reparam, TransformReparam

from ..datasets.arguments import FINITE, Rule, instance_of
from ..datasets.bags import Bags
from ..datasets.padding import bag_weight, padded
from .model import Draws, Program, given_labels, observations, plate_of_bags, random_key
from .numerics.quadrature import (
    QuadratureRule,
    SigmoidTable,
    log_expectation,
    log_expected_sigmoid,
    logistic_rule,
    on_grid,
    sigmoid_table,
    trapezoid_rule,
)
from .numerics.tracing import as_pytree
from .parts.bag_labels import InstanceLabels, NoisyMaximum
from .parts.hyperpriors import Parameter, central_value, finite_or_prior
from .parts.scale_mixtures import GammaMixing, Mixing, PolyaGammaMixing, log_two_cosh_half
from .parts.settings import Constructor, Setting
from .parts.sparse_gp import (
    PreparedBags,
    SparseConditional,
    SparseGPModel,
    draw_inducing_value,
    largest_scale,
    largest_variance,
)
from .parts.tilted_gaussians import draw_tilted_gaussian
from .registry import register

__all__ = ["VGPMIL"]

# The prior mean by base rate: most instances, pairs of prior draws of f, and the bisection.
_MOST_FOR_MEAN = 8192
_DRAWS_FOR_MEAN = 64
_FARTHEST_MEAN = 64.0
_HALVINGS = 30

_SHARPNESS = Rule(
    "a finite number of at least 1 (the paper uses 100)",
    lambda value: FINITE.accepts(value) and bool(value >= 1),
)
_MIXING = instance_of(
    Mixing, expected="PolyaGammaMixing(), GammaMixing(alpha, beta) or a ScaleMixture"
)


@register
@as_pytree()
@dataclass(frozen=True, eq=False)
class VGPMIL(SparseGPModel):
    """Sparse-GP multiple-instance learning with instance labels and a noisy maximum.

    .. code-block:: text

        u               ~ N(0, K_ZZ)                               inducing_value (inducing_point)
        f_n | u         ~ N(μ0 + A_n u, k̃_n)                       evidence       (instance)
        y_n | f_n       ~ Bernoulli(σ(f_n))                        instance_label (instance)
        T_b | y_b       = max y_b with probability H/(H + 1)       bag_label      (bag)

    with A = K_XZ K_ZZ⁻¹ and k̃_n = k(x_n, x_n) − (A K_ZX)_nn (FITC).

    ===============  ======  =====================================================
    field            symbol  meaning
    ===============  ======  =====================================================
    kernel           k       ``RBF(variance, length_scale)``: v and ℓ
    inducing_points  Z       (M, D)
    mean             μ0      constant prior mean of f
    sharpness        H       odds that the bag label is the maximum of its y
    mixing           ψ       ``PolyaGammaMixing()`` is the logistic model above
    ===============  ======  =====================================================

    Three programs have the same posterior. Calling the model runs the paper's, with the instance
    labels summed out exactly: P(T=1|f) = [H − (H−1) p0]/(H+1), p0 = Π(1 − σ(f_n)). ``marginal()``
    has the latent values f integrated out too: only the M inducing values remain. ``augmented()``
    has the augmentation ω and the labels y as sites; the closed-form ELBO is of this program.

    Parameters
    ----------
    kernel : RBF
    inducing_points : array (M, D)
    mean : float or Distribution
        μ0; 0 as in the paper makes a new instance positive with probability ½ and long bags
        positive a priori; `for_bags` finds another. A NumPyro distribution makes it the site
        ``mean``.
    sharpness : float
        H ≥ 1.
    mixing : Mixing
        Anything but ``PolyaGammaMixing()`` is another model: p(f) ∝ N(f) Π ψ(f_n)·2cosh(f_n/2).
    jitter : float
        Added to the diagonal of K_ZZ, as a fraction of the kernel variance.

    Raises
    ------
    ValueError
        If a field is out of range.

    References
    ----------
    Castro-Macías et al. (2024), equations 1–4 and 18–22; Haußmann et al. (2017).
    """

    mean: Annotated[Parameter, finite_or_prior("Normal")] = 0.0
    sharpness: Annotated[float | Float[Array, ""], _SHARPNESS] = 100.0
    mixing: Annotated[Mixing, _MIXING] = field(default_factory=PolyaGammaMixing)

    name: ClassVar[str] = "vgpmil"
    dims: ClassVar[dict[str, tuple[str, ...]]] = {
        "inducing_value": ("inducing_point",),
        "evidence": ("instance",),
        "augmentation": ("instance",),
        "instance_label": ("instance",),
        "bag_label": ("bag",),
    }
    observation_fields: ClassVar[tuple[str, ...]] = ("mixing",)
    settings: ClassVar[Mapping[str, Setting]] = {
        "mixing": Constructor(
            {("polya_gamma", 0): PolyaGammaMixing, ("gamma", 2): GammaMixing},
            "polya_gamma, or gamma:ALPHA,BETA as in gamma:1,2.5",
        )
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.priors and not self.is_logistic:
            raise ValueError(
                f"{', '.join(self.priors)} of VGPMIL have priors, and mixing is {self.mixing}: the "
                "normalising constant of p(f) depends on them and is not known; give numbers, or "
                "use PolyaGammaMixing()"
            )

    # ------------------------------------------------------------------ constructors

    @classmethod
    def for_bags(
        cls,
        bags: Bags,
        num_inducing: int = 50,
        variance: Parameter = 5.0,
        length_scale: Parameter | None = None,
        seed: int = 0,
        *,
        mean: Parameter | None = None,
        **fields: Any,
    ) -> Self:
        """A model with defaults from the data: Z, ℓ, and μ0 by the fraction of positive bags.

        Under a prior mean of 0 nearly every bag is positive. By default μ0 is where the average
        prior probability of a positive bag is the fraction of training bags that are.

        Parameters
        ----------
        bags : Bags
            Training bags, features on comparable scales (``bags.standardize()``).
        num_inducing : int
            M, the number of inducing points.
        variance, length_scale : float or Distribution
            Of the kernel; ``length_scale=None`` means the median distance between instances.
        seed : int
            Of k-means, and of the prior draws that μ0 is found by.
        mean : float, Distribution or None
            μ0; None means `mean_by_base_rate`, and bags then need labels.
        **fields
            The other fields of the model.

        Returns
        -------
        VGPMIL

        Raises
        ------
        ValueError
            If there are fewer distinct instances than inducing points, or if μ0 is to be found and
            the bags have no labels.
        """
        model = super().for_bags(
            bags,
            num_inducing,
            variance,
            length_scale,
            seed,
            mean=0.0 if mean is None else mean,
            **fields,
        )
        return model if mean is not None else model.mean_by_base_rate(bags, seed=seed)

    @classmethod
    def as_published(cls, bags: Bags, num_inducing: int = 50, seed: int = 0, **fields: Any) -> Self:
        """A model with the paper's v = 0.5, ℓ = √D and μ0 = 0, in the place of the defaults.

        Under this prior nearly all bags are positive.

        Parameters
        ----------
        bags, num_inducing, seed
            As of `for_bags`.
        **fields
            Arguments of `for_bags` that differ from the paper.

        Returns
        -------
        VGPMIL

        References
        ----------
        Castro-Macías et al. (2024), section 5: (v, l) = (0.5, D), where our ℓ² is their l.
        """
        return super().as_published(bags, num_inducing, seed, **({"mean": 0.0} | fields))

    def mean_by_base_rate(self, bags: Bags, *, seed: int | Array) -> Self:
        """The model with the prior mean μ0 that gives positive bags their frequency.

        μ0 solves  mean_b P(max y_b = 1) = fraction of bags whose maximum is 1, by bisection; P is
        the average over prior draws of f, the same for every μ0. The fraction of positive bags is
        corrected for labels that are not the maximum, 1 in H + 1, and by half a bag at 0 and 1.
        Of more than 8,192 instances only every second, third, … bag is looked at.

        Parameters
        ----------
        bags : Bags
            With labels.
        seed : int or JAX key
            Of the prior draws.

        Returns
        -------
        VGPMIL
            With the other fields unchanged. Kernel parameters that have a prior are at its median
            here; f is the Gaussian process, whatever ψ is.

        Raises
        ------
        ValueError
            If the bags have no labels.
        """
        labels = observations(self, bags, "mean_by_base_rate")
        some = bags.select(np.arange(0, bags.num_bags, ceil(bags.num_instances / _MOST_FOR_MEAN)))
        central = {name: central_value(prior) for name, prior in self.priors.items()}
        with jax.enable_x64(True):
            model = self.with_hyperparameters(central | {"mean": 0.0})
            frequency = _frequency_of_maximum(np.asarray(labels), float(self.sharpness))
            given = padded(some.without_labels())
            mean = float(_mean_by_frequency(model, given, random_key(seed), frequency))
        return replace(self, mean=mean)

    # ------------------------------------------------------------------ hyper-parameters

    @property
    def hyperparameters(self) -> dict[str, Parameter]:
        """Hyper-parameters of the kernel, and the mean."""
        return super().hyperparameters | {"mean": self.mean}

    def with_hyperparameters(self, values: dict) -> Self:
        """Replace hyper-parameters (``variance``, ``length_scale``, ``mean``) by given values."""
        model = super().with_hyperparameters(values)
        return replace(model, mean=values.get("mean", self.mean))

    @property
    def is_logistic(self) -> bool:
        """Whether ψ is the hyperbolic secant, so that f is a Gaussian process."""
        return isinstance(self.mixing, PolyaGammaMixing)

    @property
    def observation(self) -> object:
        """``"logistic"``, or ψ where that is another one."""
        return "logistic" if self.is_logistic else self.mixing

    @property
    def is_normalised(self) -> bool:
        """Whether ψ is the hyperbolic secant: with another p(f) has an unknown constant."""
        return self.is_logistic

    @property
    def companions(self) -> Mapping[str, Self]:
        """The logistic model for other ψ, whose posteriors may drift to infinity."""
        return {} if self.is_logistic else {"logistic": replace(self, mixing=PolyaGammaMixing())}

    @property
    def reparametrisation(self) -> dict[str, Reparam]:
        """How samplers should whiten the sites: u = Lε, f = μ0 + Au + √k̃ η."""
        return {"inducing_value": TransformReparam(), "evidence": LocScaleReparam(0.0)}

    # ------------------------------------------------------------------ the three programs

    def __call__(self, bags: Bags | PreparedBags) -> None:
        """The paper's program u → f → T, instance labels summed out exactly."""
        given = self.unpadded(bags)
        location, scale = self._evidence_given_inducing_values(given)
        with numpyro.plate("instance", scale.shape[0]):
            evidence = numpyro.sample("evidence", dist.Normal(location, scale))
        self._reweight_evidence(evidence, given.bags)
        # log p0 = −Σ softplus(f_n)
        log_none_positive = _sum_over_bags(-softplus(evidence), given.bags)
        self._observe_bag_labels(log_none_positive, given.bags)

    def marginal(self) -> Program:
        """The program with f integrated out: only u and hyper-parameters with priors remain.

        P(T|f) is linear in p0, and given u the f_n are independent, so
        P(T=1|u) = [H − (H−1) Π_n E(1 − σ(f_n))]/(H + 1). For any other ψ, with
        g_y(f) = ψ(f) e^{(y−½)f}, sums over y become Π E[g_0 + g_1] and Π E[g_0].

        Returns
        -------
        callable
            A NumPyro program of ``bags``.
        """
        return self._marginal_program

    def augmented(self) -> Program:
        """The program with ω and the instance labels as sites, as the closed-form ELBO has them.

        Returns
        -------
        callable
            A NumPyro program of ``bags``.

        Raises
        ------
        NotImplementedError
            If the mixing distribution p(ω) is not known.
        """
        self.mixing.conditional(jnp.zeros(1))  # raises where p(ω) is not known
        return self._augmented_program

    def _marginal_program(self, bags: Bags | PreparedBags) -> None:
        given = self.unpadded(bags)
        location, scale = self._evidence_given_inducing_values(given)
        if self.is_logistic:
            log_negative = log_expected_sigmoid(-location, scale, given.rule)
            log_none_positive = _sum_over_bags(log_negative, given.bags)
        else:
            assert isinstance(given.rule, QuadratureRule)  # only the logistic model has a table
            log_none, log_any = _mixing_integrals(self.mixing, location, scale, given.rule)
            by_bag = _sum_over_bags(log_any, given.bags)
            if given.bags.present is not None:
                by_bag = jnp.where(given.bags.present, by_bag, 0.0)
            numpyro.factor("mixing", by_bag)
            log_none_positive = _sum_over_bags(log_none - log_any, given.bags)
        self._observe_bag_labels(log_none_positive, given.bags)

    def _augmented_program(self, bags: Bags | PreparedBags) -> None:
        given = self.unpadded(bags)
        location, scale = self._evidence_given_inducing_values(given)
        with numpyro.plate("instance", scale.shape[0]):
            evidence = numpyro.sample("evidence", dist.Normal(location, scale))
            numpyro.sample("augmentation", self.mixing.conditional(evidence))
        # y_n ~ Bernoulli(σ(f_n)) and ω_n | f_n make up p(y, ω | f) of the paper's eq. 6. The labels
        # are one event: under the exact q(y) those of a bag are dependent.
        label = numpyro.sample("instance_label", dist.Bernoulli(logits=evidence).to_event(1))
        self._reweight_evidence(evidence, given.bags)
        positives = _sum_over_bags(label, given.bags)
        self._observe_bag_labels(jnp.where(positives > 0, -jnp.inf, 0.0), given.bags)

    def _evidence_given_inducing_values(
        self, given: PreparedBags
    ) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
        model = self.draw_hyperparameters()
        conditional = model.given_inducing_values(given)
        inducing_value = draw_inducing_value(conditional.cholesky)
        return model.mean + conditional.mean(inducing_value), conditional.residual_scale

    def _reweight_evidence(self, evidence: Float[Array, " N"], bags: Bags) -> None:
        if not self.is_logistic:  # p(f) ∝ N(f) ψ(f)/φ(f)
            log_ratio = self.mixing.log_density(evidence) + log_two_cosh_half(evidence)
            is_there = jnp.asarray(bag_weight(bags))[jnp.asarray(bags.bag_index)]
            numpyro.factor("mixing", is_there * log_ratio)

    def _observe_bag_labels(self, log_none_positive: Float[Array, " B"], bags: Bags) -> None:
        with plate_of_bags(bags):
            label_distribution = NoisyMaximum(log_none_positive, self.sharpness)
            numpyro.sample("bag_label", label_distribution, obs=given_labels(bags))

    def conditional_of_rows(self, bags: Any) -> SparseConditional:
        """Conditional distribution of the instances given the inducing values."""
        return self.conditional(bags)

    def rule_for(
        self, conditional: SparseConditional | None, bags: Bags
    ) -> QuadratureRule | SigmoidTable:
        """Quadrature rule for E σ(f), or for the integrals over ψ(f) e^{±f/2}."""
        if conditional is None:
            return self._rule(np.sqrt(largest_variance(self.kernel.variance)))
        rule = self._rule(float(np.asarray(conditional.residual_scale).max()))
        return sigmoid_table(conditional.residual_scale, rule) if self.is_logistic else rule

    def _rule(self, largest: float) -> QuadratureRule:
        if self.is_logistic:
            return logistic_rule(largest)
        return trapezoid_rule(
            on_grid(largest), distance_to_pole=self.mixing.distance_to_pole, tilt=(0.5, 0.5)
        )

    # ------------------------------------------------------------------ predictions

    def predict(self, draws: Draws, bags: Bags) -> Draws:
        """Bag and instance probabilities under each draw; new latent values are integrated out.

        Parameters
        ----------
        draws : dict of arrays
            ``inducing_value`` (S, M), and (S,) for each hyper-parameter that has a prior.
        bags : Bags
            B bags with N instances; their labels are not used.

        Returns
        -------
        dict of arrays
            ``bag_probability`` (S, B): P(T* = 1 | u); ``instance_probability`` (S, N):
            E[σ(f*) | u].

        Notes
        -----
        For any ψ new latent values follow the Gaussian conditional, and labels the logistic
        function, as in the paper's equations 33 and 37.
        """
        sites = {name: np.asarray(draws[name]) for name in self.latent_sites}
        with jax.enable_x64(True):
            rule = logistic_rule(largest_scale(draws, self.kernel.variance))
            given = PreparedBags(padded(bags.without_labels()), None, rule)
            bag, instance = (np.asarray(found) for found in _predict(self, given, sites))
        return {
            "bag_probability": bag[:, : bags.num_bags],
            "instance_probability": instance[:, : bags.num_instances],
        }

    def complete(self, draws: Draws, bags: Bags, *, seed: int | Array) -> Draws:
        """Draw the latent values and instance labels, which ``marginal()`` summed out, given T.

        Given u and T the labels of a bag have an exact joint distribution (``InstanceLabels`` with
        logits of E σ(f_n)), and each f_n | u, y_n ∝ N(f; a_n, k̃_n) σ(±f) is drawn by rejection
        from the Gaussian proposal of its tangent bound.

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
            The draws, with ``evidence`` (S, N) and ``instance_label`` (S, N) added.

        Raises
        ------
        ValueError
            If the bags have no labels.
        NotImplementedError
            If ψ is not the hyperbolic secant.
        """
        if not self.is_logistic:
            raise NotImplementedError(
                f"complete() knows the logistic model only, not mixing={self.mixing}; sample the "
                "evidence with nuts(..., program='full') or gibbs instead"
            )
        evidence, label = self.completed(draws, bags, seed)
        rows = slice(bags.num_instances)
        return dict(draws) | {"evidence": evidence[:, rows], "instance_label": label[:, rows]}

    def complete_one(
        self, given: PreparedBags, key: Array, site: dict[str, Float[Array, "..."]]
    ) -> tuple[Float[Array, " N"], Array]:
        """Latent values and instance labels of one draw."""
        model, bags = self.with_hyperparameters(site), given.bags
        conditional = model.given_inducing_values(given)
        location = model.mean + conditional.mean(site["inducing_value"])
        scale = conditional.residual_scale
        logits = log_expected_sigmoid(location, scale, given.rule) - log_expected_sigmoid(
            -location, scale, given.rule
        )
        label_key, evidence_key = jax.random.split(key)
        label_distribution = InstanceLabels(
            logits,
            jnp.asarray(bags.bag_index),
            jnp.asarray(bags.labels),
            self.sharpness,
            bags.num_bags,
        )
        label = label_distribution.sample(label_key)
        sign = 2.0 * label - 1.0
        positive = draw_tilted_gaussian(evidence_key, sign * location, scale)
        return sign * positive, label


def _frequency_of_maximum(labels: np.ndarray, sharpness: float) -> float:
    """Fraction of bags with a positive instance, were 1 in H + 1 of the labels the other one."""
    fraction = float(labels.mean())
    if sharpness > 1:
        fraction = ((sharpness + 1) * fraction - 1) / (sharpness - 1)
    least = 0.5 / (len(labels) + 1)
    return min(max(fraction, least), 1 - least)


@jax.jit
def _mean_by_frequency(
    model: VGPMIL, bags: Bags, key: Array, frequency: float | Array
) -> Float[Array, ""]:
    """μ0 with an average prior probability of a positive instance in a bag of ``frequency``."""
    conditional = model.conditional(bags)
    for_inducing, for_instances = jax.random.split(key)
    whitened = jax.random.normal(for_inducing, (model.num_inducing, _DRAWS_FOR_MEAN))
    noise = jax.random.normal(for_instances, (bags.num_instances, _DRAWS_FOR_MEAN))
    centred = conditional.projection @ whitened + conditional.residual_scale[:, None] * noise
    centred = jnp.concatenate([centred, -centred], axis=1)  # f and −f are as likely
    weight = jnp.asarray(bag_weight(bags))

    def halve(_: Array, between: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = between
        middle = (low + high) / 2
        log_none_positive = _sum_over_bags(-softplus(middle + centred), bags)
        found = jnp.average(-jnp.expm1(log_none_positive).mean(axis=1), weights=weight)
        is_low = found < frequency
        return jnp.where(is_low, middle, low), jnp.where(is_low, high, middle)

    farthest = jnp.asarray(_FARTHEST_MEAN)
    low, high = jax.lax.fori_loop(0, _HALVINGS, halve, (-farthest, farthest))
    return (low + high) / 2


def _sum_over_bags(values: Num[Array, "N ..."], bags: Bags) -> Num[Array, "B ..."]:
    return jax.ops.segment_sum(
        values,
        jnp.asarray(bags.bag_index, dtype=int),
        num_segments=bags.num_bags,
        indices_are_sorted=True,
    )


def _mixing_integrals(
    mixing: Mixing, location: Float[Array, " N"], scale: Float[Array, " N"], rule: QuadratureRule
) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
    """log E g_0 and log E (g_0 + g_1), with g_y(f) = ψ(f) e^{(y−½)f}."""

    def log_negative(f: Float[Array, "..."]) -> Float[Array, "..."]:
        return mixing.log_density(f) - 0.5 * f

    def log_either(f: Float[Array, "..."]) -> Float[Array, "..."]:
        return mixing.log_density(f) + log_two_cosh_half(f)

    log_none = log_expectation(log_negative, location, scale, rule)
    return log_none, log_expectation(log_either, location, scale, rule)


@jax.jit
def _predict(
    model: VGPMIL, given: PreparedBags, sites: dict[str, Float[Array, "S ..."]]
) -> tuple[Float[Array, "S B"], Float[Array, "S N"]]:
    """P(T* = 1 | u) and E[σ(f*) | u] for every draw."""
    if not model.priors:  # the same for all draws
        assert isinstance(given.rule, QuadratureRule)
        conditional = model.conditional(given.bags)
        table = sigmoid_table(conditional.residual_scale, given.rule)
        given = given._replace(conditional=conditional, rule=table)

    def one(site: dict[str, Float[Array, "..."]]) -> tuple[Float[Array, " B"], Float[Array, " N"]]:
        drawn = model.with_hyperparameters(site)
        conditional = drawn.given_inducing_values(given)
        location = drawn.mean + conditional.mean(site["inducing_value"])
        log_negative = log_expected_sigmoid(-location, conditional.residual_scale, given.rule)
        bag = NoisyMaximum(_sum_over_bags(log_negative, given.bags), drawn.sharpness).mean
        return bag, -jnp.expm1(log_negative)

    return jax.lax.map(one, sites)  # one by one: blocks of draws would leave the cache
