"""The entrance to coordinate ascent: checks, the loop, the posterior."""

from __future__ import annotations

from typing import Any

import jax
from jaxtyping import Array

from ...datasets.bags import Bags
from ...models.model import observations
from ...models.vgpmil import VGPMIL
from ...models.vwsgp import VWSGP
from ..chains import check_counts
from ..posterior import Posterior, approximate_posterior, random_key
from . import vgpmil, vwsgp, vwsgp_gaussian, vwsgp_probit
from .ascent import ascend
from .learning import Algorithm, Learning

__all__ = ["coordinate_ascent"]


def coordinate_ascent(
    model: VGPMIL | VWSGP,
    bags: Bags,
    *,
    seed: int | Array,
    label_update: vgpmil.LabelUpdate = "exact",
    max_steps: int = 1000,
    tolerance: float = 1e-8,
    learn_hyperparameters: bool = False,
    num_draws: int = 1000,
    progress: bool = False,
) -> Posterior:
    """Fit the closed-form approximation by coordinate ascent on its bound.

    Of VWSGP: by Jaakkola's bound for the logistic likelihood, by a latent utility (Albert and
    Chib) for the probit; for targets one step is the exact posterior, and the bound log p(Y).

    Parameters
    ----------
    model : VGPMIL or VWSGP
        With numbers as hyper-parameters (no priors).
    bags : Bags
        With labels, or with targets for the Gaussian likelihood.
    seed : int or JAX key
        Of the random start (mean field only) and of the draws in the tree.
    label_update : {"exact", "mean_field", "plug_in_max"}
        How the instance labels of VGPMIL are updated: by their exact joint law; one after another
        as independent labels (the paper); all at once with the maximum of the others plugged in
        (the published codes; no ascent). To rerun those codes give the model ``sharpness=1e12``,
        and ``max_steps=200`` with ``tolerance=0``.
    max_steps : int
    tolerance : float
        Converged when the bound moves by less than this share of its size in a step.
    learn_hyperparameters : bool
        Whether to ascend the bound in log variance, log length scale and, where the model has
        them, mean and log noise as well. For the Gaussian likelihood the bound is the evidence.
    num_draws : int
        Draws of q kept in the tree.
    progress : bool
        Whether to draw a bar.

    Returns
    -------
    Posterior
        ``elbo`` is the trace of the bound; ``model`` has the learned values.

    Raises
    ------
    ValueError
        If ``label_update`` is unknown, a hyper-parameter has a prior, or hyper-parameters are to
        be learned for a ψ whose normalising constant depends on them.
    NotImplementedError
        If the model has no closed form.

    References
    ----------
    Castro-Macías et al. (2024), Algorithm 1; Kandemir et al. (2016), section 3.
    """
    check_counts(num_draws=num_draws)
    _check(model, label_update, learn_hyperparameters)
    observations(model, bags, "coordinate_ascent")
    start_key, draw_key = jax.random.split(random_key(seed))
    with jax.enable_x64(True):
        algorithm, problem, state = _start(model, bags, label_update, start_key)
        limits = {"max_steps": max_steps, "tolerance": tolerance, "progress": progress}
        is_ascent = label_update != "plug_in_max"
        if learn_hyperparameters:
            learning = Learning(algorithm, model, bags)
            ascent = ascend(
                learning.step,
                learning.elbo,
                problem,
                learning.init(state),
                is_ascent=is_ascent,
                **limits,
            )
            learned, state = ascent.state
            problem = learning.problem_at(problem, learned)
            model = learning.model_of(learned)
        else:
            ascent = ascend(
                algorithm.step, algorithm.elbo, problem, state, is_ascent=is_ascent, **limits
            )
            state = ascent.state
        approximation = algorithm.approximation(problem, state)
    return approximate_posterior(
        model,
        bags,
        approximation,
        engine="coordinate_ascent",
        key=draw_key,
        num_draws=num_draws,
        status=ascent.status,
        seconds=ascent.seconds,
        compile_seconds=ascent.compile_seconds,
        elbo=ascent.elbo,
    )


def _start(
    model: VGPMIL | VWSGP, bags: Bags, label_update: vgpmil.LabelUpdate, key: Array
) -> tuple[Algorithm, Any, Any]:
    match model:
        case VGPMIL():
            return vgpmil, *vgpmil.init(model, bags, label_update=label_update, key=key)
        case VWSGP(likelihood="bernoulli"):
            return vwsgp, *vwsgp.init(model, bags)
        case VWSGP(likelihood="probit"):
            return vwsgp_probit, *vwsgp_probit.init(model, bags)
        case VWSGP(likelihood="gaussian"):
            return vwsgp_gaussian, *vwsgp_gaussian.init(model, bags)
        case _:
            raise NotImplementedError(
                f"{type(model).__name__} has no closed form; sample it with nuts, or fit it by svi"
            )


def _check(model: VGPMIL | VWSGP, label_update: str, learn_hyperparameters: bool) -> None:
    if label_update not in vgpmil.LABEL_UPDATES:
        raise ValueError(
            f"label_update is {label_update!r}; expected one of {', '.join(vgpmil.LABEL_UPDATES)}"
        )
    if label_update != "exact" and not isinstance(model, VGPMIL):
        raise ValueError(
            f"label_update is {label_update!r}, but {type(model).__name__} has no instance labels "
            "to update; leave it out"
        )
    if model.priors:
        raise ValueError(
            f"{', '.join(model.priors)} of the model have priors, but coordinate_ascent needs "
            "numbers; give numbers and learn_hyperparameters=True, or sample with nuts"
        )
    if learn_hyperparameters and isinstance(model, VGPMIL) and not model.is_logistic:
        raise ValueError(
            f"learn_hyperparameters=True with mixing={model.mixing}: the normalising constant of "
            "that prior depends on the hyper-parameters and is not in the bound, which would grow "
            "without end; use PolyaGammaMixing() to learn them"
        )
