"""The entrance to coordinate ascent: checks, a driver, the posterior."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float

from ...datasets.bags import Bags
from ...datasets.streaming import BagStream
from ...models.model import Model, random_key, split_key
from ...models.numerics.memory import check_memory
from ...models.numerics.threads import one_lapack_thread
from ...models.parts.bag_latent import FloatType
from ...models.parts.hyperpriors import central_value
from ..arguments import engine
from ..posterior import Posterior, Status, approximate_posterior
from ..runtime.chunks import PiecesInMemory
from ..runtime.devices import Devices
from ..runtime.programs import Stopwatch
from .algorithm import ClosedForm, Options, closed_form
from .drivers import AfterStep, Ascent, Limits, ascend_in_memory, ascend_in_passes, best_of
from .early_stop import EarlyStop

__all__ = ["checked_form", "coordinate_ascent", "wrapped"]

# Draws of q kept where nobody asks for another number, as long as they fit into 256 MiB.
_NUM_DRAWS, _NUMBERS_KEPT = 1000, 2**25
# Of bags in memory, between steps: a GiB. Beyond it is made again for each step.
_NUMBERS_KEPT_OF_BAGS = 2**27


@engine
def coordinate_ascent(
    model: Model,
    bags: Bags | BagStream,
    *,
    seed: int | Array,
    label_update: str | None = None,
    max_steps: int = 1000,
    tolerance: float = 1e-8,
    learn_hyperparameters: bool = False,
    num_starts: int | None = None,
    num_draws: int | None = None,
    dtype: FloatType = "float64",
    mesh: Mesh | None = None,
    checkpoint: str | os.PathLike | None = None,
    callback: Callable[[Posterior], float] | None = None,
    patience: int = 10,
    keep_best: bool = True,
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
        step (of VWSGP once in all: the projections of its bags are kept in temporary files). It
        gives the same q(θ) as bags in memory; the posterior then keeps no bags.
    seed : int or JAX key
        Of random starts (mean field and DPMIL) and of the draws in the tree.
    label_update : str or None
        How instance labels are updated; None for the first of these. Of VGPMIL ``"exact"``: by
        their exact joint distribution; ``"mean_field"``: one after another as independent labels
        (the paper); ``"plug_in_max"``: all at once with the maximum of the others plugged in (the
        published codes; no ascent). To rerun those codes give the model ``sharpness=1e12``, and
        ``max_steps=200`` with ``tolerance=0``. Of DPMIL ``"soft"``: by their exact distribution
        over all labellings that a bag allows; ``"hard"``: to the better class for each instance,
        with the paper's repair where a bag is left without a witness.
    max_steps : int
    tolerance : float
        Converged when the bound moves by less than this fraction of its size in a step.
    learn_hyperparameters : bool
        Whether to ascend the bound in log variance, in log length scale and, where the model has
        them, in mean and log noise. For the Gaussian likelihood the bound is the evidence.
        Of those that have a prior, the log prior is ascended with the bound, from its median on.
        Of another ψ than the logistic one the bound has −log Z of the prior in it, from 100 draws
        (`VGPMIL.log_normaliser`).
        ``status`` is ``collapsed`` if the bound prefers a model that ignores the features.
    num_starts : int or None
        Of DPMIL, whose bound has many maxima: random starts, run at once; the best bound is kept
        and ``status`` tells how far the others are below. None for 5.
    num_draws : int or None
        Draws of q kept in the tree, over which `predict` averages; None for 1,000, or fewer if they
        would take 256 MiB.
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
    callback : callable or None
        Of bags in memory: takes the posterior after each step, and returns a score of it, such as
        the AUC on validation bags. The posterior of the highest score is returned (early stopping).
    patience : int
        The ascent ends where so many steps in a row have not raised the score of ``callback``.
    keep_best : bool
        Else the posterior of the last step is returned, as of a training that is halted.
    progress : bool
        Whether to draw a bar.

    Returns
    -------
    Posterior
        ``elbo`` is the trace of the bound; ``model`` has the learned values.

    Raises
    ------
    ValueError
        If ``label_update`` is unknown, a hyper-parameter has a prior and is not learned, or is to
        be learned of DPMIL; if a stream has a bad file or row, the checkpoint is of another run, or
        ``callback`` returns no number.
    NotImplementedError
        If the model has no closed form, or none on streams, with these options; of ``callback`` on
        a stream or a mesh.
    MemoryError
        If what must be kept of the instances between steps does not fit.

    References
    ----------
    Castro-Macías et al. (2024), Algorithm 1; Kandemir et al. (2016), section 3; Kandemir and
    Hamprecht (2014), Algorithm 1.

    Examples
    --------
    Positive bags have an instance near 3:

    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.inference import coordinate_ascent
    >>> from milzoo.models import RBF, VWSGP
    >>> bags = Bags.from_list([[[0.0], [3.0]], [[3.1]], [[0.2], [-0.1]], [[0.1]]], [1, 1, 0, 0])
    >>> model = VWSGP(RBF(variance=9.0, length_scale=1.0), np.array([[0.0], [3.0]]))
    >>> posterior = coordinate_ascent(model, bags, seed=0)
    >>> new = Bags.from_list([[[2.9]], [[0.1]]])
    >>> posterior.predict(new).bag_probability.round(1)
    array([0.9, 0.2])
    """
    watch = Stopwatch()
    in_chunks = mesh is not None or not isinstance(bags, Bags)
    learns: dict[str, Any] = {"learns_hyperparameters": learn_hyperparameters}
    options = Options(label_update, dtype, num_starts, in_chunks=in_chunks, **learns)
    if learn_hyperparameters:
        learns["priors"] = model.priors
        numbers = {name: central_value(prior) for name, prior in model.priors.items()}
        model = model.with_hyperparameters(numbers)
    form, limits = checked_form(model, options), Limits(max_steps, tolerance, progress)
    if checkpoint is not None and not in_chunks:
        raise ValueError(
            f"checkpoint is {checkpoint}, but the bags are in memory, where a fit takes seconds; "
            "leave it out, or pass a stream"
        )
    if callback is not None and in_chunks:
        raise NotImplementedError(
            "callback needs the posterior after each step, which is made for bags in memory alone; "
            "leave out callback, or the stream and the mesh"
        )
    if isinstance(bags, Bags):
        form.check(bags)
    with jax.enable_x64(True):
        start_key, draw_key = split_key(random_key(seed))
        end = partial(
            wrapped,
            bags=bags,
            engine="coordinate_ascent",
            key=draw_key,
            num_draws=num_draws,
            watch=watch,
        )
        if not isinstance(bags, Bags) or in_chunks:
            ascent = ascend_in_passes(
                form, bags, limits, key=start_key, devices=Devices(mesh), checkpoint=checkpoint
            )
        elif callback is None:
            ascent = _ascend(form, bags, limits, key=start_key, **learns)
        else:
            stop = EarlyStop(lambda ascent: callback(end(ascent)), patience, keep_best)
            ascent = _ascend(form, bags, limits, key=start_key, after_step=stop, **learns)
            ascent = stop.kept(ascent)
        return end(ascent)


def _ascend(
    form: ClosedForm,
    bags: Bags,
    limits: Limits,
    *,
    key: Array,
    learns_hyperparameters: bool,
    after_step: AfterStep | None = None,
    **priors: Any,
) -> Ascent:
    """Ascend in memory: at once, or in pieces that are made again, where that is too much."""
    numbers = form.numbers_kept(bags)
    may_forget = not (form.keeps_local or learns_hyperparameters or after_step)
    if numbers > _NUMBERS_KEPT_OF_BAGS and may_forget:
        pieces, devices = PiecesInMemory(bags), Devices(None)
        return ascend_in_passes(form, pieces, limits, key=key, devices=devices)
    check_memory(
        numbers,
        f"what coordinate_ascent keeps of {bags.num_instances:,} instances",
        "leave out label_update, learn_hyperparameters and callback, with which all of it is kept, "
        "or take fewer inducing points",
    )
    learns: dict[str, Any] = {"learns_hyperparameters": learns_hyperparameters} | priors
    return ascend_in_memory(form, bags, limits, key=key, after_step=after_step, **learns)


def checked_form(model: Model, options: Options) -> ClosedForm:
    """The closed form of a model with numbers as hyper-parameters.

    Raises
    ------
    ValueError
        If a hyper-parameter has a prior, or an option is unknown.
    NotImplementedError
        If the model has no closed form with these options.
    """
    form = closed_form(model, options)
    if model.priors:
        raise ValueError(
            f"{', '.join(model.priors)} of the model have priors, but coordinate_ascent needs "
            "numbers; give numbers and learn_hyperparameters=True, or sample with nuts"
        )
    return form


def wrapped(
    ascent: Ascent,
    bags: Bags | BagStream,
    engine: str,
    key: Array,
    num_draws: int | None,
    watch: Stopwatch,
) -> Posterior:
    """The outcome of an ascent as a posterior; of several starts, that of the best.

    Parameters
    ----------
    ascent : Ascent
    bags : Bags or BagStream
    engine : str
    key : JAX key
        Of the draws in the tree.
    num_draws : int or None
        None for 1,000, or as many as fit into 256 MiB.
    watch : Stopwatch
        Started with the call.

    Returns
    -------
    Posterior
    """
    form, given = ascent.form, bags if isinstance(bags, Bags) else None
    elbo, status, ends = ascent.elbo, ascent.status, np.asarray(ascent.elbo[-1])
    q, local = ascent.q, ascent.local
    if ends.ndim:
        best = best_of(ends)
        q, local = jax.tree.map(lambda leaf: np.asarray(leaf)[best], (q, local))
        elbo, status = elbo[:, best], Status(status.kind, f"{status.sentence}; {_of_starts(ends)}")
    in_a_draw = form.model.numbers_in_a_draw(given) or 1
    as_many_as_fit = min(_NUM_DRAWS, max(10, _NUMBERS_KEPT // in_a_draw))
    with one_lapack_thread():  # as in `approximate_posterior`
        approximation = form.approximation(q, local, given, ends)
    return approximate_posterior(
        form.model,
        given,
        approximation,
        engine=engine,
        key=key,
        num_draws=as_many_as_fit if num_draws is None else num_draws,
        status=status,
        seconds=ascent.seconds,
        watch=watch,
        elbo=elbo,
    )


def _of_starts(ends: Float[np.ndarray, " S"]) -> str:
    if len(ends) == 1:
        return "one start, which may be far from the best"
    return (
        f"the best of {len(ends)} starts, which ended between {ends.min():,.2f} and "
        f"{ends.max():,.2f}"
    )
