"""A bag's label is 1 if some instance's is: the parts of a program that say so."""

from __future__ import annotations

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Bool, Float

from ...datasets.bags import Bags
from ..model import given_labels, plate_of_bags
from .bag_labels import LogOddsLabel
from .witnesses import WitnessLabels, sum_over_bags

__all__ = ["labels_given_bags", "sample_labels"]


def sample_labels(logits: Float[Array, " N"], bags: Bags) -> None:
    """The sites ``instance_label`` and ``bag_label``, which follows from it.

    Parameters
    ----------
    logits : array (N,)
        Log odds of the label of each instance.
    bags : Bags
        The labels, where they have any, are observed.
    """
    with numpyro.plate("instance", bags.num_instances):
        label = numpyro.sample("instance_label", dist.Bernoulli(logits=logits))
    count = sum_over_bags(label, bags.bag_index, bags.num_bags)
    with plate_of_bags(bags):
        # A label that follows is a law of certainty: log odds of ±∞.
        law = LogOddsLabel(jnp.where(count > 0, jnp.inf, -jnp.inf), validate_args=False)
        numpyro.sample("bag_label", law, obs=given_labels(bags))


def labels_given_bags(
    logits: Float[Array, " N"], bags: Bags, is_positive: Bool[Array, " B"]
) -> WitnessLabels:
    """Law of the instance labels, given those of the bags: none in a negative bag is 1.

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
