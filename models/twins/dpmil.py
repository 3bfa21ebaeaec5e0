"""DPMIL in PyMC: written from the paper, sharing no formula with the NumPyro programs."""

from __future__ import annotations

import math

import numpy as np

from ...datasets.bags import Bags
from ..dpmil import DPMIL
from .sparse_gp import Tensor, pm, pt, sum_over_bags

__all__ = ["pymc_twin"]


def pymc_twin(model: DPMIL, bags: Bags, *, program: str = "marginal") -> pm.Model:
    """The model as a PyMC program, to check the NumPyro programs and to race against them.

    .. code-block:: text

        v_lk      ~ Beta(1, α)                                  stick (more than one component)
        A_lk,ii²  ~ χ²(ν0 − i), i from 0; ν0 if diagonal        bartlett_diagonal
        A_lk,ij   ~ N(0, 1), j < i                              bartlett_below (full only)
        L_lk      = B A_lk,  B Bᵀ = W0                          precision_cholesky
        λ_lk      = w0 diag(A_lk)²                              precision (diagonal only)
        ε_lk      ~ N(0, I)                                     white_mean
        μ_lk      = m0 + L_lk⁻ᵀ ε_lk/√β0                        mean
        T_b       ~ Bernoulli(τ)                                bag_label
        X_b | T_b ~ clusters and instance labels summed out     instances (a potential)

    A is Bartlett's: L Lᵀ = Λ ~ Wishart(W0, ν0), which PyMC has no way to sample. Means are not
    centred: what an empty component keeps is its prior, a funnel in μ and Λ, and with a truncation
    of K most components are empty. Where all of them are full, centred ones would mix better.

    Parameters
    ----------
    model : DPMIL
    bags : Bags
        With labels.
    program : {"marginal"}

    Returns
    -------
    pymc.Model

    Raises
    ------
    ImportError
        If PyMC is not installed.
    ValueError
        If ``program`` is another, or the bags are not such as the model can learn from.

    Notes
    -----
    Densities of the instances given the sites equal those of the NumPyro program; those of the
    sites differ by the Jacobian of the coordinates A and ε. Each bag adds its own term to the
    potential.

    References
    ----------
    Kandemir and Hamprecht (2014), section 3; Bartlett (1934), for A.
    """
    if program != "marginal":
        raise ValueError(
            f"program is {program!r}; expected 'marginal': DPMIL has instance labels and clusters "
            "beside it, which are discrete, and NUTS has no use for those"
        )
    model.label_rule(bags)  # refuses bags that the model cannot learn from
    with pm.Model(coords=_coordinates(model, bags)) as twin:
        log_weight = _draw_log_weights(model)
        bartlett = _draw_bartlett_factors(model)
        whitened_mean = _draw_whitened_means(model, bartlett)
        log_density = _log_density(model, bags, log_weight, bartlett, whitened_mean)
        pm.Bernoulli("bag_label", p=model.positive_share, observed=bags.labels, dims="bag")
        pm.Potential("instances", _log_evidence(model, bags, log_density), dims="bag")
    return twin


def _coordinates(model: DPMIL, bags: Bags) -> dict[str, range]:
    features = range(model.num_features)
    return {
        "class": range(2),
        "component": range(model.max_components),
        "stick_break": range(model.max_components - 1),
        "feature": features,
        "other_feature": features,
        "bag": range(bags.num_bags),
    }


# ---------------------------------------------------------------- the two mixtures


def _draw_log_weights(model: DPMIL) -> Tensor:
    """log π_lk = log v_lk + Σ_{j<k} log(1 − v_lj), (2, K)."""
    nothing = np.zeros((2, 1))
    if model.max_components == 1:
        return pt.constant(nothing)
    stick = pm.Beta("stick", 1.0, model.concentration, dims=("class", "stick_break"))
    left = pt.cumsum(pt.log1p(-stick), axis=1)
    broken = pt.concatenate([pt.log(stick), nothing], axis=1)  # v_lK = 1
    return broken + pt.concatenate([nothing, left], axis=1)


def _draw_bartlett_factors(model: DPMIL) -> Tensor:
    """A, (2, K, D, D), or its diagonal alone, (2, K, D)."""
    is_full = model.covariance == "full"
    by_feature = ("class", "component", "feature")
    lost = np.arange(model.num_features) if is_full else 0
    squared = pm.ChiSquared("bartlett_diagonal", model.degrees_of_freedom - lost, dims=by_feature)
    root = _root_of_scale(model)  # B
    if not is_full:
        pm.Deterministic("precision", root**2 * squared, dims=by_feature)
        return pt.sqrt(squared)
    bartlett = _lower_triangular(model, pt.sqrt(squared))
    pm.Deterministic("precision_cholesky", root @ bartlett, dims=(*by_feature, "other_feature"))
    return bartlett


def _lower_triangular(model: DPMIL, diagonal: Tensor) -> Tensor:
    """A of its diagonal, with standard normals below: the site ``bartlett_below``."""
    num_features, num_components = model.num_features, model.max_components
    on, (row, column) = np.arange(num_features), np.tril_indices(num_features, -1)
    factor = pt.zeros((2, num_components, num_features, num_features))[..., on, on].set(diagonal)
    if num_features == 1:
        return factor
    below = pm.Normal("bartlett_below", shape=(2, num_components, len(row)))
    return factor[..., row, column].set(below)


def _draw_whitened_means(model: DPMIL, bartlett: Tensor) -> Tensor:
    """Lᵀ(μ − m0) = ε/√β0, (2, K, D)."""
    by_feature = ("class", "component", "feature")
    whitened = pm.Normal("white_mean", dims=by_feature) / math.sqrt(model.mean_strength)
    root = _root_of_scale(model)
    if model.covariance == "full":
        deviation = pt.linalg.solve_triangular(
            root @ bartlett, whitened, trans="T", lower=True, b_ndim=1
        )
    else:
        deviation = whitened / (root * bartlett)
    pm.Deterministic("mean", model.center + deviation, dims=by_feature)
    return whitened


def _log_density(
    model: DPMIL, bags: Bags, log_weight: Tensor, bartlett: Tensor, whitened_mean: Tensor
) -> Tensor:
    """log p(x_n | r_n) of either class, (2, N)."""
    root, deviation = _root_of_scale(model), bags.instances - model.center
    if model.covariance == "full":
        # Lᵀ(x − μ) = AᵀBᵀ(x − m0) − Lᵀ(μ − m0), of which the data is multiplied by B once.
        whitened = pt.constant(deviation @ root) @ bartlett
        diagonal = pt.diagonal(bartlett, axis1=-2, axis2=-1)
        log_root = np.log(np.diagonal(root)).sum()
    else:
        whitened = pt.constant(deviation * root) * bartlett[:, :, None, :]
        diagonal, log_root = bartlett, np.log(root).sum()
    distance = ((whitened - whitened_mean[:, :, None, :]) ** 2).sum(-1)
    constant = log_root - 0.5 * model.num_features * math.log(2 * math.pi)
    log_peak = log_weight + pt.log(diagonal).sum(-1) + constant
    return pt.logsumexp(log_peak[:, :, None] - 0.5 * distance, axis=1)


def _root_of_scale(model: DPMIL) -> np.ndarray:
    """B, lower triangular with BBᵀ = W0, or √w0."""
    is_full = model.covariance == "full"
    return np.linalg.cholesky(model.scale) if is_full else np.sqrt(model.scale)


# ---------------------------------------------------------------- the labels of the instances


def _log_evidence(model: DPMIL, bags: Bags, log_density: Tensor) -> Tensor:
    """log p(X_b | T_b), (B,): Π p(x_n | r_n) as a mean over the labellings that are allowed."""
    known = _known_labels(model, bags)
    needs = _bags_without_witness(model, bags, known)
    free = (known < 0) & ~needs[bags.bag_index]
    negative, positive = log_density[0], log_density[1]
    one = pt.where(known == 1, positive, negative)
    # In a bag that needs a witness p₋ is taken out of all brackets.
    by_instance = pt.where(free, pt.logaddexp(negative, positive), one)
    total = sum_over_bags(by_instance, bags)
    if needs.any():
        some = _log_some_positive(positive - negative, _places(bags, known, needs))
        total = total[np.flatnonzero(needs)].inc(some)
    # 2^F labellings of F free instances are allowed, and one fewer where a witness is needed.
    count = np.bincount(bags.bag_index, known < 0, bags.num_bags)
    return total - count * math.log(2) - np.log1p(-np.where(needs, 0.5**count, 0.0))


def _known_labels(model: DPMIL, bags: Bags) -> np.ndarray:
    """r_n where it is known, −1 where it is free."""
    known = np.where(bags.labels[bags.bag_index] == 1, -1, 0)
    if model.supervision == "instances":
        known = np.where(bags.instance_labels >= 0, bags.instance_labels, known)
    return known


def _bags_without_witness(model: DPMIL, bags: Bags, known: np.ndarray) -> np.ndarray:
    """Which bags must have a positive instance among the free ones."""
    has_witness = np.bincount(bags.bag_index, known == 1, bags.num_bags) > 0
    return (bags.labels == 1) & ~has_witness & model.needs_witness


def _places(bags: Bags, known: np.ndarray, needs: np.ndarray) -> np.ndarray:
    """Where the free instances of each bag in need stand, a row for each; N to fill up rows."""
    rows = [np.flatnonzero((bags.bag_index == b) & (known < 0)) for b in np.flatnonzero(needs)]
    places = np.full((len(rows), max(map(len, rows))), bags.num_instances)
    for row, found in zip(places, rows, strict=True):
        row[: len(found)] = found
    return places


def _log_some_positive(log_ratio: Tensor, places: np.ndarray) -> Tensor:
    """log[Π(1 + e^a) − 1] of the a = log p₊/p₋ in each row of places.

    Labellings with a witness are told apart by the last one, j: Σ_j e^{a_j} Π_{i<j}(1 + e^{a_i}).
    No term is negative, so that nothing cancels, and in logs none overflows or is lost.
    """
    # Rows are filled up, as PyTensor has no maximum over segments: e^−∞ adds nothing.
    odds = pt.concatenate([log_ratio, [-np.inf]])[places]
    before = pt.cumsum(pt.softplus(odds[:, :-1]), axis=1)
    before = pt.concatenate([np.zeros((len(places), 1)), before], axis=1)
    return pt.logsumexp(odds + before, axis=1)
