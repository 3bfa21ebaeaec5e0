"""Simulate unit tests of multiple-instance learning: bags on which wrong assumptions fail.

Each function draws training bags and test bags in which positive bags are positive for the same
reason, the instances of a concept. A poison item beside them marks negative bags in training, and
positive bags in the test. A classifier that respects the assumption ranks the test bags as well as
the training bags. One that takes the poison for a sign of negative bags ranks test bags worse than
chance.

After Raff and Holt (2023), "Reproducibility in multiple instance learning: a case for algorithmic
unit tests", NeurIPS: the three assumptions, and a test for each with a poison. The distributions
here are stated with each function; the paper's own numbers may differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from .arguments import Rule, check, check_counts, checked_seed, is_whole
from .bags import Bags

__all__ = ["BagsOfUnitTest", "presence_based", "standard_assumption", "threshold_based"]

# Every feature of a concept's centre that is not 0; of the poison's centre, all features.
_CONCEPT, _POISON = 3.0, -10.0
# Of concept and poison items around their centres; the background has 1.
_SD = 0.1

# From a label, the centres of the concept instances in one bag.
type _Concepts = Callable[[int], Float[np.ndarray, "items D"]]


class BagsOfUnitTest(NamedTuple):
    """Training bags, and test bags in which the poison has changed sides.

    Attributes
    ----------
    training, test : Bags
        As many positive as negative bags, in random order.
    """

    training: Bags
    test: Bags


def standard_assumption(
    bags_of_each_label: int = 100,
    bag_size: range = range(10, 21),
    num_features: int = 16,
    *,
    seed: int,
) -> BagsOfUnitTest:
    """Draw bags for the standard assumption: positive if and only if one instance is positive.

    Sizes of bags are uniform over ``bag_size``. The instances, in random order, are

    - one concept instance in each positive bag, N(3, 0.1²) in each feature,
    - one poison item, N(−10, 0.1²) in each feature, in each negative training bag and in each
      positive test bag, and in no other,
    - background, N(0, 1) in each feature, for the rest.

    Features are independent. The test is of whether an instance can only ever make a bag positive.
    The answer that respects this: a bag is positive if it has the concept instance, whatever else
    it has. In training, the poison separates negative from positive bags just as well. A classifier
    that uses it as evidence against a positive label, as a mean over the bag does, has an area
    under the ROC curve of less than a half in the test.

    Parameters
    ----------
    bags_of_each_label : int
        Positive bags, and negative ones, in training and in the test.
    bag_size : range
        Of 2 instances at least.
    num_features : int
        D.
    seed : int
        Of the draw.

    Returns
    -------
    BagsOfUnitTest
        With instance labels, 1 for concept instances.

    Raises
    ------
    ValueError
        If a count is below 1, or a bag is too small for its concept instance and its poison.

    References
    ----------
    After Raff and Holt (2023), the test of the standard assumption.
    """
    check_counts(bags_of_each_label=bags_of_each_label, num_features=num_features)
    _check_sizes(bag_size, 2)
    random = np.random.default_rng(checked_seed(seed))
    centre = _centres(1, num_features)

    def concepts(label: int) -> Float[np.ndarray, "items D"]:
        return centre[:label]

    design = _Design(bags_of_each_label, bag_size, num_features, are_instances_labelled=True)
    return design.draw(concepts, random)


def threshold_based(
    bags_of_each_label: int = 100,
    bag_size: range = range(10, 21),
    num_features: int = 16,
    min_positive: int = 4,
    *,
    seed: int,
) -> BagsOfUnitTest:
    """Draw bags for the threshold-based assumption: positive with a concept instances or more.

    Sizes of bags are uniform over ``bag_size``. The instances, in random order, are

    - concept instances, N(3, 0.1²) in each feature: a or a + 1 of them in each positive bag, and
      a − 2 or a − 1 in each negative bag, with equal probabilities,
    - one poison item, N(−10, 0.1²) in each feature, in each negative training bag and in each
      positive test bag, and in no other,
    - background, N(0, 1) in each feature, for the rest.

    Features are independent. The test is of whether concept instances are counted, and can only
    ever make a bag positive. The answer that respects this: a bag is positive if it has a concept
    instances, whatever else it has. Every bag has one, so that the highest instance score tells
    nothing. A classifier that uses the poison as evidence against a positive label has an area
    under the ROC curve of less than a half in the test.

    Parameters
    ----------
    bags_of_each_label : int
        Positive bags, and negative ones, in training and in the test.
    bag_size : range
        Of a + 2 instances at least.
    num_features : int
        D.
    min_positive : int
        a, at least 3.
    seed : int
        Of the draw.

    Returns
    -------
    BagsOfUnitTest
        Without instance labels: negative bags have concept instances too.

    Raises
    ------
    ValueError
        If a count is out of range, or a bag is too small for its concept instances and its poison.

    References
    ----------
    After Raff and Holt (2023), the test of the threshold-based assumption.
    """
    check_counts(bags_of_each_label=bags_of_each_label, num_features=num_features)
    check("min_positive", min_positive, _at_least(3))
    _check_sizes(bag_size, min_positive + 2)
    random = np.random.default_rng(checked_seed(seed))
    centre = _centres(1, num_features)

    def concepts(label: int) -> Float[np.ndarray, "items D"]:
        fewest = min_positive if label else min_positive - 2
        return np.repeat(centre, fewest + random.integers(2), axis=0)

    return _Design(bags_of_each_label, bag_size, num_features).draw(concepts, random)


def presence_based(
    bags_of_each_label: int = 100,
    bag_size: range = range(10, 21),
    num_features: int = 16,
    num_concepts: int = 2,
    *,
    seed: int,
) -> BagsOfUnitTest:
    """Draw bags for the presence-based assumption: positive with an instance of every concept.

    Sizes of bags are uniform over ``bag_size``. The instances, in random order, are

    - K concept instances: in each positive bag one of each of K concepts; in each negative bag K of
      the other concepts, each drawn uniformly, where one concept, drawn uniformly, is absent,
    - one poison item, N(−10, 0.1²) in each feature, in each negative training bag and in each
      positive test bag, and in no other,
    - background, N(0, 1) in each feature, for the rest.

    An instance of concept k = 0 … K − 1 is N(3, 0.1²) in feature d where d mod K is k, and
    N(0, 0.1²) in the others. Features are independent. The test is of whether several concepts are
    required together, and instances can only ever make a bag positive. The answer that respects
    this: a bag is positive if it has all concepts, whatever else it has. All bags have as many
    concept instances, so that to count them tells nothing, nor does any one concept's presence
    alone tell all. A classifier that uses the poison as evidence against a positive label has an
    area under the ROC curve of less than a half in the test.

    Parameters
    ----------
    bags_of_each_label : int
        Positive bags, and negative ones, in training and in the test.
    bag_size : range
        Of K + 1 instances at least.
    num_features : int
        D, at least K.
    num_concepts : int
        K, at least 2.
    seed : int
        Of the draw.

    Returns
    -------
    BagsOfUnitTest
        Without instance labels: negative bags have concept instances too.

    Raises
    ------
    ValueError
        If a count is out of range, or a bag is too small for its concept instances and its poison.

    References
    ----------
    After Raff and Holt (2023), the test of the generalised presence-based assumption.
    """
    check_counts(bags_of_each_label=bags_of_each_label, num_features=num_features)
    check("num_concepts", num_concepts, _at_least(2))
    _check_sizes(bag_size, num_concepts + 1)
    if num_features < num_concepts:
        raise ValueError(
            f"num_features is {num_features}; expected one for each of {num_concepts} concepts"
        )
    random = np.random.default_rng(checked_seed(seed))
    centres = _centres(num_concepts, num_features)

    def concepts(label: int) -> Float[np.ndarray, "items D"]:
        if label:
            return centres
        others = np.delete(centres, random.integers(num_concepts), axis=0)
        return others[random.integers(num_concepts - 1, size=num_concepts)]

    return _Design(bags_of_each_label, bag_size, num_features).draw(concepts, random)


class _Design(NamedTuple):
    """What all bags of a test have in common."""

    bags_of_each_label: int
    bag_size: range
    num_features: int
    are_instances_labelled: bool = False

    def draw(self, concepts: _Concepts, random: np.random.Generator) -> BagsOfUnitTest:
        """Training bags with the poison in negative ones, and test bags with it in positive."""
        return BagsOfUnitTest(
            training=self._draw_bags(concepts, 0, random), test=self._draw_bags(concepts, 1, random)
        )

    def _draw_bags(self, concepts: _Concepts, poisoned: int, random: np.random.Generator) -> Bags:
        """Bags of both labels, with the poison in those of one."""
        labels = random.permutation(np.repeat([0, 1], self.bags_of_each_label)).tolist()
        drawn = [self._draw_bag(concepts(label), label == poisoned, random) for label in labels]
        instance_labels = [known for _, known in drawn] if self.are_instances_labelled else None
        return Bags.from_list(
            [table for table, _ in drawn], labels=labels, instance_labels=instance_labels
        )

    def _draw_bag(
        self,
        concepts: Float[np.ndarray, "items D"],
        is_poisoned: bool,
        random: np.random.Generator,
    ) -> tuple[Float[np.ndarray, "N_b D"], Int[np.ndarray, " N_b"]]:
        """Instances in random order, and which of them are of a concept."""
        poison = np.full((int(is_poisoned), self.num_features), _POISON)
        centres = np.concatenate([concepts, poison])
        items = centres + _SD * random.standard_normal(centres.shape)
        size = int(random.choice(self.bag_size))
        background = random.standard_normal((size - len(items), self.num_features))
        order = random.permutation(size)
        is_concept = (np.arange(size) < len(concepts)).astype(int)
        return np.concatenate([items, background])[order], is_concept[order]


def _centres(num_concepts: int, num_features: int) -> Float[np.ndarray, "K D"]:
    """Of each concept: 3 in every K-th feature, counted from its own, and 0 in the others."""
    concept = np.arange(num_concepts)[:, None]
    return np.where(np.arange(num_features) % num_concepts == concept, _CONCEPT, 0.0)


def _at_least(lowest: int) -> Rule:
    return Rule(
        f"an integer of at least {lowest}", lambda value: is_whole(value) and value >= lowest
    )


def _check_sizes(bag_size: range, smallest: int) -> None:
    if not bag_size or min(bag_size) < smallest:
        raise ValueError(
            f"bag_size is {bag_size}; expected sizes of at least {smallest}, for the concept "
            "instances and the poison"
        )
