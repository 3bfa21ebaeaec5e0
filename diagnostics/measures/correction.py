"""Correct an approximation by importance resampling of its draws under the exact model."""

from __future__ import annotations

import jax
import numpy as np
from jaxtyping import Array

from ...datasets.arguments import check_counts
from ...inference.importance import ImportanceResampled, WeightedDraws, largest_khat
from ...inference.posterior import Approximation, Posterior, Status, approximate_posterior
from ...inference.runtime.programs import Stopwatch
from ...models.model import random_key

__all__ = ["importance_resample"]

_FEWEST_PROPOSALS = 1000


def importance_resample(
    posterior: Posterior,
    *,
    seed: int | Array,
    num_draws: int = 1000,
    num_proposals: int = 20_000,
) -> Posterior:
    """Correct an approximation by Pareto-smoothed importance sampling of the exact posterior.

    Draws of q are weighted by p(u, Y)/q(u), p being the model with everything summed out, never a
    bound. The largest weights are smoothed, and draws are resampled in proportion. Means, intervals
    and predictions of the result are those of the exact posterior where q has draws. A mode that q
    never visits stays unvisited, and no diagnostic here can tell.

    Parameters
    ----------
    posterior : Posterior
        Of an engine whose approximation has a density: coordinate_ascent, laplace, svi or grid.
    seed : int or JAX key
    num_draws : int
        Kept in the tree.
    num_proposals : int
        Draws of q behind them.

    Returns
    -------
    Posterior
        Engine ``importance_resample(…)``. ``status`` has k̂ and the effective sample size of the
        proposals; it is ``failed`` where k̂ is above 0.7 (0.67 for 1,000 proposals): no number of
        proposals is enough.

    Raises
    ------
    ValueError
        If the posterior is a sampler's, or a point, or failed, or proposals are too few.

    References
    ----------
    Vehtari et al. (2024), Pareto smoothed importance sampling; Yao et al. (2018), Yes, but did it
    work?

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.diagnostics import importance_resample
    >>> from milzoo.inference import laplace
    >>> from milzoo.models import RBF, VWSGP
    >>> bags = Bags.from_list([[[0.0], [3.0]], [[3.1]], [[0.2], [-0.1]], [[0.1]]], [1, 1, 0, 0])
    >>> model = VWSGP(RBF(variance=9.0, length_scale=1.0), np.array([[0.0], [3.0]]))
    >>> posterior = laplace(model, bags, seed=0)
    >>> corrected = importance_resample(posterior, seed=0)
    >>> corrected.engine, corrected.status.kind
    ('importance_resample(laplace)', 'converged')
    >>> [one.predict(bags).bag_probability.round(2) for one in (posterior, corrected)]
    [array([0.69, 0.85, 0.2 , 0.27]), array([0.71, 0.9 , 0.15, 0.22])]
    """
    check_counts(num_draws=num_draws)
    if num_proposals < _FEWEST_PROPOSALS:
        raise ValueError(
            f"num_proposals is {num_proposals}; expected at least {_FEWEST_PROPOSALS:,}: the tail "
            "of fewer weights says nothing"
        )
    proposal, key = _proposal_of(posterior), random_key(seed)
    resampled = ImportanceResampled(proposal, num_proposals)
    watch = Stopwatch()
    started = watch.now()
    # The same proposals as those of the draws in the tree.
    found = resampled.weighted(posterior.model, posterior.bags, jax.random.split(key)[0])
    seconds = watch.now() - started
    return approximate_posterior(
        posterior.model,
        posterior.bags,
        resampled,
        engine=f"importance_resample({posterior.engine})",
        key=key,
        num_draws=num_draws,
        status=_status(found),
        seconds=posterior.seconds + seconds,
        watch=watch,
        elbo=None,
    )


def _proposal_of(posterior: Posterior) -> Approximation:
    """The approximation that draws are proposed from."""
    if posterior.status.kind == "failed":
        raise ValueError(
            f"posterior of {posterior.engine} failed ({posterior.status.sentence}); expected one "
            "that has a density to propose from"
        )
    approximation = posterior.approximation
    density = None if approximation is None else posterior.log_density(posterior.draws(1, seed=0))
    if approximation is None or density is None:
        raise ValueError(
            f"posterior of {posterior.engine} has no density to weigh its draws by; expected one "
            "of coordinate_ascent, laplace, svi or grid"
        )
    return approximation


def _status(found: WeightedDraws) -> Status:
    size, num = f"{found.effective_size:,.0f}", len(found.weights)
    largest = largest_khat(num)
    if np.isnan(found.khat):
        return Status("failed", "a density of the model or of the approximation is not finite")
    if found.khat > largest:
        return Status(
            "failed",
            f"PSIS k̂ is {found.khat:.2f}, above {largest:.2f}: the ratios p/q have so heavy a "
            "tail that no number of proposals corrects this approximation; sample with nuts, or "
            "begin from another one",
        )
    if found.khat == -np.inf:
        return Status("converged", "all ratios p/q are alike: there is nothing to correct")
    return Status(
        "converged", f"PSIS k̂ {found.khat:.2f}: {num:,} proposals have an effective size of {size}"
    )
