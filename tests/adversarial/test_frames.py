"""Frames and files of columns that are clumsy: refused with the column's name, or read rightly."""

from datetime import datetime, timedelta
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from milzoo.datasets import Bags, stream

FRAME = pd.DataFrame(
    {"bag": ["a", "a", "b", "b"], "bag_label": [0, 0, 1, 1], "x0": [0.5, 1.5, 2.5, 3.5]}
)


def from_parquet(frame: pd.DataFrame, folder, **options) -> Bags:
    """The bags of a stream of one chunk."""
    pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), folder / "x.parquet")
    return next(iter(stream(folder / "x.parquet", **options)))


# --------------------------------------------------------------------- columns of features


def test_two_columns_of_one_name_are_refused():
    frame = pd.concat([FRAME, FRAME[["x0"]]], axis=1)
    for features in (None, ["x0"]):
        with pytest.raises(ValueError, match="the frame: two columns are called 'x0'"):
            Bags.from_frame(frame, features=features)


def test_two_columns_of_ids_are_refused():
    frame = pd.concat([FRAME, FRAME[["bag"]]], axis=1)
    with pytest.raises(ValueError, match="the frame: two columns are called 'bag'"):
        Bags.from_frame(frame)


def test_a_feature_that_is_asked_for_twice_is_refused(tmp_path):
    for read in (Bags.from_frame, lambda frame, **more: from_parquet(frame, tmp_path, **more)):
        with pytest.raises(ValueError, match="features: two columns are called 'x0'"):
            read(FRAME, features=["x0", "x0"])


@pytest.mark.parametrize("column", ["bag", "bag_label", "instance_label", "bag_target", "mine"])
def test_labels_cannot_be_features(tmp_path, column):
    frame = FRAME.assign(instance_label=[0, 0, 1, 0], bag_target=1.0, mine=[0, 0, 1, 1])
    label = "mine" if column == "mine" else "bag_label"
    for read in (Bags.from_frame, lambda frame, **more: from_parquet(frame, tmp_path, **more)):
        with pytest.raises(ValueError, match=f"features: column '{column}' of .* has the ids"):
            read(frame, features=["x0", column], bag_label=label)


def test_a_column_with_two_roles_is_refused():
    with pytest.raises(ValueError, match="two columns are called 'bag_label'"):
        Bags.from_frame(FRAME, instance_label="bag_label")


def test_features_in_one_text_are_refused():
    with pytest.raises(TypeError, match="features is 'x0'; expected a list of columns"):
        Bags.from_frame(FRAME, features="x0")


COLUMNS = {
    "complex128": [1 + 1j, 2.0, 3.0, 4.0],
    "datetime64": pd.to_datetime(["2020-01-01"] * 4),
    "timedelta64": pd.to_timedelta([1, 2, 3, 4], unit="D"),
    "object, of string": ["1", "2", "3", "4"],
    "object, of bytes": [b"1", b"2", b"3", b"4"],
    "object, of complex": np.array([1j, 1, 2, 3], dtype=object),
    "object, of datetime": pd.Series([datetime(2020, 1, 1)] * 4, dtype=object),
    "object, of timedelta": pd.Series([timedelta(1)] * 4, dtype=object),
    "object, of mixed": [1.0, [2.0], 3.0, {}],
    "object, of period": pd.period_range("2020", periods=4, freq="D"),
    "category": pd.Categorical(["low", "high", "low", "high"]),
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_a_column_that_is_no_number_is_refused(kind):
    frame = FRAME.assign(x1=COLUMNS[kind])
    found = r"(category|object, of string)" if kind == "category" else f"({kind}|str|object)"
    with pytest.raises(TypeError, match=f"column 'x1' has type {found}.*; expected numbers"):
        Bags.from_frame(frame, features=["x0", "x1"])


@pytest.mark.parametrize("kind", ["complex128", "datetime64", "timedelta64"])
def test_times_and_complex_numbers_are_not_left_out(kind):
    """Nor are they features in silence: the message says how to make them numbers."""
    with pytest.raises(TypeError, match=f"column 'x1' has type {kind}.*; expected numbers: "):
        Bags.from_frame(FRAME.assign(x1=COLUMNS[kind]))


@pytest.mark.parametrize("value", [datetime(2020, 1, 1), timedelta(1), "1"])
def test_a_stream_refuses_features_that_are_no_numbers(tmp_path, value):
    with pytest.raises(TypeError, match=r"column 'x1' has type .*; expected numbers as"):
        from_parquet(FRAME.assign(x1=[value] * 4), tmp_path, features=["x0", "x1"])


RIGHT = {
    "truth values": [True, False, True, True],
    "whole numbers": [1, 0, 1, 1],
    "small numbers": np.array([1, 0, 1, 1], dtype=np.int8),
    "nullable": pd.array([1, 0, 1, 1], dtype="Int64"),
    "nullable truth": pd.array([True, False, True, True], dtype="boolean"),
    "Arrow": pd.array([1, 0, 1, 1], dtype="int64[pyarrow]"),
    "sparse": pd.arrays.SparseArray([1.0, 0.0, 1.0, 1.0]),
    "objects": np.array([1, 0.0, True, Decimal(1)], dtype=object)[[0, 1, 0, 0]],
    "decimals": np.array([Decimal(1), Decimal(0), Decimal(1), Decimal(1)], dtype=object),
    "categories": pd.Categorical([1, 0, 1, 1]),
}


@pytest.mark.parametrize("kind", RIGHT)
def test_columns_of_numbers_are_read_rightly(kind):
    bags = Bags.from_frame(FRAME.assign(x1=RIGHT[kind]), features=["x0", "x1"])
    np.testing.assert_array_equal(bags.instances[:, 1], [1.0, 0.0, 1.0, 1.0])


def test_truth_values_are_features_by_default(tmp_path):
    frame = FRAME.assign(x1=[True, False, True, True])
    for bags in (Bags.from_frame(frame), from_parquet(frame, tmp_path)):
        np.testing.assert_array_equal(
            np.asarray(bags.instances), [[0.5, 1.0], [1.5, 0.0], [2.5, 1.0], [3.5, 1.0]]
        )


def test_text_is_no_feature():
    assert Bags.from_frame(FRAME.assign(note=["a", "b", "c", "d"])).num_features == 1


# --------------------------------------------------------------------------- other doors


@pytest.mark.parametrize(
    "bags", [{"a": np.eye(2)}, iter([np.eye(2)]), (table for table in [np.eye(2)]), "ab", 3, None]
)
def test_bags_that_are_no_list_are_refused(bags):
    with pytest.raises(TypeError, match=r"bags is a \w+; expected a list with one"):
        Bags.from_list(bags)


@pytest.mark.parametrize("bag_id", [[1], {}, {1}])
def test_ids_that_cannot_be_compared_are_refused(bag_id):
    ids = np.empty(2, dtype=object)
    ids[:] = [bag_id, bag_id]
    with pytest.raises(TypeError, match=r"bag_ids: .*; expected numbers or strings"):
        Bags.from_arrays(np.eye(2), ids)
    with pytest.raises(TypeError, match=r"bag_ids: .*; expected numbers or strings"):
        Bags.from_frame(FRAME.iloc[:2].assign(bag=ids))


@pytest.mark.parametrize(
    "table",
    [
        [[1j]], [["1"]], [[b"1"]], np.array([["1"]], object), np.array([["2020"]], "M8[D]"),
        np.array([[3]], "m8[D]"), [[{}]], [[object()]],
    ],
)  # fmt: skip
def test_instances_that_are_no_numbers_are_refused(table):
    for read, name in (
        (lambda: Bags.from_list([table]), "bag '0'"),
        (lambda: Bags.from_arrays(table, ["a"]), "instances"),
        (lambda: Bags.from_padded([table]), "X"),
    ):
        with pytest.raises((TypeError, ValueError), match=f"{name} (has type|holds)"):
            read()
