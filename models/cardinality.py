r"""Cardinality models: a bag's label depends on the number of its positive instances."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.core import Tracer
from jaxtyping import Array, Float, Int
from numpyro.distributions import Distribution, constraints
from numpyro.distributions.transforms import AffineTransform
from numpyro.distributions.util import validate_sample
from numpyro.infer.reparam import Reparam, TransformReparam
from numpyro.util import is_prng_key

from ..datasets.arguments import POSITIVE, Rule, checked_seed, one_of, optional
from ..datasets.bags import Bags
from ..datasets.checks import check_squares
from ..datasets.padding import padded
from .model import (
    Draws,
    ModelDefaults,
    Program,
    given_labels,
    observations,
    plate_of_bags,
    random_key,
)
from .numerics.draws import map_draws
from .numerics.fields import check_fields
from .numerics.tracing import as_pytree, evaluated_apart_from_traces, evaluated_now_unless_traced
from .parts.bag_labels import LogOddsLabel
from .parts.counting import SMALL_BAG, CountTree, draw_labels, log_partition
from .parts.hyperpriors import Parameter, positive_or_prior
from .parts.settings import Choice, Constructor, Setting
from .parts.witnesses import sum_over_bags
from .registry import register

__all__ = [
    "AtLeastOne",
    "BagLabelByCount",
    "CardinalityBags",
    "CardinalityModel",
    "CardinalityPotential",
    "InstanceLabelsByCount",
    "MajorityCardinality",
    "NormalCardinality",
    "check_width",
    "probabilities",
]

type WeightPrior = Literal["normal", "laplace"]
WEIGHT_PRIORS: tuple[WeightPrior, ...] = ("normal", "laplace")
# Prior sd of the log odds of a typical instance: 5 % to 95 % within one sd.
_TYPICAL_LOGIT = 3.0
# Draws evaluated together fill the vector units; many instances do that alone.
_DRAWS, _INSTANCES = 16, 2**17


# Rule for the field ``potential``.
_POTENTIAL = Rule(
    "NormalCardinality(), MajorityCardinality(), AtLeastOne() or another function of counts and "
    "bag sizes",
    lambda value: callable(value) and not isinstance(value, type),
)


# ------------------------------------------------------------------ potentials


@runtime_checkable
class CardinalityPotential(Protocol):
    """Potentials of the number of positive instances of a bag, one for each bag label."""

    def __call__(self, count: Int[Array, " K"], size: Int[Array, " K"]) -> Float[Array, "2 K"]:
        """log C⁻ and log C⁺ of counts of positive instances in bags of the sizes given.

        −∞ where C = 0. A common constant has no effect. Where log C is not concave in the count,
        bags of more than 64 instances are summed in logs, which is slower. It is called once for
        all counts of some bags, outside of compiled programs, which store the result.
        """
        ...


@as_pytree()
@dataclass(frozen=True)
class NormalCardinality:
    """About a fraction μ of the instances of a positive bag is positive, none of a negative one.

    C⁺(c) = exp(−(c/m − μ)²/2σ²), C⁻(c) = exp(−(c/m)²/2σ²), m the size of the bag.

    Parameters
    ----------
    mu : float or Distribution
        μ, above 0 and at most 1; a NumPyro distribution makes it the site ``mu``, to be inferred.
    sigma : float or Distribution
        σ > 0; a distribution makes it the site ``sigma``.

    Raises
    ------
    ValueError
        If a number is out of range, or a distribution has other values.

    References
    ----------
    Hajimirsadeghi and Mori (2017), equation 3; they have σ = 0.1 and μ out of 0.1, 0.2, …, 1.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from milzoo.models import NormalCardinality
    >>> potential = NormalCardinality(mu=0.5, sigma=0.5)
    >>> potential(jnp.array([0, 4]), jnp.array([4, 4])).tolist()
    [[-0.0, -2.0], [-0.5, -0.5]]
    """

    mu: Annotated[Parameter, positive_or_prior("Beta")] = 0.5
    sigma: Annotated[Parameter, positive_or_prior("LogNormal")] = 0.1

    def __post_init__(self) -> None:
        check_fields(self)
        highest: Any = self.mu
        if isinstance(highest, Distribution):
            highest = getattr(highest.support, "upper_bound", math.inf)
        if isinstance(highest, int | float) and highest > 1:
            raise ValueError(
                f"NormalCardinality mu is {self.mu}; expected at most 1, a fraction of a bag: "
                "a number, or a distribution such as Beta"
            )

    def __call__(self, count: Int[Array, " K"], size: Int[Array, " K"]) -> Float[Array, "2 K"]:
        """−(c/m)²/2σ² and −(c/m − μ)²/2σ²."""
        fraction = count / size
        distance = jnp.stack([fraction, fraction - self.mu])
        return -0.5 * (distance / self.sigma) ** 2

    @property
    def parameters(self) -> dict[str, Parameter]:
        """μ and σ, by site name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def with_values(self, values: dict) -> Self:
        """Replace parameters by ``values``; other names are ignored."""
        return replace(self, **{name: values[name] for name in self.parameters if name in values})


@as_pytree()
@dataclass(frozen=True)
class MajorityCardinality:
    """Half of the instances of a positive bag are positive, or more; fewer of a negative one.

    References
    ----------
    Hajimirsadeghi and Mori (2017), equation 4.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from milzoo.models import MajorityCardinality
    >>> count = jnp.arange(5)  # of positive instances, in a bag of 4
    >>> jnp.exp(MajorityCardinality()(count, jnp.full(5, 4))).tolist()
    [[1.0, 1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0, 1.0]]
    """

    def __call__(self, count: Int[Array, " K"], size: Int[Array, " K"]) -> Float[Array, "2 K"]:
        """log of 1(c/m < ½) and of 1(c/m ≥ ½)."""
        return _log_of_either(2 * count >= size)


@as_pytree()
@dataclass(frozen=True)
class AtLeastOne:
    """A bag is positive if one of its instances is: the standard multiple-instance assumption.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from milzoo.models import AtLeastOne
    >>> count = jnp.arange(5)  # of positive instances, in a bag of 4
    >>> jnp.exp(AtLeastOne()(count, jnp.full(5, 4))).tolist()
    [[1.0, 0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0, 1.0, 1.0]]
    """

    def __call__(self, count: Int[Array, " K"], size: Int[Array, " K"]) -> Float[Array, "2 K"]:
        """log of 1(c = 0) and of 1(c ≥ 1)."""
        return _log_of_either(count >= 1)


def _log_of_either(is_positive: Array) -> Float[Array, "2 K"]:
    return jnp.where(jnp.stack([~is_positive, is_positive]), 0.0, -jnp.inf)


# Their log C is concave and has weight for each label; programs evaluate it themselves.
_OURS = (NormalCardinality, MajorityCardinality, AtLeastOne)


# ------------------------------------------------------------------ prepared bags


@as_pytree()
@dataclass(frozen=True, eq=False)
class CardinalityBags:
    """Bags as the compiled programs of a cardinality model take them; see ``prepare``.

    Attributes
    ----------
    bags : Bags
        N instances in B bags.
    tree : CountTree
        Of these bags.
    potential_values : array (2, N + B) or None
        log C⁻ and log C⁺ of every count, of a potential that the user defined.
    """

    bags: Bags
    tree: CountTree
    potential_values: Float[np.ndarray | Array, "2 M"] | None = None

    @property
    def num_bags(self) -> int:
        """Number of present bags. Not for traced bags (inside ``jax.jit``)."""
        present = self.bags.present
        return self.bags.num_bags if present is None else int(np.sum(present))

    @property
    def num_instances(self) -> int:
        """Number of instances of present bags. Not for traced bags."""
        return int(np.sum(self.tree.size[: self.num_bags]))

    def counts(self) -> tuple[Int[Array, " M"], Int[Array, " M"]]:
        """Every count and the size of its bag; count 0 of the first bag in place of absent ones."""
        count, size = jnp.asarray(self.tree.count), jnp.asarray(self.tree.size)
        index = jnp.asarray(self.tree.count_bag)
        if self.bags.present is None:
            return count, size[index]
        there = jnp.asarray(self.bags.present)[index]
        return jnp.where(there, count, 0), jnp.where(there, size[index], size[0])

    def of_present_bags(
        self, values: Float[Array, "*S K"], index: Int[np.ndarray | Array, " K"]
    ) -> Float[Array, "*S K"]:
        """Values of instances or counts, 0 where ``index`` is of an absent bag."""
        if self.bags.present is None:
            return values
        return jnp.where(jnp.asarray(self.bags.present)[jnp.asarray(index)], values, 0.0)


# ------------------------------------------------------------------ distributions


class BagLabelByCount(LogOddsLabel):
    r"""Bag labels by the weighted count of their instance labels, which are summed out.

    .. math:: P(Y_b) = Z_b^{(Y)} / (Z_b^{(+)} + Z_b^{(-)}), \quad
        Z_b^{(Y)} = \sum_{y_b} C^{(Y)}(\textstyle\sum_n y_n) \prod_{n \in b} e^{φ_n y_n}

    Parameters
    ----------
    tree : CountTree
        The bags.
    instance_logits : array (N,)
        φ.
    log_potential : array (2, N + B)
        log C⁻ and log C⁺ of every count of every bag, as ``tree.count`` has them.

    References
    ----------
    Hajimirsadeghi and Mori (2017), equations 7 and 8.
    """

    def __init__(
        self,
        tree: CountTree,
        instance_logits: Float[Array, " N"],
        log_potential: Float[Array, "2 M"],
    ) -> None:
        negative, positive = log_partition(tree, instance_logits, log_potential)
        # A label that no count allows has infinite log odds, which NumPyro's checks would reject.
        super().__init__(positive - negative, validate_args=False)


class InstanceLabelsByCount(Distribution):
    r"""Joint distribution of all instance labels, p(y_b) ∝ C(Σ y_n) Π e^{φ_n y_n}.

    Parameters
    ----------
    tree : CountTree
        The bags, which are independent.
    logits : array (N,)
        φ.
    log_potential : array (N + B,)
        log C of every count of every bag.

    References
    ----------
    Hajimirsadeghi and Mori (2017), equation 1.
    """

    arg_constraints = {"logits": constraints.real_vector}
    support = constraints.independent(constraints.boolean, 1)
    reparametrized_params: list[str] = []
    pytree_data_fields = ("tree", "logits", "log_potential")

    def __init__(
        self, tree: CountTree, logits: Float[Array, " N"], log_potential: Float[Array, " M"]
    ) -> None:
        # C may have two modes, as C⁺ + C⁻ has.
        self.tree = replace(tree, in_logs=True)
        self.logits, self.log_potential = logits, log_potential
        super().__init__((), jnp.shape(logits), validate_args=False)

    @property
    def mean(self) -> Float[Array, " N"]:
        """P(y_n = 1) = ∂ log Z/∂φ_n."""

        def log_normaliser(logits: Float[Array, " N"]) -> Float[Array, ""]:
            return jnp.sum(log_partition(self.tree, logits, self.log_potential[None]))

        return jax.grad(log_normaliser)(self.logits)

    @property
    def variance(self) -> Float[Array, " N"]:
        """P(y_n = 1) P(y_n = 0)."""
        mean = self.mean
        return mean * (1 - mean)

    @validate_sample
    def log_prob(
        self, value: Int[Array, " N"], intermediates: list[Any] | None = None
    ) -> Float[Array, ""]:
        """Joint log probability of the N labels."""
        count = sum_over_bags(value, self.tree.bag_index, self.tree.num_bags)
        log_weight = self.log_potential[self.tree.first_count + count]
        log_normaliser = log_partition(self.tree, self.logits, self.log_potential[None])[0]
        return jnp.sum(value * self.logits) + jnp.sum(log_weight - log_normaliser)

    def sample(self, key: Array | None, sample_shape: tuple[int, ...] = ()) -> Int[Array, "..."]:
        """Draw all labels exactly; array of shape ``sample_shape + (N,)``."""
        assert is_prng_key(key) and key is not None
        keys = jax.random.split(key, math.prod(sample_shape))
        draw = partial(draw_labels, self.tree)
        drawn = jax.vmap(lambda key: draw(key, self.logits, self.log_potential))(keys)
        return drawn.reshape(*sample_shape, *self.event_shape)


# ------------------------------------------------------------------ the model


@register
@as_pytree()
@dataclass(frozen=True, eq=False)
class CardinalityModel(ModelDefaults):
    r"""Multi-instance cardinality potentials (MICPM): bag labels by counts of positive instances.

    .. code-block:: text

        θ               ~ N(0, s²), or Laplace(0, s)               weights        (feature)
        φ_n             = θᵀx_n
        p(y_b, Y_b | θ) ∝ C^(Y_b)(Σ_n y_n) Π_n e^{φ_n y_n}         instance_label (instance)
                                                                   bag_label      (bag)

    over all labels y_b of the instances of bag b and its own label Y_b together: an undirected
    model of the labels given the instances. Summed over y_b it is
    P(Y_b) = Z^(Y_b)/(Z⁺ + Z⁻), Z^(Y) = Σ_y C^(Y)(Σy) Π e^{φ_n y_n}, exactly.

    ================  =======  =====================================================
    field             symbol   meaning
    ================  =======  =====================================================
    potential         C⁻, C⁺   potentials of the count for each label
    weight_scale      s        the paper's λ is 1/2s² (Normal) or 1/s (Laplace)
    weight_prior               ``"normal"`` or ``"laplace"``
    intercept_scale            φ_n = θ₀ + θᵀx_n with θ₀ ~ N(0, intercept_scale²)
    ================  =======  =====================================================

    Calling it, and ``marginal()``, runs the program with the instance labels summed out;
    ``augmented()`` has them as sites.

    Parameters
    ----------
    potential : callable
        `NormalCardinality`, `MajorityCardinality`, `AtLeastOne` or another
        `CardinalityPotential`: counts and sizes of bags to log C⁻ and log C⁺.
    weight_scale : float or Distribution
        s > 0; a NumPyro distribution makes it the site ``weight_scale``, to be inferred.
    weight_prior : {"normal", "laplace"}
    intercept_scale : float or None
        Prior sd of the site ``intercept``. None, as in the paper, for no intercept.

    Raises
    ------
    ValueError
        If a field is out of range.

    References
    ----------
    Hajimirsadeghi and Mori (2017), section 3.2.

    Examples
    --------
    >>> from milzoo.datasets import load
    >>> from milzoo.inference import maximum_a_posteriori
    >>> from milzoo.models import CardinalityModel, NormalCardinality
    >>> train, test = load("venkatesan2015").standardize().split(0.7, seed=0)
    >>> model = CardinalityModel(NormalCardinality(mu=0.3, sigma=0.1), intercept_scale=3.0)
    >>> maximum_a_posteriori(model, train, seed=0).predict(test).bag_probability[:3].round(1)
    array([0.5, 0.9, 0.3])
    """

    potential: Annotated[Callable, _POTENTIAL] = field(default_factory=NormalCardinality)
    weight_scale: Annotated[Parameter, positive_or_prior("HalfNormal")] = 1.0
    weight_prior: Annotated[WeightPrior, one_of(*WEIGHT_PRIORS)] = "normal"
    intercept_scale: Annotated[float | Array | None, optional(POSITIVE, "for no intercept")] = None

    name: ClassVar[str] = "cardinality"
    instance_note: ClassVar[str] = (
        "an instance's probability is P(y = 1 | X), its bag's label summed out (equation 13); the "
        "meaning of a positive instance depends on the cardinality potential alone"
    )
    dims: ClassVar[dict[str, tuple[str, ...]]] = {
        "weights": ("feature",),
        "intercept": (),
        "instance_label": ("instance",),
        "bag_label": ("bag",),
    }
    settings: ClassVar[Mapping[str, Setting]] = {
        "potential": Constructor(
            {
                ("normal", 0): NormalCardinality,
                ("normal", 2): NormalCardinality,
                ("majority", 0): MajorityCardinality,
                ("at_least_one", 0): AtLeastOne,
            },
            "normal:MU,SIGMA as in normal:0.5,0.1, normal, majority or at_least_one",
        ),
        "weight_prior": Choice.of(*WEIGHT_PRIORS),
    }

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    def for_bags(
        cls,
        bags: Bags,
        potential: Callable | None = None,
        weight_scale: Parameter | None = None,
        weight_prior: WeightPrior = "normal",
        intercept_scale: float | None = None,
        seed: int = 0,
    ) -> Self:
        """A model with a default from the data: the scale of the weights.

        Parameters
        ----------
        bags : Bags
            Training bags, features on comparable scales (``bags.standardize()``).
        potential : callable or None
            None for `NormalCardinality`.
        weight_scale : float, Distribution or None
            None for the scale that gives θᵀx of an instance of root mean square length a prior sd
            of 3.
        weight_prior : {"normal", "laplace"}
        intercept_scale : float or None
        seed : int
            Not used: there are no random choices.

        Returns
        -------
        CardinalityModel

        Raises
        ------
        ValueError
            If all instances are zero.
        """
        checked_seed(seed)
        check_squares(bags.instances)
        length = float(np.sqrt(np.mean(np.sum(bags.instances**2, axis=1))))
        if weight_scale is None and length == 0:
            raise ValueError(
                "instances are all zero, so no weight has any effect; expected "
                "features that differ, or a weight_scale"
            )
        if weight_scale is None:
            deviation = math.sqrt(2) if weight_prior == "laplace" else 1.0  # of scale 1
            weight_scale = _TYPICAL_LOGIT / (length * deviation)
        return cls(
            potential=NormalCardinality() if potential is None else potential,
            weight_scale=weight_scale,
            weight_prior=weight_prior,
            intercept_scale=intercept_scale,
        )

    # ------------------------------------------------------------------ hyper-parameters

    @property
    def hyperparameters(self) -> dict[str, Parameter]:
        """Hyper-parameters of the potential, and the scale of the weights."""
        own, potential = {"weight_scale": self.weight_scale}, self.potential
        return own | (potential.parameters if isinstance(potential, NormalCardinality) else {})

    def with_hyperparameters(self, values: dict) -> Self:
        """Replace hyper-parameters (``weight_scale``, ``mu``, ``sigma``) by given values."""
        potential = self.potential
        if isinstance(potential, NormalCardinality):
            potential = potential.with_values(values)
        weight_scale = values.get("weight_scale", self.weight_scale)
        return replace(self, weight_scale=weight_scale, potential=potential)

    @property
    def latent_sites(self) -> tuple[str, ...]:
        """The weights, the intercept if there is one, and hyper-parameters that have a prior."""
        intercept = () if self.intercept_scale is None else ("intercept",)
        return ("weights", *intercept, *self.priors)

    @property
    def reparametrisation(self) -> dict[str, Reparam]:
        """How samplers should whiten the sites: θ = s ε."""
        return {"weights": TransformReparam()}

    # ------------------------------------------------------------------ the programs

    def prepare(self, bags: Bags | CardinalityBags) -> CardinalityBags:
        """Pad the bags and evaluate their trees and potentials, once and on the host.

        All programs of this model, and of models with the same potential, take the result in place
        of the bags. Padding lets bags of similar sizes share compiled programs.

        Parameters
        ----------
        bags : Bags
            With labels, or without. Prepared bags are returned.

        Returns
        -------
        CardinalityBags

        Raises
        ------
        ValueError
            If the potential does not return log C⁻ and log C⁺ of each count, or excludes both
            labels of a bag, or its observed one.
        """
        is_traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(bags))
        if is_traced or isinstance(bags, CardinalityBags):
            return self.unpadded(bags)
        return self._prepared(padded(bags), bags)

    def unpadded(self, bags: Bags | CardinalityBags) -> CardinalityBags:
        """``prepare`` without padding.

        Parameters
        ----------
        bags : Bags
            Prepared bags are returned.

        Returns
        -------
        CardinalityBags

        Raises
        ------
        ValueError
            As ``prepare``.
        """
        return bags if isinstance(bags, CardinalityBags) else self._prepared(bags, bags)

    def _prepared(self, filled: Bags, bags: Bags, **rounding: int) -> CardinalityBags:
        present = None if filled is bags else np.asarray(filled.present)
        index = np.asarray(filled.bag_index)
        tree = CountTree.for_bags(index, filled.num_bags, present, **rounding)
        prepared = CardinalityBags(filled, tree)
        if isinstance(self.potential, _OURS):
            return prepared
        with evaluated_apart_from_traces(), jax.enable_x64(True):
            given = self.potential(*prepared.counts())
            values = np.asarray(_checked_shape(given, len(tree.count)))
        of_present = values[:, : bags.num_instances + bags.num_bags]
        _check_values(of_present, tree, bags)
        in_logs = not _is_concave(of_present, bags.bag_sizes)
        return replace(prepared, tree=replace(tree, in_logs=in_logs), potential_values=values)

    def __call__(self, bags: Bags | CardinalityBags) -> None:
        """The program θ → Y, instance labels summed out exactly."""
        prepared = self.unpadded(bags)
        model, logits = self._draw_logits(prepared)
        distribution = BagLabelByCount(prepared.tree, logits, model.log_potential(prepared))
        _observe(distribution, prepared)

    def marginal(self) -> Program:
        """The same program.

        Returns
        -------
        callable
            A NumPyro program of ``bags``.
        """
        return self

    def augmented(self) -> Program:
        """The program with the instance labels in it.

        y_b ~ p(y) ∝ (C⁺ + C⁻)(Σy) Π e^{φ_n y_n}, and Y_b by the odds C⁺(Σy) : C⁻(Σy).

        Returns
        -------
        callable
            A NumPyro program of ``bags``.
        """
        return self._augmented_program

    def _augmented_program(self, bags: Bags | CardinalityBags) -> None:
        prepared = self.unpadded(bags)
        model, logits = self._draw_logits(prepared)
        tree, log_potential = prepared.tree, model.log_potential(prepared)
        either = prepared.of_present_bags(jnp.logaddexp(*log_potential), tree.count_bag)
        label = numpyro.sample("instance_label", InstanceLabelsByCount(tree, logits, either))
        count = sum_over_bags(label, tree.bag_index, tree.num_bags)
        negative, positive = log_potential[:, tree.first_count + count]
        _observe(LogOddsLabel(positive - negative, validate_args=False), prepared)

    def _draw_logits(self, prepared: CardinalityBags) -> tuple[Self, Float[Array, " N"]]:
        """The model with drawn hyper-parameters, and φ."""
        drawn = {name: numpyro.sample(name, prior) for name, prior in self.priors.items()}
        model = self.with_hyperparameters(drawn)
        num_features = prepared.bags.num_features
        sites = {"weights": numpyro.sample("weights", model._weight_distribution(num_features))}
        if self.intercept_scale is not None:
            prior = dist.Normal(0.0, self.intercept_scale)
            sites["intercept"] = numpyro.sample("intercept", prior)
        return model, _logits(sites, prepared)

    def _weight_distribution(self, num_features: int) -> Distribution:
        """The prior of θ in a form that `TransformReparam` whitens."""
        unit = dist.Normal if self.weight_prior == "normal" else dist.Laplace
        whitened = unit(jnp.zeros(num_features), 1.0)
        return dist.TransformedDistribution(
            whitened, AffineTransform(0.0, self.weight_scale)
        ).to_event(1)

    def log_potential(self, prepared: CardinalityBags) -> Float[Array, "2 M"]:
        """log C⁻ and log C⁺ of every count of every bag; 0 for absent bags.

        Parameters
        ----------
        prepared : CardinalityBags

        Returns
        -------
        array (2, N + B)
        """
        values = prepared.potential_values
        with evaluated_now_unless_traced(*self.hyperparameters.values(), prepared):
            if values is None:
                values = self.potential(*prepared.counts())
            return prepared.of_present_bags(jnp.asarray(values, float), prepared.tree.count_bag)

    # ------------------------------------------------------------------ predictions

    def predict(self, draws: Draws, bags: Bags) -> Draws:
        """Bag and instance probabilities under each draw.

        Parameters
        ----------
        draws : dict of arrays
            ``weights`` (S, D), and (S,) for the intercept and each hyper-parameter with a prior.
        bags : Bags
            B bags with N instances; their labels are not used.

        Returns
        -------
        dict of arrays
            ``bag_probability`` (S, B): P(Y = 1 | X, θ); ``instance_probability`` (S, N):
            P(y_n = 1 | X, θ) = ∂ log(Z⁺ + Z⁻)/∂φ_n.

        Raises
        ------
        ValueError
            If the bags have another number of features than there are weights.

        References
        ----------
        Hajimirsadeghi and Mori (2017), equations 7 and 13.
        """
        # A tree for a bag of 64 even among few bags: test folds differ in their longest bag.
        prepared = self._prepared(padded(bags), bags, fewest_leaves=SMALL_BAG)
        sites = self._sites(draws, prepared)
        with jax.enable_x64(True):
            found = _predictions(self, prepared, sites, _together(prepared))
            bag, instance = (np.asarray(values) for values in found)
        return {
            "bag_probability": bag[:, : prepared.num_bags],
            "instance_probability": instance[:, : prepared.num_instances],
        }

    def complete(self, draws: Draws, bags: Bags, *, seed: int | Array) -> Draws:
        """Draw the instance labels, which were summed out, given those of the bags.

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
            The draws, with ``instance_label`` (S, N) added.

        Raises
        ------
        ValueError
            If the bags have no labels.
        """
        prepared = self.prepare(bags)
        observations(self, prepared.bags, "complete()")
        sites = self._sites(draws, prepared)
        with jax.enable_x64(True):
            labels = np.asarray(
                _completions(self, prepared, random_key(seed), sites, _together(prepared))
            )
        return dict(draws) | {"instance_label": labels[:, : prepared.num_instances]}

    def _sites(self, draws: Draws, prepared: CardinalityBags) -> Draws:
        """The draws of the latent sites."""
        check_width(draws["weights"].shape[-1], prepared.bags)
        return {name: np.asarray(draws[name]) for name in self.latent_sites}


def _together(prepared: CardinalityBags) -> int:
    """How many draws are evaluated together."""
    return max(1, min(_DRAWS, _INSTANCES // prepared.bags.num_instances))


@partial(jax.jit, static_argnames="together")
def _predictions(
    model: CardinalityModel, prepared: CardinalityBags, sites: dict[str, Array], together: int
) -> tuple[Float[Array, "S B"], Float[Array, "S N"]]:
    """P(Y_b = 1) and P(y_n = 1) under each draw."""

    def of_one(site: dict[str, Array]) -> tuple[Float[Array, " B"], Float[Array, " N"]]:
        log_potential = model.with_hyperparameters(site).log_potential(prepared)
        return probabilities(prepared.tree, _logits(site, prepared), log_potential)

    return map_draws(of_one, sites, together)


@partial(jax.jit, static_argnames="together")
def _completions(
    model: CardinalityModel,
    prepared: CardinalityBags,
    key: Array,
    sites: dict[str, Array],
    together: int,
) -> Int[Array, "S N"]:
    """Instance labels given those of the bags, under each draw."""
    tree = prepared.tree
    label = jnp.asarray(prepared.bags.labels)[tree.count_bag]

    def of_one(given: tuple[Array, dict[str, Array]]) -> Int[Array, " N"]:
        key, site = given
        both = model.with_hyperparameters(site).log_potential(prepared)
        log_potential = both[label, jnp.arange(both.shape[1])]
        return draw_labels(tree, key, _logits(site, prepared), log_potential)

    keys = jax.random.split(key, len(sites["weights"]))
    return map_draws(of_one, (keys, sites), together)


def _observe(distribution: Distribution, prepared: CardinalityBags) -> None:
    """Observe the labels of present bags."""
    with plate_of_bags(prepared.bags):
        numpyro.sample("bag_label", distribution, obs=given_labels(prepared.bags))


def probabilities(
    tree: CountTree, logits: Float[Array, " N"], log_potential: Float[Array, "2 M"]
) -> tuple[Float[Array, " B"], Float[Array, " N"]]:
    """P(Y_b = 1) of each bag and P(y_n = 1) of each instance, without labels.

    Parameters
    ----------
    tree : CountTree
    logits : array (N,)
        φ.
    log_potential : array (2, N + B)

    Returns
    -------
    array (B,), array (N,)

    References
    ----------
    Hajimirsadeghi and Mori (2017), equations 7 and 13.
    """

    def log_normaliser(logits: Float[Array, " N"]) -> tuple[Array, Array]:
        negative, positive = log_partition(tree, logits, log_potential)
        return jnp.sum(jnp.logaddexp(negative, positive)), positive - negative

    instance, log_odds = jax.grad(log_normaliser, has_aux=True)(logits)
    return jax.nn.sigmoid(log_odds), instance


def _logits(site: dict[str, Array], prepared: CardinalityBags) -> Float[Array, " N"]:
    """φ = θ₀ + Xθ; 0 for padding."""
    bags = prepared.bags
    logits = jnp.asarray(bags.instances) @ site["weights"] + site.get("intercept", 0.0)
    return prepared.of_present_bags(logits, bags.bag_index)


def check_width(num_weights: int, bags: Bags) -> None:
    """Raise an error unless the bags have as many features as there are weights.

    Raises
    ------
    ValueError
        If the bags have another number of features than there are weights.
    """
    if bags.num_features != num_weights:
        raise ValueError(
            f"bags have {bags.num_features} features, but there are weights for {num_weights}; "
            f"pass bags with the {num_weights} features that were learned from"
        )


def _checked_shape(values: Any, num_counts: int) -> Float[Array, "2 M"]:
    """The values of a potential; an error if their shape is wrong."""
    values = jnp.asarray(values, float)
    if values.shape != (2, num_counts):
        raise ValueError(
            f"potential gives an array of shape {values.shape} for {num_counts} counts; "
            f"expected (2, {num_counts}): log C⁻ and log C⁺ of each"
        )
    return values


def _is_concave(values: np.ndarray, size: Int[np.ndarray, " B"]) -> bool:
    """Whether log C is concave, to rounding, in all bags that are not summed in logs anyway."""
    in_bags = np.split(values, np.cumsum(size + 1)[:-1], axis=1)
    for of_bag in (one for one in in_bags if one.shape[1] > SMALL_BAG + 1):
        for row in of_bag:
            is_some = row > -np.inf
            finite = row[is_some]
            has_gap = (np.diff(np.flatnonzero(is_some)) > 1).any()
            slack = 1e-9 * np.abs(finite).max(initial=1.0)
            if has_gap or (np.diff(finite, 2) > slack).any():
                return False
    return True


def _check_values(values: np.ndarray, tree: CountTree, bags: Bags) -> None:
    if np.isnan(values).any() or (values == np.inf).any():
        wrong = int(np.flatnonzero(np.isnan(values).any(0) | (values == np.inf).any(0))[0])
        raise ValueError(
            f"potential is {values[:, wrong]} for a count of {tree.count[wrong]} in a bag of "
            f"{tree.size[tree.count_bag[wrong]]}; expected log C⁻ and log C⁺, numbers or −∞"
        )
    count_bag = tree.count_bag[: values.shape[1]]
    may_be = np.stack([np.bincount(count_bag, row > -np.inf) > 0 for row in values])
    impossible = ~may_be.any(axis=0)
    labels = None if isinstance(bags.labels, Tracer) else bags.labels
    if labels is not None:
        impossible |= ~may_be[np.asarray(labels), np.arange(bags.num_bags)]
    if impossible.any():
        bag = int(np.flatnonzero(impossible)[0])
        name = bags.names[bag] if bags.names else bag
        label = "any label" if labels is None else f"label {labels[bag]}"
        raise ValueError(
            f"potential gives no weight to {label} of bag {name!r}, whatever the count "
            f"of its {tree.size[bag]} instances; expected some count with log C above −∞"
        )
