"""The noisy-or: a bag label is 1 if some instance label is."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Bool, Float

from ...datasets.bags import Bags
from .bag_labels import observe_log_odds
from .witnesses import WitnessLabels, log_odds_of_some, sum_over_bags

__all__ = ["labels_given_bags", "observe_bags", "probabilities", "sample_labels"]


def observe_bags(logits: Float[Array, " N"], bags: Bags) -> None:
    """Sample the site ``bag_label``, the instance labels summed out.

    Parameters
    ----------
    logits : array (N,)
        Log odds of the label of each instance.
    bags : Bags
        Their labels, if there are any, are observed.
    """
    observe_log_odds(log_odds_of_some(logits, bags.bag_index, bags.num_bags), bags)


def probabilities(
    logits: Float[Array, " N"], bags: Bags
) -> tuple[Float[Array, " B"], Float[Array, " N"]]:
    """P(T_b = 1) of each bag and P(y_n = 1) of each instance.

    Parameters
    ----------
    logits : array (N,)
        Log odds of the label of each instance.
    bags : Bags

    Returns
    -------
    arrays (B,) and (N,)
    """
    odds = log_odds_of_some(logits, bags.bag_index, bags.num_bags)
    return jax.nn.sigmoid(odds), jax.nn.sigmoid(logits)


def sample_labels(logits: Float[Array, " N"], bags: Bags) -> None:
    """Sample the sites ``instance_label`` and ``bag_label``; the second follows from the first.

    Parameters
    ----------
    logits : array (N,)
        Log odds of the label of each instance.
    bags : Bags
        Their labels, if there are any, are observed.
    """
    with numpyro.plate("instance", bags.num_instances):
        label = numpyro.sample("instance_label", dist.Bernoulli(logits=logits))
    count = sum_over_bags(label, bags.bag_index, bags.num_bags)
    observe_log_odds(jnp.where(count > 0, jnp.inf, -jnp.inf), bags)


def labels_given_bags(
    logits: Float[Array, " N"], bags: Bags, is_positive: Bool[Array, " B"]
) -> WitnessLabels:
    """Distribution of the instance labels given the bag labels: none in a negative bag is 1.

    Parameters
    ----------
    logits : array (N,)
        Log odds before the labels of the bags are known.
    bags : Bags
    is_positive : array (B,)
        Their labels.

    Returns
    -------
    WitnessLabels
    """
    in_positive = is_positive[jnp.asarray(bags.bag_index)]
    known = jnp.where(in_positive, logits, -jnp.inf)
    return WitnessLabels(known, bags.bag_index, is_positive, bags.num_bags)
