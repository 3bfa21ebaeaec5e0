"""Streams: the same bags as in memory, no bag cut, and bad files named with the row."""

import threading
import time
from itertools import pairwise

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from milzoo.datasets import Bags, simulate_instances, stream
from milzoo.datasets.on_disk import Piece


@pytest.fixture(scope="module")
def bags():
    design = simulate_instances(40, range(1, 9), 3, seed=1)
    random = np.random.default_rng(2)
    known = random.integers(-1, 2, design.num_instances)
    labels = (np.maximum.reduceat(known, design.starts) == 1).astype(int)
    whole = Bags.from_arrays(design.instances, design.bag_index, labels, known)
    return whole.with_targets(random.normal(size=40))


def in_three_files(bags, folder):
    """Write three files, split within bags."""
    frame = bags.to_frame()
    for number, (first, end) in enumerate(((0, 7), (7, 90), (90, len(frame)))):
        frame[first:end].to_parquet(folder / f"part-{number}.parquet", index=False)
    return folder


def as_arrays(bags, folder):
    """Write one array file for each part."""
    parts = ("instances", "bag_index", "labels", "targets", "instance_labels")
    for part in parts:
        np.save(folder / f"{part}.npy", np.asarray(getattr(bags, part)))
    return folder


def as_one_file(bags, folder):
    bags.to_parquet(folder / "bags.parquet")
    return folder / "bags.parquet"


@pytest.mark.slow_but_first
@pytest.mark.parametrize("write", [in_three_files, as_arrays, as_one_file])
@pytest.mark.parametrize("chunk_instances", [1, 5, 16, 50, 10_000])
def test_chunks_together_are_the_bags_and_none_is_cut(bags, tmp_path, write, chunk_instances):
    given = stream(write(bags, tmp_path), chunk_instances=chunk_instances)
    assert (given.num_instances, given.num_features) == bags.instances.shape
    for _ in range(2):  # a stream can be read again
        chunks = list(given)
        names = [name for chunk in chunks for name in chunk.names]
        assert names == list(bags.names)
        sizes = np.concatenate([chunk.bag_sizes for chunk in chunks])
        np.testing.assert_array_equal(sizes, bags.bag_sizes)
        for part in ("instances", "labels", "instance_labels", "targets"):
            joined = np.concatenate([getattr(chunk, part) for chunk in chunks])
            np.testing.assert_array_equal(joined, getattr(bags, part))
        for chunk in chunks:
            assert chunk.num_instances <= chunk_instances or chunk.num_bags == 1
            assert chunk.bag_index[0] == 0
        # As few chunks as possible: no two neighbours fit into one.
        for one, other in pairwise(chunks):
            assert one.num_instances + other.bag_sizes[0] > chunk_instances


@pytest.mark.parametrize("chunk_instances", [1, 5, 16, 50])
def test_chunks_of_arrays_are_not_joined_which_copies(bags, tmp_path, monkeypatch, chunk_instances):
    assert bags.bag_sizes.max() == 8  # some chunks are one large bag
    monkeypatch.delattr(Piece, "joined")
    chunks = list(stream(as_arrays(bags, tmp_path), chunk_instances=chunk_instances))
    assert sum(chunk.num_instances for chunk in chunks) == bags.num_instances
    parquet = tmp_path / "parquet"
    parquet.mkdir()
    with pytest.raises(AttributeError, match="joined"):  # rows come as they come
        list(stream(in_three_files(bags, parquet), chunk_instances=chunk_instances))


def test_whole_bags_of_parquet_are_not_joined(tmp_path, monkeypatch):
    equal = Bags.from_arrays(np.arange(24.0)[:, None], np.arange(24) // 4, np.arange(6) % 2)
    equal.to_parquet(tmp_path / "bags.parquet")
    monkeypatch.delattr(Piece, "joined")
    chunks = list(stream(tmp_path, chunk_instances=8))
    assert [chunk.num_instances for chunk in chunks] == [8, 8, 8]


@pytest.mark.parametrize("chunk_instances", [1, 5, 16, 10_000])
def test_instances_are_read_into_given_buffers(bags, tmp_path, chunk_instances):
    given = []

    def new_buffer(shape, dtype):
        given.append(np.full((shape[0] + 3, *shape[1:]), np.nan, dtype))
        return given[-1][: shape[0]]

    chunks = list(
        stream(as_arrays(bags, tmp_path), chunk_instances=chunk_instances).read_to(new_buffer)
    )
    for chunk, array in zip(chunks, given, strict=True):
        assert chunk.instances.ctypes.data == array.ctypes.data
        assert np.isnan(array[chunk.num_instances :]).all()
    joined = np.concatenate([chunk.instances for chunk in chunks])
    np.testing.assert_array_equal(joined, bags.instances)


@pytest.mark.parametrize(("size", "slack"), [(20, 40), (500, 250)])
def test_chunks_exceed_equal_ones_by_little(tmp_path, size, slack):
    np.save(tmp_path / "instances.npy", np.zeros((100_000, 1), np.float32))
    np.save(tmp_path / "bag_index.npy", np.arange(100_000) // size)
    given = stream(tmp_path)
    assert given.chunk_instances == 100_000 / 8 + slack
    assert len(list(given)) == 8


def test_instances_of_32_bit_stay_so(bags, tmp_path):
    narrow = bags.to_frame()
    narrow = narrow.astype({f"x{d}": np.float32 for d in range(3)})
    narrow.to_parquet(tmp_path / "narrow.parquet")
    (chunk,) = stream(tmp_path / "narrow.parquet")
    assert chunk.instances.dtype == np.float32


def test_columns_by_other_names_and_ids_that_are_numbers(bags, tmp_path):
    frame = bags.to_frame().rename(columns={"bag": "patient", "bag_label": "ill"})
    frame["patient"] = frame["patient"].astype(int) + 7
    frame["note"] = "of no use"
    frame.to_parquet(tmp_path / "frame.parquet")
    given = stream(tmp_path, bag="patient", bag_label="ill", features=["x2", "x0"])
    (chunk,) = given
    assert chunk.names[:2] == ("7", "8")
    np.testing.assert_array_equal(chunk.labels, bags.labels)
    np.testing.assert_array_equal(chunk.instances, bags.instances[:, [2, 0]])


def test_labels_may_be_unknown(bags, tmp_path):
    bags.without_labels().to_parquet(tmp_path / "bags.parquet")
    (chunk,) = stream(tmp_path, bag_label=None)
    assert chunk.labels is None and chunk.instance_labels is None and chunk.targets is None
    with pytest.raises(KeyError, match=r"bags.parquet has no column 'bag_label'.*bag_label=None"):
        stream(tmp_path)


def test_unused_label_columns_are_no_features(bags, tmp_path):
    bags.to_parquet(tmp_path / "bags.parquet")
    nothing = {"bag_label": None, "instance_label": None, "bag_target": None}
    (chunk,) = stream(tmp_path, **nothing)
    for found in (chunk, Bags.from_frame(bags.to_frame(), **nothing)):
        np.testing.assert_array_equal(found.instances, bags.instances)
        assert found.labels is None and found.targets is None and found.instance_labels is None


def test_labels_coded_by_minus_one_are_understood(bags, tmp_path):
    frame = bags.to_frame().drop(columns="instance_label")
    frame["bag_label"] = 2 * frame["bag_label"] - 1
    frame.to_parquet(tmp_path / "bags.parquet")
    chunks = list(stream(tmp_path, chunk_instances=10))
    np.testing.assert_array_equal(np.concatenate([c.labels for c in chunks]), bags.labels)


def test_the_next_chunk_is_read_ahead(bags, tmp_path, monkeypatch):
    given = stream(as_arrays(bags, tmp_path), chunk_instances=16)
    readers, pieces = [], type(given.source).pieces

    def watched(self, num_rows, new_buffer):
        for piece in pieces(self, num_rows, new_buffer):
            readers.append(threading.current_thread().name)
            yield piece

    monkeypatch.setattr(type(given.source), "pieces", watched)
    chunks = iter(given)
    next(chunks)
    waited = time.monotonic() + 10
    while len(readers) < 2 and time.monotonic() < waited:
        time.sleep(0.01)
    # The second is read before it is requested, and the third is not.
    time.sleep(0.05)
    assert len(readers) == 2 and all(name.startswith("read ahead") for name in readers)
    chunks.close()


# ---------------------------------------------------------------------------- bad files


def changed(bags, row, column, value):
    frame = bags.to_frame()
    frame[column] = frame[column].astype(float if column != "bag" else object)
    frame.loc[row, column] = value
    return frame


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("x1", np.nan, r"row 33 of part-1.parquet holds nan in feature 1"),
        ("x1", np.inf, r"row 33 of part-1.parquet holds inf in feature 1"),
        ("bag_label", 3.0, r"row 33 of part-1.parquet has label 3"),
        ("bag_label", -1.0, r"row .* of part-.* has label 0 and .*row 33 of part-1.* has label -1"),
        ("bag_target", 99.0, r"has two targets, .* 99 in row 33 of part-1.parquet"),
        ("bag", None, r"row 33 of part-1.parquet has no bag"),
        ("bag", "0", r"appears again in row 33 of part-1.parquet"),
        ("instance_label", 7.0, r"row 33 of part-1.parquet has label 7"),
    ],
)
def test_a_bad_row_is_named_with_its_file(bags, tmp_path, column, value, message):
    # Row 40: in a bag of several instances, and not the first of it.
    is_within = bags.starts[bags.bag_index[40]] < 40 < bags.starts[bags.bag_index[40] + 1]
    assert is_within
    frame = changed(bags, 40, column, value)
    for number, (first, end) in enumerate(((0, 7), (7, 90), (90, len(frame)))):
        frame[first:end].to_parquet(tmp_path / f"part-{number}.parquet", index=False)
    with pytest.raises(ValueError, match=message):
        list(stream(tmp_path, chunk_instances=16))


def test_codings_that_differ_between_chunks_are_refused(tmp_path):
    for number, labels in enumerate(([0, 1], [-1, 1])):
        frame = pd.DataFrame({"bag": [f"{number}a", f"{number}b"], "bag_label": labels, "x": 0.5})
        frame.to_parquet(tmp_path / f"{number}.parquet")
    expected = r"row 0 of 0.parquet has label 0 and row 0 of 1.parquet has label -1"
    with pytest.raises(ValueError, match=expected):
        list(stream(tmp_path, chunk_instances=2))


@pytest.mark.parametrize("write", [in_three_files, as_arrays])
def test_a_truncated_file_is_named_before_anything_is_read(bags, tmp_path, write):
    write(bags, tmp_path)
    victim = sorted(tmp_path.iterdir())[-1]
    victim.write_bytes(victim.read_bytes()[:-9])
    with pytest.raises(ValueError, match=rf"{victim.name} is not a whole"):
        stream(tmp_path)


def test_a_file_truncated_while_read_is_named(bags, tmp_path):
    given = stream(as_arrays(bags, tmp_path), chunk_instances=16)
    file = tmp_path / "instances.npy"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"instances.npy ends in row \d+ of \d+"):
        list(given)


def test_an_unreadable_page_is_named_with_the_row(bags, tmp_path):
    file = as_one_file(bags, tmp_path)
    content = bytearray(file.read_bytes())
    column = pq.ParquetFile(file).metadata.row_group(0).column(4)
    start = column.data_page_offset
    content[start : start + 8] = b"\xff" * 8
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"bags.parquet cannot be read after row 0"):
        list(stream(file))


def test_files_that_change_are_noticed(bags, tmp_path):
    given = stream(as_one_file(bags, tmp_path))
    bags.select(np.arange(5)).to_parquet(tmp_path / "bags.parquet")
    with pytest.raises(ValueError, match=r"bags.parquet has \d+ rows and had \d+"):
        list(given)


def test_files_of_other_columns_are_named(bags, tmp_path):
    bags.to_parquet(tmp_path / "0.parquet")
    frame = bags.to_frame().drop(columns="x2")
    frame.to_parquet(tmp_path / "1.parquet")
    with pytest.raises(KeyError, match=r"1.parquet has no column 'x2'"):
        stream(tmp_path)
    bags.to_frame().astype({"x2": np.float32}).to_parquet(tmp_path / "1.parquet")
    with pytest.raises(ValueError, match=r"1.parquet: column 'x2' is of type float and of type do"):
        stream(tmp_path)


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("labels", np.zeros(3), r"labels.npy has shape \(3,\); expected \(40,\), one for each bag"),
        ("bag_index", np.arange(4), r"bag_index.npy has shape .* one for each instance"),
        ("instances", np.zeros(4), r"instances.npy has shape \(4,\); expected \(instances"),
    ],
)
def test_arrays_that_do_not_fit_are_named(bags, tmp_path, part, value, message):
    as_arrays(bags, tmp_path)
    np.save(tmp_path / f"{part}.npy", value)
    with pytest.raises(ValueError, match=message):
        stream(tmp_path)


def test_bags_out_of_order_are_refused_with_the_row(bags, tmp_path):
    as_arrays(bags, tmp_path)
    index = np.array(bags.bag_index)
    index[50] = 2
    np.save(tmp_path / "bag_index.npy", index)
    with pytest.raises(ValueError, match=r"bag_index.npy: row 50 is of bag 2 after bag \d+"):
        list(stream(tmp_path, chunk_instances=16))


def test_bags_that_end_below_zero_are_refused(tmp_path):
    np.save(tmp_path / "instances.npy", np.zeros((3, 1)))
    np.save(tmp_path / "bag_index.npy", np.array([0, 0, -1]))
    with pytest.raises(ValueError, match=r"bag_index.npy ends with bag -1; expected bags 0, 1"):
        stream(tmp_path)


def test_what_is_not_there_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere does not exist"):
        stream(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"neither \*.parquet nor instances.npy"):
        stream(tmp_path)
    with pytest.raises(ValueError, match=r"chunk_instances is 0; expected an integer of at"):
        stream(tmp_path, chunk_instances=0)
    pq.write_table(pa.table({"bag": ["a"], "bag_label": [1]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a.parquet: no numeric column"):
        stream(tmp_path)
