"""Files of posteriors that are damaged, of another format, or written by a stranger."""

import hashlib
import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr
from milzoo.inference import Posterior
from milzoo.inference.serialization import FORMAT

FORMATS = Path(__file__).parent / "formats"
WHOLE = FORMATS / f"format_{FORMAT}.nc"
REFUSAL = r"x\.nc holds no posterior that can be read: "


def refuse(content: bytes, path: Path, reason: str = "") -> None:
    """Check that a file of this content is refused by its name."""
    path.write_bytes(content)
    with pytest.raises(ValueError, match=REFUSAL + reason):
        Posterior.load(path)


def without_last_line(file: Path) -> bytes:
    return file.read_bytes().removesuffix(b"\n").rpartition(b"\n")[0]


def with_digest(content: bytes, version: object = FORMAT) -> bytes:
    """As the last line of `save`, which anybody can compute."""
    digest = hashlib.sha256(content).hexdigest()
    return content + f"\nmilzoo posterior, format {version}, sha256 {digest}\n".encode()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "x.nc"


@pytest.fixture
def changed(path):
    """Function of a change to the opened HDF5 file: the file with it, and with a right digest."""

    def of(change) -> bytes:
        path.write_bytes(without_last_line(WHOLE))
        with h5py.File(path, "r+") as opened:
            change(opened)
        return with_digest(path.read_bytes())

    return of


@pytest.fixture
def with_metadata(changed):
    """Function of a change to the metadata: the file with it, and with a right digest."""

    def of(change) -> bytes:
        def rewrite(opened):
            metadata = json.loads(opened.attrs["milzoo"])
            text = change(metadata)
            opened.attrs["milzoo"] = text if isinstance(text, str) else json.dumps(metadata)

        return changed(rewrite)

    return of


# ----------------------------------------------------------------------------- formats


def test_a_file_of_this_format_is_read(path):
    shutil.copy(WHOLE, path)
    posterior = Posterior.load(path)
    assert posterior.engine == "coordinate_ascent" and posterior.bags.num_bags == 4
    assert posterior.stored_draws()["inducing_value"].shape == (3, 2)
    assert np.isfinite(posterior.predict(posterior.bags).bag_probability).all()


def test_each_format_has_a_file():
    expected = [f"format_{number}.nc" for number in range(1, FORMAT + 1)]
    assert sorted(file.name for file in FORMATS.iterdir()) == expected


def test_files_of_other_formats_are_refused_by_number(path):
    refuse((FORMATS / "format_1.nc").read_bytes(), path, "it has no digest in its last line")
    earlier = (FORMATS / "format_2.nc").read_bytes()
    refuse(earlier, path, f"it is of format 2, and this version reads format {FORMAT}")
    later = with_digest(without_last_line(WHOLE), FORMAT + 1)
    refuse(later, path, f"it is of format {FORMAT + 1}, and this version reads format {FORMAT}")


def test_other_programs_read_the_draws():
    """The last line does not disturb HDF5, which verifies the checksums of its own."""
    tree = xr.load_datatree(WHOLE, engine="h5netcdf")
    draws = Posterior.load(WHOLE).tree["posterior"]["inducing_value"]
    np.testing.assert_array_equal(tree["posterior"]["inducing_value"], draws)


def test_hdf5_has_checksums_of_its_own(path):
    Posterior.load(WHOLE).save(path)
    with h5py.File(path) as opened:
        assert opened["posterior/inducing_value"].fletcher32
        assert opened["constant_data/instances"].fletcher32


# ------------------------------------------------------------------------------ damage


def test_a_truncated_file_is_refused(path):
    """At every hundredth of its length, and in its last line."""
    whole = WHOLE.read_bytes()
    lengths = {len(whole) * hundredth // 100 for hundredth in range(100)}
    for length in sorted(lengths | set(range(len(whole) - 110, len(whole)))):
        refuse(whole[:length], path)


def test_a_flipped_bit_is_noticed(path):
    whole = WHOLE.read_bytes()
    random = np.random.default_rng(0)
    for place in random.choice(len(whole), size=1000, replace=False):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << random.integers(8)
        refuse(bytes(damaged), path)


def test_a_flipped_bit_of_each_last_byte_is_noticed(path):
    whole = WHOLE.read_bytes()
    for place in range(len(whole) - 110, len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        refuse(bytes(damaged), path)


@pytest.mark.parametrize("content", [b"", b"\n", b"PK\x03\x04", b"\x89HDF\r\n\x1a\n" + bytes(600)])
def test_what_is_no_file_of_ours_is_refused(path, content):
    refuse(content, path)
    refuse(with_digest(content), path)


def test_a_file_that_is_not_there_is_named(path):
    with pytest.raises(FileNotFoundError, match=r"x\.nc"):
        Posterior.load(path)
    with pytest.raises(IsADirectoryError, match=path.parent.name):
        Posterior.load(path.parent)


# ------------------------------------------------------------- what a stranger may write


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 50_000, "its content is nested without end"),
        ('{"a":' * 50_000, "its content is nested without end"),
        ("{", "its metadata are no JSON"),
        ("", "its metadata are no JSON"),
        ("[]", "its metadata are a list"),
        ("{}", "its format is None"),
        ("null", "its metadata are a NoneType"),
        ("1" * 5000, "its metadata are no JSON"),
    ],
    ids=["brackets", "braces", "cut", "empty", "list", "dict", "null", "digits"],
)
def test_metadata_that_are_none_are_refused(with_metadata, path, text, reason):
    refuse(with_metadata(lambda _: text), path, reason)


def nested(depth: int) -> dict:
    value = {"array": [], "dtype": "float64", "shape": [0]}
    for _ in range(depth):
        value = {"class": "RBF", "fields": {"variance": value}}
    return value


CHANGES = {
    "no engine": (lambda m: m.pop("engine") and None, "its engine is None"),
    "engine": (lambda m: m.update(engine=["nuts"]), "its engine is"),
    "status": (lambda m: m.update(status=["good", "It is."]), "its status is"),
    "long status": (lambda m: m.update(status=["failed"] * 3), "its status is"),
    "unhashable status": (lambda m: m.update(status=[[], ""]), "its status is"),
    "seconds": (lambda m: m.update(seconds="1"), "its seconds is 1"),
    "elbo": (lambda m: m.update(elbo=[1.0, "x"]), "its elbo holds something else"),
    "nested elbo": (lambda m: m.update(elbo=[[1.0], [2.0]]), "its elbo holds something else"),
    "no model": (lambda m: m.update(model={}), "file holds an object of"),
    "model of a name": (lambda m: m.update(model="VGPMIL"), "its model is VGPMIL"),
    "model that is a kernel": (
        lambda m: m.update(model=m["model"]["fields"]["kernel"]),
        "its model is a RBF",
    ),
    "model that is an approximation": (
        lambda m: m.update(model=m["approximation"]),
        "its model is a ",
    ),
    "approximation that is a model": (
        lambda m: m.update(approximation=m["model"]),
        "its approximation is a VGPMIL",
    ),
    "unknown class": (lambda m: m["model"].update({"class": "Popen"}), "file holds a Popen"),
    "function": (lambda m: m["model"].update({"class": "scored"}), "file holds a scored"),
    "unknown field": (
        lambda m: m["model"]["fields"].update(command="rm"),
        "file holds a VGPMIL that cannot be made",
    ),
    "missing field": (
        lambda m: m["model"]["fields"].pop("inducing_points") and None,
        "file holds a VGPMIL that cannot be made",
    ),
    "field of a wrong type": (
        lambda m: m["model"]["fields"].update(sharpness="100"),
        "file holds a VGPMIL",
    ),
    "array of a wrong type": (
        lambda m: m["approximation"]["fields"].update(mean="abc"),
        "file holds a .* whose mean is of another type",
    ),
    "array with too few axes": (
        lambda m: m["approximation"]["fields"].update(
            scale_tril=m["approximation"]["fields"]["mean"]
        ),
        "file holds a .* whose scale_tril is of another type",
    ),
    "arrays of different sizes": (
        lambda m: m["approximation"]["fields"]["mean"].update(array=[1.0] * 3, shape=[3]),
        "file holds a .* whose scale_tril is of another type",
    ),
    "array of objects": (
        lambda m: m["approximation"]["fields"]["mean"].update(dtype="object"),
        "file holds an array of 'object'",
    ),
    "array of no size": (
        lambda m: m["approximation"]["fields"]["mean"].update(shape=[10**12, 10**12]),
        "file holds an array that is none",
    ),
    "array of texts": (
        lambda m: m["approximation"]["fields"]["mean"].update(array=["a", "b"]),
        "file holds an array that is none",
    ),
    "no distribution": (
        lambda m: m["model"]["fields"].update(
            mean={"distribution": "kl_divergence", "parameters": {}}
        ),
        "file holds a 'kl_divergence'; expected a distribution",
    ),
    "attribute": (
        lambda m: m["model"]["fields"].update(
            mean={"distribution": "__loader__", "parameters": {}}
        ),
        "file holds a '__loader__'; expected a distribution",
    ),
    "module": (
        lambda m: m["model"]["fields"].update(
            mean={"distribution": "constraints", "parameters": {}}
        ),
        "file holds a 'constraints'; expected a distribution",
    ),
    "distribution of wrong parameters": (
        lambda m: m["model"]["fields"].update(
            mean={"distribution": "Normal", "parameters": {"path": "/etc/passwd"}}
        ),
        "file holds a Normal that cannot be made",
    ),
    "nested classes": (lambda m: m.update(model=nested(200)), "file holds a"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_metadata_of_something_else_are_refused(with_metadata, path, name):
    change, reason = CHANGES[name]
    refuse(with_metadata(lambda metadata: change(metadata) and None), path, reason)


def _rewrite(opened, name, values):
    old = opened[name]
    assert old.shape == values.shape
    old[...] = values


CONTENTS = {
    "unsorted bags": (
        lambda f: _rewrite(f, "constant_data/bag_index", f["constant_data/bag_index"][:][::-1]),
        "its bag_index is not in order",
    ),
    "absent bags": (
        lambda f: _rewrite(f, "constant_data/bag_index", f["constant_data/bag_index"][:] + 1),
        "its bag_index does not number the bags",
    ),
    "NaN": (
        lambda f: _rewrite(f, "constant_data/instances", f["constant_data/instances"][:] * np.nan),
        "instances: bag '0', row 0 holds nan",
    ),
    "labels": (
        lambda f: _rewrite(f, "observed_data/bag_label", np.array([0, 1, 2, 3])),
        "labels: bag '2' has label 2",
    ),
    "no draws": (lambda f: f.__delitem__("posterior"), "it has no group posterior"),
    "no bags": (lambda f: f.__delitem__("observed_data"), "its bags lack"),
    "no site": (
        lambda f: f.__delitem__("posterior/inducing_value"),
        "its group posterior has no inducing_value",
    ),
    "a site with other axes": (
        lambda f: f["posterior"].move("inducing_point", "axis"),
        "its (inducing_value is of type|group posterior)|it is no NetCDF",
    ),
    "a link to a file": (
        lambda f: f["posterior"].__setitem__("secret", h5py.ExternalLink("/etc/x.h5", "/")),
        "/posterior: secret is a link that leads elsewhere",
    ),
    "a link to itself": (
        lambda f: f["posterior"].__setitem__("again", h5py.SoftLink("/posterior")),
        "/posterior: again is a link that leads elsewhere",
    ),
    "content in a file": (
        lambda f: f.create_dataset("raw", (8,), "u1", external=[("/etc/passwd", 0, 8)]),
        "/raw has its content elsewhere",
    ),
    "more than memory": (
        lambda f: f.create_dataset("large", (2**45,), "f8", chunks=(2**10,), compression="gzip"),
        "/large is not stored in full",
    ),
    "a type": (lambda f: f.__setitem__("kind", np.dtype("f8")), "/kind has its content elsewhere"),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_content_of_something_else_is_refused(changed, path, name):
    change, reason = CONTENTS[name]
    refuse(changed(change), path, reason)


@pytest.mark.slow
def test_groups_within_themselves_are_refused(changed, path):
    """A hard link to the group above, which would be followed without end."""
    refuse(
        changed(lambda f: f["posterior"].__setitem__("above", f["/"])),
        path,
        "its content is nested",
    )
