"""PyMC program of `CardinalityModel`, written from the paper to check the NumPyro program.

The two programs use different formulas, so that they check each other.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from pytensor.scan.basic import scan

from ...datasets.bags import Bags
from ..cardinality import AtLeastOne, CardinalityModel, MajorityCardinality, NormalCardinality
from .sparse_gp import Tensor, parameter, pm, pt

__all__ = ["cardinality_program"]


def cardinality_program(
    model: CardinalityModel, bags: Bags, *, program: str = "marginal"
) -> pm.Model:
    """Build the PyMC program of `CardinalityModel`, to check NumPyro's program and compare speeds.

    .. code-block:: text

        ε        ~ N(0, I), or Laplace(0, 1)                   whitened_weights
        θ        = s ε                                         weights
        θ₀       ~ N(0, intercept_scale²)                      intercept (if there is one)
        p_b(c)   = P(c instances of b are positive), by recursion over the instances
        Y_b      ~ odds Σ_c C⁺(c) p_b(c) : Σ_c C⁻(c) p_b(c)    bag_label

    Parameters
    ----------
    model : CardinalityModel
        Its hyper-parameters are numbers, or priors with a counterpart in PyMC.
    bags : Bags
        Bag labels are observed if there are any; otherwise they are a site.
    program : {"marginal"}

    Returns
    -------
    pymc.Model

    Raises
    ------
    ImportError
        If PyMC is not installed.
    ValueError
        If ``program`` is not ``marginal``, or if PyMC has no counterpart of a prior.

    Notes
    -----
    p_b are probabilities under independent labels, P(y_n = 1) = σ(φ_n). They are not kept in logs,
    and underflow below 1e−308. Every bag has a column for each count of the largest bag.

    References
    ----------
    Hajimirsadeghi and Mori (2017), section 3.2.
    """
    if program != "marginal":
        raise ValueError(
            f"program is {program!r}; expected 'marginal': the instance labels that it sums out "
            "are discrete, and NUTS could not sample them"
        )
    coordinates = {"feature": range(bags.num_features), "bag": range(bags.num_bags)}
    with pm.Model(coords=coordinates) as pymc_model:
        scale = parameter("weight_scale", model.weight_scale)
        whitened = (
            pm.Normal("whitened_weights", dims="feature")
            if model.weight_prior == "normal"
            else pm.Laplace("whitened_weights", mu=0.0, b=1.0, dims="feature")
        )
        weights = pm.Deterministic("weights", scale * whitened, dims="feature")
        logits = pt.constant(bags.instances) @ weights
        if model.intercept_scale is not None:
            logits = logits + pm.Normal("intercept", sigma=model.intercept_scale)
        probability = _count_probabilities(pt.sigmoid(logits), bags)
        log_potential = _log_potential(model, bags)
        negative, positive = (_log_mean(probability, log_c) for log_c in log_potential)
        pm.Bernoulli("bag_label", logit_p=positive - negative, observed=bags.labels, dims="bag")
    return pymc_model


def _count_probabilities(probability: Tensor, bags: Bags) -> Tensor:
    """Distribution p_b(c) of the count of independent labels, (B, 1 + size of the largest bag)."""
    row, is_instance = padded_rows(bags)
    in_bags = pt.where(is_instance, probability[row], 0.0)  # padding leaves the count as it is
    nobody = np.zeros((bags.num_bags, is_instance.shape[1] + 1))
    nobody[:, 0] = 1.0

    def with_one_more(one: Tensor, of_count: Tensor) -> Tensor:
        of_one_less = pt.concatenate([pt.zeros_like(of_count[:, :1]), of_count[:, :-1]], axis=1)
        return of_count * (1.0 - one[:, None]) + of_one_less * one[:, None]

    after_each = scan(
        with_one_more, sequences=in_bags.T, outputs_info=pt.constant(nobody), return_updates=False
    )
    return after_each[-1]


def padded_rows(bags: Bags) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the instances of each bag, (B, size of the largest), and a mask, False at padding."""
    row = bags.starts[:, None] + np.arange(bags.bag_sizes.max())
    is_instance = np.arange(bags.bag_sizes.max()) < bags.bag_sizes[:, None]
    return np.where(is_instance, row, 0), is_instance


def _log_potential(model: CardinalityModel, bags: Bags) -> tuple[Tensor, Tensor]:
    """log C⁻ and log C⁺ of counts, (B, 1 + size of the largest bag); −∞ above the size of a bag."""
    size = bags.bag_sizes[:, None]
    count = np.broadcast_to(np.arange(size.max() + 1), (len(size), size.max() + 1))
    fraction = count / size
    match model.potential:
        case NormalCardinality(mu=mu, sigma=sigma):
            mu, sigma = parameter("mu", mu), parameter("sigma", sigma)
            both = [-0.5 * ((fraction - centre) / sigma) ** 2 for centre in (0.0, mu)]
        case MajorityCardinality():
            both = _logs([fraction < 0.5, fraction >= 0.5])
        case AtLeastOne():
            both = _logs([count == 0, count > 0])
        case potential:
            sizes = np.broadcast_to(size, count.shape)
            with jax.enable_x64(True):
                values = potential(*(jnp.asarray(each.ravel()) for each in (count, sizes)))
            both = list(np.asarray(values).reshape(2, *count.shape))
    negative, positive = (pt.where(count <= size, one, -np.inf) for one in both)
    return negative, positive


def _logs(events: list[np.ndarray]) -> list[np.ndarray]:
    return [np.where(event, 0.0, -np.inf) for event in events]


def _log_mean(probability: Tensor, log_c: Tensor) -> Tensor:
    """Log expected potential of each bag, log Σ_c C(c) p(c)."""
    highest = pt.max(log_c, axis=1, keepdims=True)
    return pt.log(pt.sum(probability * pt.exp(log_c - highest), axis=1)) + highest[:, 0]
