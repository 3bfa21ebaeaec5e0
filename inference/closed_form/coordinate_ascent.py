"""The entrance to coordinate ascent: checks, the loop, the posterior."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh
from jaxtyping import Array

from ...datasets.bags import Bags
from ...datasets.streaming import BagStream
from ...models.bag_evidence import BagEvidenceModel, FloatType
from ...models.dpmil import DPMIL
from ...models.likelihoods import Gaussian, Logistic, Probit
from ...models.model import observations, random_key
from ...models.vgpmil import VGPMIL
from ..chains import check_counts
from ..checkpoint import block_folder
from ..devices import Devices
from ..posterior import Posterior, approximate_posterior
from . import dpmil, vgpmil, vwsgp, vwsgp_gaussian, vwsgp_probit
from .ascent import Ascent, ascend, of_best_start
from .in_chunks import InChunks, ascend_in_chunks, chunks_of, in_chunks
from .learning import Algorithm, Learning

__all__ = [
    "check_sums",
    "check_update",
    "coordinate_ascent",
    "default_num_draws",
    "form_of",
    "start_of",
]


# Draws of q kept where nobody asks for another number, as long as they fit into 256 MiB.
_NUM_DRAWS = 1000
_NUMBERS_KEPT = 2**25
_NUM_STARTS = 5


def coordinate_ascent(
    model: VGPMIL | BagEvidenceModel | DPMIL,
    bags: Bags | BagStream,
    *,
    seed: int | Array,
    label_update: vgpmil.LabelUpdate | dpmil.LabelUpdate | None = None,
    max_steps: int = 1000,
    tolerance: float = 1e-8,
    learn_hyperparameters: bool = False,
    num_starts: int | None = None,
    num_draws: int | None = None,
    dtype: FloatType = "float64",
    mesh: Mesh | None = None,
    checkpoint: str | os.PathLike | None = None,
    progress: bool = False,
) -> Posterior:
    """Fit the closed-form approximation by coordinate ascent on its bound.

    Of VWSGP and CardinalityGP: by Jaakkola's bound for the logistic likelihood, by a latent utility
    (Albert and Chib) for the probit; for targets one step is the exact posterior, and the bound
    log p(Y).

    Parameters
    ----------
    model : VGPMIL, VWSGP, CardinalityGP or DPMIL
        With numbers as hyper-parameters (no priors).
    bags : Bags or BagStream
        With labels, or with targets for the Gaussian likelihood. A stream is read once for each
        step (of VWSGP once in all, what bags add being kept in temporary files), and gives the
        same q(θ) as bags in memory; the posterior then keeps no bags.
    seed : int or JAX key
        Of random starts (mean field and DPMIL) and of the draws in the tree.
    label_update : str or None
        How instance labels are updated; None for the first of these. Of VGPMIL ``"exact"``: by
        their exact joint law; ``"mean_field"``: one after another as independent labels (the
        paper); ``"plug_in_max"``: all at once with the maximum of the others plugged in (the
        published codes; no ascent). To rerun those codes give the model ``sharpness=1e12``, and
        ``max_steps=200`` with ``tolerance=0``. Of DPMIL ``"soft"``: by their exact law over all
        labellings that a bag allows; ``"hard"``: to the better class for each instance, with the
        paper's repair where a bag is left without a witness.
    max_steps : int
    tolerance : float
        Converged when the bound moves by less than this share of its size in a step.
    learn_hyperparameters : bool
        Whether to ascend the bound in log variance, log length scale and, where the model has
        them, mean and log noise as well. For the Gaussian likelihood the bound is the evidence.
    num_starts : int or None
        Of DPMIL, whose bound has many tops: random starts, run at once; the best bound is kept and
        ``status`` tells how far the others are below. None for 5.
    num_draws : int or None
        Draws of q kept in the tree; None for 1,000, or fewer if they would take 256 MiB.
    dtype : {"float64", "float32"}
        Of VGPMIL and VWSGP: of the kernel between instances and inducing points, and of products
        with it. Sums over instances and all that is M × M are 64-bit in any case.
    mesh : Mesh or None
        ``jax.make_mesh((num_devices,), ("bags",))``: devices that share the bags. Those of other
        processes (``jax.distributed.initialize()``) have the bags that are passed there: every
        process passes its own, and all get one q(θ). What is left behind is q(θ) alone, from which
        the factors of bags and instances follow.
    checkpoint : path or None
        A folder that each step on a stream is written to. Run again with the same arguments, a run
        that was killed goes on behind the last one, and ends as if it had not been.
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
        be learned for a ψ whose normalising constant depends on them, or of DPMIL; if a stream
        has a bad file or row, or the checkpoint is of another run.
    NotImplementedError
        If the model has no closed form, or none on streams, with these options.

    References
    ----------
    Castro-Macías et al. (2024), Algorithm 1; Kandemir et al. (2016), section 3; Kandemir and
    Hamprecht (2014), Algorithm 1.
    """
    chosen_update = check_update(model, label_update)
    _check(model, learn_hyperparameters, num_starts)
    num_draws = default_num_draws(model, bags) if num_draws is None else num_draws
    starts = _NUM_STARTS if num_starts is None else num_starts
    check_counts(num_draws=num_draws, num_starts=starts)
    by_sums = mesh is not None or dtype != "float64"
    if by_sums or isinstance(bags, BagStream):
        check_sums(chosen_update, learn_hyperparameters, dtype)
    elif checkpoint is not None:
        raise ValueError(
            f"checkpoint is {checkpoint}, but the bags are in memory, where a fit takes seconds; "
            "leave it out, or pass a stream"
        )
    if isinstance(bags, Bags):
        observations(model, bags, "coordinate_ascent")
    start_key, draw_key = jax.random.split(random_key(seed))
    limits = {"max_steps": max_steps, "tolerance": tolerance, "progress": progress}
    with jax.enable_x64(True):
        if by_sums or isinstance(bags, BagStream):
            form = form_of(model, dtype, num_starts, start_key)
            ascent, approximation = _fit_by_sums(form, model, bags, limits, mesh, checkpoint)
        elif isinstance(model, DPMIL):
            ascent, approximation = _fit_from_many_starts(
                model, bags, chosen_update, start_key, limits, num_starts=starts
            )
        else:
            model, ascent, approximation = _fit_sparse_gp(
                model, bags, chosen_update, start_key, limits, learns=learn_hyperparameters
            )
    return approximate_posterior(
        model,
        bags if isinstance(bags, Bags) else None,
        approximation,
        engine="coordinate_ascent",
        key=draw_key,
        num_draws=num_draws,
        status=ascent.status,
        seconds=ascent.seconds,
        compile_seconds=ascent.compile_seconds,
        elbo=ascent.elbo,
    )


def _fit_sparse_gp(
    model: VGPMIL | BagEvidenceModel,
    bags: Bags,
    label_update: Any,
    key: Array,
    limits: dict[str, Any],
    *,
    learns: bool,
) -> tuple[VGPMIL | BagEvidenceModel, Ascent, Any]:
    """The model with what was learned, the ascent, and q."""
    algorithm, problem, state = start_of(model, bags, label_update, key)
    is_ascent = label_update != "plug_in_max"
    if not learns:
        step, bound = algorithm.step, algorithm.elbo
        ascent = ascend(step, bound, problem, state, is_ascent=is_ascent, **limits)
        return model, ascent, algorithm.approximation(problem, ascent.state)
    learning = Learning(algorithm, model, bags)
    start = learning.init(state)
    ascent = ascend(learning.step, learning.elbo, problem, start, is_ascent=is_ascent, **limits)
    learned, state = ascent.state
    problem = learning.problem_at(problem, learned)
    return learning.model_of(learned), ascent, algorithm.approximation(problem, state)


def _fit_from_many_starts(
    model: DPMIL,
    bags: Bags,
    label_update: Any,
    key: Array,
    limits: dict[str, Any],
    *,
    num_starts: int,
) -> tuple[Ascent, Any]:
    """The ascent from the start that ended highest, and q at its end."""
    problem, states = dpmil.init(
        model, bags, label_update=label_update, num_starts=num_starts, key=key
    )

    def over_starts(function: Callable) -> Callable:
        return jax.vmap(function, in_axes=(None, 0))

    ascent = ascend(
        over_starts(dpmil.step),
        over_starts(dpmil.elbo),
        problem,
        states,
        is_ascent=True,
        **limits,
    )
    best = of_best_start(ascent)
    return best, dpmil.approximation(model, bags, problem, best.state, ascent.elbo[-1])


def _fit_by_sums(
    form: InChunks,
    model: Any,
    bags: Bags | BagStream,
    limits: dict[str, Any],
    mesh: Mesh | None,
    checkpoint: str | os.PathLike | None,
) -> tuple[Ascent, Any]:
    """The ascent, and q(θ)."""
    devices = Devices(mesh)
    with devices.together():
        run = {
            "engine": "coordinate_ascent",
            "form": form,
            "tolerance": limits["tolerance"],
            "processes": devices.num_processes,
        }
        folder = block_folder(checkpoint, model, bags, **run)
        chunks, length = chunks_of(bags, devices)
        ascent = ascend_in_chunks(
            form, chunks, chunk_instances=length, devices=devices, checkpoint=folder, **limits
        )
    return form.finished(ascent)


def form_of(model: Any, dtype: FloatType, num_starts: int | None, key: Array) -> InChunks:
    """The closed form by sums over bags, from as many starts as `coordinate_ascent` takes.

    Raises
    ------
    ValueError
        If ``num_starts`` is given and the model has one start.
    NotImplementedError
        If the model has no such form.
    """
    _check(model, False, num_starts)
    starts = _NUM_STARTS if num_starts is None else num_starts
    check_counts(num_starts=starts)
    seeds = dpmil.seeds_of(key, starts) if isinstance(model, DPMIL) else ()
    return in_chunks(model, dtype, seeds)


def check_sums(label_update: Any, learn_hyperparameters: bool, dtype: str) -> None:
    """Refuse options that need more than sums over bags.

    Raises
    ------
    ValueError
        If the type is unknown.
    NotImplementedError
        If an option needs instances one by one, or many passes.
    """
    if dtype not in ("float64", "float32"):
        raise ValueError(f"dtype is {dtype!r}; expected 'float64' or 'float32'")
    if label_update not in (None, "exact", "soft"):
        raise NotImplementedError(
            f"label_update={label_update!r} needs what the last step said of each instance, which "
            "is not kept on a stream, on a mesh or in 32 bit; leave it out for the exact law of "
            "the labels"
        )
    if learn_hyperparameters:
        raise NotImplementedError(
            "learn_hyperparameters=True on a stream, on a mesh or in 32 bit would go through the "
            "bags for each value that is tried; learn them from a part of the bags in memory"
        )


def start_of(
    model: VGPMIL | BagEvidenceModel, bags: Bags, label_update: Any, key: Array
) -> tuple[Algorithm, Any, Any]:
    """The updates of a model, what stays fixed, and the state to start from.

    Raises
    ------
    NotImplementedError
        If the model has no closed form.
    """
    match model:
        case VGPMIL():
            return vgpmil, *vgpmil.init(model, bags, label_update=label_update, key=key)
        case BagEvidenceModel(likelihood=Logistic()):
            return vwsgp, *vwsgp.init(model, bags)
        case BagEvidenceModel(likelihood=Probit()):
            return vwsgp_probit, *vwsgp_probit.init(model, bags)
        case BagEvidenceModel(likelihood=Gaussian()):
            return vwsgp_gaussian, *vwsgp_gaussian.init(model, bags)
        case _:
            raise NotImplementedError(
                f"{type(model).__name__} has no closed form; sample it with nuts, or fit it by svi"
            )


def _label_updates(model: Any) -> tuple[str, ...]:
    """Those that the model has, the usual one first."""
    match model:
        case VGPMIL():
            return vgpmil.LABEL_UPDATES
        case DPMIL():
            return dpmil.LABEL_UPDATES
        case _:
            return ()


def default_num_draws(model: VGPMIL | BagEvidenceModel | DPMIL, bags: Bags | BagStream) -> int:
    """Draws of q kept where nobody asks for another number."""
    if not isinstance(model, DPMIL):
        return _NUM_DRAWS
    kept = model.numbers_in_a_draw(bags if isinstance(bags, Bags) else None)
    return min(_NUM_DRAWS, max(10, _NUMBERS_KEPT // kept))


def check_update(model: Any, label_update: str | None) -> Any:
    """Which label update is meant.

    Raises
    ------
    ValueError
        If it is unknown, or a hyper-parameter has a prior.
    """
    updates, kind = _label_updates(model), type(model).__name__
    if label_update is not None and not updates:
        raise ValueError(
            f"label_update is {label_update!r}, but {kind} has no instance labels to update; "
            "leave it out"
        )
    if label_update is not None and label_update not in updates:
        raise ValueError(
            f"label_update is {label_update!r}; expected one of {', '.join(updates)} for {kind}"
        )
    if model.priors:
        raise ValueError(
            f"{', '.join(model.priors)} of the model have priors, but coordinate_ascent needs "
            "numbers; give numbers and learn_hyperparameters=True, or sample with nuts"
        )
    return updates[0] if label_update is None and updates else label_update


def _check(
    model: VGPMIL | BagEvidenceModel | DPMIL, learn_hyperparameters: bool, num_starts: int | None
) -> None:
    kind = type(model).__name__
    if num_starts is not None and not isinstance(model, DPMIL):
        raise ValueError(
            f"num_starts is {num_starts}, but the closed form of {kind} has one start; leave it out"
        )
    if learn_hyperparameters and isinstance(model, DPMIL):
        raise ValueError(
            "learn_hyperparameters=True, but DPMIL has fixed hyper-parameters, as the paper: give "
            "them to DPMIL.for_bags"
        )
    if learn_hyperparameters and isinstance(model, VGPMIL) and not model.is_logistic:
        raise ValueError(
            f"learn_hyperparameters=True with mixing={model.mixing}: the normalising constant of "
            "that prior depends on the hyper-parameters and is not in the bound, which would grow "
            "without end; use PolyaGammaMixing() to learn them"
        )
