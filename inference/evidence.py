"""The log evidence of a model: by a bridge from draws of its posterior, by weights, or by SMC."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from arviz_stats.base.array import array_stats
from jaxtyping import Array, Float
from scipy.linalg import LinAlgError, cholesky, solve_triangular
from scipy.special import expit, logsumexp
from scipy.stats import norm

from ..datasets.arguments import check_counts
from ..models.model import Draws, Model, random_key
from ..models.numerics.draws import over_draws
from .gaussian import WhitenedProgram, whitened_draws, whitened_program
from .importance import weighted_evidence
from .posterior import Posterior
from .runtime.densities import log_joint

__all__ = ["LogEvidence", "bridged_evidence", "log_evidence", "why_not_one_density"]

# Relative change of the evidence that ends the iteration of the bridge, and the most iterations.
_CLOSE, _MOST_ITERATIONS = 1e-10, 1000


class LogEvidence(NamedTuple):
    """An estimate of log p(observations).

    Attributes
    ----------
    value : float
        In nats. Of a model whose density is known up to a constant, that of the given density.
    error : float
        Monte-Carlo standard error; infinite where k̂ says that weights do not work.
    method : {"bridge sampling", "importance sampling", "tempered SMC", "grid"}
        The last is that of references whose density is summed over a grid.
    khat : float
        Pareto k̂ of the weights; −∞ where all are alike, and the value is exact. NaN of a bridge
        and of SMC.

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.inference import LogEvidence, laplace, log_evidence
    >>> from milzoo.models import RBF, VWSGP
    >>> bags = Bags.from_list([[[0.0], [3.0]], [[3.1]], [[0.2], [-0.1]], [[0.1]]], [1, 1, 0, 0])
    >>> model = VWSGP(RBF(variance=9.0, length_scale=1.0), np.array([[0.0], [3.0]]))
    >>> found: LogEvidence = log_evidence(laplace(model, bags, seed=0), seed=0)
    >>> found.method
    'importance sampling'
    >>> round(found.value, 1), round(found.error, 1), round(found.khat, 1)
    (-2.5, 0.0, 0.6)
    """

    value: float
    error: float
    method: Literal["bridge sampling", "importance sampling", "tempered SMC", "grid"]
    khat: float


def log_evidence(posterior: Posterior, *, seed: int | Array, num_draws: int = 4000) -> LogEvidence:
    """Estimate the log evidence log p(labels) of a model from its posterior.

    Of a sampler, by the bridge between its draws and a Gaussian. One half of its chains' draws
    gives the Gaussian its mean m and covariance LLᵀ, in whitened, unconstrained coordinates; the
    other half is the bridge's, with m as its centre of symmetry ("warp III"); then the halves
    change places. Of an approximation, by the mean of the importance ratios p/q, their tail
    smoothed (PSIS). Of `tempered_smc`, by the mean of the estimates of its runs, which know all
    modes that the runs found.

    Parameters
    ----------
    posterior : Posterior
        Its chains must have mixed: of modes that they do not visit nothing is known.
    seed : int or JAX key
        Of the draws of the Gaussian, or of the approximation.
    num_draws : int
        Most draws of the posterior that are used, as many of the Gaussian; or of an approximation.

    Returns
    -------
    LogEvidence

    Raises
    ------
    ValueError
        If the posterior is a point or of resampled draws, its model has more unknown numbers than
        can be bridged, or quantities that its sites do not identify, such as names of clusters.

    References
    ----------
    Meng and Wong (1996), simulating ratios of normalizing constants; Meng and Schilling (2002),
    warp bridge sampling; Frühwirth-Schnatter (2004), its standard error.

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.inference import laplace, log_evidence
    >>> from milzoo.models import RBF, VWSGP
    >>> bags = Bags.from_list([[[0.0], [3.0]], [[3.1]], [[0.2], [-0.1]], [[0.1]]], [1, 1, 0, 0])
    >>> model = VWSGP(RBF(variance=9.0, length_scale=1.0), np.array([[0.0], [3.0]]))
    >>> posterior = laplace(model, bags, seed=0)
    >>> round(log_evidence(posterior, seed=0).value, 1)
    -2.5
    """
    check_counts(num_draws=num_draws)
    key = random_key(seed)
    if posterior.engine == "tempered_smc":
        return _mean_of_runs(posterior)
    if posterior.approximation is None:
        model = posterior.model
        if why_not_one_density(model):
            raise ValueError(
                f"log_evidence cannot bridge {model.name}: {why_not_one_density(model)}"
            )
        return bridged_evidence(posterior, seed=key, num_draws=num_draws)
    draws = posterior.draws(num_draws, seed=key)
    log_approximation = posterior.log_density(draws)
    if log_approximation is None:
        raise ValueError(
            f"posterior of {posterior.engine} has no density, whose ratio to the model's would be "
            "the evidence; pass that of a sampler, or of an approximation with a density"
        )
    log_target_density = log_joint(posterior.model, "marginal", draws, posterior.bags)
    found = weighted_evidence(log_target_density, log_approximation)
    return LogEvidence(found.log_evidence, found.error, "importance sampling", found.khat)


def why_not_one_density(model: Model) -> str:
    """Why a Gaussian is no image of a model's posterior, nor of a mode of it; empty if it may be.

    Parameters
    ----------
    model : Model

    Returns
    -------
    str
    """
    if model.gradient_note:
        return f"there would be {model.gradient_note}"
    if model.estimands:
        return "its sites are not identified, and their posterior has as many modes as names"
    return ""


def _mean_of_runs(posterior: Posterior) -> LogEvidence:
    """The log of the mean of Ẑ over runs; its error by the sd between them."""
    by_run = np.atleast_1d(posterior.tree["sample_stats"].attrs["log_evidence"])
    value = float(logsumexp(by_run) - math.log(len(by_run)))
    error = math.inf
    if len(by_run) > 1:
        error = float(np.exp(by_run - value).std(ddof=1) / math.sqrt(len(by_run)))
    return LogEvidence(value, error, "tempered SMC", math.nan)


def bridged_evidence(
    posterior: Posterior, *, seed: int | Array, num_draws: int = 4000
) -> LogEvidence:
    """The bridge of `log_evidence`, also where a Gaussian is no image of the posterior.

    It is consistent for every posterior whose chains have mixed over all modes, the names of
    clusters among them. Chains of such models seldom do; so `log_evidence` refuses them.

    Parameters
    ----------
    posterior : Posterior
        Of a sampler.
    seed : int or JAX key
        Of the draws of the Gaussian.
    num_draws : int
        Most draws of the posterior that are used, as many of the Gaussian.

    Returns
    -------
    LogEvidence
        The mean of two bridges, each with the other half of the draws behind its Gaussian.
    """
    target_density = whitened_program(posterior.model, posterior.bags)
    vectors = _vectors(target_density, posterior, num_draws)
    middle = vectors.shape[1] // 2
    halves = vectors[:, :middle], vectors[:, middle:]
    keys = jax.random.split(random_key(seed))
    pairs = zip(halves, reversed(halves), keys, strict=True)
    bridges = [_bridge(target_density, fitted, used, key) for fitted, used, key in pairs]
    value = float(np.mean([one for one, _ in bridges]))
    # Errors of the two are of different draws.
    error = math.hypot(*(error for _, error in bridges)) / 2
    return LogEvidence(value, error, "bridge sampling", math.nan)


def _vectors(
    target_density: WhitenedProgram, posterior: Posterior, num_draws: int
) -> Float[np.ndarray, "C T P"]:
    """Draws in whitened, unconstrained coordinates, by chain, thinned to the number wanted."""
    stored = posterior.tree["posterior"].to_dataset()
    chains, length = stored.sizes["chain"], stored.sizes["draw"]
    step = max(1, chains * length // num_draws)
    thinned = stored.isel(draw=slice(length % step, None, step))
    sites: Draws = {}
    for name in posterior.model.latent_sites:
        by_chain = thinned[name].transpose("chain", "draw", ...).to_numpy()
        sites[name] = by_chain.reshape(-1, *by_chain.shape[2:])
    return whitened_draws(target_density, sites).reshape(chains, -1, target_density.size)


def _symmetric_density(
    site: dict[str, Array], target_density: WhitenedProgram, centre: Array, scale_tril: Array
) -> Float[Array, ""]:
    """log [p̃(m + Lw) + p̃(m − Lw)]/2: "warp III" has the Gaussian's symmetry."""
    step = scale_tril @ site["standard"]
    sides = [target_density.log_density(centre + step), target_density.log_density(centre - step)]
    return jax.numpy.logaddexp(*sides) - math.log(2)


def _bridge(
    target_density: WhitenedProgram,
    fitted: Float[np.ndarray, "C T P"],
    used: Float[np.ndarray, "C U P"],
    key: Array,
) -> tuple[float, float]:
    """Log evidence by the optimal bridge between N(m, LLᵀ) and draws, and its standard error."""
    size = target_density.size
    centre, scale_tril = _moments(fitted.reshape(-1, size))
    chains, length = used.shape[:2]
    flat = used.reshape(-1, size) - centre
    posterior = solve_triangular(scale_tril, flat.T, lower=True).T
    with jax.enable_x64(True):
        proposed = np.asarray(jax.random.normal(key, posterior.shape))
    standard = np.concatenate([posterior, proposed])
    log_target_density = over_draws(
        _symmetric_density, {"standard": standard}, target_density, centre, scale_tril
    )
    log_target_density = log_target_density + np.log(np.diag(scale_tril)).sum()
    log_gaussian = norm.logpdf(standard).sum(axis=1)
    of_posterior, of_proposed = np.split(log_target_density - log_gaussian, 2)  # log p̃/g
    log_z = _optimal_bridge(of_posterior, of_proposed)
    return log_z, _error(of_posterior.reshape(chains, length), of_proposed, log_z)


def _moments(
    vectors: Float[np.ndarray, "S P"],
) -> tuple[Float[np.ndarray, " P"], Float[np.ndarray, "P P"]]:
    """m and L; of so few draws that the covariance is singular, L has their sds alone."""
    deviation = vectors.std(axis=0)
    try:
        return vectors.mean(axis=0), cholesky(np.atleast_2d(np.cov(vectors.T)), lower=True)
    except LinAlgError:
        return vectors.mean(axis=0), np.diag(deviation)


def _optimal_bridge(
    of_posterior: Float[np.ndarray, " S"], of_proposed: Float[np.ndarray, " S"]
) -> float:
    """log Z of Meng and Wong's fixed point, for as many draws of p as of g.

    Z = [Σ_g l/(l + Z)]/[Σ_p 1/(l + Z)] with l = p̃/g.
    """
    log_z = float(np.median(of_posterior))
    for _ in range(_MOST_ITERATIONS):
        over = logsumexp(-np.logaddexp(0.0, log_z - of_proposed))
        under = logsumexp(-np.logaddexp(of_posterior, log_z))
        previous, log_z = log_z, float(over - under)
        if abs(log_z - previous) < _CLOSE:
            break
    return log_z


def _error(
    of_posterior: Float[np.ndarray, "C T"], of_proposed: Float[np.ndarray, " S"], log_z: float
) -> float:
    """Standard error of log Z; of the posterior's draws by the ESS of what is averaged."""
    proposed = expit(of_proposed - log_z)  # l/(l + Z)
    posterior = expit(log_z - of_posterior)  # Z/(l + Z)
    ess: Any = array_stats.ess(posterior, method="mean")
    terms = [
        np.var(proposed) / np.mean(proposed) ** 2 / len(proposed),
        np.var(posterior) / np.mean(posterior) ** 2 / float(ess),
    ]
    return math.sqrt(sum(terms))
