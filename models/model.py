"""What every model of the zoo offers to the engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int
from numpyro.distributions import Distribution, constraints
from numpyro.infer.reparam import Reparam

from ..datasets.bags import Bags

__all__ = [
    "Checking",
    "Draws",
    "Model",
    "Observing",
    "Program",
    "check_prior",
    "given_labels",
    "observations",
    "over_draws",
    "part_of_bags",
    "random_key",
]

type Program = Callable[[Bags], None]
type Draws = dict[str, np.ndarray]

# Draws evaluated together.
_DRAWS = 16


@runtime_checkable
class Observing(Protocol):
    """What has something to learn from."""

    @property
    def observed_site(self) -> str:
        """The site of what is known of the bags: ``bag_label``, or ``bag_target``."""
        ...


@runtime_checkable
class Checking(Protocol):
    """What cannot have produced all labels or targets there are."""

    def check_observed(self, values: np.ndarray | Array) -> None:
        """Refuse labels or targets that it cannot have produced."""
        ...


@runtime_checkable
class Model(Observing, Protocol):
    """A generative model of bag labels or targets, its hyper-parameters as fields.

    Calling it is the NumPyro program as its paper tells it; ``marginal()`` is the same posterior
    with all sites gone that can be summed or integrated out exactly; ``augmented()`` has the
    auxiliary variables in it that the closed-form bound needs.
    """

    name: ClassVar[str]
    dims: ClassVar[dict[str, tuple[str, ...]]]
    # What posteriors are compared on, as `identified` gives it; nothing where sites themselves are.
    judged_by: ClassVar[tuple[str, ...]]

    @property
    def priors(self) -> dict[str, Distribution]:
        """The hyper-parameters that are to be inferred, by site name."""
        ...

    @property
    def latent_sites(self) -> tuple[str, ...]:
        """The sites of ``marginal()`` that are not observed: what a posterior is about."""
        ...

    @property
    def reparametrisation(self) -> dict[str, Reparam]:
        """How samplers should whiten the sites."""
        ...

    def with_hyperparameters(self, values: dict) -> Self:
        """Replace hyper-parameters by given values."""
        ...

    def __call__(self, bags: Bags) -> None:
        """The paper's program."""
        ...

    def marginal(self) -> Program:
        """The program with everything summed out that can be."""
        ...

    def augmented(self) -> Program:
        """The program with the auxiliary variables of the closed-form bound."""
        ...

    def predict(self, draws: Draws, bags: Bags) -> Draws:
        """What is known of new bags and their instances under each draw.

        Of labels: ``bag_probability`` (S, B) and ``instance_probability`` (S, N). Of targets:
        ``bag_mean``, ``bag_scale``, ``instance_mean``, ``instance_scale``, of like shapes, and
        ``bag_latent_mean``, ``bag_latent_scale`` where targets are not Gaussian under a draw.
        """
        ...

    def identified(self, draws: Draws, bags: Bags) -> Draws:
        """What draws say of the bags learned from in the same terms, whatever made them.

        Empty where the sites are such terms; clusters, whose names are arbitrary, are not.
        """
        ...

    def complete(self, draws: Draws, bags: Bags, *, seed: int | Array) -> Draws:
        """Draw back what ``marginal()`` summed out."""
        ...


# What an observed site is called as a part of `Bags`.
_PARTS = {"bag_label": "labels", "bag_target": "targets"}


def part_of_bags(model: Observing) -> str:
    """What the model learns from, as a part of `Bags`: ``labels``, or ``targets``."""
    return _PARTS[model.observed_site]


def observations(model: Observing, bags: Bags, needed_by: str) -> np.ndarray | Array:
    """What the model learns from: labels or targets, one for each bag.

    Raises
    ------
    ValueError
        If the bags do not have them, in the name of what needs them, or if the model cannot have
        produced them.
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
    """What a program observes: the labels, or None where they are to be drawn."""
    return None if bags.labels is None else jnp.asarray(bags.labels, dtype=int)


def check_prior(owner: str, name: str, prior: Distribution, wanted: constraints.Constraint) -> None:
    """Refuse a prior of something else than one real number, or one positive number.

    Raises
    ------
    ValueError
        If it is no distribution, has an event or batch shape, or another support.
    """
    is_scalar = isinstance(prior, Distribution) and prior.shape() == ()
    values = prior.support if is_scalar else None
    is_right = values is constraints.real if wanted is constraints.real else values == wanted
    if not is_right:
        raise ValueError(
            f"{owner} {name} is {prior!r}; expected a NumPyro distribution of one "
            f"{'real' if wanted is constraints.real else 'positive'} number"
        )


def over_draws(function: Callable[[dict[str, Array]], Any], sites: dict[str, Any]) -> Any:
    """A function of one draw, for all of them, some evaluated together.

    Parameters
    ----------
    function : callable
        Of the sites of one draw.
    sites : dict of arrays
        By draw on the first axis.

    Returns
    -------
    pytree of arrays
        Likewise.
    """
    with jax.enable_x64(True):
        on_device = jax.tree.map(jnp.asarray, sites)
        mapped = jax.jit(lambda s: jax.lax.map(function, s, batch_size=_DRAWS))(on_device)
        return jax.tree.map(np.asarray, mapped)


def random_key(seed: int | Array) -> Array:
    """A JAX key from an int, or the key itself.

    Raises
    ------
    TypeError
        If it is neither.
    """
    if isinstance(seed, int | np.integer):
        return jax.random.key(int(seed))
    if isinstance(seed, jax.Array) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        return seed
    raise TypeError(f"seed is {seed!r}; expected an int or a JAX key (jax.random.key(0))")
