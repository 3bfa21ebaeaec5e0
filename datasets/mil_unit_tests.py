"""Simulate unit tests of multiple-instance learning: bags on which wrong assumptions fail.

Each function draws training bags and test bags in which positive bags are positive for the same
reason, the instances of a concept. A poison item beside them marks negative bags in training, and
positive bags in the test. A classifier that respects the assumption ranks the test bags and the
training bags equally well. One that takes the poison for a sign of negative bags ranks test bags
worse than chance.

Beside each simulator stands the true posterior of a bag's label, given its instances: for the
distribution of the training bags, for that of the test bags, and for the answer that respects the
assumption, for which the poison is uninformative.

After Raff and Holt (2023), "Reproducibility in multiple instance learning: a case for algorithmic
unit tests", NeurIPS: the three assumptions, and a test for each with a poison. The distributions
here are stated with each function; the paper's own numbers may differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from .arguments import Rule, check, check_counts, checked_seed, is_whole, one_of
from .bags import Bags

__all__ = [
    "BagsOfUnitTest",
    "presence_based",
    "presence_based_log_odds",
    "standard_assumption",
    "standard_assumption_log_odds",
    "threshold_based",
    "threshold_based_log_odds",
]

# Every feature of a concept's centre that is not 0; of the poison's centre, all features.
_CONCEPT, _POISON = 3.0, -10.0
# Of concept and poison items around their centres; the background has 1.
_SD = 0.1

# From a label, the centres of the concept instances in one bag.
type _Concepts = Callable[[int], Float[np.ndarray, "items D"]]

# In which bags the poison is: (P(poison | T = 0), P(poison | T = 1)).
_POISONED = {"negative": (1.0, 0.0), "positive": (0.0, 1.0), "either": (0.5, 0.5)}


class BagsOfUnitTest(NamedTuple):
    """Training bags, and test bags in which the poison has changed sides.

    Attributes
    ----------
    training, test : Bags
        As many positive as negative bags, in random order.

    Examples
    --------
    >>> from sklearn.metrics import roc_auc_score
    >>> from milzoo.datasets import BagsOfUnitTest, standard_assumption
    >>> def aucs_of_lowest(bags: BagsOfUnitTest) -> list[float]:
    ...     lowest = [[bag.instances.min() for bag in part] for part in bags]
    ...     return [roc_auc_score(part.labels, each) for part, each in zip(bags, lowest)]
    >>> aucs_of_lowest(standard_assumption(10, seed=0))  # training and test
    [1.0, 0.0]
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

    Features are independent. The test asks whether a classifier respects that an instance can make
    a bag positive, never negative. The right answer: a bag is positive if it has the concept
    instance, whatever else it has. In training, the poison separates negative from positive bags
    equally well. A classifier that uses it as evidence against a positive label, as a mean over the
    bag does, has an area under the ROC curve of less than a half in the test.

    Parameters
    ----------
    bags_of_each_label : int
        Positive bags, and negative ones, in training and in the test.
    bag_size : range
        Sizes to draw from, at least 2.
    num_features : int
        D.
    seed : int
        Seed of the draw.

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

    Examples
    --------
    >>> from milzoo.datasets import standard_assumption
    >>> training, test = standard_assumption(20, seed=0)
    >>> training
    Bags(40 bags (20 positive, 20 negative) of 10 to 20 instances, 609 instances of 16 features)
    >>> has_poison = [bag.instances.min() < -9 for bag in training]
    >>> training.labels[has_poison].tolist().count(1)  # positive bags that have the poison
    0
    """
    check_counts(bags_of_each_label=bags_of_each_label, num_features=num_features)
    _check_sizes(bag_size, 2)
    random = np.random.default_rng(checked_seed(seed))
    centre = _centres(1, num_features)

    def concepts(label: int) -> Float[np.ndarray, "items D"]:
        return centre[:label]

    design = _Design(bags_of_each_label, bag_size, num_features, are_instances_labelled=True)
    return design.draw(concepts, random)


def standard_assumption_log_odds(
    bags: Bags, *, poisoned: str = "negative"
) -> Float[np.ndarray, " B"]:
    r"""True log odds of a positive label given the instances, for bags of `standard_assumption`.

    .. math:: \log \frac{P(T = 1 ∣ x_1, …, x_n)}{P(T = 0 ∣ x_1, …, x_n)}

    It sums over which instance is the concept instance and which the poison. With the densities of
    the concept c, the poison z and the background b, in training,

    .. math:: p(X ∣ T = 1) = \prod_i b(x_i) \; \frac{1}{n} Σ_i \frac{c(x_i)}{b(x_i)}, \quad
        p(X ∣ T = 0) = \prod_i b(x_i) \; \frac{1}{n} Σ_i \frac{z(x_i)}{b(x_i)}.

    Parameters
    ----------
    bags : Bags
        With any number of features. Their labels are not used.
    poisoned : str
        Which bags have the poison:

        - ``negative``, in training. This posterior takes the poison for evidence, as any classifier
          may that knows the training bags alone.
        - ``positive``, in the test.
        - ``either``, half of the bags of each label. The poison is uninformative, and this is the
          answer that respects the assumption, in training and in the test. It is the posterior of
          training and test bags mixed half and half.

    Returns
    -------
    array (B,)
        Positive and negative labels are equally probable before the instances are seen, and so are
        all sizes.

    Raises
    ------
    ValueError
        If a bag is too small for its concept instance and its poison.

    Notes
    -----
    Θ(N D). With many features the posterior is nearly certain: at D = 16, the lower of the two
    probabilities is below 10⁻³⁰ in every bag that was drawn. With ``negative`` it is as certain in
    the test, and wrong: the best fit to the training bags relies on the poison.

    Examples
    --------
    >>> from milzoo.datasets import standard_assumption, standard_assumption_log_odds
    >>> training, test = standard_assumption(2, num_features=1, seed=0)
    >>> test.labels
    array([1, 0, 0, 1])
    >>> (standard_assumption_log_odds(test, poisoned="either") > 0).astype(int)
    array([1, 0, 0, 1])
    >>> (standard_assumption_log_odds(test, poisoned="negative") > 0).astype(int)  # misled
    array([0, 1, 1, 0])
    """

    def contents(label: int) -> Iterator[_Content]:
        yield _Content(1.0, concept[:, None], (label,))

    concept = _log_ratios(bags, _centres(1, bags.num_features)[0])
    return _log_odds(bags, contents, 1, poisoned)


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

    Features are independent. The test asks whether a classifier counts concept instances, and
    respects that they can make a bag positive, never negative. The right answer: a bag is positive
    if it has a concept instances, whatever else it has. Every bag has at least one, so the highest
    instance score is uninformative. A classifier that uses the poison as evidence against a
    positive label has an area under the ROC curve of less than a half in the test.

    Parameters
    ----------
    bags_of_each_label : int
        Positive bags, and negative ones, in training and in the test.
    bag_size : range
        Sizes to draw from, at least a + 2.
    num_features : int
        D.
    min_positive : int
        a, at least 3.
    seed : int
        Seed of the draw.

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

    Examples
    --------
    >>> from milzoo.datasets import threshold_based
    >>> training, test = threshold_based(3, num_features=2, min_positive=4, seed=0)
    >>> training.labels
    array([1, 0, 1, 1, 0, 0])
    >>> [int((abs(bag.instances - 3) < 0.5).all(axis=1).sum()) for bag in training]
    [4, 3, 4, 4, 2, 3]
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


def threshold_based_log_odds(
    bags: Bags, min_positive: int = 4, *, poisoned: str = "negative"
) -> Float[np.ndarray, " B"]:
    """True log odds of a positive label given the instances, for bags of `threshold_based`.

    It sums over the number of concept instances, over which instances they are, and over which is
    the poison.

    Parameters
    ----------
    bags : Bags
        With any number of features. Their labels are not used.
    min_positive : int
        a of the simulator.
    poisoned : str
        Which bags have the poison: ``negative``, ``positive`` or ``either``, as in
        `standard_assumption_log_odds`.

    Returns
    -------
    array (B,)
        Positive and negative labels are equally probable before the instances are seen, and so are
        all sizes.

    Raises
    ------
    ValueError
        If ``min_positive`` is out of range, or a bag is too small for its concept instances and its
        poison.

    Notes
    -----
    Θ(N (D + a)).

    Examples
    --------
    >>> from milzoo.datasets import threshold_based, threshold_based_log_odds
    >>> training, test = threshold_based(2, num_features=1, seed=0)
    >>> test.labels
    array([0, 0, 1, 1])
    >>> (threshold_based_log_odds(test, poisoned="either") > 0).astype(int)
    array([0, 0, 1, 1])
    """
    check("min_positive", min_positive, _at_least(3))

    def contents(label: int) -> Iterator[_Content]:
        fewest = min_positive if label else min_positive - 2
        for count in (fewest, fewest + 1):
            yield _Content(0.5, concept[:, None], (count,))

    concept = _log_ratios(bags, _centres(1, bags.num_features)[0])
    return _log_odds(bags, contents, min_positive + 1, poisoned)


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

    An instance of concept k = 0 … K − 1 is N(3, 0.1²) in feature d where d mod K is k, and N(0,
    0.1²) in the others. Features are independent. The test asks whether a classifier requires
    several concepts together, and respects that instances can make a bag positive, never negative.
    The right answer: a bag is positive if it has all concepts, whatever else it has. All bags have
    equally many concept instances, so their number is uninformative. The presence of one concept
    does not determine the label. A classifier that uses the poison as evidence against a positive
    label has an area under the ROC curve of less than a half in the test.

    Parameters
    ----------
    bags_of_each_label : int
        Positive bags, and negative ones, in training and in the test.
    bag_size : range
        Sizes to draw from, at least K + 1.
    num_features : int
        D, at least K.
    num_concepts : int
        K, at least 2.
    seed : int
        Seed of the draw.

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

    Examples
    --------
    >>> from milzoo.datasets import presence_based
    >>> training, test = presence_based(3, num_features=2, num_concepts=2, seed=0)
    >>> training.labels
    array([1, 0, 1, 1, 0, 0])
    >>> distance = [abs(bag.instances[:, None] - [[3, 0], [0, 3]]).max(axis=2) for bag in training]
    >>> [(one < 0.5).sum(axis=0).tolist() for one in distance]  # instances of each concept
    [[1, 1], [2, 0], [1, 1], [1, 1], [2, 0], [0, 2]]
    """
    check_counts(bags_of_each_label=bags_of_each_label, num_features=num_features)
    check("num_concepts", num_concepts, _at_least(2))
    _check_sizes(bag_size, num_concepts + 1)
    _check_concepts(num_features, num_concepts)
    random = np.random.default_rng(checked_seed(seed))
    centres = _centres(num_concepts, num_features)

    def concepts(label: int) -> Float[np.ndarray, "items D"]:
        if label:
            return centres
        others = np.delete(centres, random.integers(num_concepts), axis=0)
        return others[random.integers(num_concepts - 1, size=num_concepts)]

    return _Design(bags_of_each_label, bag_size, num_features).draw(concepts, random)


def presence_based_log_odds(
    bags: Bags, num_concepts: int = 2, *, poisoned: str = "negative"
) -> Float[np.ndarray, " B"]:
    """True log odds of a positive label given the instances, for bags of `presence_based`.

    It sums over the assignments of instances to concepts, over the absent concept of a negative
    bag, and over which instance is the poison.

    Parameters
    ----------
    bags : Bags
        With at least K features. Their labels are not used.
    num_concepts : int
        K of the simulator.
    poisoned : str
        Which bags have the poison: ``negative``, ``positive`` or ``either``, as in
        `standard_assumption_log_odds`.

    Returns
    -------
    array (B,)
        Positive and negative labels are equally probable before the instances are seen, and so are
        all sizes.

    Raises
    ------
    ValueError
        If ``num_concepts`` is out of range, or a bag is too small for its concept instances and its
        poison.

    Notes
    -----
    Θ(N (K D + K 2^K)).

    Examples
    --------
    >>> from milzoo.datasets import presence_based, presence_based_log_odds
    >>> training, test = presence_based(2, num_features=2, seed=0)
    >>> test.labels
    array([1, 0, 0, 1])
    >>> (presence_based_log_odds(test, poisoned="either") > 0).astype(int)
    array([1, 0, 0, 1])
    """
    check("num_concepts", num_concepts, _at_least(2))
    _check_concepts(bags.num_features, num_concepts)
    centres = _centres(num_concepts, bags.num_features)
    concepts = [_log_ratios(bags, centre) for centre in centres]

    def contents(label: int) -> Iterator[_Content]:
        if label:
            yield _Content(1.0, np.column_stack(concepts), (1,) * num_concepts)
            return
        for absent in range(num_concepts):
            # Items drawn from the others are draws from the mixture of these.
            others = np.delete(concepts, absent, axis=0)
            mixture = np.logaddexp.reduce(others, axis=0) - math.log(num_concepts - 1)
            yield _Content(1 / num_concepts, mixture[:, None], (num_concepts,))

    return _log_odds(bags, contents, num_concepts, poisoned)


class _Content(NamedTuple):
    """What may be in a bag beside background.

    Attributes
    ----------
    probability : float
        Of this content, among those of its label.
    log_ratios : array (N, kinds)
        Log density of each instance as an item of each kind, less that as background.
    counts : tuple of int
        Items of each kind.
    """

    probability: float
    log_ratios: Float[np.ndarray, "N kinds"]
    counts: tuple[int, ...]

    def with_poison(
        self, log_ratios: Float[np.ndarray, " N"], count: int, probability: float
    ) -> _Content:
        """The content and the poison, which is there once or not at all."""
        return _Content(
            self.probability * probability,
            np.column_stack([self.log_ratios, log_ratios]),
            (*self.counts, count),
        )

    def log_likelihoods(self, bags: Bags) -> Float[np.ndarray, " B"]:
        """Log probability of the content and density of the instances, less all as background."""
        padded = np.full((len(bags), bags.bag_sizes.max(), len(self.counts)), -np.inf)
        place_in_bag = np.arange(bags.num_instances) - np.repeat(bags.starts, bags.bag_sizes)
        padded[np.asarray(bags.bag_index), place_in_bag] = self.log_ratios
        means = log_mean_over_placements(padded, bags.bag_sizes, self.counts)
        return math.log(self.probability) + means


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


def log_mean_over_placements(
    log_ratios: Float[np.ndarray, "B N_max kinds"],
    sizes: Int[np.ndarray, " B"],
    counts: tuple[int, ...],
) -> Float[np.ndarray, " B"]:
    """Log of the mean, over all places of the items in a bag, of the product of their ratios.

    The sum over placements is the coefficient of Π_k u_k^m_k in Π_i (1 + Σ_k u_k r_ik), which grows
    by one factor for each instance. The ratios of padding are 0.
    """
    coefficients = np.full((len(sizes), *[count + 1 for count in counts]), -np.inf)
    coefficients.reshape(len(sizes), -1)[:, 0] = 0.0
    for of_instance in np.moveaxis(log_ratios, 1, 0):
        grown = coefficients.copy()
        for kind, log_ratio in enumerate(of_instance.T):
            into, out_of = (np.moveaxis(one, kind + 1, 0) for one in (grown, coefficients))
            by_bag = log_ratio.reshape(-1, *[1] * (into.ndim - 2))
            into[1:] = np.logaddexp(into[1:], out_of[:-1] + by_bag)
        coefficients = grown
    return coefficients.reshape(len(sizes), -1)[:, -1] - _log_placements(sizes, counts)


def _log_placements(
    sizes: Int[np.ndarray, " B"], counts: tuple[int, ...]
) -> Float[np.ndarray, " B"]:
    """Log number of ways to choose disjoint sets of these sizes: n! / (Π_k m_k! (n − Σ_k m_k)!)."""
    of_items = sum(math.lgamma(count + 1) for count in counts)
    of_sizes = [math.lgamma(size + 1) - math.lgamma(size - sum(counts) + 1) for size in sizes]
    return np.array(of_sizes) - of_items


def _log_odds(
    bags: Bags, contents: Callable[[int], Iterator[_Content]], most_items: int, poisoned: str
) -> Float[np.ndarray, " B"]:
    """Log odds of a positive label, each label with the contents that it may have."""
    check("poisoned", poisoned, one_of(*_POISONED))
    smallest = int(bags.bag_sizes.min())
    if smallest < most_items + 1:
        raise ValueError(
            f"a bag has {smallest} instances; expected at least {most_items + 1}, for the concept "
            "instances and the poison"
        )
    poison = _log_ratios(bags, np.full(bags.num_features, _POISON))
    log_likelihoods = []
    for label, probability in enumerate(_POISONED[poisoned]):
        possible = [
            content.with_poison(poison, count, weight).log_likelihoods(bags)
            for content in contents(label)
            for count, weight in ((0, 1 - probability), (1, probability))
            if weight > 0
        ]
        log_likelihoods.append(np.logaddexp.reduce(possible, axis=0))
    return log_likelihoods[1] - log_likelihoods[0]


def _log_ratios(bags: Bags, centre: Float[np.ndarray, " D"]) -> Float[np.ndarray, " N"]:
    """Log density of each instance as an item with this centre, less that as background."""
    instances = np.asarray(bags.instances, dtype=float)
    as_item = -0.5 * ((instances - centre) / _SD) ** 2 - math.log(_SD)
    return (as_item + 0.5 * instances**2).sum(axis=1)


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


def _check_concepts(num_features: int, num_concepts: int) -> None:
    if num_features < num_concepts:
        raise ValueError(
            f"num_features is {num_features}; expected one for each of {num_concepts} concepts"
        )
