"""PyMC program of `DPMIL`, written from the paper to check the NumPyro program.

The two programs use different formulas, so that they check each other.
"""

from __future__ import annotations

import math

import numpy as np

from ...datasets.bags import Bags
from ..dpmil import DPMIL
from ..model import observations
from .sparse_gp import Tensor, pm, pt, sum_over_bags

__all__ = ["dpmil_program"]

_BY_FEATURE = ("class", "component", "feature")


def dpmil_program(model: DPMIL, bags: Bags, *, program: str = "marginal") -> pm.Model:
    """Build the PyMC program of `DPMIL`, to check the NumPyro program and compare speeds.

    .. code-block:: text

        v_lk      ~ Beta(1, α)                                  stick (more than one component)
        A_lk,ii²  ~ χ²(ν0 − i), i from 0; ν0 if diagonal        bartlett_diagonal
        A_lk,ij   ~ N(0, 1), j < i                              bartlett_below (full only)
        L_lk      = B A_lk,  B Bᵀ = W0                          precision_cholesky
        λ_lk      = w0 diag(A_lk)²                              precision (diagonal only)
        ε_lk      ~ N(0, I)                                     whitened_mean
        μ_lk      = m0 + L_lk⁻ᵀ ε_lk/√β0                        mean
        T_b       ~ Bernoulli(τ)                                bag_label
        X_b | T_b ~ clusters and instance labels summed out     instances (a potential)

    A is the factor of Bartlett's decomposition, so that L Lᵀ = Λ ~ Wishart(W0, ν0). NUTS cannot
    sample Λ itself, which must stay positive definite. The parametrisation of the means is
    non-centred, because most of the K components are empty. An empty component keeps its prior, in
    which μ and Λ form a funnel. If all components had many instances, centred means would mix
    better.

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
        If ``program`` is not ``marginal``, or if the model cannot learn from the bags.

    Notes
    -----
    Densities equal those of the NumPyro program times the Jacobian of A and ε. The potential has
    a term for each bag.

    References
    ----------
    Kandemir and Hamprecht (2014), section 3; Bartlett (1934), for A.
    """
    if program != "marginal":
        raise ValueError(
            f"program is {program!r}; expected 'marginal': the clusters and instance labels that "
            "it sums out are discrete, and NUTS could not sample them"
        )
    labels = observations(model, bags, "dpmil_program")
    model.label_rule(bags)  # called only for its checks
    with pm.Model(coords=_coordinates(model, bags)) as pymc_model:
        log_weight = _draw_log_weights(model)
        squared_diagonal, bartlett = _draw_bartlett_factors(model)
        whitened_mean = _draw_means(model, bartlett)
        log_peak = log_weight + 0.5 * pt.log(squared_diagonal).sum(-1) + _log_unit(model)
        distance = _squared_distance(model, bags, bartlett, whitened_mean)
        log_density = pt.logsumexp(log_peak[:, :, None] - 0.5 * distance, axis=1)
        pm.Bernoulli("bag_label", p=model.positive_fraction, observed=labels, dims="bag")
        pm.Potential("instances", _log_evidence(model, bags, log_density), dims="bag")
    return pymc_model


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


def _shape(model: DPMIL) -> tuple[int, int, int]:
    # Shapes are explicit, because PyMC would know those of dims only at run time.
    return 2, model.max_components, model.num_features


# ---------------------------------------------------------------- the two mixtures


def _draw_log_weights(model: DPMIL) -> Tensor:
    """Log weights of components: log π_lk = log v_lk + Σ_{j<k} log(1 − v_lj), (2, K)."""
    num_components = model.max_components
    if num_components == 1:
        return pt.zeros((2, 1))
    shape, dims = (2, num_components - 1), ("class", "stick_break")
    stick = pm.Beta("stick", 1.0, model.concentration, shape=shape, dims=dims)[:, None, :]
    own = np.eye(num_components, num_components - 1)  # no stick for the last: v_K = 1
    earlier = np.tri(num_components, num_components - 1, -1)
    return (own * pt.log(stick) + earlier * pt.log1p(-stick)).sum(-1)


def _draw_bartlett_factors(model: DPMIL) -> tuple[Tensor, Tensor]:
    """Bartlett factors of precisions: diag(A)², (2, K, D), and A, (2, K, D, D) or (2, K, D)."""
    is_full = model.covariance == "full"
    reduction = np.arange(model.num_features) if is_full else 0
    freedom = model.degrees_of_freedom - reduction
    squared = pm.ChiSquared("bartlett_diagonal", freedom, shape=_shape(model))
    root = _root_of_scale(model)  # B
    if not is_full:
        pm.Deterministic("precision", root**2 * squared, dims=_BY_FEATURE)
        return squared, pt.sqrt(squared)
    bartlett = _lower_triangular(model, pt.sqrt(squared))
    pm.Deterministic("precision_cholesky", root @ bartlett, dims=(*_BY_FEATURE, "other_feature"))
    return squared, bartlett


def _lower_triangular(model: DPMIL, diagonal: Tensor) -> Tensor:
    """Lower triangular A from its diagonal and the site ``bartlett_below``, the other entries."""
    num_features = model.num_features
    if num_features == 1:
        return diagonal[..., None]
    row, column = np.tril_indices(num_features, -1)
    shape = (2, model.max_components, len(row))
    entries = pt.concatenate([diagonal, pm.Normal("bartlett_below", shape=shape)], axis=-1)
    entry = np.diag(np.arange(num_features))
    entry[row, column] = num_features + np.arange(len(row))
    return entries[:, :, entry] * np.tri(num_features)


def _draw_means(model: DPMIL, bartlett: Tensor) -> Tensor:
    """Whitened means Lᵀ(μ − m0) = ε/√β0, (2, K, D); adds the site ``mean``."""
    whitened = pm.Normal("whitened_mean", shape=_shape(model)) / math.sqrt(model.mean_strength)
    root = _root_of_scale(model)
    if model.covariance == "full":
        precision_root = root @ bartlett  # L
        deviation = pt.linalg.solve_triangular(
            precision_root, whitened, trans="T", lower=True, b_ndim=1
        )
    else:
        deviation = whitened / (root * bartlett)
    pm.Deterministic("mean", model.center + deviation, dims=_BY_FEATURE)
    return whitened


def _squared_distance(model: DPMIL, bags: Bags, bartlett: Tensor, whitened_mean: Tensor) -> Tensor:
    """Squared Mahalanobis distances (x_n − μ)ᵀΛ(x_n − μ), (2, K, N).

    They are squared lengths of Lᵀ(x − μ) = Aᵀ Bᵀ(x − m0) − Lᵀ(μ − m0).
    """
    root, deviation = _root_of_scale(model), bags.instances - model.center
    if model.covariance == "full":
        whitened = pt.constant(deviation @ root) @ bartlett
    else:
        whitened = pt.constant(deviation * root) * bartlett[:, :, None, :]
    return ((whitened - whitened_mean[:, :, None, :]) ** 2).sum(-1)


def _log_unit(model: DPMIL) -> float:
    """Constant log |B| − (D/2) log 2π in the log densities of all components."""
    root = _root_of_scale(model)
    diagonal = np.diagonal(root) if model.covariance == "full" else root
    return float(np.log(diagonal).sum()) - 0.5 * model.num_features * math.log(2 * math.pi)


def _root_of_scale(model: DPMIL) -> np.ndarray:
    """Cholesky factor B of the scale W0 = BBᵀ, or √w0 for diagonal precisions."""
    is_full = model.covariance == "full"
    return np.linalg.cholesky(model.scale) if is_full else np.sqrt(model.scale)


# ---------------------------------------------------------------- the labels of the instances


def _log_evidence(model: DPMIL, bags: Bags, log_density: Tensor) -> Tensor:
    """Log evidence log p(X_b | T_b), (B,): the mean of Π p(x_n | r_n) over allowed labellings."""
    known = _known_labels(model, bags)
    needs = _bags_without_witness(model, bags, known)
    log_ratio = log_density[1] - log_density[0]  # a = log p₊/p₋
    # Known positive instances add a to log p₋. Free ones add log(1 + e^a) if their bag needs no
    # witness.
    is_free = (known < 0) & ~needs[bags.bag_index]
    added = np.where(is_free, 1.0, 0.0) * pt.softplus(log_ratio) + (known == 1) * log_ratio
    total = sum_over_bags(log_density[0] + added, bags)
    if needs.any():
        some = _log_some_positive(log_ratio, *_free_instances(bags, known, needs))
        total = total[np.flatnonzero(needs)].inc(some)
    # F free instances have 2^F labellings, and one fewer if the bag needs a witness.
    count = np.bincount(bags.bag_index, known < 0, bags.num_bags)
    return total - count * math.log(2) - np.log1p(-np.where(needs, 0.5**count, 0.0))


def _known_labels(model: DPMIL, bags: Bags) -> np.ndarray:
    """Instance labels r_n where they are known, −1 where they are free."""
    known = np.where(np.asarray(bags.labels == 1)[bags.bag_index], -1, 0)
    if model.supervision == "instances" and bags.instance_labels is not None:
        given = np.asarray(bags.instance_labels)
        known = np.where(given >= 0, given, known)
    return known


def _bags_without_witness(model: DPMIL, bags: Bags, known: np.ndarray) -> np.ndarray:
    """Find the bags that must have a witness among their free instances."""
    has_witness = np.bincount(bags.bag_index, known == 1, bags.num_bags) > 0
    return (bags.labels == 1) & ~has_witness & model.needs_witness


def _free_instances(
    bags: Bags, known: np.ndarray, needs: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of free instances in bags that need a witness, padded, and a mask, True at padding."""
    rows = [np.flatnonzero((bags.bag_index == b) & (known < 0)) for b in np.flatnonzero(needs)]
    sizes = np.array([len(row) for row in rows])
    is_padding = np.arange(sizes.max()) >= sizes[:, None]
    padded = np.zeros(is_padding.shape, int)
    padded[~is_padding] = np.concatenate(rows)
    return padded, is_padding


def _log_some_positive(log_ratio: Tensor, rows: np.ndarray, is_padding: np.ndarray) -> Tensor:
    """Log weight of at least one positive instance in each row, log[Π(1 + e^a) − 1].

    The last positive instance is j with weight e^{a_j} Π_{i<j}(1 + e^{a_i}), which equals
    σ(a_j) Π_{i≤j}(1 + e^{a_i}). The result is the sum over j. All terms are positive, so that none
    cancel, and in logs none overflows or underflows.
    """
    # Bags are padded rows, because PyTensor has no maximum over segments. Padding has e^a = 0.
    odds = pt.where(is_padding, -np.inf, log_ratio[rows])
    return pt.logsumexp(pt.cumsum(pt.softplus(odds), axis=1) - pt.softplus(-odds), axis=1)
