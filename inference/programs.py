"""NumPyro programs: densities over many draws in bounded memory, and which are too large."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpyro.handlers import seed, substitute, trace
from numpyro.infer.util import log_density

from ..datasets.bags import Bags
from ..models.dpmil import DPMIL
from ..models.model import Draws, Model, Program

__all__ = ["check_number_of_unknowns", "log_joint", "log_likelihood", "log_likelihood_of_one"]


# Draws evaluated together fill the vector units, but a few thousand instances do that alone.
_DRAWS, _INSTANCES = 16, 2**17
# Of a mixture of Gaussians. With 950 a draw of NUTS takes 0.17 s for 400 instances, and its draws
# are few that count: for thousands of instances a chain would take hours.
_MOST_UNKNOWNS = 1000
# What may be known of bags. A factor is a site with an observation too, but not of these.
_OBSERVED = ("bag_label", "bag_target", "instances")


def check_number_of_unknowns(model: Model, engine: str) -> None:
    """Refuse a mixture with so many unknown numbers that gradients would lead nowhere for hours.

    Raises
    ------
    ValueError
        If it has, with what to do instead.
    """
    if isinstance(model, DPMIL) and model.num_unknowns > _MOST_UNKNOWNS:
        raise ValueError(
            f"{engine} would have to find {model.num_unknowns:,} unknown numbers of DPMIL "
            f"({model.max_components} components of {model.num_features} features in each class); "
            f"expected at most {_MOST_UNKNOWNS:,}: use coordinate_ascent or gibbs, fewer features "
            "(datasets.kernel_pca), fewer components or covariance='diagonal'"
        )


def log_joint(program: Program, draws: Draws, bags: Bags) -> Float[np.ndarray, " S"]:
    """log p(draw, what is observed) of a program, for each draw of all its latent sites.

    Parameters
    ----------
    program : callable
        A NumPyro program of ``bags``.
    draws : dict of arrays
        Values of every latent site in its own (constrained) space, draws first.
    bags : Bags

    Returns
    -------
    array (S,)
    """
    return _over_draws(lambda site: log_density(program, (bags,), {}, site)[0], draws, bags)


def log_likelihood(program: Program, draws: Draws, bags: Bags) -> Float[np.ndarray, "S B"]:
    """log p(what is observed of bag b | draw), for each bag and draw.

    Parameters
    ----------
    program : callable
        A NumPyro program of ``bags`` that observes ``bag_label``, ``bag_target`` or ``instances``:
        sites with a log density for each bag, or a law that tells it by ``log_prob_by_bag``.
    draws : dict of arrays
    bags : Bags
        With labels, or targets.

    Returns
    -------
    array (S, B)
    """
    return _over_draws(lambda site: log_likelihood_of_one(program, site, bags), draws, bags)


def log_likelihood_of_one(
    program: Program, site: Mapping[str, np.ndarray | Array], bags: Bags
) -> Float[Array, " B"]:
    """The same of one draw, as JAX traces it."""
    # The key is never used: every latent site is substituted.
    sites = trace(substitute(seed(program, jax.random.key(0)), dict(site))).get_trace(bags)
    observed = [sites[name] for name in _OBSERVED if name in sites]
    return sum((_by_bag(site["fn"], site["value"]) for site in observed), jnp.zeros(()))


def _by_bag(law: Any, value: Array) -> Float[Array, " B"]:
    return getattr(law, "log_prob_by_bag", law.log_prob)(value)


def _over_draws(
    function: Callable[[dict[str, Array]], Array], draws: Draws, bags: Bags
) -> np.ndarray:
    together = max(1, min(_DRAWS, _INSTANCES // len(bags.bag_index)))
    with jax.enable_x64(True):
        sites = {name: jnp.asarray(value) for name, value in draws.items()}
        return np.asarray(jax.jit(lambda d: jax.lax.map(function, d, batch_size=together))(sites))
