"""Votes of references and citers by loops over bags, ranked distances, ties."""

import math

import numpy as np
import pytest
from milzoo.datasets import Bags
from milzoo.estimators import set_kernel_svm
from milzoo.estimators.citation_knn import CitationKNN, hausdorff_distances

RANKS = [1, 2, 100, 0.5, 0.3]


@pytest.fixture(scope="module")
def bags():
    """On a coarse grid: many distances are equal."""
    random = np.random.default_rng(2)
    sizes = [1, 3, 2, 9, 5, 1, 4, 2, 3, 6, 3, 3]
    rows = [random.integers(0, 4, (n, 3)).astype(float) for n in sizes]
    return Bags.from_list(rows, np.arange(12) % 3 == 0)


def ranked(one, other, rank):
    """H_k, from sorted lists."""

    def directed(one, other):
        nearest = sorted(min(math.dist(x, z) for z in other) for x in one)
        place = rank if isinstance(rank, int) else math.ceil(rank * len(one))
        return nearest[min(place, len(one)) - 1]

    return max(directed(one, other), directed(other, one))


def votes(query, training, labels, references, citers, rank):
    """Ranks counted bag by bag, as the paper describes them."""
    total = 0
    for b, bag in enumerate(training):
        sign = 1 if labels[b] else -1
        distance = ranked(query, bag, rank)
        nearer = sum(ranked(query, other, rank) < distance for other in training)
        total += sign * (nearer < references)
        others = training[:b] + training[b + 1 :]
        nearer = sum(ranked(bag, other, rank) < distance for other in others)
        total += sign * (nearer < citers)
    return total


@pytest.mark.parametrize("rank", RANKS)
def test_distance_is_the_ranked_hausdorff_distance(bags, rank, monkeypatch):
    monkeypatch.setattr(set_kernel_svm, "_ENTRIES", 5 * 42)
    others = bags.select([4, 0, 3])
    expected = [[ranked(a, b, rank) for b in others.to_list()] for a in bags.to_list()]
    np.testing.assert_allclose(hausdorff_distances(bags, others, rank), expected, rtol=1e-12)


@pytest.mark.parametrize("rank", [1, 0.5])
@pytest.mark.parametrize(("references", "citers"), [(1, 1), (2, 4), (3, 2), (20, 20)])
def test_decision_counts_references_and_citers(bags, references, citers, rank):
    training, test = bags.select(np.arange(8)), bags.select([8, 9, 10, 11, 3])
    found = CitationKNN(references, citers, rank).fit(training).decision_function(test)
    rows = training.to_list()
    expected = [
        votes(query, rows, training.labels, references, citers, rank) for query in test.to_list()
    ]
    assert found.tolist() == expected


def on_a_line(points, labels=None):
    return Bags.from_list([[[point]] for point in points], labels)


def test_tied_votes_are_negative():
    classifier = CitationKNN(references=2, citers=1).fit(on_a_line([0.0, 3.0], [0, 1]))
    query = on_a_line([1.4])
    assert classifier.decision_function(query).tolist() == [0.0]
    assert classifier.predict(query).tolist() == [0]


def test_bags_that_tie_are_all_references():
    bags = on_a_line([-1.0, 1.0, -1.0, 50.0, 50.5], [1, 1, 1, 0, 0])
    classifier = CitationKNN(references=1, citers=1).fit(bags)
    # The bags at −1 cite each other only, and that at 1 cites the query.
    assert classifier.decision_function(on_a_line([0.0])).tolist() == [4.0]


def test_a_training_bag_does_not_cite_itself():
    """The bag at 0 has its nearest other bag at 2, and cites a bag that is nearer."""
    bags = on_a_line([0.0, 2.0, 3.0, 100.0], [1, 0, 0, 0])
    assert CitationKNN(1, 1).fit(bags).reach_.tolist() == [2.0, 1.0, 1.0, 97.0]
    assert CitationKNN(1, 4).fit(bags).reach_.tolist() == [math.inf] * 4


def test_citers_do_not_depend_on_other_queries(bags):
    classifier = CitationKNN().fit(bags)
    together = classifier.decision_function(bags)
    crowd = classifier.decision_function(bags.select([0] * 9 + [5]))
    assert crowd.tolist() == [together[0]] * 9 + [together[5]]
    shuffled = Bags.from_list([rows[::-1] for rows in bags.to_list()])
    assert classifier.decision_function(shuffled).tolist() == together.tolist()


def test_order_of_training_bags_does_not_matter(bags):
    backwards = bags.select(np.arange(12)[::-1])
    found = CitationKNN().fit(backwards).decision_function(bags)
    assert found.tolist() == CitationKNN().fit(bags).decision_function(bags).tolist()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"references": 0}, "CitationKNN references is 0; expected an integer of at least 1"),
        ({"citers": 1.0}, "citers is 1.0; expected an integer of at least 1"),
        ({"rank": 1.0}, "rank is 1.0; expected an integer of at least 1, or a fraction between"),
        ({"rank": 0}, "rank is 0; expected an integer of at least 1, or a fraction between"),
        ({"rank": True}, "rank is True; expected an integer"),
    ],
)
def test_bad_parameters_are_refused(bags, setting, message, without_type_checks):
    with pytest.raises(ValueError, match=message):
        CitationKNN(**setting).fit(bags)
