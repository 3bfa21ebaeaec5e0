"""Linear response: the covariance that the factors of q leave out, from the closed form alone.

Coordinate ascent finds means well and covariances badly: each factor is conditional on the means of
the others. But how far the mean of θ moves when tᵀθ is added to the log joint density is the
covariance of θ, and the maximum of the bound moves too. In coordinates in which q(θ) = N(m, UUᵀ)
moves to m + U a and S = U (I + B) Uᵀ, with linear term h and gram G of the statistics under q, both
functions of m and S, the Hessian of the negative bound, all local factors at their optimum, is

.. code-block:: text

    (a, B)  ↦  (a − Uᵀ (dh − dG m),  ½ (B + Uᵀ dG U)),        Σ = U [Hessian⁻¹]_aa Uᵀ

as ∂/∂m and ∂/∂S of the expected log likelihood are h − G m and −½ G, and S⁻¹ = I + G. Derivatives
dh and dG along U a and U B Uᵀ are products with the Jacobian of the E-step. Conjugate gradients
solve for one column of Uᵀ after another. Σ is exact where the posterior is Gaussian and the bound
the evidence; in general it is that of the bound's own optimum, and the mean stays where it is.

References
----------
Giordano, Broderick and Jordan (2018), Covariances, robustness, and variational Bayes, section 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.sparse.linalg import cg
from jaxtyping import Array, Bool, Float

from ...models.model import random_key
from ...models.numerics.threads import one_lapack_thread
from ..posterior import Posterior, Status, approximate_posterior
from ..runtime.programs import Stopwatch
from .algorithm import ClosedForm, GaussianForm, Options, closed_form

__all__ = ["Response", "check_gaussian", "is_at_rest", "linear_response", "response_at"]

# Of the linear equations: the relative residual, and steps at most.
_TOLERANCE, _MOST_STEPS = 1e-12, 2000
# Posterior sds that the mean may move in one more step of the ascent.
_LARGEST_MOVE = 0.01
# Of a covariance as it was found, relative to its largest entry.
_LARGEST_ASYMMETRY = 1e-6
# JAX's own type says that it never returns.
_solved: Callable[..., Any] = cg


class Response(NamedTuple):
    """The covariance by linear response, and what tells whether it is reliable.

    Attributes
    ----------
    covariance : array (P, P)
        Σ of θ, symmetric.
    asymmetry : float
        Of Σ as it was found, relative to its largest entry; 0 but for rounding.
    move : float
        Largest move of the mean in one more step of the ascent, in sds of q.
    """

    covariance: Float[Array, "P P"]
    asymmetry: Float[Array, ""]
    move: Float[Array, ""]


def linear_response(posterior: Posterior, *, seed: int | Array, num_draws: int = 1000) -> Posterior:
    """Correct the covariance of a closed-form approximation by linear response.

    Parameters
    ----------
    posterior : Posterior
        Of `coordinate_ascent`, at the end of its ascent, with the bags in memory.
    seed : int or JAX key
        Of the draws in the tree.
    num_draws : int
        Draws of the approximation kept in the tree.

    Returns
    -------
    Posterior
        The same mean with another covariance. ``status`` is ``failed``, and the covariance the
        given one, if what was found is no covariance; ``max_steps`` if the ascent was not at its
        end. It has no ``elbo``: no bound chooses this q.

    Raises
    ------
    ValueError
        If the posterior has no approximation or another engine's, keeps no bags, or has independent
        instance labels (``label_update``).
    NotImplementedError
        If q(θ) of the model is not Gaussian.

    References
    ----------
    Giordano, Broderick and Jordan (2018), section 3.

    Examples
    --------
    Coordinate ascent is overconfident. Linear response widens its Gaussian:

    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.inference import coordinate_ascent, linear_response
    >>> from milzoo.models import RBF, VWSGP
    >>> bags = Bags.from_list([[[0.0], [3.0]], [[3.1]], [[0.2], [-0.1]], [[0.1]]], [1, 1, 0, 0])
    >>> model = VWSGP(RBF(variance=9.0, length_scale=1.0), np.array([[0.0], [3.0]]))
    >>> posterior = coordinate_ascent(model, bags, seed=0)
    >>> corrected = linear_response(posterior, seed=0)
    >>> draws = [one.stored_draws()["inducing_value"] for one in (posterior, corrected)]
    >>> [of_one.std(axis=0).round(1) for of_one in draws]
    [array([1. , 1.6]), array([1.4, 1.9])]
    """
    watch, key = Stopwatch(), random_key(seed)
    approximation, bags = posterior.approximation, posterior.bags
    if approximation is None:
        raise ValueError(
            f"posterior of {posterior.engine} is a set of draws, whose covariance needs no "
            "correction; give one of coordinate_ascent"
        )
    form = check_gaussian(closed_form(posterior.model, Options()))
    with jax.enable_x64(True), one_lapack_thread():
        started = Stopwatch.now()
        q, form = form.factor(approximation), form.in_memory(bags)
        found, corrected = jax.tree.map(np.asarray, _corrected(form, form.chunk(bags), q))
        status = _status_of(found, posterior)
        if status.kind != "failed":
            approximation = form.approximation(corrected, None, bags, np.zeros(()))
        seconds = Stopwatch.now() - started
    return approximate_posterior(
        posterior.model,
        bags,
        approximation,
        engine="linear_response",
        key=key,
        num_draws=num_draws,
        status=status,
        seconds=seconds,
        watch=watch,
        elbo=None,
    )


def check_gaussian(form: ClosedForm) -> GaussianForm:
    """Return the form, if its q(θ) is Gaussian.

    Raises
    ------
    NotImplementedError
        If it is not.
    """
    if isinstance(form, GaussianForm):
        return form
    kind = type(form.model).__name__
    raise NotImplementedError(
        f"q of {kind} is no Gaussian, and linear response gives a covariance alone; sample "
        f"{kind} with gibbs for its posterior"
    )


@jax.jit
def _corrected(form: GaussianForm, chunk: Any, q: Any) -> tuple[Response, Any]:
    """The response at q(θ), and q(θ) with its covariance."""
    found = response_at(form, form.prepare(chunk), q)
    return found, form.with_moments(q, form.location(q), found.covariance)


def response_at(form: GaussianForm, prepared: Any, q: Any) -> Response:
    """Linear response at the end of an ascent; traceable.

    Parameters
    ----------
    form : GaussianForm
        Without local factors of its own.
    prepared : pytree
        As from ``form.prepare``.
    q : pytree
        q(θ) at the end of the ascent.

    Returns
    -------
    Response
    """
    mean, root = form.location(q), form.covariance_root(q)

    def natural_parameters(mean: Array, covariance: Array) -> tuple[Array, Array]:
        statistics, _ = form.e_step(prepared, form.with_moments(q, mean, covariance), None)
        return form.added_natural_parameters(statistics)  # h, G

    _, derivatives = jax.linearize(natural_parameters, mean, root @ root.T)

    # B/√2 in place of B: the Hessian is symmetric in the usual inner product, near the identity.
    def hessian(move: tuple[Array, Array]) -> tuple[Array, Array]:
        a, b = move
        dh, dg = derivatives(root @ a, math.sqrt(2.0) * root @ b @ root.T)
        return a - root.T @ (dh - dg @ mean), b + root.T @ dg @ root / math.sqrt(2.0)

    def column(row: Array) -> Array:
        right = row, jnp.zeros_like(root)
        solution: Any = _solved(hessian, right, tol=_TOLERANCE, maxiter=_MOST_STEPS)
        return root @ solution[0][0]

    found = jax.lax.map(column, root)
    asymmetry = jnp.abs(found - found.T).max() / jnp.abs(found).max()
    statistics, _ = form.e_step(prepared, q, None)
    after = form.location(form.m_step(statistics))
    move = jnp.abs(after - mean) / jnp.linalg.norm(root, axis=1)
    return Response((found + found.T) / 2, asymmetry, move.max())


def is_at_rest(found: Response) -> Bool[Array, ""]:
    """Whether what was found is a number, at the end of an ascent."""
    return jnp.isfinite(found.asymmetry) & (found.move < _LARGEST_MOVE)


def _status_of(found: Response, posterior: Posterior) -> Status:
    smallest = -math.inf
    if np.isfinite(found.covariance).all():
        smallest = float(np.linalg.eigvalsh(found.covariance)[0])
    if not (smallest > 0 and found.asymmetry < _LARGEST_ASYMMETRY):
        return Status(
            "failed",
            f"no covariance was found (smallest eigenvalue {smallest:.2g}, asymmetry "
            f"{found.asymmetry:.1g}): {posterior.engine} is at no strict maximum of its bound, and "
            "keeps its own covariance",
        )
    sentence = f"the covariance alone is corrected, the mean is that of {posterior.engine}"
    if found.move >= _LARGEST_MOVE:
        return Status(
            "max_steps",
            f"{sentence}, which another step of the ascent would move by {found.move:.2g} sd",
        )
    return Status(posterior.status.kind, f"{sentence}; asymmetry {found.asymmetry:.0e}")
