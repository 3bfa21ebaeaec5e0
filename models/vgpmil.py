"""ψ-VGPMIL: a sparse Gaussian process with instance labels and a noisy maximum over each bag."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.nn import softplus
from jaxtyping import Array, Float, Key, Num

from ..datasets.arguments import FINITE, Rule, check, instance_of, is_whole
from ..datasets.bags import Bags
from ..datasets.padding import bag_weight, padded
from .model import Draws, Program, given_labels, plate_of_bags, random_key
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
from .parts.instance_gp import InstanceGPModel, inside_the_unit_interval
from .parts.scale_mixtures import (
    GammaScaleMixture,
    GaussianScaleMixture,
    PolyaGammaScaleMixture,
    log_two_cosh_half,
)
from .parts.settings import Constructor, Setting
from .parts.sparse_gp import (
    PreparedBags,
    SparseConditional,
    largest_scale,
)
from .parts.tilted_gaussians import draw_tilted_gaussian
from .parts.witnesses import sum_over_bags
from .registry import register

__all__ = ["VGPMIL"]

_SHARPNESS = Rule(
    "a finite number of at least 1 (the paper uses 100)",
    lambda value: FINITE.accepts(value) and bool(value >= 1),
)
_AT_LEAST_TWO = Rule("an integer of at least 2", lambda value: is_whole(value) and bool(value >= 2))
_SCALE_MIXTURE = instance_of(
    GaussianScaleMixture,
    expected="PolyaGammaScaleMixture(), GammaScaleMixture(alpha, beta) or a ScaleMixture",
)


@register
@as_pytree()
@dataclass(frozen=True, eq=False)
class VGPMIL(InstanceGPModel):
    """Sparse-GP multiple-instance learning with instance labels and a noisy maximum.

    .. code-block:: text

        u               ~ N(0, K_ZZ)                               inducing_value (inducing_point)
        f_n | u         ~ N(μ0 + A_n u, k̃_n)                       latent       (instance)
        y_n | f_n       ~ Bernoulli(σ(f_n))                        instance_label (instance)
        T_b | y_b       = max y_b with probability H/(H + 1)       bag_label      (bag)

    with A = K_XZ K_ZZ⁻¹ and k̃_n = k(x_n, x_n) − (A K_ZX)_nn (FITC).

    ===============  ======  =====================================================
    field            symbol  meaning
    ===============  ======  =====================================================
    kernel           k       such as ``RBF(variance, length_scale)``: v and ℓ
    inducing_points  Z       (M, D)
    mean             μ0      constant prior mean of f
    sharpness        H       odds that the bag label is the maximum of its y
    scale_mixture    ψ       ``PolyaGammaScaleMixture()`` is the logistic model above
    ===============  ======  =====================================================

    Three programs have the same posterior. Calling the model runs the paper's, with the instance
    labels summed out exactly: P(T=1|f) = [H − (H−1) p0]/(H+1), p0 = Π(1 − σ(f_n)). ``marginal()``
    has the latent values f integrated out too: only the M inducing values remain. ``augmented()``
    has the augmentation ω and the labels y as sites; the closed-form ELBO is of this program.

    Parameters
    ----------
    kernel : Kernel
        Such as ``RBF(variance, length_scale)``.
    inducing_points : array (M, D)
    mean : float or Distribution
        μ0; 0 as in the paper makes a new instance positive with probability ½ and long bags
        positive a priori; `for_bags` finds another. A NumPyro distribution makes it the site
        ``mean``.
    sharpness : float
        H ≥ 1.
    scale_mixture : GaussianScaleMixture
        ``PolyaGammaScaleMixture()`` is the logistic model. Any other mixture gives another model:
        p(f) ∝ N(f) Π ψ(f_n)·2cosh(f_n/2).
    jitter : float
        Added to the diagonal of K_ZZ, as a fraction of the average number there.

    Raises
    ------
    ValueError
        If a field is out of range.

    References
    ----------
    Castro-Macías et al. (2024), equations 1–4 and 18–22; Haußmann et al. (2017).

    Examples
    --------
    >>> from milzoo.datasets import load
    >>> from milzoo.inference import coordinate_ascent
    >>> from milzoo.models import VGPMIL
    >>> train, test = load("digits").standardize().split(0.7, seed=0)
    >>> prediction = coordinate_ascent(VGPMIL.for_bags(train), train, seed=0).predict(test)
    >>> test.labels[:4], prediction.bag_probability[:4].round(1)
    (array([1, 0, 1, 1]), array([0.6, 0.4, 0.7, 0.4]))
    """

    sharpness: Annotated[float | Float[Array, ""], _SHARPNESS] = 100.0
    scale_mixture: Annotated[GaussianScaleMixture, _SCALE_MIXTURE] = field(
        default_factory=PolyaGammaScaleMixture
    )

    name: ClassVar[str] = "vgpmil"
    dims: ClassVar[dict[str, tuple[str, ...]]] = InstanceGPModel.dims | {
        "augmentation": ("instance",),
        "instance_label": ("instance",),
    }
    observation_fields: ClassVar[tuple[str, ...]] = ("scale_mixture",)
    settings: ClassVar[Mapping[str, Setting]] = {
        **InstanceGPModel.settings,
        "scale_mixture": Constructor(
            {("polya_gamma", 0): PolyaGammaScaleMixture, ("gamma", 2): GammaScaleMixture},
            "polya_gamma, or gamma:ALPHA,BETA as in gamma:1,2.5",
        ),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.priors and not self.is_logistic:
            raise ValueError(
                f"{', '.join(self.priors)} of VGPMIL have priors, and scale_mixture is "
                f"{self.scale_mixture}: the normalising constant of p(f) depends on them and is "
                "not known exactly; give numbers, or use PolyaGammaScaleMixture()"
            )

    # ------------------------------------------------------------------ hyper-parameters

    def frequency_of_positives(self, labels: np.ndarray) -> float:
        """Fraction of bags with a positive instance, if 1 in H + 1 bag labels is wrong."""
        fraction, sharpness = float(labels.mean()), float(self.sharpness)
        if sharpness > 1:
            fraction = ((sharpness + 1) * fraction - 1) / (sharpness - 1)
        return inside_the_unit_interval(fraction, len(labels))

    @property
    def is_logistic(self) -> bool:
        """Whether ψ is the hyperbolic secant, so that f is a Gaussian process."""
        return isinstance(self.scale_mixture, PolyaGammaScaleMixture)

    @property
    def observation(self) -> object:
        """``"logistic"``, or ψ where that is another one."""
        return "logistic" if self.is_logistic else self.scale_mixture

    @property
    def is_normalised(self) -> bool:
        """Whether ψ is the hyperbolic secant: with another p(f) has an unknown constant."""
        return self.is_logistic

    @property
    def companions(self) -> Mapping[str, Self]:
        """The logistic model for other ψ, whose posteriors may drift to infinity."""
        return (
            {}
            if self.is_logistic
            else {"logistic": replace(self, scale_mixture=PolyaGammaScaleMixture())}
        )

    # ------------------------------------------------------------------ the three programs

    def __call__(self, bags: Bags | PreparedBags) -> None:
        """The paper's program u → f → T, instance labels summed out exactly."""
        given = self.unpadded(bags)
        location, scale = self.latent_given_inducing_values(given)
        with numpyro.plate("instance", scale.shape[0]):
            latent = numpyro.sample("latent", dist.Normal(location, scale))
        self._reweight_latent(latent, given.bags)
        log_none_positive = self.log_none_positive(latent, given.bags)
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
        self.scale_mixture.conditional(jnp.zeros(1))  # raises where p(ω) is not known
        return self._augmented_program

    def _marginal_program(self, bags: Bags | PreparedBags) -> None:
        given = self.unpadded(bags)
        location, scale = self.latent_given_inducing_values(given)
        if self.is_logistic:
            log_negative = log_expected_sigmoid(-location, scale, given.rule)
            log_none_positive = _sum_over_bags(log_negative, given.bags)
        else:
            assert isinstance(given.rule, QuadratureRule)  # only the logistic model has a table
            log_none, log_any = _scale_mixture_integrals(
                self.scale_mixture, location, scale, given.rule
            )
            by_bag = _sum_over_bags(log_any, given.bags)
            if given.bags.present is not None:
                by_bag = jnp.where(given.bags.present, by_bag, 0.0)
            numpyro.factor("scale_mixture", by_bag)
            log_none_positive = _sum_over_bags(log_none - log_any, given.bags)
        self._observe_bag_labels(log_none_positive, given.bags)

    def _augmented_program(self, bags: Bags | PreparedBags) -> None:
        given = self.unpadded(bags)
        location, scale = self.latent_given_inducing_values(given)
        with numpyro.plate("instance", scale.shape[0]):
            latent = numpyro.sample("latent", dist.Normal(location, scale))
            numpyro.sample("augmentation", self.scale_mixture.conditional(latent))
        # y_n ~ Bernoulli(σ(f_n)) and ω_n | f_n make up p(y, ω | f) of the paper's eq. 6. The labels
        # are one event: under the exact q(y) those of a bag are dependent.
        label = numpyro.sample("instance_label", dist.Bernoulli(logits=latent).to_event(1))
        self._reweight_latent(latent, given.bags)
        positives = _sum_over_bags(label, given.bags)
        self._observe_bag_labels(jnp.where(positives > 0, -jnp.inf, 0.0), given.bags)

    def _reweight_latent(self, latent: Float[Array, " N"], bags: Bags) -> None:
        if not self.is_logistic:  # p(f) ∝ N(f) ψ(f)/φ(f)
            is_there = jnp.asarray(bag_weight(bags))[jnp.asarray(bags.bag_index)]
            numpyro.factor("scale_mixture", is_there * self.log_reweighting(latent))

    def log_reweighting(self, latent: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        """log ψ(f)·2cosh(f/2), the factor of p(f) beside N(f); 0 for the logistic model."""
        return self.scale_mixture.log_density(latent) + log_two_cosh_half(latent)

    def _observe_bag_labels(self, log_none_positive: Float[Array, " B"], bags: Bags) -> None:
        with plate_of_bags(bags):
            label_distribution = NoisyMaximum(log_none_positive, self.sharpness)
            numpyro.sample("bag_label", label_distribution, obs=given_labels(bags))

    def rule_for(
        self, conditional: SparseConditional | None, bags: Bags
    ) -> QuadratureRule | SigmoidTable:
        """Quadrature rule for E σ(f), or for the integrals over ψ(f) e^{±f/2}."""
        if conditional is None:
            return self._rule(np.sqrt(self.largest_variance(bags, {})))
        rule = self._rule(float(np.asarray(conditional.residual_scale).max()))
        return sigmoid_table(conditional.residual_scale, rule) if self.is_logistic else rule

    def _rule(self, largest: float) -> QuadratureRule:
        if self.is_logistic:
            return logistic_rule(largest)
        psi = self.scale_mixture
        # In halves, so that like mixtures share a rule.
        tilt = 0.5 + math.ceil(2 * psi.largest_log_derivative) / 2
        return trapezoid_rule(
            on_grid(largest), distance_to_pole=psi.distance_to_pole, tilt=(tilt, tilt)
        )

    # ------------------------------------------------------------------ the prior's constant

    def log_normaliser(
        self, bags: Bags, *, seed: int | Array, num_draws: int = 10_000
    ) -> tuple[float, float]:
        """log Z of p(f) = N(f) Π ψ(f_n)·2cosh(f_n/2)/Z, from draws of N(f); 0 for the logistic ψ.

        With f ~ N(f), Z = E Π ψ(f_n)·2cosh(f_n/2). The paper draws f by random Fourier features, as
        a draw of N instances costs N³ without them; under FITC it costs N M, and is exact.

        Z is finite, but most of it may come from latent values that no draw of N(f) reaches, as
        2cosh grows faster than ψ falls. The estimate then is that of the mode around μ0.

        Parameters
        ----------
        bags : Bags
            N instances; their labels are not used.
        seed : int or JAX key
        num_draws : int

        Returns
        -------
        float
            log Z.
        float
            Its Monte-Carlo error, estimated from the draws.

        References
        ----------
        Castro-Macías et al. (2024), equation 29.
        """
        check("num_draws", num_draws, _AT_LEAST_TWO)
        with jax.enable_x64(True):
            keys = jax.random.split(random_key(seed), num_draws)
            logs = np.asarray(_log_weights_of_draws(self, padded(bags.without_labels()), keys))
        relative = np.exp(logs - logs.max())
        error = relative.std(ddof=1) / (math.sqrt(num_draws) * relative.mean())
        return float(np.log(relative.mean()) + logs.max()), float(error)

    # ------------------------------------------------------------------ given latent values

    def log_none_positive(self, latent: Float[Array, "N ..."], bags: Bags) -> Float[Array, "B ..."]:
        """log p0 = −Σ softplus(f_n)."""
        return _sum_over_bags(-softplus(latent), bags)

    def predictive_rule(self, draws: Draws, bags: Bags) -> QuadratureRule:
        """Quadrature rule for E σ(f*).

        For any ψ new latent values follow the Gaussian conditional, and labels the logistic
        function, as in the paper's equations 33 and 37.
        """
        return logistic_rule(largest_scale(self.largest_variance(bags, draws)))

    def tabulated(
        self, rule: QuadratureRule, scale: Float[Array, " N"]
    ) -> QuadratureRule | SigmoidTable:
        """The rule with its exponentials evaluated."""
        return sigmoid_table(scale, rule)

    def probabilities(
        self, location: Float[Array, " N"], scale: Float[Array, " N"], given: PreparedBags
    ) -> tuple[Float[Array, " B"], Float[Array, " N"]]:
        """P(T* = 1 | u) of bags and E[σ(f*) | u] of instances."""
        log_negative = log_expected_sigmoid(-location, scale, given.rule)
        log_none_positive = _sum_over_bags(log_negative, given.bags)
        bag = NoisyMaximum(log_none_positive, self.sharpness).mean
        return bag, -jnp.expm1(log_negative)

    def standard_deviations(
        self, draws: Draws, bags: Bags
    ) -> tuple[Float[np.ndarray, " B"], Float[np.ndarray, " N"]]:
        """Posterior sds of P(T* = 1 | f*) of bags and of σ(f*) of instances, with k̃ in them.

        `Prediction` has the probabilities given u, where new latent values are integrated out;
        these include the uncertainty of the latent values:
        Var σ(f) = E E[σ(f)² | u] − (E σ(f))², and likewise p0 = Π(1 − σ(f_n)) of a bag, whose
        latent values are independent given u. The paper takes them as independent altogether.

        Parameters
        ----------
        draws : dict of arrays
            As for ``predict``.
        bags : Bags
            B bags with N instances; their labels are not used.

        Returns
        -------
        array (B,)
        array (N,)

        References
        ----------
        Castro-Macías et al. (2024), equations 33 and 37.
        """
        sites = {name: np.asarray(draws[name]) for name in self.latent_sites}
        with jax.enable_x64(True):
            unlabelled = padded(bags.without_labels())
            largest = largest_scale(self.largest_variance(unlabelled, sites))
            rule = trapezoid_rule(largest, distance_to_pole=np.pi, tilt=(0.0, 2.0))
            given = PreparedBags(unlabelled, None, rule)
            of_bags, of_instances = (np.asarray(one) for one in _deviations(self, given, sites))
        return of_bags[: bags.num_bags], of_instances[: bags.num_instances]

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
            The draws, with ``latent`` (S, N) and ``instance_label`` (S, N) added.

        Raises
        ------
        ValueError
            If the bags have no labels.
        NotImplementedError
            If ψ is not the hyperbolic secant.
        """
        if not self.is_logistic:
            raise NotImplementedError(
                f"scale_mixture is {self.scale_mixture}; expected PolyaGammaScaleMixture() in "
                "complete(): sample the latent with nuts(..., program='full') or gibbs instead"
            )
        latent, label = self.completed(draws, bags, seed)
        rows = slice(bags.num_instances)
        return dict(draws) | {"latent": latent[:, rows], "instance_label": label[:, rows]}

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


def log_weights_of_prior(
    model: VGPMIL,
    projection: Float[Array, "N M"],
    residual_variance: Float[Array, " N"],
    weight: Float[Array, " N"],
    keys: Key[Array, " S"],
) -> Float[Array, " S"]:
    """Σ_n log ψ(f_n)·2cosh(f_n/2) of draws f = μ0 + V z + √k̃ e, the same for the same keys.

    Parameters
    ----------
    model : VGPMIL
    projection : array (N, M)
        V.
    residual_variance : array (N,)
        k̃.
    weight : array (N,)
        1, or 0 of an absent instance.
    keys : keys (S,)

    Returns
    -------
    array (S,)
        The mean of their exponentials estimates Z.
    """

    @jax.checkpoint  # else the derivative keeps all draws of all instances
    def one(key: Array) -> Float[Array, ""]:
        for_inducing, for_instances = jax.random.split(key)
        whitened = jax.random.normal(for_inducing, projection.shape[1:])
        noise = jax.random.normal(for_instances, weight.shape)
        latent = model.mean + projection @ whitened + jnp.sqrt(residual_variance) * noise
        return weight @ model.log_reweighting(latent)

    return jax.lax.map(one, keys)


@jax.jit
def _log_weights_of_draws(model: VGPMIL, bags: Bags, keys: Key[Array, " S"]) -> Float[Array, " S"]:
    rows = model.conditional(bags)
    weight = jnp.asarray(bag_weight(bags))[jnp.asarray(bags.bag_index)]
    return log_weights_of_prior(model, rows.projection, rows.residual_variance, weight, keys)


@jax.jit
def _deviations(
    model: VGPMIL, given: PreparedBags, sites: dict[str, Float[Array, "S ..."]]
) -> tuple[Float[Array, " B"], Float[Array, " N"]]:
    """Standard deviations of the probabilities of bags and instances over u and f."""
    if not model.priors:  # the same for all draws
        given = given._replace(conditional=model.conditional(given.bags))

    def moments(site: dict[str, Float[Array, "..."]]) -> tuple[Array, ...]:
        drawn = model.with_hyperparameters(site)
        conditional = drawn.given_inducing_values(given)
        location = drawn.mean + conditional.mean(site["inducing_value"])
        first, second = (
            log_expectation(
                lambda f, power=power: -power * softplus(f),
                location,
                conditional.residual_scale,
                given.rule,
            )
            for power in (1.0, 2.0)
        )
        of_bags = (_sum_over_bags(one, given.bags) for one in (first, second))
        return tuple(jnp.exp(one) for one in (first, second, *of_bags))

    first, second, *of_bags = (one.mean(axis=0) for one in jax.lax.map(moments, sites))
    range_of_bags = (model.sharpness - 1.0) / (model.sharpness + 1.0)  # of P(T = 1 | f) in p0
    bag = range_of_bags * _root_of_difference(*of_bags)
    return bag, _root_of_difference(first, second)


def _root_of_difference(
    first: Float[Array, "*batch"], second: Float[Array, "*batch"]
) -> Float[Array, "*batch"]:
    """√(E x² − (E x)²)."""
    return jnp.sqrt(jnp.maximum(second - first**2, 0.0))


def _sum_over_bags(values: Num[Array, "N ..."], bags: Bags) -> Num[Array, "B ..."]:
    return sum_over_bags(values, bags.bag_index, bags.num_bags)


def _scale_mixture_integrals(
    scale_mixture: GaussianScaleMixture,
    location: Float[Array, " N"],
    scale: Float[Array, " N"],
    rule: QuadratureRule,
) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
    """log E g_0 and log E (g_0 + g_1), with g_y(f) = ψ(f) e^{(y−½)f}."""

    def log_negative(f: Float[Array, "..."]) -> Float[Array, "..."]:
        return scale_mixture.log_density(f) - 0.5 * f

    def log_either(f: Float[Array, "..."]) -> Float[Array, "..."]:
        return scale_mixture.log_density(f) + log_two_cosh_half(f)

    log_none = log_expectation(log_negative, location, scale, rule)
    return log_none, log_expectation(log_either, location, scale, rule)
