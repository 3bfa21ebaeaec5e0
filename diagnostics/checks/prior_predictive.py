"""What a model expects of the labels (targets) before it sees any, by the size of a bag."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import pandas as pd
from jaxtyping import Array, Float, Int
from matplotlib.figure import Figure

from ...datasets.arguments import check_counts
from ...datasets.bags import Bags
from ...datasets.simulation import draw_sites
from ...models.model import Model, part_of_bags, random_key
from ..plots.panels import replicates_by_size

__all__ = ["PriorPredictive", "prior_predictive", "replicates_from_the_prior", "two_sided_p"]

# Probability that labels drawn from the prior itself are called rare in any class of sizes.
_RARE = 0.05
# Classes of sizes at most.
_MOST_CLASSES = 5
# Numbers that replicates may hold at once, when they are drawn together.
_MOST_NUMBERS = 10**7


@dataclass(frozen=True, eq=False)
class PriorPredictive:
    """Labels (targets) of replicates from the prior beside the observed ones, by size of bag.

    Attributes
    ----------
    part : str
        ``labels`` or ``targets``.
    sizes : array (G, 2)
        Smallest and largest number of instances of the bags of each class.
    num_bags : array (G,)
        Bags of each class.
    replicated : array (S, G)
        By replicate, the fraction of positive bags (the mean target) of each class.
    observed : array (G,) or None
        The same of the bags' own labels (targets), if they have any.

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.diagnostics import PriorPredictive, prior_predictive
    >>> from milzoo.models import RBF, VWSGP
    >>> bags = Bags.from_list([[[0.0], [3.0]], [[3.1]], [[0.2], [-0.1]], [[0.1]]], [1, 1, 0, 0])
    >>> model = VWSGP(RBF(variance=9.0, length_scale=1.0), np.array([[0.0], [3.0]]))
    >>> expected: PriorPredictive = prior_predictive(model, bags, seed=0)
    >>> expected.table[["num_bags", "prior_mean", "observed"]].round(1)
              num_bags  prior_mean  observed
    bag_size
    1                2         0.5       0.5
    2                2         0.5       0.5
    >>> expected.surprises
    []
    """

    part: str
    sizes: Int[np.ndarray, "G 2"]
    num_bags: Int[np.ndarray, " G"]
    replicated: Float[np.ndarray, "S G"] = field(repr=False)
    observed: Float[np.ndarray, " G"] | None

    @property
    def table(self) -> pd.DataFrame:
        """A row for each class of sizes, the smallest bags first.

        Returns
        -------
        DataFrame
            ``num_bags``; ``prior_mean``, the prior predictive probability of a positive bag (mean
            target) with its Monte-Carlo error ``prior_mean_error``; ``prior_low`` and
            ``prior_high``, between which nine in ten replicates of these bags are; ``observed`` and
            its two-sided ``p`` among the replicates, NaN without labels (targets).
        """
        low, high = np.quantile(self.replicated, (0.05, 0.95), axis=0)
        missing = np.full(len(self.num_bags), np.nan)
        observed = missing if self.observed is None else self.observed
        error = self.replicated.std(axis=0, ddof=1) / np.sqrt(len(self.replicated))
        p = two_sided_p(self.replicated, observed)
        return pd.DataFrame(
            {
                "num_bags": self.num_bags,
                "prior_mean": self.replicated.mean(axis=0),
                "prior_mean_error": error,
                "prior_low": low,
                "prior_high": high,
                "observed": observed,
                "p": np.where(np.isnan(observed), np.nan, p),
            },
            index=pd.Index([_size(*pair) for pair in self.sizes.tolist()], name="bag_size"),
        )

    @property
    def sentences(self) -> list[str]:
        """What the prior expects, and its `surprises`."""
        return [self._expectation(), *self.surprises]

    @property
    def surprises(self) -> list[str]:
        """Where the data are rare among replicates, corrected for the number of classes."""
        return list(self._surprises())

    def _expectation(self) -> str:
        by_class, weight = self.table, self.num_bags / self.num_bags.sum()
        expected = self._said(by_class["prior_mean"].to_numpy() @ weight)
        if self.part == "targets":
            text = f"Before any target is seen, a bag's is {expected} on average"
        else:
            text = f"Before any label is seen, a bag is positive with probability {expected}"
        if len(by_class) > 1:
            first, last = (self._said(by_class["prior_mean"].iloc[i]) for i in (0, -1))
            smallest, largest = by_class.index[0], by_class.index[-1]
            text += (
                f" ({first} among bags of {smallest} and {last} among those of {largest} instances)"
            )
        if self.observed is None:
            return f"{text}."
        return f"{text}; in the data the {self._what} is {self._said(self.observed @ weight)}."

    def _surprises(self) -> Iterator[str]:
        by_class = self.table
        for size, row in by_class[by_class["p"] < _RARE / len(by_class)].iterrows():
            low, high, seen = (self._said(row[n]) for n in ("prior_low", "prior_high", "observed"))
            yield (
                f"Among bags of {size} instances the {self._what} is {seen}, and in nine of ten "
                f"draws from the prior between {low} and {high} (p = {row['p']:.2g}): under this "
                "prior the data are a surprise."
            )

    @property
    def _what(self) -> str:
        return "mean target" if self.part == "targets" else "fraction of positive bags"

    def _said(self, value: float | np.floating) -> str:
        return f"{value:.3g}" if self.part == "targets" else f"{value:.2f}"

    def plot(self) -> Figure:
        """Plot expected and observed frequencies (means) against the size of a bag."""
        by_class = self.table
        figure = replicates_by_size(
            self.sizes,
            by_class["prior_mean"].to_numpy(),
            by_class[["prior_low", "prior_high"]].to_numpy(),
            self.observed,
            self._what,
        )
        if self.part == "labels":
            figure.axes[0].set_ylim(-0.02, 1.02)
        return figure


def two_sided_p(
    replicated: Float[np.ndarray, "S ..."], observed: Float[np.ndarray, "..."] | float
) -> Float[np.ndarray, "..."]:
    """Two-sided p-values; the observed value counts as a replicate, so that p is never 0."""
    below, above = (
        1 + (side <= 0).sum(axis=0) for side in (replicated - observed, observed - replicated)
    )
    p = 2 * np.minimum(below, above) / (1 + len(replicated))
    return np.asarray(np.minimum(1.0, p))


def _size(smallest: int, largest: int) -> str:
    return f"{smallest}" if smallest == largest else f"{smallest} to {largest}"


def prior_predictive(
    model: Model, bags: Bags, *, seed: int | Array, num_replicates: int = 1000
) -> PriorPredictive:
    """Draw labels (targets) of all bags from the prior, and group them by the size of a bag.

    Nothing is fitted. A prior under which nearly every bag is positive, or under which large bags
    are positive and small ones are not, shows here before time is spent on a posterior.

    Parameters
    ----------
    model : Model
    bags : Bags
        With or without labels (targets).
    seed : int or JAX key
    num_replicates : int
        S.

    Returns
    -------
    PriorPredictive
        Of at most five classes of sizes, of about as many bags each.

    Raises
    ------
    ValueError
        If ``num_replicates`` is below 1.
    NotImplementedError
        If replicated labels say nothing of the model (its ``replication_note`` says why), or its
        prior cannot be drawn from.

    References
    ----------
    Gabry et al. (2019), Visualization in Bayesian workflow, section 3.

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.datasets import Bags
    >>> from milzoo.diagnostics import prior_predictive
    >>> from milzoo.models import RBF, VWSGP
    >>> bags = Bags.from_list([[[0.0], [3.0]], [[3.1]], [[0.2], [-0.1]], [[0.1]]], [1, 1, 0, 0])
    >>> model = VWSGP(RBF(variance=9.0, length_scale=1.0), np.array([[0.0], [3.0]]))
    >>> for sentence in prior_predictive(model, bags, seed=0).sentences:
    ...     print(sentence)
    Before any label is seen, a bag is positive with probability 0.50 (0.49 among bags of 1 and
    0.51 among those of 2 instances); in the data the fraction of positive bags is 0.50.
    """
    check_counts(num_replicates=num_replicates)
    if model.replication_note:
        raise NotImplementedError(model.replication_note)
    part = part_of_bags(model)
    index, sizes = _classes(np.asarray(bags.bag_sizes))
    member = (index[:, None] == np.arange(len(sizes))).astype(float)
    num_bags = member.sum(axis=0)

    def mean(values: Float[np.ndarray, "... B"]) -> Float[np.ndarray, "... G"]:
        # Sums of labels and counts are exact: equal fractions of replicates and data are ties.
        return (values @ member) / num_bags

    replicates = replicates_from_the_prior(model, bags, random_key(seed), num_replicates)
    seen = getattr(bags, part)
    return PriorPredictive(
        part=part,
        sizes=sizes,
        num_bags=num_bags.astype(int),
        replicated=mean(replicates),
        observed=None if seen is None else mean(np.asarray(seen, dtype=float)),
    )


def _classes(bag_sizes: Int[np.ndarray, " B"]) -> tuple[np.ndarray, np.ndarray]:
    """The class of each bag, and the smallest and the largest size of each class."""
    distinct, position = np.unique(bag_sizes, return_inverse=True)
    if len(distinct) <= _MOST_CLASSES:
        return position, np.stack([distinct, distinct], axis=1)
    fractions = np.arange(1, _MOST_CLASSES) / _MOST_CLASSES
    edges = np.unique(np.quantile(bag_sizes, fractions, method="inverted_cdf"))
    index = np.unique(np.searchsorted(edges, bag_sizes), return_inverse=True)[1]
    members = [bag_sizes[index == one] for one in range(index.max() + 1)]
    return index, np.array([(one.min(), one.max()) for one in members])


def replicates_from_the_prior(
    model: Model, bags: Bags, key: Array, num_replicates: int
) -> Float[np.ndarray, "S B"]:
    """Replicated labels (targets) of all bags, each replicate with its own draw of the prior.

    Raises
    ------
    NotImplementedError
        If the prior cannot be drawn from.
    """
    with jax.enable_x64(True):
        keys = jax.random.split(key, num_replicates)
        drawn = _replicates(model, model.prepare(bags.without_labels()), keys)
        return np.asarray(drawn, dtype=float)[:, : bags.num_bags]


@jax.jit
def _replicates(model: Model, prepared: Any, keys: Array) -> Array:
    def replicate(key: Array) -> Array:
        return draw_sites(model, prepared, key)[model.observed_site]

    largest = max(leaf.size for leaf in jax.tree.leaves(prepared))
    together = max(1, _MOST_NUMBERS // largest)
    return jax.lax.map(replicate, keys, batch_size=min(together, len(keys)))
