"""Unit tests of MIL: the counts that are stated, and whom the poison misleads."""

import numpy as np
import pytest
from milzoo.datasets.mil_unit_tests import presence_based, standard_assumption, threshold_based
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
