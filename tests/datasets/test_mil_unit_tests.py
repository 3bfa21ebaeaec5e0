"""Unit tests of MIL: the counts that are stated, and whom the poison misleads."""

import itertools

import numpy as np
import pytest
from milzoo.datasets import Bags
from milzoo.datasets.mil_unit_tests import (
    presence_based,
    presence_based_log_odds,
    standard_assumption,
    standard_assumption_log_odds,
    threshold_based,
    threshold_based_log_odds,
)
from scipy.special import expit, logsumexp
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

FUNCTIONS = [standard_assumption, threshold_based, presence_based]
EACH = pytest.mark.parametrize("draw", FUNCTIONS)


def near(table, centre):
    """How many instances lie within one unit, ten sds, of a centre in each feature."""
    return int(np.sum(np.abs(table - centre).max(axis=1) < 1))


def centres_of(draw):
    if draw is presence_based:
        odd = np.arange(16) % 2
        return [3.0 * (1 - odd), 3.0 * odd]
    return [np.full(16, 3.0)]


def counts_of(bags, centre):
    return np.array([near(table, centre) for table in bags.to_list()])


def score_of_truth(draw, bags):
    """The score that respects the assumption: the count of the scarcest concept, up to what counts.

    Counts beyond the assumption tell nothing more, and are cut off.
    """
    counts = np.min([counts_of(bags, centre) for centre in centres_of(draw)], axis=0)
    return np.minimum(counts, 4 if draw is threshold_based else 1)


@pytest.fixture(scope="module", params=FUNCTIONS, ids=lambda draw: draw.__name__)
def drawn(request):
    return request.param, request.param(60, seed=0)


def test_bags_have_the_stated_numbers_and_sizes(drawn):
    _, both = drawn
    for bags in both:
        assert bags.num_features == 16
        assert np.bincount(bags.labels).tolist() == [60, 60]
        assert set(bags.bag_sizes) == set(range(10, 21))


def test_knowing_the_concept_suffices_in_training_and_test(drawn):
    draw, both = drawn
    for bags in both:
        assert roc_auc_score(bags.labels, score_of_truth(draw, bags)) == 1.0


def test_the_poison_changes_sides(drawn):
    """One item in each negative bag of training, and in each positive bag of the test."""
    _, (training, test) = drawn
    poison = np.full(16, -10.0)
    np.testing.assert_array_equal(counts_of(training, poison), 1 - training.labels)
    np.testing.assert_array_equal(counts_of(test, poison), test.labels)
    assert roc_auc_score(training.labels, -counts_of(training, poison)) > 0.5
    assert roc_auc_score(test.labels, -counts_of(test, poison)) < 0.5


def test_a_linear_classifier_of_means_is_misled(drawn):
    _, (training, test) = drawn
    means = [
        np.array([table.mean(axis=0) for table in bags.to_list()]) for bags in (training, test)
    ]
    classifier = LogisticRegression().fit(means[0], training.labels)
    assert roc_auc_score(training.labels, classifier.decision_function(means[0])) > 0.95
    assert roc_auc_score(test.labels, classifier.decision_function(means[1])) < 0.5


def test_background_is_standard_normal(drawn):
    """One look each at mean and variance, 4.5 standard errors."""
    draw, both = drawn
    for bags in both:
        centres = [*centres_of(draw), np.full(16, -10.0)]
        far = np.min([np.abs(bags.instances - one).max(axis=1) for one in centres], axis=0) > 1
        rows = bags.instances[far]
        assert abs(rows.mean()) < 4.5 / np.sqrt(rows.size)
        assert abs(rows.var() - 1) < 4.5 * np.sqrt(2 / rows.size)


def test_items_have_the_stated_deviation():
    training, _ = standard_assumption(200, seed=0)
    concept = training.instances[training.instance_labels == 1]
    poison = training.instances[training.instances.mean(axis=1) < -5]
    for rows, centre in ((concept, 3.0), (poison, -10.0)):
        assert len(rows) == 200
        assert abs(rows.mean() - centre) < 4.5 * 0.1 / np.sqrt(rows.size)
        assert abs(rows.std() / 0.1 - 1) < 4.5 / np.sqrt(2 * rows.size)


def test_instance_labels_mark_the_concept():
    for bags in standard_assumption(30, seed=0):
        near_concept = np.abs(bags.instances - 3).max(axis=1) < 1
        np.testing.assert_array_equal(bags.instance_labels, near_concept)
        positions = np.flatnonzero(bags.instance_labels) - bags.starts[bags.labels == 1]
        assert len(set(positions)) > 5  # not always the first


def test_counts_decide_the_label_by_a_threshold():
    for bags in threshold_based(200, min_positive=5, seed=0):
        counts = counts_of(bags, np.full(16, 3.0))
        assert np.unique(counts[bags.labels == 1]).tolist() == [5, 6]
        assert np.unique(counts[bags.labels == 0]).tolist() == [3, 4]
        # Half of the bags of a label have the higher count; 4.5 standard errors.
        assert abs(np.mean(counts % 2) - 0.5) < 4.5 * np.sqrt(0.25 / 400)
        assert bags.instance_labels is None


def test_one_concept_is_absent_from_negative_bags():
    features = np.arange(16)
    for bags in presence_based(200, num_concepts=3, seed=0):
        centres = [np.where(features % 3 == k, 3.0, 0.0) for k in range(3)]
        counts = np.array([counts_of(bags, centre) for centre in centres]).T
        assert (counts.sum(axis=1) == 3).all()
        assert (counts[bags.labels == 1] == 1).all()
        negative = counts[bags.labels == 0]
        assert (negative.min(axis=1) == 0).all()
        # Absent are: one concept, or two where all three instances are of one: 2 / 2³ of the bags.
        absent = (negative == 0).mean(axis=0)
        expected = (1 + 1 / 4) / 3
        assert np.abs(absent - expected).max() < 4.5 * np.sqrt(expected * (1 - expected) / 200)


@EACH
def test_the_seed_decides_the_draw(draw):
    one, same, other = (draw(3, seed=seed) for seed in (1, 1, 2))
    for part in (0, 1):
        np.testing.assert_array_equal(one[part].instances, same[part].instances)
        np.testing.assert_array_equal(one[part].labels, same[part].labels)
    assert one.training.instances[0, 0] != other.training.instances[0, 0]
    assert one.training.instances[0, 0] != one.test.instances[0, 0]


def log_density(table, items):
    """Log density of a bag that has these items at places drawn at random, by all places."""
    background = norm.logpdf(table).sum(axis=1)
    of_items = [norm.logpdf(table, centre, 0.1).sum(axis=1) for centre in items]
    sums = [
        background.sum() + sum(of_items[k][i] - background[i] for k, i in enumerate(places))
        for places in itertools.permutations(range(len(table)), len(items))
    ]
    return logsumexp(sums) - np.log(len(sums))


def standard_contents(label):
    return [(1.0, [np.array([3.0])] * label)]


def threshold_contents(label):
    """For a = 3."""
    return [(0.5, [np.array([3.0])] * count) for count in ([1, 2], [3, 4])[label]]


def presence_contents(num_concepts):
    centres = [3.0 * (np.arange(num_concepts) == k) for k in range(num_concepts)]

    def contents(label):
        if label:
            return [(1.0, centres)]
        absences = [centres[:k] + centres[k + 1 :] for k in range(num_concepts)]
        drawn = [
            list(items)
            for others in absences
            for items in itertools.product(others, repeat=num_concepts)
        ]
        return [(1 / len(drawn), items) for items in drawn]

    return contents


POISONED = {"negative": (1.0, 0.0), "positive": (0.0, 1.0), "either": (0.5, 0.5)}
ENUMERATED = [
    (standard_assumption_log_odds, {}, standard_contents, 1),
    (threshold_based_log_odds, {"min_positive": 3}, threshold_contents, 1),
    (presence_based_log_odds, {"num_concepts": 2}, presence_contents(2), 2),
    (presence_based_log_odds, {"num_concepts": 3}, presence_contents(3), 3),
]


@pytest.mark.parametrize("poisoned", list(POISONED))
@pytest.mark.parametrize(("log_odds", "arguments", "contents", "num_features"), ENUMERATED)
def test_log_odds_are_those_of_all_placements(
    log_odds, arguments, contents, num_features, poisoned
):
    """On bags with instances between the centres, so that no placement decides alone."""
    random = np.random.default_rng(0)
    tables = [random.uniform(-10.5, 3.5, size=(size, num_features)) for size in (5, 6)]
    tables += [random.uniform(2.4, 3.2, size=(5, num_features))]
    found = log_odds(Bags.from_list(tables), **arguments, poisoned=poisoned)
    poison = np.full(num_features, -10.0)
    for table, value in zip(tables, found, strict=True):
        expected = [
            logsumexp(
                [
                    np.log(weight * chance) + log_density(table, [*items, *[poison] * count])
                    for weight, items in contents(label)
                    for count, chance in ((0, 1 - probability), (1, probability))
                    if chance > 0
                ]
            )
            for label, probability in enumerate(POISONED[poisoned])
        ]
        assert value == pytest.approx(expected[1] - expected[0], rel=1e-9, abs=1e-9)


CALIBRATED = [
    (standard_assumption, standard_assumption_log_odds, 1, range(10, 21)),
    (threshold_based, threshold_based_log_odds, 1, range(10, 21)),
    (presence_based, presence_based_log_odds, 2, range(80, 101)),
]


@pytest.mark.parametrize(("draw", "log_odds", "num_features", "sizes"), CALIBRATED)
def test_the_truth_is_calibrated_where_poison_tells_nothing(draw, log_odds, num_features, sizes):
    """Training and test bags, half and half: mean log loss is mean entropy, 4.5 standard errors."""
    both = draw(200, sizes, num_features, seed=0)
    bags = Bags.from_list([table for part in both for table in part.to_list()])
    labels = np.concatenate([part.labels for part in both])
    odds = log_odds(bags, poisoned="either")
    probability = expit(odds)
    log_loss = np.logaddexp(0, np.where(labels == 1, -odds, odds))
    entropy = probability * np.logaddexp(0, -odds) + (1 - probability) * np.logaddexp(0, odds)
    assert entropy.mean() > 0.01
    for surprise in (log_loss - entropy, labels - probability):
        assert abs(surprise.mean()) < 4.5 * surprise.std() / np.sqrt(len(labels))


@pytest.mark.parametrize(("draw", "log_odds"), [row[:2] for row in CALIBRATED])
def test_the_truth_of_training_fails_the_test(draw, log_odds):
    """It trusts the poison; the truth to which the poison tells nothing is right in both."""
    training, test = draw(30, seed=0)
    for bags, poisoned in ((training, "negative"), (test, "positive")):
        np.testing.assert_array_equal(log_odds(bags, poisoned=poisoned) > 0, bags.labels)
        np.testing.assert_array_equal(log_odds(bags, poisoned="either") > 0, bags.labels)
    assert roc_auc_score(test.labels, log_odds(test)) < 0.3


@pytest.mark.parametrize(
    ("log_odds", "arguments", "message"),
    [
        (standard_assumption_log_odds, {"poisoned": "both"}, "poisoned is 'both'; expected one of"),
        (standard_assumption_log_odds, {}, "a bag has 1 instances; expected at least 2"),
        (threshold_based_log_odds, {"min_positive": 2}, "min_positive is 2; expected an integer"),
        (threshold_based_log_odds, {}, "a bag has 1 instances; expected at least 6"),
        (presence_based_log_odds, {"num_concepts": 3}, "num_features is 2; expected one for each"),
        (presence_based_log_odds, {}, "a bag has 1 instances; expected at least 3"),
    ],
)
def test_log_odds_refuse_bags_that_cannot_be_drawn(log_odds, arguments, message):
    bags = Bags.from_list([np.zeros((1, 2)), np.zeros((9, 2))])
    with pytest.raises(ValueError, match=message):
        log_odds(bags, **arguments)


@pytest.mark.parametrize(
    ("draw", "arguments", "message"),
    [
        (standard_assumption, {"bags_of_each_label": 0}, "bags_of_each_label is 0; expected"),
        (standard_assumption, {"num_features": 0}, "num_features is 0; expected an integer of at"),
        (
            standard_assumption,
            {"bag_size": range(1, 5)},
            r"range\(1, 5\); expected sizes of at lea",
        ),
        (
            standard_assumption,
            {"bag_size": range(5, 5)},
            r"range\(5, 5\); expected sizes of at lea",
        ),
        (standard_assumption, {"seed": -1}, "seed is -1; expected an integer from 0"),
        (threshold_based, {"min_positive": 2}, "min_positive is 2; expected an integer of at lea"),
        (threshold_based, {"min_positive": 9}, "expected sizes of at least 11, for the concept"),
        (presence_based, {"num_concepts": 1}, "num_concepts is 1; expected an integer of at least"),
        (presence_based, {"num_concepts": 10}, "expected sizes of at least 11, for the concept"),
        (presence_based, {"num_features": 1}, "num_features is 1; expected one for each of 2 conc"),
    ],
)
def test_bad_arguments_are_refused(draw, arguments, message):
    with pytest.raises(ValueError, match=message):
        draw(**({"seed": 0} | arguments))
