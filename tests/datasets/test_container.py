"""Bags as scikit-learn's container of samples, and conversion to and from sawmil's bags."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from milzoo.datasets import Bags, load
from sklearn.model_selection import StratifiedKFold, train_test_split
from sklearn.utils import indexable, resample


@pytest.fixture(scope="module")
def scene():
    return load("kandemir2014")


def test_samples_are_bags(scene):
    assert len(scene) == scene.num_bags == 40
    assert scene.shape == (40,)
    assert [bag.names for bag in scene] == [(name,) for name in scene.names]


@pytest.mark.parametrize(
    "key",
    [
        3,
        -1,
        np.int64(7),
        slice(2, 9, 3),
        slice(None),
        [4, 0, 4],
        np.array([-2, 5]),
        np.arange(40) % 7 == 0,
        [True, False] * 20,
        (np.array([1, 2]), ...),
        (slice(3), Ellipsis),
    ],
    ids=str,
)
def test_indices_follow_numpys_rules(scene, key):
    expected = np.atleast_1d(np.arange(40)[key[0] if isinstance(key, tuple) else key])
    found = scene[key]
    assert found.names == tuple(scene.names[b] for b in expected)
    np.testing.assert_array_equal(found.labels, scene.labels[expected])
    parts = scene.to_list()
    np.testing.assert_array_equal(found.instances, np.concatenate([parts[b] for b in expected]))


def test_bad_indices_are_refused(scene):
    for key in (40, -41, [0, 40], np.ones(39, bool)):
        with pytest.raises(IndexError):
            scene[key]
    with pytest.raises(IndexError, match="bags have one axis, and 2 indices were given"):
        scene[0, 1]
    with pytest.raises(ValueError, match="chosen is empty; expected at least one bag"):
        scene[:0]


def test_bags_are_no_array(scene):
    with pytest.raises(TypeError, match=r"Bags are not an array; use bags\.instances"):
        np.asarray(scene)


def test_scikit_learn_splits_them(scene):
    training, test = train_test_split(scene, stratify=scene.labels, random_state=0)
    assert isinstance(training, Bags)
    assert sorted(training.names + test.names) == sorted(scene.names)
    (chosen, _), *_ = StratifiedKFold(4).split(scene, scene.labels)
    assert scene[chosen].num_bags == 30
    assert indexable(scene, scene.labels)[0] is scene
    assert len(resample(scene, random_state=0)) == 40


def as_objects(bags):
    return [SimpleNamespace(**one) for one in bags.to_sawmil()]


def test_sawmils_bags_come_back():
    """What is known of an instance in a negative bag is that it is negative; the mask says 1."""
    bags = Bags.from_list(
        [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0]], [[7.0, 8.0], [9.0, 0.0]]],
        labels=[1, 0, 1],
        instance_labels=[[0, -1], [0], None],
    )
    masks = [one["intra_bag_mask"].tolist() for one in bags.to_sawmil()]
    assert masks == [[0, 1], [1], [1, 1]]
    again = Bags.from_sawmil(as_objects(bags))
    np.testing.assert_array_equal(again.instances, bags.instances)
    np.testing.assert_array_equal(again.labels, bags.labels)
    assert again.instance_labels.tolist() == [0, -1, -1, -1, -1]


def test_labels_of_minus_one_are_negative():
    X = np.zeros((2, 1))
    coded = [
        SimpleNamespace(X=X, y=-1.0, intra_bag_mask=None),
        SimpleNamespace(X=X, y=1.0, intra_bag_mask=np.array([0.0, 1.0])),
    ]
    found = Bags.from_sawmil(coded, names=["a", "b"])
    assert found.labels.tolist() == [0, 1]
    assert found.instance_labels.tolist() == [-1, -1, 0, -1]
    assert found.names == ("a", "b")


def test_bad_bags_of_sawmil_are_refused(scene):
    (first, *others) = as_objects(scene)
    with pytest.raises(
        ValueError, match=r"bag '0': intra_bag_mask has value 0\.5; expected 0 or 1"
    ):
        Bags.from_sawmil(
            [SimpleNamespace(X=first.X, y=1.0, intra_bag_mask=np.full(len(first.X), 0.5)), *others]
        )
    with pytest.raises(ValueError, match="bag '0': intra_bag_mask"):
        Bags.from_sawmil([SimpleNamespace(X=first.X, y=1.0, intra_bag_mask=np.ones(1)), *others])
    with pytest.raises(
        ValueError, match="bags have no labels; expected one for each bag, as sawmil needs"
    ):
        scene.without_labels().to_sawmil()
