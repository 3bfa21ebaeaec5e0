"""Densities of NumPyro programs over many draws in bounded memory, and limits on their size."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpyro.handlers import seed, substitute, trace
from numpyro.infer.util import log_density

from ...datasets.bags import Bags
from ...models.model import Draws, Model, Program
from ...models.numerics.draws import map_draws

__all__ = [
    "ProgramName",
    "check_number_of_unknowns",
    "log_joint",
    "log_likelihood",
    "log_likelihood_of_one",
    "program_of",
]

# The paper's program, the one with everything summed out that can be, the closed-form bound's.
type ProgramName = Literal["full", "marginal", "augmented"]


# Draws evaluated together fill the vector units, but a few thousand instances do that alone.
_DRAWS, _INSTANCES = 16, 2**17
# Observed sites of bags. A factor is a site with an observation too, but not among these.
_OBSERVED = ("bag_label", "bag_target", "instances")


def check_number_of_unknowns(model: Model, engine: str) -> None:
    """Refuse a model with so many unknown numbers that gradients would take hours to find them.

    Raises
    ------
    ValueError
        If it has; the message names an alternative.
    """
    if model.gradient_note:
        raise ValueError(f"{engine} would have to find {model.gradient_note}")


def program_of(model: Model, name: ProgramName) -> Program:
    """A program of a model by its name.

    Raises
    ------
    ValueError
        If the name is unknown.
    """
    match name:
        case "full":
            return model
        case "marginal":
            return model.marginal()
        case "augmented":
            return model.augmented()
    raise ValueError(f"program is {name!r}; expected 'full', 'marginal' or 'augmented'")


def log_joint(
    model: Model, program: ProgramName, draws: Draws, bags: Bags
) -> Float[np.ndarray, " S"]:
    """log p(draw, observations) under a program of the model, for each draw of its latent sites.

    Parameters
    ----------
    model : Model
    program : {"full", "marginal", "augmented"}
    draws : dict of arrays
        Values of every latent site of the program in its own (constrained) space, draws first.
    bags : Bags

    Returns
    -------
    array (S,)
    """
    return _over_draws(_log_joints, model, program, draws, bags)


def log_likelihood(
    model: Model, program: ProgramName, draws: Draws, bags: Bags
) -> Float[np.ndarray, "S B"]:
    """log p(observation of bag b | draw), for each bag and draw.

    Parameters
    ----------
    model : Model
        Whose program observes ``bag_label``, ``bag_target`` or ``instances``: sites with a log
        density for each bag, or a distribution that tells it by ``log_prob_by_bag``.
    program : {"full", "marginal", "augmented"}
    draws : dict of arrays
        As for `log_joint`.
    bags : Bags
        With labels, or targets.

    Returns
    -------
    array (S, B)
    """
    return _over_draws(_log_likelihoods, model, program, draws, bags)[:, : bags.num_bags]


def log_likelihood_of_one(
    program: Program, site: Mapping[str, np.ndarray | Array], bags: Any
) -> Float[Array, " B"]:
    """log p(observation of bag b | draw) of one draw, traceable by JAX."""
    # The key is never used: every latent site is substituted.
    sites = trace(substitute(seed(program, jax.random.key(0)), dict(site))).get_trace(bags)
    observed = [sites[name] for name in _OBSERVED if name in sites]
    return sum((_by_bag(site["fn"], site["value"]) for site in observed), jnp.zeros(()))


def _by_bag(distribution: Any, value: Array) -> Float[Array, " B"]:
    return getattr(distribution, "log_prob_by_bag", distribution.log_prob)(value)


@partial(jax.jit, static_argnames=("program", "together"))
def _log_joints(
    model: Any, bags: Any, sites: dict[str, Array], *, program: ProgramName, together: int
) -> Float[Array, " S"]:
    def of_one(site: dict[str, Array]) -> Float[Array, ""]:
        return log_density(program_of(model, program), (bags,), {}, site)[0]

    return map_draws(of_one, sites, together)


@partial(jax.jit, static_argnames=("program", "together"))
def _log_likelihoods(
    model: Any, bags: Any, sites: dict[str, Array], *, program: ProgramName, together: int
) -> Float[Array, "S B"]:
    def of_one(site: dict[str, Array]) -> Float[Array, " B"]:
        return log_likelihood_of_one(program_of(model, program), site, bags)

    return map_draws(of_one, sites, together)


def _over_draws(
    compiled: Any, model: Model, program: ProgramName, draws: Draws, bags: Bags
) -> np.ndarray:
    together = max(1, min(_DRAWS, _INSTANCES // len(bags.bag_index)))
    with jax.enable_x64(True):
        # Other programs have sites of the instances, as many as there are.
        given = model.prepare(bags) if program == "marginal" else model.unpadded(bags)
        return np.asarray(compiled(model, given, draws, program=program, together=together))
