"""Bagging: the samples within labels, the votes, seeds of members, and instance scores."""

import pickle

import numpy as np
import pytest
from milzoo.datasets import Bags
from milzoo.estimators import StandardizeInstances
from milzoo.estimators.ensemble import BagEnsemble, draw_within_labels
from milzoo.estimators.miles import MILES
from milzoo.estimators.vocabulary_svm import VocabularySVM
from sklearn.pipeline import make_pipeline


@pytest.fixture(scope="module")
def bags():
    """9 negative and 5 positive bags that overlap, so that members disagree."""
    random = np.random.default_rng(3)
    labels = np.array([0] * 9 + [1] * 5)
    tables = [y + random.standard_normal((random.integers(1, 5), 2)) for y in labels]
    return Bags.from_list(tables, labels)


@pytest.fixture(scope="module")
def fitted(bags):
    return BagEnsemble(MILES(1.0), 4, seed=0).fit(bags)


def test_samples_keep_the_numbers_of_labels(bags, fitted):
    for sample in fitted.samples_:
        assert np.bincount(bags.labels[sample]).tolist() == [9, 5]
    assert any(len(np.unique(sample)) < 14 for sample in fitted.samples_)
    assert len({tuple(sample) for sample in fitted.samples_}) == 4


def test_every_bag_is_drawn_as_often(bags):
    """The expected number is 400 of each, with sd 20 at most."""
    random = np.random.default_rng(1)
    drawn = [draw_within_labels(bags.labels, random) for _ in range(400)]
    counts = np.bincount(np.concatenate(drawn), minlength=14)
    assert np.abs(counts - 400).max() < 80


def test_decisions_are_means_of_votes(bags, fitted):
    alone = [MILES(1.0).fit(bags.select(sample)) for sample in fitted.samples_]
    for b, bag in enumerate(bags):
        votes = [1 if one.decision_function(bag)[0] > 0 else -1 for one in alone]
        assert fitted.decision_function(bags)[b] == sum(votes) / 4
        assert fitted.predict(bags)[b] == (sum(votes) > 0)
    assert len(np.unique(fitted.decision_function(bags))) > 2


def test_instance_scores_are_means_of_votes(bags, fitted):
    votes = sum(np.where(one.score_instances(bags) > 0, 1, -1) for one in fitted.members_)
    np.testing.assert_array_equal(fitted.score_instances(bags), votes / 4)
    np.testing.assert_array_equal(fitted.predict_instances(bags), votes > 0)


def test_half_of_the_votes_is_no_majority(bags, fitted):
    decision = fitted.decision_function(bags)
    assert (decision == 0).any()
    assert not fitted.predict(bags)[decision == 0].any()


def test_members_get_other_seeds(bags):
    classifier = make_pipeline(StandardizeInstances(), VocabularySVM(3, seed=5))
    ensemble = BagEnsemble(classifier, 3, seed=0).fit(bags)
    assert len({one.named_steps["vocabularysvm"].seed for one in ensemble.members_}) == 3
    assert classifier.named_steps["vocabularysvm"].seed == 5


def test_the_seed_decides_the_samples(bags, fitted):
    again = BagEnsemble(MILES(1.0), 4, seed=0).fit(bags)
    np.testing.assert_array_equal(again.samples_, fitted.samples_)
    other = BagEnsemble(MILES(1.0), 4, seed=1).fit(bags)
    assert not np.array_equal(other.samples_, fitted.samples_)
    copy = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(copy.decision_function(bags), fitted.decision_function(bags))


def test_members_without_instance_scores_give_none(bags):
    ensemble = BagEnsemble(VocabularySVM(3, seed=0), 2, seed=0).fit(bags)
    assert not hasattr(ensemble, "score_instances")
    with pytest.raises(AttributeError, match="has no attribute 'score_instances'"):
        ensemble.score_instances(bags)


def test_bad_parameters_are_refused(bags):
    with pytest.raises(TypeError, match=r"classifier is .*; expected an estimator of bags"):
        BagEnsemble(MILES, seed=0).fit(bags)
    with pytest.raises(ValueError, match="BagEnsemble num_members is 0; expected an integer"):
        BagEnsemble(MILES(1.0), 0, seed=0).fit(bags)
    with pytest.raises(ValueError, match="seed is -1; expected an integer from 0"):
        BagEnsemble(MILES(1.0), seed=-1).fit(bags)
