"""DPMIL: instances come from two Dirichlet-process mixtures, and a positive bag has a witness."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.nn import softplus
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import gammaln
from jaxtyping import Array, Bool, Float, Int
from numpyro.infer.reparam import Reparam, TransformReparam
from scipy.special import logsumexp

from ..datasets.arguments import FLAG, POSITIVE, PROBABILITY, WHOLE, checked_seed, one_of
from ..datasets.bags import Bags
from ..datasets.checks import as_numbers, check_squares
from ..datasets.padding import padded
from .model import (
    CLOSED_FORM_ENGINES,
    Draws,
    ModelDefaults,
    Program,
    observations,
    plate_of_bags,
    random_key,
)
from .numerics.draws import over_draws
from .numerics.fields import check_fields
from .numerics.tracing import as_pytree
from .parts.components import Components
from .parts.dp_mixture import MixtureBags, Mixtures, gaussian_by_precision
from .parts.normal_wishart import COVARIANCES, Covariance
from .parts.settings import Choice, Setting
from .parts.witnesses import LabelRule, log_odds_of_some, log_some_positive, sum_over_bags
from .registry import register

__all__ = [
    "DPMIL",
    "POOLINGS",
    "SUPERVISIONS",
    "Pooling",
    "Supervision",
    "bag_log_odds",
    "count_after",
    "draw_labels",
    "expected_occupied",
    "log_evidence_of_counts",
    "log_stick_weights",
]

type Supervision = Literal["bags", "instances"]
type Pooling = Literal["bayes", "noisy_or"]
SUPERVISIONS: tuple[Supervision, ...] = ("bags", "instances")
POOLINGS: tuple[Pooling, ...] = ("bayes", "noisy_or")

# Of the mean variance of the features, added to each variance: keeps the covariance of few or of
# repeated instances, or one with a constant column, invertible.
_RIDGE = 1e-6
# With 950 parameters and 400 instances a draw of NUTS takes 0.17 s, and ESS per draw is low: for
# thousands of instances a chain would take hours.
_MOST_UNKNOWNS = 1000
# Numbers in memory at once while draws are evaluated: 32 MiB in 64 bit.
_BLOCK = 2**22


@register
@as_pytree("max_components", "supervision", "needs_witness")
@dataclass(frozen=True, eq=False)
class DPMIL(ModelDefaults):
    """Two Dirichlet-process mixtures of Gaussians, one for each class of instances.

    .. code-block:: text

        v_lk            ~ Beta(1, α), k < K; v_lK = 1             stick (class, stick_break)
        Λ_lk            ~ Wishart(W0, ν0)                         precision_cholesky (class, …)
        μ_lk | Λ_lk     ~ N(m0, (β0 Λ_lk)⁻¹)                      mean (class, component, feature)
        T_b             ~ Bernoulli(τ)                            bag_label (bag)
        r_b | T_b       ~ uniform over the labellings allowed     instance_label (instance)
        z_n | r_n = l   ~ π_l,  π_lk = v_lk Π_{j<k} (1 − v_lj)    cluster (instance)
        x_n | r_n, z_n  ~ N(μ_rz, Λ_rz⁻¹)                         instances

    A negative bag allows one labelling, all negative; a positive bag all with a positive label in
    it. Class 0 is the negative one.

    =====================  ======  =================================================================
    field                  symbol  meaning
    =====================  ======  =================================================================
    center                 m0      (D,), prior mean of the component means
    scale                  W0      (D, D), or (D,) for diagonal precisions, which are independent
                                   Wishart distributions of one dimension
    degrees_of_freedom     ν0      more than D − 1 (diagonal: more than 0)
    mean_strength          β0      prior sample size of the component means
    concentration          α       if large, many small clusters
    max_components         K       truncation of each class
    positive_fraction      τ       prior probability that a bag is positive
    supervision            –       ``"instances"``: instance labels that are known are used
    needs_witness          –       False: a positive bag allows all labellings
    =====================  ======  =================================================================

    Calling the model, and ``marginal()``, runs the program with clusters and instance labels summed
    out: p(X_b | T_b = 1) = [Π(p₊ + p₋) − Πp₋]/(2^{N_b} − 1). ``augmented()`` has them as sites.

    Notes
    -----
    The paper's own special cases are `mimm` and `qda`. Clusters have no names and may switch
    labels from draw to draw. So posteriors are compared on estimands that do not depend on them.

    Raises
    ------
    ValueError
        If a field is out of range or shapes contradict each other.

    References
    ----------
    Kandemir and Hamprecht (2014), section 3. There r_n is chosen, not drawn; a uniform
    prior over the labellings that the bag label allows turns the choice into a posterior.

    Examples
    --------
    >>> from milzoo.datasets import load
    >>> from milzoo.inference import coordinate_ascent
    >>> from milzoo.models import DPMIL
    >>> train, test = load("kandemir2014").split(0.7, seed=0)
    >>> posterior = coordinate_ascent(DPMIL.for_bags(train, max_components=5), train, seed=0)
    >>> posterior.predict(test).instance_probability[:4].round(1), test.instance_labels[:4]
    (array([1. , 0.6, 0. , 0.4]), array([1, 1, 0, 0]))
    """

    center: Float[np.ndarray, " D"] | Float[Array, " D"]
    scale: Float[np.ndarray, "..."] | Float[Array, "..."]
    degrees_of_freedom: Annotated[float, POSITIVE]
    mean_strength: Annotated[float, POSITIVE] = 1.0
    concentration: Annotated[float, POSITIVE] = 2.0
    max_components: Annotated[int, WHOLE] = 20
    positive_fraction: Annotated[float, PROBABILITY] = 0.5
    supervision: Annotated[Supervision, one_of(*SUPERVISIONS)] = "bags"
    needs_witness: Annotated[bool, FLAG] = True

    name: ClassVar[str] = "dpmil"
    dims: ClassVar[dict[str, tuple[str, ...]]] = {
        "stick": ("class", "stick_break"),
        "mean": ("class", "component", "feature"),
        "precision_cholesky": ("class", "component", "feature", "other_feature"),
        "precision": ("class", "component", "feature"),
        "instance_label": ("instance",),
        "cluster": ("instance",),
        "bag_label": ("bag",),
        "instance_probability": ("free_instance",),
        "log_density": ("bag",),
        "occupied_components": ("class",),
    }
    estimands: ClassVar[tuple[str, ...]] = (
        "instance_probability",
        "log_density",
        "occupied_components",
    )
    estimand_note: ClassVar[str] = (
        "Clusters have no names to compare them by: errors are those of the probabilities of the "
        "instances in positive bags, the log densities of the bags and the number of occupied "
        "components in each class."
    )
    instance_note: ClassVar[str] = (
        "instances are ranked by p(x | positive) against p(x | negative), each by itself"
    )
    leave_one_out_note: ClassVar[str] = (
        "DPMIL's likelihood is of instances given labels: weights by it leave out a bag's "
        "instances, not its label; evaluate it on test bags"
    )
    replication_note: ClassVar[str] = (
        "DPMIL generates instances given labels, and labels have no parameter: replicated labels "
        "cannot check it"
    )
    usual_engines: ClassVar[tuple[str, ...]] = CLOSED_FORM_ENGINES
    settings: ClassVar[Mapping[str, Setting]] = {
        "covariance": Choice.of(*COVARIANCES),
        "supervision": Choice.of(*SUPERVISIONS),
        "needs_witness": Choice({"true": True, "false": False}),
    }
    fields_for_bags: ClassVar[tuple[str, ...]] = ("center", "scale")

    def __post_init__(self) -> None:
        check_fields(self)
        for field in ("center", "scale"):
            object.__setattr__(self, field, as_numbers(getattr(self, field), f"DPMIL {field}"))
        if np.ndim(self.center) != 1:
            raise ValueError(f"DPMIL center has shape {np.shape(self.center)}; expected (D,)")
        num_features = len(self.center)
        if np.shape(self.scale) not in ((num_features,), (num_features, num_features)):
            raise ValueError(
                f"DPMIL scale has shape {np.shape(self.scale)} and center {num_features} features; "
                f"expected ({num_features}, {num_features}), or ({num_features},) for diagonal "
                "precisions"
            )
        least = num_features - 1 if self.covariance == "full" else 0
        if not self.degrees_of_freedom > least:
            raise ValueError(
                f"DPMIL degrees_of_freedom is {self.degrees_of_freedom}; expected a number above "
                f"{least}"
            )
        if not np.isfinite(self.center).all():
            raise ValueError("DPMIL center has a NaN or an infinity; expected numbers")
        if not _is_positive_definite(np.asarray(self.scale)):
            raise ValueError(
                "DPMIL scale is not positive definite; expected W0 to be, and symmetric"
            )

    # ------------------------------------------------------------------ constructors

    @classmethod
    def for_bags(
        cls,
        bags: Bags,
        max_components: int = 20,
        *,
        covariance: Covariance = "full",
        seed: int = 0,
        **others,
    ) -> Self:
        """The paper's prior: W0 the inverse covariance and m0 the mean of all instances.

        ν0 is D + 1 (2 where precisions are diagonal, D + 1 of one feature), and τ the
        fraction of positive bags.

        Parameters
        ----------
        bags : Bags
            With labels of both kinds.
        max_components : int
            K.
        covariance : {"full", "diagonal"}
        seed : int
            Not used; there for a common signature.
        **others
            Other fields.

        Returns
        -------
        DPMIL

        Raises
        ------
        ValueError
            If all bags have one label or all instances are alike.
        """
        checked_seed(seed)
        if covariance not in COVARIANCES:
            raise ValueError(
                f"covariance is {covariance!r}; expected one of {', '.join(COVARIANCES)}"
            )
        if bags.labels is None:
            raise ValueError("bags have no labels; DPMIL.for_bags needs one for each bag")
        fraction = float(np.mean(bags.labels))
        if not 0 < fraction < 1:
            raise ValueError(
                f"all bags have label {int(fraction)}; DPMIL learns from bags of both labels"
            )
        instances = np.asarray(bags.instances)
        check_squares(instances)
        varies = np.ptp(instances, axis=0) > 0
        if not varies.any():
            raise ValueError(
                "all instances are alike; expected features with a variance for DPMIL to model"
            )
        variance = np.where(varies, instances.var(axis=0), 0.0)
        # A fraction of each feature's own variance: their units do not matter.
        ridge = _RIDGE * np.where(varies, variance, variance.mean())
        if covariance == "full":
            full = np.cov(instances.T, bias=True).reshape(2 * variance.shape)
            factor = np.linalg.cholesky(full + np.diag(ridge))
            half = np.linalg.solve(factor, np.eye(len(variance)))
            scale = half.T @ half
        else:
            scale = 1 / (variance + ridge)
        fields = {
            "center": instances.mean(axis=0),
            "scale": scale,
            "degrees_of_freedom": len(variance) + 1.0 if covariance == "full" else 2.0,
            "positive_fraction": fraction,
        }
        return cls(**(fields | others), max_components=max_components)

    @classmethod
    def mimm(cls, bags: Bags, **others) -> Self:
        """Foulds and Smyth's MIMM: one Gaussian for each class, and no bag needs a witness.

        With a diagonal covariance unless another is asked for, as in their paper.
        """
        defaults = {"covariance": "diagonal", "max_components": 1, "needs_witness": False}
        return cls.for_bags(bags, **(defaults | others))

    @classmethod
    def qda(cls, bags: Bags, **others) -> Self:
        """Quadratic discriminant analysis: one Gaussian for each class, instance labels known.

        Raises
        ------
        ValueError
            If an instance label of a positive bag is not known.
        """
        known = bags.instance_labels
        labels = np.zeros(bags.num_bags) if bags.labels is None else np.asarray(bags.labels)
        in_positive = labels[np.asarray(bags.bag_index)] == 1
        if known is None or (np.asarray(known)[in_positive] < 0).any():
            raise ValueError(
                "bags have instances of unknown label; DPMIL.qda is for instances that are all "
                "labelled: use DPMIL.mimm, or give instance_labels"
            )
        defaults = {"max_components": 1, "supervision": "instances"}
        return cls.for_bags(bags, **(defaults | others))

    # ------------------------------------------------------------------ properties

    @property
    def covariance(self) -> Covariance:
        """Whether precisions are matrices or diagonal."""
        return "full" if np.ndim(self.scale) == 2 else "diagonal"

    @property
    def num_features(self) -> int:
        """Number D of features."""
        return len(self.center)

    @property
    def scale_root(self) -> Float[np.ndarray, "..."] | Float[Array, "..."]:
        """B, lower triangular with BBᵀ = W0, or √W0: x̃ = Bᵀ(x − m0) has W0 = 1 and m0 = 0."""
        numbers = np if isinstance(self.scale, np.ndarray) else jnp
        if np.ndim(self.scale) == 2:
            return numbers.linalg.cholesky(self.scale)
        return numbers.sqrt(self.scale)

    @property
    def precision_site(self) -> str:
        """Name of the site of the precisions."""
        return "precision_cholesky" if self.covariance == "full" else "precision"

    @property
    def latent_sites(self) -> tuple[str, ...]:
        """Sticks (of more than one component), means and precisions."""
        sticks = ("stick",) if self.max_components > 1 else ()
        return (*sticks, "mean", self.precision_site)

    @property
    def num_unknowns(self) -> int:
        """Number of free parameters: real numbers in a draw of the latent sites."""
        of_precision = self.num_features
        if self.covariance == "full":
            of_precision = self.num_features * (self.num_features + 1) // 2
        by_class = self.max_components * (self.num_features + of_precision)
        return 2 * (by_class + self.max_components - 1)

    @property
    def size_note(self) -> str:
        """Numbers of components and features, in words."""
        return f"{self.max_components} components of {self.num_features} features in each class"

    @property
    def gradient_note(self) -> str:
        """Error message beyond 1,000 free parameters; empty up to there."""
        if self.num_unknowns <= _MOST_UNKNOWNS:
            return ""
        return (
            f"{self.num_unknowns:,} unknown numbers of DPMIL ({self.size_note}); expected at most "
            f"{_MOST_UNKNOWNS:,}: use coordinate_ascent or gibbs, fewer features "
            "(datasets.kernel_pca), fewer components or covariance='diagonal'"
        )

    def numbers_in_a_draw(self, bags: Bags | None) -> int:
        """Upper bound on the numbers that a draw stores, with its estimands for the bags."""
        # A triangular root is stored as a square matrix.
        of_parameters = 2 * self.max_components * (self.num_features + np.size(self.scale) + 1)
        return of_parameters + (bags.num_instances + bags.num_bags + 2 if bags else 0)

    @property
    def reparametrisation(self) -> dict[str, Reparam]:
        """Means are not centred: most components have no instances."""
        return {"mean": TransformReparam()}

    def check_width(self, bags: Bags) -> None:
        """Raise an error for bags with another number of features.

        Raises
        ------
        ValueError
            If their number is another.
        """
        if bags.num_features != self.num_features:
            raise ValueError(
                f"bags have {bags.num_features} features and the model {self.num_features}; "
                "expected the features that the model was made for"
            )

    def log_label_probability(self, labels: Int[Array, " B"]) -> Float[Array, " B"]:
        """log p(T_b)."""
        return jnp.where(
            labels == 1, jnp.log(self.positive_fraction), jnp.log1p(-self.positive_fraction)
        )

    def log_jacobian(self) -> Float[Array, ""]:
        """``log |∂x̃/∂x|``, of one instance."""
        root = jnp.asarray(self.scale_root)
        return jnp.sum(jnp.log(jnp.diagonal(root) if self.covariance == "full" else root))

    def whitened(self, bags: Bags) -> Float[Array, "N D"]:
        """Whitened instances x̃ = Bᵀ(x − m0), whose prior has W0 = 1 and m0 = 0."""
        self.check_width(bags)
        return self.whitened_values(jnp.asarray(bags.instances))

    def whitened_values(self, instances: Float[Array, "N D"]) -> Float[Array, "N D"]:
        """`whitened` for an array of instances."""
        deviation, root = instances - jnp.asarray(self.center), jnp.asarray(self.scale_root)
        return deviation @ root if self.covariance == "full" else deviation * root

    def in_units(
        self, mean: Float[Array, "2 K D"], root: Float[Array, "2 K ..."]
    ) -> tuple[Float[Array, "2 K D"], Float[Array, "2 K ..."]]:
        """Means m0 + B⁻ᵀμ̃ and precision roots BL̃, from the coordinates of `whitened`."""
        center, of_scale = jnp.asarray(self.center), jnp.asarray(self.scale_root)
        if self.covariance == "diagonal":
            return center + mean / of_scale, of_scale * root
        back = solve_triangular(of_scale.T, mean.reshape(-1, self.num_features).T).T
        return center + back.reshape(mean.shape), of_scale @ root

    def check(self, bags: Bags) -> None:
        """Raise an error for bags that the model cannot learn from.

        Raises
        ------
        ValueError
            If the bags have no labels, or other features, or instance labels are to be used and
            there are none, or all in a positive bag are known to be negative.
        """
        self.check_width(bags)
        observations(self, bags, "DPMIL")
        if self.supervision == "instances":
            if bags.instance_labels is None:
                raise ValueError(
                    "bags have no instance labels, and supervision='instances' learns from them; "
                    "give instance_labels, or use supervision='bags'"
                )
            _check_positive_bags(bags, self.needs_witness)

    def may_be_positive(self, bags: Bags) -> Bool[np.ndarray, " N"]:
        """Which instances are not known to be negative."""
        may = np.asarray(bags.labels)[np.asarray(bags.bag_index)] == 1
        if self.supervision == "bags":
            return may
        return may & (np.asarray(bags.instance_labels) != 0)

    def label_rule(self, bags: Bags) -> LabelRule:
        """The labellings that the bags allow.

        Raises
        ------
        ValueError
            As in `check`.
        """
        self.check(bags)
        labels, index = jnp.asarray(bags.labels), jnp.asarray(bags.bag_index)
        is_positive = labels[index] == 1
        known = jnp.where(is_positive, 0.0, -jnp.inf)
        needs = (labels == 1) & self.needs_witness
        if self.supervision == "instances":
            given = jnp.asarray(bags.instance_labels)
            known = jnp.where(given == 1, jnp.inf, jnp.where(given == 0, -jnp.inf, known))
            has_known = sum_over_bags((given == 1).astype(int), index, bags.num_bags) > 0
            needs = needs & ~has_known
        return LabelRule(known, needs, index, self._present(bags))

    @staticmethod
    def _present(bags: Bags) -> Bool[Array, " B"] | None:
        return None if bags.present is None else jnp.asarray(bags.present)

    # ------------------------------------------------------------------ the programs

    def __call__(self, bags: Bags) -> None:
        """The program with clusters and instance labels summed out."""
        mixtures, rule = self._draw_mixtures(), self._draw_bag_labels(bags)
        numpyro.sample("instances", MixtureBags(mixtures, rule), obs=_given(bags))

    def marginal(self) -> Program:
        """The same program.

        Returns
        -------
        callable
            A NumPyro program of ``bags``.
        """
        return self

    def augmented(self) -> Program:
        """The program with instance labels and clusters as sites.

        Returns
        -------
        callable
            A NumPyro program of ``bags``.
        """
        return self._augmented_program

    def _augmented_program(self, bags: Bags) -> None:
        mixtures, rule = self._draw_mixtures(), self._draw_bag_labels(bags)
        # The labels are one event: those of a positive bag are not independent.
        label = numpyro.sample("instance_label", rule.labels())
        with numpyro.plate("instance", bags.num_instances):
            cluster = numpyro.sample("cluster", dist.Categorical(logits=mixtures.log_weight[label]))
            numpyro.sample("instances", mixtures.of(label, cluster), obs=_given(bags))

    def _draw_mixtures(self) -> Mixtures:
        K, kind = self.max_components, self.covariance
        stick = jnp.zeros((2, 0))
        if K > 1:
            beta = dist.Beta(jnp.ones((2, K - 1)), self.concentration)
            stick = numpyro.sample("stick", beta.to_event(2))
        root = jnp.asarray(self.scale_root)
        if kind == "full":
            prior = dist.WishartCholesky(
                jnp.full((2, K), self.degrees_of_freedom), scale_tril=root, validate_args=False
            )
            precision_root = numpyro.sample("precision_cholesky", prior.to_event(2))
        else:
            rate = jnp.broadcast_to(0.5 / jnp.asarray(self.scale), (2, K, self.num_features))
            prior = dist.Gamma(0.5 * self.degrees_of_freedom, rate)
            precision_root = jnp.sqrt(numpyro.sample("precision", prior.to_event(3)))
        center = jnp.broadcast_to(jnp.asarray(self.center), (2, K, self.num_features))
        means = gaussian_by_precision(center, precision_root, self.mean_strength)
        mean = numpyro.sample("mean", means.to_event(2))
        return Mixtures(log_stick_weights(stick), mean, precision_root)

    def _draw_bag_labels(self, bags: Bags) -> LabelRule:
        with plate_of_bags(bags):
            labels = numpyro.sample(
                "bag_label",
                dist.Bernoulli(jnp.full(bags.num_bags, self.positive_fraction)),
                obs=None if bags.labels is None else jnp.asarray(bags.labels),
            )
        if bags.labels is not None:
            return self.label_rule(bags)
        self.check_width(bags)
        is_positive = labels == 1
        index = jnp.asarray(bags.bag_index)
        known = jnp.where(is_positive[index], 0.0, -jnp.inf)
        return LabelRule(known, is_positive & self.needs_witness, index, self._present(bags))

    # ------------------------------------------------------------------ predictions

    def mixtures(self, site: dict[str, Array]) -> Mixtures:
        """The two mixtures of one draw of the latent sites."""
        stick = site["stick"] if self.max_components > 1 else jnp.zeros((2, 0))
        root = site[self.precision_site]
        if self.covariance == "diagonal":
            root = jnp.sqrt(root)
        return Mixtures(log_stick_weights(stick), site["mean"], root)

    def weights(self, draws: Draws) -> Float[np.ndarray, "S 2 K"]:
        """Mixture weights π of each draw, from stick breaking.

        Parameters
        ----------
        draws : dict of arrays
            The latent sites, draws first.

        Returns
        -------
        array (S, 2, K)
        """
        if self.max_components == 1:
            return np.ones((len(draws["mean"]), 2, 1))
        with jax.enable_x64(True):
            return np.exp(np.asarray(log_stick_weights(jnp.asarray(draws["stick"]))))

    def occupied(self, estimands: Draws) -> Float[np.ndarray, "S 2"]:
        """The expected number of components of each class with an instance in them.

        Parameters
        ----------
        estimands : dict of arrays
            As ``estimands_of`` returns them.

        Returns
        -------
        array (S, 2)
        """
        return estimands["occupied_components"]

    def typical_components(self, draws: Draws, estimands: Draws, bags: Bags) -> Components:
        """Components of the draw under which log densities of bags are nearest to their means.

        Parameters
        ----------
        draws : dict of arrays
            The latent sites, draws first.
        estimands : dict of arrays
            As ``estimands_of`` returns them.
        bags : Bags
            With labels.

        Returns
        -------
        Components
        """
        # The draw of highest density would have empty clusters near their prior's mode, and that of
        # highest likelihood would overfit.
        by_bag = estimands["log_density"]
        typical = int(np.argmin(np.sum((by_bag - by_bag.mean(axis=0)) ** 2, axis=1)))
        with jax.enable_x64(True):
            site = {name: jnp.asarray(draws[name][typical]) for name in self.latent_sites}
            return Components(*map(np.asarray, self._components(site, bags)))

    def _components(self, site: dict[str, Array], bags: Bags) -> tuple[Array, ...]:
        """Weight, mean, root and expected number of instances of each component."""
        mixtures = self.mixtures(site)
        log_components = mixtures.log_components(jnp.asarray(bags.instances))
        log_density = jax.nn.logsumexp(log_components, axis=1)
        positive = self.label_rule(bags).labels(log_density[1] - log_density[0]).mean
        in_class = jnp.stack([1 - positive, positive])
        occupancy = jnp.sum(
            in_class[:, None] * jnp.exp(log_components - log_density[:, None]), axis=2
        )
        return jnp.exp(mixtures.log_weight), mixtures.mean, mixtures.root, occupancy

    def predict(
        self,
        draws: Draws,
        bags: Bags,
        *,
        pooling: Pooling = "bayes",
        log_predictive: Float[np.ndarray, "2 N"] | None = None,
    ) -> Draws:
        """Bag and instance probabilities under each draw, and log odds by all draws together.

        ρ_n = p₊(x_n)/(p₊(x_n) + p₋(x_n)) for an instance. For a bag, by Bayes:
        τR/(τR + 1 − τ) with R = [Π(1 + p₊/p₋) − 1]/(2^N − 1), or Π(1 + p₊/p₋)/2^N where no bag
        needs a witness; or the noisy-or 1 − Π(1 − ρ_n), which is 0.999 for ten instances with
        ρ_n = ½.

        By all draws together Bayes compares the posterior predictive densities of the whole bag,
        E_θ p(X | T*, θ). They are not products over instances: all instances of a bag share θ.

        Parameters
        ----------
        draws : dict of arrays
            The latent sites, draws first.
        bags : Bags
            Their labels are not used.
        pooling : {"bayes", "noisy_or"}
        log_predictive : array (2, N) or None
            log E_θ p₋ and log E_θ p₊ of each instance, where they are known; else by the draws.

        Returns
        -------
        dict of arrays
            ``bag_probability`` (S, B) and ``instance_probability`` (S, N) under each draw;
            ``instance_log_odds`` (N,) from the means of p₊ and p₋ over the draws, and
            ``bag_log_odds`` (B,) from those of the densities of the bag; of a noisy-or, from
            ``instance_log_odds``.

        Raises
        ------
        ValueError
            If ``pooling`` is unknown or the bags have other features.
        """
        self.check_width(bags)
        _check_pooling(pooling)

        given = padded(bags.without_labels())
        found = self._over_draws(_predict_one, draws, given, pooling=pooling)
        sizes = (bags.num_instances, bags.num_bags, bags.num_bags, bags.num_instances)
        log_density, bag_density, bag, instance = (
            of[..., :size] for of, size in zip(found, sizes, strict=True)
        )
        mean_density = log_predictive
        if mean_density is None:
            mean_density = np.asarray(logsumexp(log_density, axis=0)) - math.log(len(log_density))
        of_bags, of_instances = self.log_odds(mean_density, bags, pooling=pooling)
        if pooling == "bayes":  # not from the instances, which share θ
            log_negative, log_positive = logsumexp(bag_density, axis=0)
            prior = math.log(self.positive_fraction) - math.log1p(-self.positive_fraction)
            of_bags = prior + log_positive - log_negative
        return {
            "bag_probability": bag,
            "instance_probability": instance,
            "bag_log_odds": of_bags,
            "instance_log_odds": of_instances,
        }

    def log_odds(
        self, log_density: Float[np.ndarray, "2 N"], bags: Bags, *, pooling: Pooling
    ) -> tuple[Float[np.ndarray, " B"], Float[np.ndarray, " N"]]:
        """Log odds of bags and instances from log p₋ and log p₊ of each instance.

        Raises
        ------
        ValueError
            If ``pooling`` is unknown.
        """
        _check_pooling(pooling)
        given = padded(bags.without_labels())
        whole = np.zeros((2, given.num_instances))
        whole[:, : bags.num_instances] = log_density
        with jax.enable_x64(True):
            bag, instance = _log_odds(whole, self, given, pooling)
            return np.asarray(bag)[: bags.num_bags], np.asarray(instance)[: bags.num_instances]

    def log_odds_traced(
        self, log_density: Float[Array, "2 N"], bags: Bags, pooling: Pooling
    ) -> tuple[Float[Array, " B"], Float[Array, " N"]]:
        """`log_odds` within a compiled program."""
        logits = log_density[1] - log_density[0]
        of_bags = bag_log_odds(
            logits, bags, self.positive_fraction, pooling, needs_witness=self.needs_witness
        )
        return of_bags, logits

    def estimands_of(self, draws: Draws, bags: Bags) -> Draws:
        """Estimands for the training bags, which do not depend on cluster labels.

        Parameters
        ----------
        draws : dict of arrays
            The latent sites, draws first.
        bags : Bags
            With labels.

        Returns
        -------
        dict of arrays
            ``instance_probability`` (S, F): P(r_n = 1 | X, T, θ) of the F instances whose label is
            free (left out if there are none); ``log_density`` (S, B): log p(X_b | T_b, θ);
            ``occupied_components`` (S, 2): the expected number of components of each class with an
            instance in them, given θ.
        """
        self.check(bags)
        found = self._over_draws(_identify_one, draws, padded(bags))
        found["log_density"] = found["log_density"][:, : bags.num_bags]
        is_free = found.pop("is_free")[0, : bags.num_instances]
        probability = found.pop("instance_probability")[:, : bags.num_instances]
        return found | ({"instance_probability": probability[:, is_free]} if is_free.any() else {})

    def complete(self, draws: Draws, bags: Bags, *, seed: int | Array) -> Draws:
        """Draw the instance labels and clusters, which were summed out, given T.

        Parameters
        ----------
        draws : dict of arrays
            The latent sites, draws first.
        bags : Bags
            With labels.
        seed : int or JAX key

        Returns
        -------
        dict of arrays
            The draws, with ``instance_label`` (S, N) and ``cluster`` (S, N) added.
        """
        self.check(bags)
        found = self._over_draws(_complete_one, draws, padded(bags), seed=seed)
        cut = {name: values[:, : bags.num_instances] for name, values in found.items()}
        return dict(draws) | cut

    def _over_draws(
        self,
        function: Callable,
        draws: Draws,
        bags: Bags,
        *,
        seed: int | Array = 0,
        **options: Any,
    ) -> Any:
        """Evaluate a function of one draw, the model and the bags for all draws."""
        sites: dict[str, np.ndarray | Array] = {name: draws[name] for name in self.latent_sites}
        with jax.enable_x64(True):
            sites["key"] = jax.random.split(random_key(seed), len(sites["mean"]))
        # Draws evaluated together fill the vector units; many instances do that alone.
        numbers = 2 * self.max_components * bags.num_instances * self.num_features
        together = max(1, min(64, _BLOCK // numbers))
        return over_draws(function, sites, self, bags, together=together, **options)


def _predict_one(
    site: dict[str, Array], model: DPMIL, bags: Bags, *, pooling: Pooling, together: int
) -> tuple[Array, Array, Array, Array]:
    log_density = model.mixtures(site).log_density(jnp.asarray(bags.instances))
    log_negative = sum_over_bags(log_density[0], jnp.asarray(bags.bag_index), bags.num_bags)
    logits = log_density[1] - log_density[0]
    log_ratio = log_bag_ratio(logits, bags, needs_witness=model.needs_witness)
    bag_density = jnp.stack([log_negative, log_negative + log_ratio])  # log p(X | T*), T* = 0, 1
    of_bags, of_instances = model.log_odds_traced(log_density, bags, pooling)
    return log_density, bag_density, jax.nn.sigmoid(of_bags), jax.nn.sigmoid(of_instances)


def _identify_one(
    site: dict[str, Array], model: DPMIL, bags: Bags, *, together: int
) -> dict[str, Array]:
    rule, instances = model.label_rule(bags), jnp.asarray(bags.instances)
    log_components = model.mixtures(site).log_components(instances)
    log_density = jax.nn.logsumexp(log_components, axis=1)
    return {
        "log_density": rule.log_evidence(log_density),
        "occupied_components": expected_occupied(log_components, rule),
        "instance_probability": rule.labels(log_density[1] - log_density[0]).mean,
        "is_free": rule.known == 0,
    }


def _complete_one(
    site: dict[str, Array], model: DPMIL, bags: Bags, *, together: int
) -> dict[str, Array]:
    log_components = model.mixtures(site).log_components(jnp.asarray(bags.instances))
    return draw_labels(site["key"], log_components, model.label_rule(bags))


@partial(jax.jit, static_argnames="pooling")
def _log_odds(
    log_density: Float[Array, "2 N"], model: DPMIL, bags: Bags, pooling: Pooling
) -> tuple[Float[Array, " B"], Float[Array, " N"]]:
    return model.log_odds_traced(log_density, bags, pooling)


def log_stick_weights(stick: Float[Array, "*L k"]) -> Float[Array, "*L K"]:
    """log π_k = log v_k + Σ_{j<k} log(1 − v_j), with v_K = 1; K = k + 1."""
    none = jnp.zeros((*stick.shape[:-1], 1), stick.dtype)
    left = jnp.cumsum(jnp.concatenate([none, jnp.log1p(-stick)], axis=-1), axis=-1)
    return left + jnp.concatenate([jnp.log(stick), none], axis=-1)


def log_evidence_of_counts(
    count: Float[Array, "*L K"], concentration: float | Array
) -> Float[Array, "*L"]:
    """log p(z) with the sticks integrated out: Σ_{k<K} log B(1 + N_k, α + Σ_{j>k} N_j) + log α.

    By gammaln: ``jax.scipy.special.betaln`` has errors of 1e-6.
    """
    concentration1, concentration0 = 1 + count[..., :-1], concentration + count_after(count)
    log_beta = (
        gammaln(concentration1) + gammaln(concentration0) - gammaln(concentration1 + concentration0)
    )
    return jnp.sum(log_beta + jnp.log(concentration), axis=-1)


def count_after(count: Float[Array, "*L K"]) -> Float[Array, "*L k"]:
    """Number of instances in later components, Σ_{j>k} N_j, for k < K."""
    return jnp.flip(jnp.cumsum(jnp.flip(count, -1), axis=-1), -1)[..., 1:]


def draw_labels(
    key: Array, log_components: Float[Array, "2 K N"], rule: LabelRule
) -> dict[str, Array]:
    """Instance labels and clusters from their joint distribution given the mixtures and T."""
    label_key, cluster_key = jax.random.split(key)
    log_density = jax.nn.logsumexp(log_components, axis=1)
    label = rule.labels(log_density[1] - log_density[0]).sample(label_key)
    own = jnp.take_along_axis(log_components, label[None, None, :], axis=0)[0]  # (K, N)
    return {
        "instance_label": label,
        "cluster": jax.random.categorical(cluster_key, own, axis=0),
    }


def bag_log_odds(
    logits: Float[Array, " N"],
    bags: Bags,
    positive_fraction: float | Array,
    pooling: Pooling,
    *,
    needs_witness: bool = True,
) -> Float[Array, " B"]:
    """Log odds of T* = 1 from log p₊/p₋ of the instances, by Bayes or by a noisy-or."""
    if pooling == "noisy_or":
        return log_odds_of_some(logits, jnp.asarray(bags.bag_index), bags.num_bags)
    prior = jnp.log(positive_fraction) - jnp.log1p(-positive_fraction)
    return prior + log_bag_ratio(logits, bags, needs_witness=needs_witness)


def log_bag_ratio(
    logits: Float[Array, " N"], bags: Bags, *, needs_witness: bool
) -> Float[Array, " B"]:
    """log R = log p(X | T* = 1) − log p(X | T* = 0) of bags, from log p₊/p₋ of their instances."""
    index, num_bags = jnp.asarray(bags.bag_index), bags.num_bags
    # log R = log[Π(1 + e^a) − 1] − log(2^N − 1), with Π(1 + e^a) − 1 = Π(1 + e^a) P(some r = 1);
    # without the condition R = Π(1 + e^a)/2^N.
    log_ratio = sum_over_bags(softplus(logits) - math.log(2), index, num_bags)
    if not needs_witness:
        return log_ratio
    log_some, of_none = (
        log_some_positive(values, index, num_bags) for values in (logits, jnp.zeros_like(logits))
    )
    return log_ratio + log_some - of_none


def expected_occupied(log_components: Float[Array, "2 K N"], rule: LabelRule) -> Float[Array, "2"]:
    """Σ_k [1 − Π_b P(no instance of the bag is in component k | X_b, T_b, θ)], for each class."""
    log_density = jax.nn.logsumexp(log_components, axis=1)
    total = rule.log_evidence(log_density)

    def of_one(component: tuple[Array, Array]) -> Float[Array, ""]:
        klass, own = component
        # Without the component a fraction 1 − responsibility of the class density remains.
        left = log_density[klass] + jax.nn.log1mexp(jnp.maximum(log_density[klass] - own, 0.0))
        return jnp.sum(rule.log_evidence(log_density.at[klass].set(left)) - total)

    K = log_components.shape[1]
    klass = jnp.repeat(jnp.arange(2), K)
    together = min(2 * K, max(1, _BLOCK // log_density.size))
    log_empty = jax.lax.map(of_one, (klass, log_components.reshape(2 * K, -1)), batch_size=together)
    return -jnp.sum(jnp.expm1(log_empty).reshape(2, K), axis=1)


def _check_positive_bags(bags: Bags, needs_witness: bool) -> None:
    """Raise an error for a positive bag whose instances are all known to be negative."""
    if not (needs_witness and isinstance(bags.instance_labels, np.ndarray)):
        return
    may = np.zeros(bags.num_bags, bool)
    np.logical_or.at(may, np.asarray(bags.bag_index), bags.instance_labels != 0)
    wrong = np.flatnonzero(~may & (np.asarray(bags.labels) == 1))
    if len(wrong):
        name = bags.names[wrong[0]] if bags.names else int(wrong[0])
        raise ValueError(
            f"bag {name!r} is positive, but all its instances are known to be negative; "
            "expected one that may be positive, or needs_witness=False"
        )


def _is_positive_definite(scale: np.ndarray) -> bool:
    if scale.ndim == 1:
        return bool(np.isfinite(scale).all() and (scale > 0).all())
    if not (
        np.isfinite(scale).all()
        and np.allclose(scale, scale.T, rtol=0, atol=1e-8 * np.abs(scale).max())
    ):
        return False
    try:
        np.linalg.cholesky(scale)
    except np.linalg.LinAlgError:
        return False
    return True


def _check_pooling(pooling: str) -> None:
    if pooling not in POOLINGS:
        raise ValueError(f"pooling is {pooling!r}; expected one of {', '.join(POOLINGS)}")


def _given(bags: Bags) -> Array | None:
    """The instances where they are data; None where bags without labels are to be drawn."""
    return None if bags.labels is None else jnp.asarray(bags.instances)
