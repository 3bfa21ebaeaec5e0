"""Ascents of one bound from several starts: whether the others agree with the best of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import jax
import numpy as np
from jaxtyping import Array, Float

from ..datasets.bags import Bags
from ..models.model import Model
from .posterior import Approximation, Status, largest_rhat, with_estimands

__all__ = ["compared_across_starts"]

# Nats below the highest bound, of an optimum that is left out: e⁻⁵ is below 1 %.
_NEGLIGIBLE = 5.0
# Means of starts then differ by half an sd. Chains' limit of 1.01 is a seventh of an sd, and an
# ascent that has converged may lack as much.
_LARGEST_RHAT = 1.1
_NUM_DRAWS = 1000


def compared_across_starts(
    status: Status,
    model: Model,
    bags: Bags,
    approximations: Sequence[Approximation],
    bounds: Float[np.ndarray, " R"],
    *,
    key: Array,
) -> Status:
    """The status of the best of several ascents, with R̂ across draws of all that end as high.

    Of approximations that are as good as the best, within 5 nats, each has 1,000 independent draws,
    as a chain would have. R̂ is above 1.1 where means of starts differ by about half an sd: then the
    bound has several optima, and the approximation returned is one of these.

    Parameters
    ----------
    status : Status
        Of the ascent with the highest bound, by itself.
    model : Model
    bags : Bags
    approximations : sequence of Approximation
        One for each start.
    bounds : array (R,)
        Theirs, at the end; −∞ of one that failed.
    key : array
        Of the draws.

    Returns
    -------
    Status
        ``disagreed`` where the best converged and R̂ of the model's estimands is above 1.1.

    References
    ----------
    Vehtari et al. (2021), for R̂; Dhaka et al. (2020), for its limit in variational inference.
    """
    lacking = bounds.max() - bounds
    alike = [q for q, nats in zip(approximations, lacking, strict=True) if nats < _NEGLIGIBLE]
    if len(alike) < 2:
        least = np.sort(lacking)[1]
        told = f"the next highest of {len(bounds)} starts ends {least:.1f} nats lower"
        return replace(status, sentence=f"{status.sentence}; {told}")
    every = [
        q.draws(model, bags, one, _NUM_DRAWS)
        for q, one in zip(alike, jax.random.split(key, len(alike)), strict=True)
    ]
    stacked = {name: np.stack([draws[name] for draws in every]) for name in every[0]}
    implied = with_estimands(model, bags, stacked)
    rhat = largest_rhat({name: implied[name] for name in model.estimands or model.latent_sites})
    told = (
        f"R̂ {rhat:.3f} across {len(alike)} of {len(bounds)} starts, which end within "
        f"{_NEGLIGIBLE:g} nats of the highest bound"
    )
    agreed = rhat < _LARGEST_RHAT or status.kind != "converged"
    return Status(status.kind if agreed else "disagreed", f"{status.sentence}; {told}")
