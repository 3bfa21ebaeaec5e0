"""The protocol of models, and default answers to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jaxtyping import Array, Int
from numpyro.distributions import Distribution, constraints
from numpyro.handlers import mask
from numpyro.infer.reparam import Reparam

from ..datasets.arguments import checked_seed, is_whole
from ..datasets.bags import Bags
from ..datasets.padding import padded
from .parts.settings import Setting

__all__ = [
    "CLOSED_FORM_ENGINES",
    "GRADIENT_ENGINES",
    "Checking",
    "Draws",
    "Model",
    "ModelDefaults",
    "Observing",
    "Program",
    "given_labels",
    "observations",
    "part_of_bags",
    "plate_of_bags",
    "random_key",
    "split_key",
]

# Engines that the command line runs by default: for a model with a program alone, and for one with
# closed-form updates.
GRADIENT_ENGINES = ("maximum_a_posteriori", "laplace", "svi", "nuts")
CLOSED_FORM_ENGINES = ("coordinate_ascent", "laplace", "svi", "nuts", "gibbs")

type Program = Callable[[Bags], None]
type Draws = dict[str, np.ndarray]


@runtime_checkable
class Observing(Protocol):
    """A model with an observed site."""

    @property
    def observed_site(self) -> str:
        """Name of the observed site: ``bag_label``, or ``bag_target``."""
        ...


@runtime_checkable
class Checking(Protocol):
    """A model that has probability 0 for some labels or targets."""

    def check_observed(self, values: np.ndarray | Array) -> None:
        """Raise an error for labels or targets of probability 0."""
        ...


@runtime_checkable
class Model(Observing, Protocol):
    """A generative model of bag labels or targets, its hyper-parameters as fields.

    Calling it runs the NumPyro program of its paper. ``marginal()`` has the same posterior, with
    all sites summed or integrated out that can be exactly. ``augmented()`` adds the auxiliary
    variables of the closed-form ELBO.

    The protocol also declares the metadata that engines, diagnostics and the command line use.
    `ModelDefaults`, which models inherit from, has a default for each member.
    """

    name: ClassVar[str]
    dims: ClassVar[dict[str, tuple[str, ...]]]

    estimands: ClassVar[tuple[str, ...]]
    estimand_note: ClassVar[str]
    predicts_by: ClassVar[tuple[str, ...]]
    instance_note: ClassVar[str]
    leave_one_out_note: ClassVar[str]
    replication_note: ClassVar[str]
    observation_fields: ClassVar[tuple[str, ...]]
    usual_engines: ClassVar[tuple[str, ...]]
    settings: ClassVar[Mapping[str, Setting]]
    fields_for_bags: ClassVar[tuple[str, ...]]

    @property
    def hyperparameters(self) -> Mapping[str, Any]:
        """Hyper-parameters as numbers or priors, by site name."""
        ...

    def support_of(self, name: str) -> constraints.Constraint:
        """Values that a hyper-parameter may have."""
        ...

    @property
    def priors(self) -> Mapping[str, Distribution]:
        """The hyper-parameters that are to be inferred, by site name."""
        ...

    @property
    def latent_sites(self) -> tuple[str, ...]:
        """The sites of ``marginal()`` that are not observed: the parameters of the posterior."""
        ...

    @property
    def reparametrisation(self) -> Mapping[str, Reparam]:
        """How samplers should whiten the sites."""
        ...

    @property
    def observation(self) -> object:
        """The observation model: how labels or targets depend on the latent function."""
        ...

    @property
    def is_normalised(self) -> bool:
        """Whether ``marginal()`` is a density, not one up to an unknown constant."""
        ...

    @property
    def ignores_features(self) -> bool:
        """Whether its hyper-parameters leave labels hardly anything to do with features."""
        ...

    @property
    def learned_from_labels(self) -> str:
        """The part of the model or of the features that was learned from labels; empty if none."""
        ...

    @property
    def companions(self) -> Mapping[str, Model]:
        """Models to be fitted beside this one, by a word for each."""
        ...

    @property
    def gradient_note(self) -> str:
        """Why gradient engines would take too long; empty if they do not."""
        ...

    @property
    def size_note(self) -> str:
        """Why its draws are large, in words."""
        ...

    def numbers_in_a_draw(self, bags: Bags | None) -> int | None:
        """Upper bound on the numbers that a draw stores; None where draws are small."""
        ...

    def with_hyperparameters(self, values: dict) -> Self:
        """Replace hyper-parameters by given values."""
        ...

    def prepare(self, bags: Bags) -> Any:
        """Prepare the bags once: a pytree that programs take in their place.

        Arrays are padded to sizes that programs are compiled for. Quantities that depend on the
        bags and on fixed hyper-parameters alone are evaluated. ``program(model.prepare(bags))`` has
        the same density as ``program(bags)``.
        """
        ...

    def unpadded(self, bags: Bags) -> Any:
        """``prepare`` without padding, for programs with sites of instances or bags."""
        ...

    def __call__(self, bags: Bags) -> None:
        """The paper's program."""
        ...

    def marginal(self) -> Program:
        """The program with all sites summed or integrated out that can be exactly."""
        ...

    def augmented(self) -> Program:
        """The program with the auxiliary variables of the closed-form ELBO."""
        ...

    def predict(self, draws: Draws, bags: Bags) -> Draws:
        """The predictive distribution of new bags and their instances under each draw.

        Of labels: ``bag_probability`` (S, B) and ``instance_probability`` (S, N); where those of
        all draws together are no means of these, ``bag_log_odds`` (B,) and ``instance_log_odds``
        (N,) too. Of targets:
        ``bag_mean``, ``bag_scale``, ``instance_mean``, ``instance_scale``, of like shapes, and
        ``bag_latent_mean``, ``bag_latent_scale`` where targets are not Gaussian under a draw.
        """
        ...

    def estimands_of(self, draws: Draws, bags: Bags) -> Draws:
        """Estimands for the training bags, computed from the draws of any engine."""
        ...

    def complete(self, draws: Draws, bags: Bags, *, seed: int | Array) -> Draws:
        """Draw the sites that ``marginal()`` summed out."""
        ...


@contextmanager
def plate_of_bags(bags: Bags) -> Iterator[None]:
    """The plate ``bag``; sites of absent bags are masked."""
    with numpyro.plate("bag", bags.num_bags):
        if bags.present is None:
            yield
        else:
            with mask(mask=jnp.asarray(bags.present)):
                yield


class ModelDefaults:
    """Defaults for the members of `Model`.

    A model inherits from it and overrides them where it differs. There is no default for
    ``name``, ``dims``, ``latent_sites``, the three programs and ``predict``. A model of mixtures
    also has the methods of `ComponentModel`.

    Attributes
    ----------
    estimands : tuple of str
        Quantities on which posteriors are compared, as ``estimands_of`` names them; empty where
        the sites themselves are compared.
    estimand_note : str
        Reason for this choice, a sentence for the report.
    predicts_by : tuple of str
        The estimands that ``predict`` needs beside the latent sites.
    instance_note : str
        Meaning of an instance's probability.
    leave_one_out_note : str
        Why leave-one-out by importance weights is impossible; empty if it works.
    replication_note : str
        Why replicated labels or targets cannot check the model; empty if they can.
    observation_fields : tuple of str
        The fields that ``observation`` describes.
    usual_engines : tuple of str
        Default engines of the command line. The first must run.
    settings : mapping of str to Setting
        How the command line reads fields that are not numbers.
    fields_for_bags : tuple of str
        The fields that ``for_bags`` makes from data, which the command line cannot set.
    """

    estimands: ClassVar[tuple[str, ...]] = ()
    estimand_note: ClassVar[str] = ""
    predicts_by: ClassVar[tuple[str, ...]] = ()
    instance_note: ClassVar[str] = ""
    leave_one_out_note: ClassVar[str] = ""
    replication_note: ClassVar[str] = ""
    observation_fields: ClassVar[tuple[str, ...]] = ()
    usual_engines: ClassVar[tuple[str, ...]] = GRADIENT_ENGINES
    settings: ClassVar[Mapping[str, Setting]] = {}
    fields_for_bags: ClassVar[tuple[str, ...]] = ()

    @property
    def observed_site(self) -> str:
        """``bag_label``: the labels of the bags."""
        return "bag_label"

    @property
    def hyperparameters(self) -> Mapping[str, Any]:
        """No hyper-parameters."""
        return {}

    def support_of(self, name: str) -> constraints.Constraint:
        """Values that a hyper-parameter may have: positive ones, as of variances and scales."""
        return constraints.positive

    @property
    def priors(self) -> dict[str, Distribution]:
        """The hyper-parameters that are distributions, by site name."""
        given = self.hyperparameters
        return {name: value for name, value in given.items() if isinstance(value, Distribution)}

    @property
    def reparametrisation(self) -> dict[str, Reparam]:
        """None: samplers leave the sites as they are."""
        return {}

    @property
    def observation(self) -> object:
        """``"logistic"``; another word, or an object that is printed, of another model."""
        return "logistic"

    @property
    def is_normalised(self) -> bool:
        """True: ``marginal()`` is a density, and its ELBO a bound on log p(labels)."""
        return True

    @property
    def ignores_features(self) -> bool:
        """False: no hyper-parameter switches features off."""
        return False

    @property
    def learned_from_labels(self) -> str:
        """Empty: labels enter by the likelihood alone, and a bag can be left out of that."""
        return ""

    @property
    def companions(self) -> Mapping[str, Model]:
        """None: the posterior needs no second model for comparison."""
        return {}

    @property
    def gradient_note(self) -> str:
        """Empty: gradient engines work."""
        return ""

    @property
    def size_note(self) -> str:
        """Empty: draws are small."""
        return ""

    def numbers_in_a_draw(self, bags: Bags | None) -> int | None:
        """None: draws are small."""
        return None

    def with_hyperparameters(self, values: dict) -> Self:
        """The model itself: it has no hyper-parameters."""
        return self

    def prepare(self, bags: Bags) -> Any:
        """Bags padded to sizes that programs are compiled for; absent ones are masked."""
        return padded(bags)

    def unpadded(self, bags: Bags) -> Any:
        """``prepare`` without padding, for programs with sites of instances or bags."""
        return bags

    def estimands_of(self, draws: Draws, bags: Bags) -> Draws:
        """None: the sites are compared themselves.

        Parameters
        ----------
        draws : dict of arrays
            The latent sites, draws first.
        bags : Bags
            The training bags.

        Returns
        -------
        dict of arrays
            By name, draws first.
        """
        return {}

    def complete(self, draws: Draws, bags: Bags, *, seed: int | Array) -> Draws:
        """The draws themselves, where no site was summed out."""
        return dict(draws)


# Field of `Bags` with the values of each observed site.
_PARTS = {"bag_label": "labels", "bag_target": "targets"}


def part_of_bags(model: Observing) -> str:
    """Field of `Bags` that the model learns from: ``labels``, or ``targets``."""
    return _PARTS[model.observed_site]


def observations(model: Observing, bags: Bags, needed_by: str) -> np.ndarray | Array:
    """The observed labels or targets, one for each bag.

    Raises
    ------
    ValueError
        If the bags do not have them, or if the model gives them probability 0.
    """
    part = part_of_bags(model)
    values = getattr(bags, part)
    if values is None:
        raise ValueError(
            f"bags have no {part}; {needed_by} needs one for each bag to learn from"
            + ("" if part == "labels" else ": bags.with_targets(…)")
        )
    if isinstance(model, Checking):
        model.check_observed(values)
    return values


def given_labels(bags: Bags) -> Int[Array, " B"] | None:
    """The labels that a program observes, or None where they are to be drawn."""
    return None if bags.labels is None else jnp.asarray(bags.labels, dtype=int)


def random_key(seed: int | Array) -> Array:
    """A JAX key from an int, or the key itself.

    Raises
    ------
    TypeError
        If it is neither.
    ValueError
        If an int is out of range.
    """
    if isinstance(seed, jax.Array) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        return seed
    if not is_whole(seed):
        raise TypeError(f"seed is {seed!r}; expected an int or a JAX key (jax.random.key(0))")
    # The key of jax.random.key, without compiling programs.
    data: Any = np.array([0, checked_seed(seed)], np.uint32)
    return jax.random.wrap_key_data(data, impl="threefry2x32")


@partial(jax.jit, static_argnames="number")
def split_key(key: Array, number: int = 2) -> tuple[Array, ...]:
    """Independent keys of `jax.random.split`, by one program instead of three."""
    return tuple(jax.random.split(key, number))
