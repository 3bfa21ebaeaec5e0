"""`Bags`: round trips, error messages, and stratified splits."""

import warnings
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from milzoo.datasets import Bags

nan = float("nan")
SHAPES = [(1, 1, 1), (2, 1, 3), (5, 4, 2), (9, 7, 1)]  # bags, largest bag, features


def random_bags(num_bags=9, largest=7, num_features=2, seed=0, labelled=True) -> Bags:
    """Bags with both labels (where there are two bags) and instance labels partly unknown."""
    random = np.random.default_rng(seed)
    sizes = random.integers(1, largest + 1, num_bags)
    tables = [random.standard_normal((size, num_features)) for size in sizes]
    if not labelled:
        return Bags.from_list(tables)
    labels = random.permutation(np.arange(num_bags) % 2)
    known = [
        np.where(random.random(size) < 0.5, -1, label * random.integers(0, 2, size))
        for size, label in zip(sizes, labels, strict=True)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a single bag has a single class
        return Bags.from_list(tables, labels, known, [f"bag {b}" for b in range(num_bags)])


def assert_same(one: Bags, other: Bags):
    for field in ("instances", "bag_index", "labels", "instance_labels"):
        np.testing.assert_array_equal(getattr(one, field), getattr(other, field), err_msg=field)
    assert one.names == other.names
    assert one.num_bags == other.num_bags


def bags_by_name(bags: Bags) -> dict:
    """For each bag its label, and its rows with their labels as a multiset."""
    return {
        name: (
            bags.labels[b],
            Counter(
                (*row, y)
                for row, y, of in zip(
                    bags.instances.tolist(), bags.instance_labels, bags.bag_index, strict=True
                )
                if of == b
            ),
        )
        for b, name in enumerate(bags.names)
    }


@pytest.fixture
def bags() -> Bags:
    return random_bags()


# --------------------------------------------------------------------- round trips


@pytest.mark.filterwarnings("ignore:labels. all 1 bags:UserWarning")
@given(st.sampled_from(SHAPES), st.integers(0, 2**32 - 1))
def test_every_way_out_is_a_way_back_in(shape, seed):
    bags = random_bags(*shape, seed=seed)
    known = np.split(bags.instance_labels, bags.starts[1:])
    assert_same(Bags.from_list(bags.to_list(), bags.labels, known, bags.names), bags)
    assert_same(Bags.from_padded(**bags.to_padded(), names=bags.names), bags)
    assert_same(Bags.from_frame(bags.to_frame()), bags)
    ids = np.array(bags.names)[bags.bag_index]
    assert_same(Bags.from_arrays(bags.instances, ids, bags.labels, bags.instance_labels), bags)


def test_unlabelled_bags_make_the_round_trips():
    bags = random_bags(labelled=False)
    assert bags.labels is None
    assert_same(Bags.from_list(bags.to_list()), bags)
    assert_same(Bags.from_padded(**bags.to_padded()), bags)
    assert_same(Bags.from_frame(bags.to_frame(), bag_label=None), bags)


def test_a_frame_survives_a_csv_file(tmp_path):
    frame = Bags.from_list([[[0.5], [-2.25]], [[3.0]]], [1, 0], [[1, -1], [0]]).to_frame()
    assert frame["instance_label"].isna().tolist() == [False, True, False]
    frame.to_csv(tmp_path / "bags.csv", index=False)
    assert_same(Bags.from_frame(pd.read_csv(tmp_path / "bags.csv")), Bags.from_frame(frame))


@given(st.integers(0, 2**32 - 1))
def test_the_order_of_rows_changes_no_bag(seed):
    bags = random_bags(seed=seed)
    order = np.random.default_rng(seed).permutation(bags.num_instances)
    shuffled = Bags.from_arrays(
        bags.instances[order],
        np.array(bags.names)[bags.bag_index][order],
        bags.labels[bags.bag_index][order],
        bags.instance_labels[order],
    )
    assert bags_by_name(shuffled) == bags_by_name(bags)
    assert_same(Bags.from_frame(bags.to_frame().iloc[order]), shuffled)


def test_scattered_rows_become_contiguous_bags_in_order():
    bags = Bags.from_arrays(
        [[1.0], [2.0], [3.0], [4.0]], ["late", "early", "late", "early"], [1, 0], [-1, 0, 1, 0]
    )
    assert bags.names == ("late", "early")
    assert bags.instances[:, 0].tolist() == [1, 3, 2, 4]
    assert bags.bag_index.tolist() == [0, 0, 1, 1]
    assert bags.instance_labels.tolist() == [-1, 1, 0, 0]
    assert bags.labels.tolist() == [1, 0]


def test_numbered_bags_need_be_neither_sorted_nor_dense():
    bags = Bags.from_arrays([[1.0], [2.0], [3.0]], [70, -3, 70], [1, 0, 1])
    assert bags.names == ("70", "-3")
    assert bags.bag_sizes.tolist() == [2, 1]
    assert bags.labels.tolist() == [1, 0]


def test_padding_may_stand_anywhere_in_a_bag():
    X = np.arange(6.0).reshape(2, 3, 1)
    bags = Bags.from_padded(X, [1, 0], mask=[[0, 1, 1], [1, 0, 0]], y_inst=[[9, 1, nan], [0, 9, 9]])
    assert bags.instances[:, 0].tolist() == [1, 2, 3]
    assert bags.instance_labels.tolist() == [1, -1, 0]


def test_padded_arrays_are_masked_and_neutral_outside_the_bags():
    padded = Bags.from_list([[[5.0]], [[6.0], [7.0]]], [0, 1], [[0], [0, 1]]).to_padded()
    assert padded["X"][..., 0].tolist() == [[5, 0], [6, 7]]
    assert padded["mask"].tolist() == [[True, False], [True, True]]
    assert padded["y_inst"].tolist() == [[0, -1], [0, 1]]
    assert padded["Y"].tolist() == [0, 1]


def test_without_a_mask_every_position_is_an_instance():
    assert Bags.from_padded(np.ones((2, 3, 1))).bag_sizes.tolist() == [3, 3]


# -------------------------------------------------------------------------- labels


@pytest.mark.parametrize(
    "coding", [[0, 1, 0], [-1, 1, -1], [False, True, False], [-1.0, 1.0, -1.0]]
)
def test_both_codings_of_labels_mean_the_same(coding):
    bags = Bags.from_list([[[0.0]]] * 3, coding)
    assert bags.labels.tolist() == [0, 1, 0]
    assert bags.labels.dtype == np.int64


@pytest.mark.parametrize("unknown", [-1, nan, None])
def test_unknown_instance_labels_are_minus_one_nan_or_none(unknown):
    bags = Bags.from_list([[[0.0], [1.0]], [[2.0]]], [1, 0], [[1, unknown], None])
    assert bags.instance_labels.tolist() == [1, -1, -1]


def test_in_a_frame_an_empty_instance_label_is_unknown():
    frame = pd.DataFrame({"bag": ["a", "a", "b"], "bag_label": [1, 1, 0], "x0": [1, 2, 3]})
    for known in ([1, nan, 0], pd.array([1, None, 0], dtype="Int64")):
        assert Bags.from_frame(frame.assign(instance_label=known)).instance_labels.tolist() == [
            1,
            -1,
            0,
        ]
    assert Bags.from_frame(frame).instance_labels is None


def test_features_are_other_numeric_columns_or_those_named():
    frame = pd.DataFrame(
        {
            "T": [1, 0],
            "height": [1.5, 2.5],
            "colour": ["red", "blue"],
            "id": ["a", "b"],
            "n": [3, 4],
        }
    )
    bags = Bags.from_frame(frame, bag="id", bag_label="T")
    assert bags.instances.tolist() == [[1.5, 3], [2.5, 4]]
    assert Bags.from_frame(frame, "id", "T", features=["n"]).instances.tolist() == [[3], [4]]


def test_labels_of_one_class_are_a_warning():
    with pytest.warns(UserWarning, match="all 2 bags have label 1"):
        Bags.from_list([[[0.0]], [[1.0]]], [1, 1])


def test_duplicate_rows_and_constant_columns_just_work():
    bags = Bags.from_list([[[1, 7], [1, 7]], [[2, 7]]], [0, 1])
    standard = bags.standardize()
    assert np.isfinite(standard.instances).all()
    assert standard.instances[:, 1].tolist() == [0, 0, 0]


# ----------------------------------------------------------------------- bad input

BAD_INPUT = {
    "nan in a list": (
        lambda: Bags.from_list([[[1.0]], [[1.0], [nan]]], names=["a", "b"]),
        ValueError,
        r"instances: bag 'b', row 1 holds nan in feature 0 \(1 such values in all\); expected",
    ),
    "infinity in arrays": (
        lambda: Bags.from_arrays([[1, 2], [3, 4], [5, np.inf]], ["a", "b", "a"]),
        ValueError,
        "bag 'a', row 2 holds inf in feature 1",
    ),
    "nan in a frame": (
        lambda: Bags.from_frame(
            pd.DataFrame({"bag": ["a", "b"], "bag_label": [0, 1], "x0": [1.0, nan]})
        ),
        ValueError,
        "bag 'b', row 1 holds nan in feature 0",
    ),
    "nan in padded": (
        lambda: Bags.from_padded([[[nan], [nan]]], mask=[[0, 1]]),
        ValueError,
        "bag '0', row 1 holds nan",
    ),
    "empty bag": (
        lambda: Bags.from_list([[[1.0]], np.empty((0, 1))], names=["full", "hollow"]),
        ValueError,
        "bag 'hollow' is empty; expected at least one instance",
    ),
    "empty padded bag": (
        lambda: Bags.from_padded(np.ones((2, 1, 1)), mask=[[1], [0]]),
        ValueError,
        "bag '1' is empty: its mask is 0 throughout",
    ),
    "no bags": (lambda: Bags.from_list([]), ValueError, "bags is an empty list"),
    "no rows": (lambda: Bags.from_arrays(np.empty((0, 2)), []), ValueError, "instances is empty"),
    "no features": (
        lambda: Bags.from_list([np.empty((3, 0))]),
        ValueError,
        r"bag '0' has shape \(3, 0\); expected at least one feature",
    ),
    "no numeric column": (
        lambda: Bags.from_frame(pd.DataFrame({"bag": ["a"], "bag_label": [1], "x": ["red"]})),
        ValueError,
        r"features: no numeric column besides \['bag', 'bag_label'\]",
    ),
    "a third label": (
        lambda: Bags.from_list([[[1.0]], [[2.0]]], [0, 2]),
        ValueError,
        r"labels: bag '1' has label 2; expected \{0, 1\} or \{-1, 1\}",
    ),
    "a missing label": (
        lambda: Bags.from_list([[[1.0]], [[2.0]]], [0, None]),
        ValueError,
        "labels: bag '1' has label nan; .* no labels at all where they are unknown",
    ),
    "a label missing in one row": (
        lambda: Bags.from_arrays([[1.0], [2.0], [3.0]], ["a", "a", "b"], [1, nan, 0]),
        ValueError,
        "labels: bag 'a', row 1 has label nan",
    ),
    "mixed codings": (
        lambda: Bags.from_list([[[1.0]], [[2.0]], [[3.0]]], [1, 0, -1]),
        ValueError,
        "labels: bag '1' has label 0 and bag '2' has label -1",
    ),
    "labels of text": (
        lambda: Bags.from_list([[[1.0]], [[2.0]]], ["yes", "no"]),
        TypeError,
        "labels has type <U3; expected numbers",
    ),
    "two labels in a bag": (
        lambda: Bags.from_arrays([[1.0], [2.0], [3.0]], ["a", "b", "a"], [1, 0, 0]),
        ValueError,
        "labels: bag 'a' has two labels, 1 in row 0 and 0 in row 2; expected one label",
    ),
    "two labels in a bag of a frame": (
        lambda: Bags.from_frame(
            pd.DataFrame({"bag": ["a", "a"], "bag_label": [0, 1], "x0": [1, 2]})
        ),
        ValueError,
        "bag 'a' has two labels",
    ),
    "positive in negative": (
        lambda: Bags.from_list([[[1.0]], [[2.0], [3.0]]], [1, 0], [[1], [0, 1]], ["a", "b"]),
        ValueError,
        "instance_labels: bag 'b', row 1 is positive but its bag is negative",
    ),
    "ambiguous minus one": (
        lambda: Bags.from_list([[[1.0]], [[2.0]]], [1, -1], [[1], [-1]]),
        ValueError,
        r"bag '1', row 0 has label -1, and bag labels are coded \{-1, 1\}: it may mean negative or",
    ),
    "instance label 2": (
        lambda: Bags.from_list([[[1.0]]], None, [[2]]),
        ValueError,
        "instance_labels: bag '0', row 0 has label 2; expected 0 or 1",
    ),
    "other width": (
        lambda: Bags.from_list([[[1.0, 2.0]], [[1.0]]]),
        ValueError,
        "bag '1' has 1 features but bag '0' has 2; expected the same in every bag",
    ),
    "ragged bag": (
        lambda: Bags.from_list([[[1.0, 2.0], [3.0]]]),
        ValueError,
        "bag '0' is ragged; expected rows of one length",
    ),
    "ragged padding": (
        lambda: Bags.from_padded([[[1.0]], [[1.0], [2.0]]]),
        ValueError,
        "X is ragged; .* for bags of several sizes use Bags.from_list",
    ),
    "one-dimensional bag": (
        lambda: Bags.from_list([[1.0, 2.0]]),
        ValueError,
        r"bag '0' has shape \(2,\); expected two dimensions \(instances, features\)",
    ),
    "one-dimensional instances": (
        lambda: Bags.from_arrays([1.0, 2.0], [0, 1]),
        ValueError,
        r"instances has shape \(2,\); expected two dimensions",
    ),
    "two-dimensional padding": (
        lambda: Bags.from_padded([[1.0, 2.0]]),
        ValueError,
        r"X has shape \(1, 2\); expected \(bags, positions, features\)",
    ),
    "text": (
        lambda: Bags.from_list([[["1.0"]]]),
        TypeError,
        "bag '0' has type <U3; expected numbers",
    ),
    "objects": (
        lambda: Bags.from_list([np.array([[1.0, {}]], dtype=object)]),
        TypeError,
        "bag '0' holds something that is not a number",
    ),
    "column of text": (
        lambda: Bags.from_frame(
            pd.DataFrame({"bag": ["a"], "bag_label": [1], "x": ["red"]}), features=["x"]
        ),
        TypeError,
        "column 'x' has type .*; expected numbers",
    ),
    "too few labels": (
        lambda: Bags.from_list([[[1.0]], [[2.0]]], [1]),
        ValueError,
        r"labels has shape \(1,\); expected \(2,\), one for each bag",
    ),
    "labels neither per bag nor per row": (
        lambda: Bags.from_arrays([[1.0], [2.0], [3.0]], ["a", "a", "b"], [1]),
        ValueError,
        r"labels has shape \(1,\); expected \(2,\), one for each bag, or \(3,\), one for each row",
    ),
    "too few instance labels": (
        lambda: Bags.from_list([[[1.0], [2.0]]], None, [[1]]),
        ValueError,
        r"instance_labels of bag '0' has shape \(1,\); expected \(2,\), one for each instance",
    ),
    "too few flat instance labels": (
        lambda: Bags.from_arrays([[1.0], [2.0]], ["a", "b"], None, [1]),
        ValueError,
        r"instance_labels has shape \(1,\); expected \(2,\), one for each row",
    ),
    "too few arrays of instance labels": (
        lambda: Bags.from_list([[[1.0]], [[2.0]]], None, [[1]]),
        ValueError,
        "instance_labels has 1 entries; expected 2, one array for each bag",
    ),
    "too few ids": (
        lambda: Bags.from_arrays([[1.0], [2.0]], ["a"]),
        ValueError,
        r"bag_ids has shape \(1,\); expected \(2,\), one id for each row",
    ),
    "a row without a bag": (
        lambda: Bags.from_arrays([[1.0], [2.0]], [0, nan]),
        ValueError,
        "bag_ids: row 1 has no bag",
    ),
    "too few names": (
        lambda: Bags.from_list([[[1.0]], [[2.0]]], names=["a"]),
        ValueError,
        "names has 1 entries; expected 2, one for each bag",
    ),
    "a name twice": (
        lambda: Bags.from_list([[[1.0]], [[2.0]]], names=["a", "a"]),
        ValueError,
        "names: two bags are called 'a'; expected different names",
    ),
    "mask of another shape": (
        lambda: Bags.from_padded(np.ones((2, 3, 1)), mask=[[1, 1]]),
        ValueError,
        r"mask has shape \(1, 2\); expected \(2, 3\), the first two of X",
    ),
    "y_inst of another shape": (
        lambda: Bags.from_padded(np.ones((2, 3, 1)), y_inst=[1, 0]),
        ValueError,
        r"y_inst has shape \(2,\); expected \(2, 3\)",
    ),
    "column not there": (
        lambda: Bags.from_frame(pd.DataFrame({"bags": ["a"], "bag_label": [1], "x0": [1]})),
        KeyError,
        "the frame has no column 'bag'; did you mean 'bags'?",
    ),
    "label column not there": (
        lambda: Bags.from_frame(pd.DataFrame({"bag": ["a"], "x0": [1]})),
        KeyError,
        "the frame has no column 'bag_label'.*For unlabelled bags pass bag_label=None",
    ),
    "instance label column not there": (
        lambda: Bags.from_frame(
            pd.DataFrame({"bag": ["a"], "bag_label": [1], "x0": [1]}), instance_label="truth"
        ),
        KeyError,
        "the frame has no column 'truth'",
    ),
    "mask with NaN": (
        lambda: Bags.from_padded(np.ones((2, 2, 1)), mask=[[1, nan], [1, 1]]),
        ValueError,
        r"mask\[0, 1\] is NaN; expected True or False",
    ),
    "split of everything": (
        lambda: random_bags().split(1.0, seed=0),
        ValueError,
        "fraction is 1.0; expected a number between 0 and 1",
    ),
    "split of too little": (
        lambda: random_bags().split(0.01, seed=0),
        ValueError,
        "fraction is 0.01, which leaves a part of 9 bags empty",
    ),
    "split by a negative seed": (
        lambda: random_bags().split(0.5, seed=-1),
        ValueError,
        "seed is -1; expected an integer from 0 to 4294967295",
    ),
    "folds by a negative seed": (
        lambda: random_bags().folds(3, seed=-1),
        ValueError,
        "seed is -1; expected an integer from 0 to 4294967295",
    ),
    "one fold": (
        lambda: random_bags().folds(1, seed=0),
        ValueError,
        "k is 1; expected 2 to 9, the number of bags",
    ),
    "too many folds": (lambda: random_bags().folds(10, seed=0), ValueError, "k is 10; expected 2"),
    "no repeats": (
        lambda: random_bags().folds(2, repeats=0, seed=0),
        ValueError,
        "repeats is 0; expected an integer of at least 1",
    ),
    "bag not there": (
        lambda: random_bags().select([0, 9]),
        IndexError,
        "there is no bag 9; bags are numbered 0 to 8",
    ),
    "negative bag": (lambda: random_bags().select([-1]), IndexError, "there is no bag -1"),
    "short mask": (
        lambda: random_bags().select([True, False]),
        IndexError,
        r"chosen is a mask of shape \(2,\); expected \(9,\)",
    ),
    "bags by name": (
        lambda: random_bags().select(["bag 0"]),
        IndexError,
        "expected a list of bag numbers or a mask",
    ),
    "nothing chosen": (lambda: random_bags().select([]), ValueError, "chosen is empty"),
    "bags of one name to a frame": (
        lambda: random_bags().select([0, 0]).to_frame(),
        ValueError,
        "names: two bags have the same name",
    ),
    "reference of other width": (
        lambda: random_bags().standardize(random_bags(num_features=3)),
        ValueError,
        "reference has 3 features, these bags 2; expected the same",
    ),
}


@pytest.mark.parametrize("mistake", BAD_INPUT)
def test_bad_input_is_named(mistake):
    build, error, message = BAD_INPUT[mistake]
    with pytest.raises(error, match=message):
        build()


@pytest.mark.parametrize("row", [0, 1023, 1024, 2047, 2500])
def test_values_not_finite_are_found_in_any_row(row):
    instances = np.zeros((2501, 2))
    instances[row, 1] = nan
    with pytest.raises(ValueError, match=rf"row {row} holds nan in feature 1 \(1 such values"):
        Bags.from_arrays(instances, np.zeros(2501, int))


# ------------------------------------------------------------------------- choosing


def test_select_keeps_bags_whole_and_in_order(bags):
    chosen = bags.select([4, 1, 4])
    tables = bags.to_list()
    for table, b in zip(chosen.to_list(), [4, 1, 4], strict=True):
        np.testing.assert_array_equal(table, tables[b])
    np.testing.assert_array_equal(chosen.labels, bags.labels[[4, 1, 4]])
    assert chosen.names == ("bag 4", "bag 1", "bag 4")
    np.testing.assert_array_equal(
        chosen.instance_labels,
        np.concatenate([bags.instance_labels[bags.bag_index == b] for b in (4, 1, 4)]),
    )


def test_a_mask_selects_what_its_numbers_select(bags):
    mask = np.arange(bags.num_bags) % 3 == 0
    assert_same(bags.select(mask), bags.select(np.flatnonzero(mask)))


@given(st.integers(2, 40), st.floats(0.2, 0.8), st.integers(0, 2**32 - 1))
def test_split_divides_each_label_by_the_fraction(num_bags, fraction, seed):
    bags = random_bags(max(num_bags, 4), 2, seed=seed)
    first, second = bags.split(fraction, seed=seed)
    assert sorted(first.names + second.names) == sorted(bags.names)
    assert abs(first.num_bags - fraction * bags.num_bags) <= 0.5 + 1e-9
    for label in (0, 1):
        expected = fraction * (bags.labels == label).sum()
        assert abs((first.labels == label).sum() - expected) < 1


@pytest.mark.in_ci
@given(st.sampled_from([2, 3, 10]), st.integers(0, 2**32 - 1))
def test_folds_test_each_bag_once_and_are_stratified(k, seed):
    bags = random_bags(23, 3, seed=seed)
    pairs = list(bags.folds(k, repeats=2, seed=seed))
    assert len(pairs) == 2 * k
    for repetition in (pairs[:k], pairs[k:]):
        assert sorted(name for _, test in repetition for name in test.names) == sorted(bags.names)
        for label in (0, 1):
            counts = [(test.labels == label).sum() for _, test in repetition]
            assert max(counts) - min(counts) <= 1
        sizes = [test.num_bags for _, test in repetition]
        assert max(sizes) - min(sizes) <= 1
    for train, test in pairs:
        assert not set(train.names) & set(test.names)
        assert train.num_bags + test.num_bags == bags.num_bags


def test_as_many_folds_as_bags_leave_one_out(bags):
    assert {test.names for _, test in bags.folds(9, seed=0)} == {(name,) for name in bags.names}


def test_the_seed_and_nothing_else_decides_what_is_drawn(bags):
    def names(seed):
        return [
            bags.split(0.5, seed=seed)[0].names,
            *(test.names for _, test in bags.folds(3, repeats=2, seed=seed)),
        ]

    assert names(1) == names(1)
    assert names(1) != names(2)
    assert names(1)[1:4] != names(1)[4:]


def test_every_bag_is_as_likely_to_be_trained_on():
    # Of 5 bags of each label 3 are taken: counts in 200 splits are Binomial(200, 0.6), sd 6.9;
    # 5 sd over 10 bags: false alarm below 6e-6.
    bags = Bags.from_list([[[0.0]]] * 10, [0, 1] * 5)
    counts = Counter(name for s in range(200) for name in bags.split(0.6, seed=s)[0].names)
    assert max(abs(counts[name] - 120) for name in bags.names) < 35


def test_unlabelled_bags_split_and_fold():
    bags = random_bags(labelled=False)
    assert bags.split(1 / 3, seed=0)[0].num_bags == 3
    assert [test.num_bags for _, test in bags.folds(3, seed=0)] == [3, 3, 3]


def test_standardize_takes_mean_and_sd_from_the_reference(bags):
    train, test = bags.split(0.5, seed=0)
    standard = train.standardize()
    np.testing.assert_allclose(standard.instances.mean(axis=0), 0, atol=1e-14)
    np.testing.assert_allclose(standard.instances.std(axis=0), 1)
    mean, sd = train.instances.mean(axis=0), train.instances.std(axis=0)
    np.testing.assert_allclose(
        test.standardize(reference=train).instances, (test.instances - mean) / sd
    )


@pytest.mark.parametrize("constant", [0.1, 1e9 / 7, -7.3, 0.0])
def test_a_feature_constant_in_the_reference_keeps_its_scale(constant):
    reference = Bags.from_list([[[constant]] * 3, [[constant]] * 7])
    standardised = Bags.from_list([[[constant + 2]]]).standardize(reference)
    np.testing.assert_allclose(standardised.instances, 2, rtol=1e-6)
    assert (reference.standardize().instances == 0).all()


# ------------------------------------------------------------------- the container


def test_arrays_are_64_bit_copies_that_cannot_be_written():
    instances, labels = np.ones((2, 1), np.float32), np.array([0, 1], np.int8)
    bags = Bags.from_arrays(instances, [0, 1], labels, labels)
    instances[0] = 5
    assert bags.instances.tolist() == [[1], [1]]
    for part in (bags, bags.select([1, 0]), bags.standardize()):
        assert part.instances.dtype == np.float64
        for array in (part.bag_index, part.labels, part.instance_labels):
            assert array.dtype == np.int64
        for array in (part.instances, part.bag_index, part.labels, part.instance_labels):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0


def test_counts_are_those_of_the_arrays(bags):
    assert bags.num_instances == len(bags.instances) == bags.bag_sizes.sum()
    assert bags.num_features == 2
    for table, start, size in zip(bags.to_list(), bags.starts, bags.bag_sizes, strict=True):
        np.testing.assert_array_equal(table, bags.instances[start : start + size])


def test_repr_is_short_and_counts():
    assert repr(Bags.from_list([[[1.0]], [[2.0], [3.0]]], [0, 1])) == (
        "Bags(2 bags (1 positive, 1 negative) of 1 to 2 instances, 3 instances of 1 features)"
    )
    assert "2 bags (unlabelled)" in repr(Bags.from_list([[[1.0]], [[2.0]]]))
    assert "2 bags" in repr(jax.jit(lambda bags: bags)(Bags.from_list([[[1.0]], [[2.0]]])))


def test_bags_pass_jit_with_static_num_bags(bags):
    @jax.jit
    def bag_sums(bags):
        return bags, jax.ops.segment_sum(bags.instances[:, 0], bags.bag_index, bags.num_bags)

    with jax.enable_x64(True):
        back, totals = bag_sums(bags)
    np.testing.assert_allclose(totals, [table[:, 0].sum() for table in bags.to_list()])
    np.testing.assert_array_equal(back.instances, bags.instances)
    np.testing.assert_array_equal(back.labels, bags.labels)
    assert back.num_bags == bags.num_bags
    assert back.names == ()
    np.testing.assert_array_equal(back.select([2]).instances, bags.select([2]).instances)
    assert back.to_frame()["bag"].nunique() == bags.num_bags


def test_bags_that_differ_in_names_alone_compile_once(bags):
    compiled = []

    @jax.jit
    def first(bags):
        compiled.append(bags.num_bags)
        return bags.instances[0, 0]

    first(bags)
    first(Bags.from_padded(**bags.to_padded(), names=[f"other {b}" for b in range(9)]))
    assert compiled == [9]


def test_leaves_are_the_arrays_without_absent_labels(bags):
    assert len(jax.tree.leaves(bags)) == 4
    unlabelled = random_bags(labelled=False)
    assert len(jax.tree.leaves(unlabelled)) == 2
    doubled = jax.tree.map(lambda array: 2 * array, unlabelled)
    np.testing.assert_array_equal(doubled.instances, 2 * unlabelled.instances)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(bags)]
    assert paths == [".instances", ".bag_index", ".labels", ".instance_labels"]
    with_targets = bags.with_targets(np.arange(9.0))
    assert len(jax.tree.leaves(with_targets)) == 5


def test_unflattening_checks_nothing():
    bags = random_bags()
    gradient = jax.grad(lambda bags: jnp.sum(bags.instances**2), allow_int=True)(bags)
    np.testing.assert_allclose(gradient.instances, 2 * bags.instances, rtol=1e-6)
    jax.tree.map(lambda _: object(), bags)


# ------------------------------------------------------------------ targets


def test_targets_go_with_their_bags(bags):
    numbers = np.arange(bags.num_bags) / 2
    given = bags.with_targets(numbers)
    np.testing.assert_array_equal(given.select([4, 1]).targets, [2.0, 0.5])
    np.testing.assert_array_equal(given.standardize().targets, numbers)
    train, test = given.split(0.5, seed=0)
    assert sorted([*train.targets, *test.targets]) == numbers.tolist()
    assert not given.targets.flags.writeable
    assert bags.targets is None


def test_a_frame_takes_targets_there_and_back():
    given = random_bags(labelled=False).with_targets(np.linspace(-1, 1, 9))
    assert "with targets" in repr(given)
    frame = given.to_frame()
    back = Bags.from_frame(frame, bag_label=None)
    assert_same(back, given)
    np.testing.assert_array_equal(back.targets, given.targets)
    frame.loc[frame.index[-1], "bag_target"] = 7.0
    with pytest.raises(ValueError, match="targets: bag '8' has two targets, 1 in row"):
        Bags.from_frame(frame, bag_label=None)


def test_labels_need_not_be_in_a_frame_of_targets():
    given = random_bags(labelled=False).with_targets(np.linspace(-1, 1, 9))
    back = Bags.from_frame(given.to_frame())
    assert back.labels is None
    assert_same(back, given)
    np.testing.assert_array_equal(back.targets, given.targets)
    named = given.to_frame().rename(columns={"bag_target": "age"})
    np.testing.assert_array_equal(Bags.from_frame(named, bag_target="age").targets, given.targets)
    with pytest.raises(KeyError, match="no column 'bag_label'"):
        Bags.from_frame(random_bags(labelled=False).to_frame())
    with pytest.raises(KeyError, match="no column 'kind'"):
        Bags.from_frame(given.to_frame(), bag_label="kind")


@pytest.mark.parametrize("value", [nan, np.inf])
@pytest.mark.parametrize("row", [0, 2])
def test_a_target_missing_in_any_row_is_refused(row, value):
    frame = Bags.from_list([[[0.0], [1.0], [2.0]]]).with_targets([0.5]).to_frame()
    frame.loc[row, "bag_target"] = value
    with pytest.raises(ValueError, match=rf"bag '0', row {row} has target {value}; expected a fin"):
        Bags.from_frame(frame)


def test_targets_that_are_no_numbers_are_named(bags):
    with pytest.raises(ValueError, match=r"targets has shape \(2,\); expected \(9,\), one"):
        bags.with_targets([1.0, 2.0])
    with pytest.raises(ValueError, match="targets: bag 'bag 3' has nan; expected a finite number"):
        bags.with_targets([0, 1, 2, nan, 4, 5, 6, 7, 8])


def test_without_labels_nothing_is_known_and_all_else_stays():
    labelled = Bags.from_list(
        [np.ones((2, 1)), np.zeros((1, 1))], [1, 0], instance_labels=[[1, 0], [0]], names=["a", "b"]
    )
    bare = labelled.with_targets(np.arange(labelled.num_bags)).without_labels()
    assert bare.labels is bare.instance_labels is bare.targets is None
    np.testing.assert_array_equal(bare.instances, labelled.instances)
    np.testing.assert_array_equal(bare.bag_index, labelled.bag_index)
    assert bare.names == labelled.names
