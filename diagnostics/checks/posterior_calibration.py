"""Posterior calibration: of an engine at these bags, not on average over the prior.

Draw θ′ from the posterior of the bags, new labels T′ of the same bags from p(T′ | θ′), and fit both
sets of labels at once: θ′ is a draw from that posterior, so that its rank among the engine's draws
is uniform if the engine is right there. Calibration over the prior judges an engine on data sets
that the prior draws, and most of these are like no real one.

References
----------
Säilynoja, Schmitt, Bürkner and Vehtari (2025), Posterior SBC.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpyro.handlers import substitute

from ...datasets.bags import Bags
from ...datasets.simulation import draw_sites
from ...inference.posterior import Posterior
from ...inference.traceable import TraceableEngine
from ...models.model import Draws, observations, random_key
from .simulation_calibration import (
    PARTS,
    Quantities,
    SimulationCalibration,
    Sites,
    Trial,
    WholeEngine,
    calibrated,
)

__all__ = ["posterior_calibration"]


@dataclass(frozen=True, eq=False)
class _PosteriorTrial(Trial):
    """A trial whose truths are draws of a posterior, and whose design are its bags, twice."""

    where: ClassVar[str] = " at these bags"

    bags: Bags = field(kw_only=True)
    draws: Draws = field(kw_only=True)

    def origin(self) -> dict[str, Any]:
        """The truths."""
        return {"draws": self.draws}

    def simulate(self, key: Array) -> tuple[Sites, Sites]:
        """A draw of the posterior, and the labels behind it followed by new ones."""
        index_key, label_key = jax.random.split(key)
        number = len(next(iter(self.draws.values())))
        index = jax.random.randint(index_key, (), 0, number)
        truth = {name: jnp.asarray(values)[index] for name, values in self.draws.items()}
        unlabelled = self.bags.without_labels()
        made = draw_sites(substitute(self.model, truth), unlabelled, label_key)
        drawn = {}
        for name, part in PARTS.items():
            if name in made:
                known = jnp.asarray(getattr(self.bags, part))
                drawn[part] = jnp.concatenate([known, made[name].astype(known.dtype)])
        return drawn, truth


def posterior_calibration(
    posterior: Posterior,
    engine: str | TraceableEngine | WholeEngine,
    *,
    seed: int | Array,
    simulations: int,
    num_draws: int = 99,
    quantities: Quantities | None = None,
    false_alarm_rate: float = 1e-4,
    checkpoint: str | os.PathLike | None = None,
    progress: bool = False,
    **options: Any,
) -> SimulationCalibration:
    """Rank draws of a posterior among an engine's draws given its bags and a replicate of them.

    Parameters
    ----------
    posterior : Posterior
        A reliable one, such as of `nuts`: its draws are the truths. Its bags and its model are
        those that the engine is judged at.
    engine : str, TraceableEngine or callable
        As of `simulation_calibration`.
    seed : int or JAX key
    simulations : int
        Refits, compiled once.
    num_draws, quantities, false_alarm_rate, checkpoint, progress, **options
        As of `simulation_calibration`.

    Returns
    -------
    SimulationCalibration

    Raises
    ------
    ValueError
        As of `simulation_calibration`.
    NotImplementedError
        If the model generates the instances, which have no replicate at the same bags; if the
        engine cannot fit the model.

    References
    ----------
    Säilynoja et al. (2025), algorithm 1.

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.diagnostics import posterior_calibration
    >>> from milzoo.inference import laplace
    >>> from milzoo.models import RBF, VWSGP
    >>> bags = Bags.from_list([[[0.0], [3.0]], [[3.1]], [[0.2], [-0.1]], [[0.1]]], [1, 1, 0, 0])
    >>> model = VWSGP(RBF(variance=9.0, length_scale=1.0), np.array([[0.0], [3.0]]))
    >>> posterior = laplace(model, bags, seed=0)
    >>> found = posterior_calibration(posterior, "coordinate_ascent", seed=0, simulations=200)
    >>> found.table[["rms_deviation"]].round(1)
                      rms_deviation
    inducing_value 0            1.3
    inducing_value 1            1.2
    log likelihood              1.8
    """
    model, bags = posterior.model, posterior.bags
    observations(model, bags, "posterior_calibration")
    if model.replication_note:
        raise NotImplementedError(model.replication_note)
    stored = posterior.stored_draws()
    trial = _PosteriorTrial(
        model,
        bags.select(np.tile(np.arange(bags.num_bags), 2)),
        quantities,
        num_draws,
        bags=bags,
        draws={name: stored[name] for name in model.latent_sites},
    )
    return calibrated(
        trial,
        engine,
        options,
        key=random_key(seed),
        simulations=simulations,
        false_alarm_rate=false_alarm_rate,
        checkpoint=checkpoint,
        progress=progress,
    )
