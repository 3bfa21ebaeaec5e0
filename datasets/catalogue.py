"""Data sets by name: ``load("musk1")``."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float, Int, Integer, Num

from .arguments import checked_seed, known_or_nearest
from .bags import Bags
from .checks import NO_FEATURES, check_once, read_only

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["BAGGING_SEED", "available", "image_shape", "load", "published_folds"]

BAGGING_SEED = 2024
"""Seed of the published draws of ``digits``, ``mnist``, ``kandemir2014`` and ``venkatesan2015``."""

_NEWSGROUPS = (
    "alt_atheism",
    "comp_graphics",
    "comp_sys_mac_hardware",
    "rec_autos",
    "rec_sport_hockey",
    "sci_crypt",
    "sci_electronics",
    "sci_space",
    "talk_politics_guns",
    "talk_religion_misc",
)

_DESCRIPTIONS = {
    "digits": "8×8 digits (scikit-learn) in 164 bags of 10; positive: 2, 9; instance labels known",
    "kandemir2014": "2-D scene of 40 bags: 3 clusters in all bags, 2 of witnesses; labels known",
    "venkatesan2015": "2-D scene of 80 bags: 4 clusters in all bags, 4 of witnesses, 1 hard",
    "musk1": "92 molecules, 476 conformations, 166 features: does it smell of musk? (UCI)",
    "musk2": "102 molecules, 6,598 conformations, 166 features; bags of 1 to 1,044 (UCI)",
    "elephant": "200 images, 1,391 segments, 230 features: is there an elephant?",
    "fox": "200 images, 1,320 segments, 230 features: is there a fox?",
    "mnist": "28×28 digits in 7,000 bags of 10; positive: 2, 9; instance labels known",
} | {
    f"newsgroups/{group}": f"100 bags of posts, 200 term features: is one from {group}?"
    for group in _NEWSGROUPS
}

_IMAGES = {"digits": (8, 8), "mnist": (28, 28)}

_MUSK_ARCHIVES = {
    "musk1": "https://archive.ics.uci.edu/static/public/74/musk+version+1.zip",
    "musk2": "https://archive.ics.uci.edu/static/public/75/musk+version+2.zip",
}
_MUSK_COUNTS = {"musk1": (92, 476), "musk2": (102, 6598)}  # molecules, conformations


class _Scene(NamedTuple):
    """Means and lower triangular roots of the covariances of 2-D clusters."""

    bags_of_each_label: int
    negative: tuple
    positive: tuple


def _round(centre: tuple[float, float], deviation: float) -> tuple:
    return centre, ((deviation, 0.0), (0.0, deviation))


_SCENES = {
    "kandemir2014": _Scene(
        20,
        negative=(
            _round((-3.0, 1.5), 0.8),
            ((1.5, 3.0), ((1.2, 0.0), (0.3, 0.4))),
            ((0.5, -2.5), ((1.3, 0.0), (-0.3, 0.6))),
        ),
        positive=(((4.5, 0.0), ((0.6, 0.0), (0.2, 0.9))), _round((-1.7, 0.4), 0.6)),
    ),
    "venkatesan2015": _Scene(
        40,
        negative=(
            _round((0.0, 1.5), 1.0),
            _round((1.0, -2.6), 0.8),
            _round((5.0, -3.0), 0.8),
            _round((-3.5, 0.0), 0.8),
        ),
        # The last is within two and a half sds of a negative one.
        positive=(
            _round((-4.0, 4.0), 0.45),
            _round((4.0, 4.0), 0.45),
            _round((-4.0, -4.0), 0.45),
            _round((2.2, -0.6), 0.35),
        ),
    ),
}

_TABLE_FORMAT = (
    "one row for each instance with columns bag, bag_label (0/1), instance_label (where known) and "
    "a column for each feature"
)


def available() -> dict[str, str]:
    """Names of the data sets that `load` knows, each with a description of one line.

    Examples
    --------
    >>> from milzoo.datasets import available
    >>> available()["digits"]
    '8×8 digits (scikit-learn) in 164 bags of 10; positive: 2, 9; instance labels known'
    """
    return dict(_DESCRIPTIONS)


def image_shape(name: str) -> tuple[int, int] | None:
    """Height and width of the images of a data set, whose features are pixels; else None.

    Examples
    --------
    >>> from milzoo.datasets import image_shape, load
    >>> load("digits").instances[0].reshape(image_shape("digits"))[:3]
    array([[ 0.,  1., 13., 13., 10.,  0.,  0.,  0.],
           [ 0.,  1., 13., 16., 15.,  0.,  0.,  0.],
           [ 0.,  0., 12., 16., 16.,  0.,  0.,  0.]])
    """
    return _IMAGES.get(name)


def load(
    name: str, *, data_folder: str | os.PathLike[str] | None = None, seed: int | None = None
) -> Bags:
    """Load a data set by name; features are as published, not standardized.

    ``digits`` comes with scikit-learn; ``kandemir2014`` and ``venkatesan2015`` are simulated. All
    others are read from a folder: ``mnist.npz`` (arrays ``x_train, y_train, x_test, y_test``), and
    for any other name a file ``NAME.csv.gz`` (a slash in the name becomes an underscore) with one
    row for each instance and columns ``bag``, ``bag_label`` (0/1), ``instance_label`` (where known)
    and features, all other columns. A file of your own in this format loads by its name too, or
    from anywhere by its path (``load("bags.csv")``), and may have ``bag_target`` (a number) beside
    or in place of ``bag_label``. Where ``musk1`` and
    ``musk2`` are not in the folder, they are fetched from UCI once, into the user's cache.

    ``digits`` has as many balanced bags as its images allow: 82 negative bags of 10, and 82
    positive ones with 1, 2, 3 or 4 images of a 2 or a 9 (as equally often as possible), each image
    at most once. ``mnist`` has the paper's 3,500 and 3,500 (pixels divided by 255); they need
    61,250 images of other digits and there are 56,052, so that some are used twice.

    ``kandemir2014`` is a scene as that paper's Figure 1 sketches it: 20 bags of each label, 6 to 12
    instances with two features in each, from three Gaussian clusters; in a positive bag three in
    ten, and one at least, are from two others instead; one of these overlaps with a negative one.

    Parameters
    ----------
    name : str
        One of `available`, or the path of a file ``….csv`` or ``….csv.gz``.
    data_folder : path or None
        The folder; if left out, the environment variable ``MILZOO_DATA``.
    seed : int or None
        ``digits``, ``mnist`` and the scenes only: another draw of the bags than the fixed
        `BAGGING_SEED`.

    Returns
    -------
    Bags

    Raises
    ------
    ValueError
        If the name is unknown, or takes no seed, or if the file is damaged or of another format.
    NotADirectoryError
        If the folder is a file.
    FileNotFoundError
        If the file is missing and cannot be fetched; names the file, the folders searched and a way
        to get it.

    References
    ----------
    F. M. Castro-Macías et al. (2024), "Hyperbolic Secant representation of the logistic function:
    Application to probabilistic Multiple Instance Learning for CT intracranial hemorrhage
    detection", Artificial Intelligence (bags of digits). M. Kandemir and F. A. Hamprecht (2014),
    "Instance label prediction by Dirichlet process multiple instance learning", UAI (a scene).
    R. Venkatesan, P. S. Chandakkar and B. Li (2015), "Simpler non-parametric methods provide as
    good or better results to multiple-instance learning", ICCV (a scene).
    T. G. Dietterich, R. H. Lathrop and T. Lozano-Pérez (1997), Artificial Intelligence 89 (musk).
    S. Andrews et al. (2002), NIPS (elephant, fox). Z.-H. Zhou, Y.-Y. Sun and Y.-F. Li (2009), ICML
    (newsgroups).

    Examples
    --------
    >>> from milzoo.datasets import load
    >>> load("digits")
    Bags(164 bags (82 positive, 82 negative) of 10 to 10 instances, 1640 instances of 64 features)
    """
    folder = _data_folder(data_folder)
    path = _file_of(name, folder)
    if name not in _DESCRIPTIONS and not (path is not None and path.is_file()):
        raise ValueError(f"unknown data set {name!r}; {known_or_nearest(name, _DESCRIPTIONS)}")
    drawn: dict[str, Callable[..., Bags]] = {"digits": _digits, "mnist": partial(_mnist, folder)}
    drawn |= {name: partial(_drawn_from, scene) for name, scene in _SCENES.items()}
    if name in drawn:
        return drawn[name](seed=BAGGING_SEED if seed is None else checked_seed(seed))
    if seed is not None:
        raise ValueError(f"seed is {seed}, but the bags of {name!r} are not drawn; leave it out")
    table = _table(name, path)
    try:
        return Bags.from_frame(table, features=_features(table))
    except (KeyError, TypeError, ValueError) as error:
        raise type(error)(f"{path or name}: {error.args[0]}") from error


def published_folds(
    name: str, *, data_folder: str | os.PathLike[str] | None = None
) -> Int[np.ndarray, "B repetitions"]:
    """Published folds of cross-validation: in which fold each bag of a data set is tested.

    Read from ``folds/NAME.folds.csv`` in the data folder, whose columns are ``bag`` and one for
    each repetition, holding the number (from 1) of the fold in which the bag is tested.

    Parameters
    ----------
    name : str
        As in `load`.
    data_folder : path or None
        As in `load`.

    Returns
    -------
    (B, repetitions) int array
        Test fold of each bag of ``load(name)``, so that ``bags.select(folds[:, 0] != 1)`` are the
        bags to train on for fold 1 of the first repetition.

    Raises
    ------
    FileNotFoundError
        If there is no file of folds.
    ValueError
        If the file does not have exactly the bags of the data set.

    Examples
    --------
    >>> from pathlib import Path
    >>> import pandas as pd
    >>> from milzoo.datasets import Bags, load, published_folds
    >>> bags = Bags.from_list([[[0.1]], [[0.9]], [[0.3]], [[1.2]]], labels=[0, 1, 0, 1])
    >>> bags.to_frame().to_csv("mine.csv.gz", index=False)
    >>> Path("folds").mkdir()
    >>> folds = pd.DataFrame({"bag": bags.names, "rep1": [1, 1, 2, 2]})
    >>> folds.to_csv("folds/mine.folds.csv", index=False)
    >>> test_fold = published_folds("mine", data_folder=".")[:, 0]
    >>> load("mine", data_folder=".").select(test_fold != 1).names
    ('2', '3')
    """
    import pandas as pd

    folder = _data_folder(data_folder)
    file = f"folds/{_file_stem(name)}.folds.csv"
    if folder is None or not (folder / file).is_file():
        raise FileNotFoundError(
            f"the published folds of {name!r}: no {file} in {_where(folder)}; set MILZOO_DATA to a "
            "folder that has it, with columns bag, rep1, rep2, … (published with MIDatasets.jl), "
            "or draw folds by bags.folds(k, seed=…)"
        )
    names = load(name, data_folder=folder).names
    with _damage_named(folder / file):
        table = pd.read_csv(folder / file, dtype={"bag": str}, keep_default_na=False)
        table = table.set_index("bag")
    strangers = set(names) ^ set(table.index)
    if strangers or not table.index.is_unique:
        raise ValueError(
            f"{file} and the data set {name!r} must have the same bags, each once; "
            f"{len(strangers)} are in only one of them, for example {min(strangers, default='')!r}"
        )
    return table.loc[list(names)].to_numpy(dtype=np.int64)


# --------------------------------------------------------------------- the folder


def _data_folder(data_folder: str | os.PathLike[str] | None) -> Path | None:
    name = "data_folder"
    if data_folder is None:
        name, data_folder = "MILZOO_DATA", os.environ.get("MILZOO_DATA")
    if data_folder is None:
        return None
    if not os.fspath(data_folder):
        raise ValueError(f"{name} is empty; expected the path of a folder, or that it is not set")
    folder = Path(data_folder)
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{name} is {folder}, a file; expected the folder that it is in")
    return folder


def _features(table: pd.DataFrame) -> list[str]:
    """All columns of features, also of text: `Bags.from_frame` then names these in an error."""
    return [column for column in table if column not in ("bag", *NO_FEATURES)]


@contextmanager
def _damage_named(file: Path) -> Iterator[None]:
    """Turn any error of reading a damaged file into one with the file's name and a remedy."""
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(
            f"{file} cannot be read ({' '.join(str(error).split())}); expected a whole file in "
            "UTF-8, compressed if its name says so: take another copy"
        ) from error


def _file_stem(name: str) -> str:
    return name.replace("/", "_")


def _file_of(name: str, folder: Path | None) -> Path | None:
    """The file that a name stands for: itself, if it is the path of a table."""
    if name.endswith((".csv", ".csv.gz")):
        if not Path(name).is_file():
            raise FileNotFoundError(f"there is no file {name}; expected a table, {_TABLE_FORMAT}")
        return Path(name)
    return None if folder is None else folder / f"{_file_stem(name)}.csv.gz"


def _where(folder: Path | None) -> str:
    return "any folder (MILZOO_DATA is not set)" if folder is None else f"the folder {folder}"


def _table(name: str, path: Path | None) -> pd.DataFrame:
    import pandas as pd

    if path is not None and path.is_file():
        with _damage_named(path):
            # pandas would give the second column of one name another one.
            names = pd.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False)
            check_once(names.iloc[0], "columns")
            # A bag may be called "NA"; only empty values are unknown.
            return pd.read_csv(path, dtype={"bag": str}, keep_default_na=False, na_values=[""])
    if name in _MUSK_ARCHIVES:
        return _musk_from_uci(name, path)
    file = f"{_file_stem(name)}.csv.gz"
    raise FileNotFoundError(
        f"data set {name!r}: no {file} in {_where(path and path.parent)}; it is collected in "
        f"MIDatasets.jl: write it as {file}, {_TABLE_FORMAT}, and set MILZOO_DATA to its folder"
    )


# ------------------------------------------------------------------------- digits


def _digits(*, seed: int) -> Bags:
    from sklearn.datasets import load_digits

    images, digits = map(np.asarray, load_digits(return_X_y=True))
    return _bags_of_digits(images, digits, bags_of_each_label=82, unit=1.0, seed=seed)


def _mnist(folder: Path | None, *, seed: int) -> Bags:
    if folder is None or not (folder / "mnist.npz").is_file():
        raise FileNotFoundError(
            f"data set 'mnist': no mnist.npz in {_where(folder)}; get the file of that name that "
            "Keras distributes (arrays x_train, y_train, x_test, y_test) and set MILZOO_DATA to "
            "its folder"
        )
    file = folder / "mnist.npz"
    with _damage_named(file), file.open("rb") as opened, np.load(opened) as data:
        images = np.concatenate([data["x_train"], data["x_test"]])
        digits = np.concatenate([data["y_train"], data["y_test"]])
    pixels = images.reshape(len(images), -1)
    return _bags_of_digits(pixels, digits, bags_of_each_label=3500, unit=255.0, seed=seed)


def _bags_of_digits(
    images: Num[np.ndarray, "images pixels"],
    digits: Integer[np.ndarray, " images"],
    *,
    bags_of_each_label: int,
    unit: float,
    seed: int,
    bag_size: int = 10,
) -> Bags:
    """Balanced bags; a positive one holds one to four images of a 2 or a 9."""
    random = np.random.RandomState(seed)  # its stream is frozen: the same bags in every NumPy
    positives_in_bag = random.permutation(
        np.concatenate(
            [np.zeros(bags_of_each_label, int), np.resize([1, 2, 3, 4], bags_of_each_label)]
        )
    )
    num_bags = 2 * bags_of_each_label
    positions = random.rand(num_bags, bag_size).argsort(axis=1)
    is_positive = positions < positives_in_bag[:, None]
    image = np.empty((num_bags, bag_size), int)
    for positive in (True, False):
        pool = random.permutation(np.flatnonzero(np.isin(digits, (2, 9)) == positive))
        # np.resize starts the pool again where it is too short.
        image[is_positive == positive] = np.resize(pool, (is_positive == positive).sum())
    # The constructor without checks, and division in place: mnist is 0.4 GB.
    instances = images[image.ravel()].astype(np.float64)
    instances /= unit
    return Bags(
        instances=read_only(instances),
        bag_index=read_only(np.repeat(np.arange(num_bags), bag_size)),
        labels=read_only((positives_in_bag > 0).astype(np.int64)),
        instance_labels=read_only(is_positive.ravel().astype(np.int64)),
        names=tuple(str(b) for b in range(num_bags)),
        num_bags=num_bags,
    )


# -------------------------------------------------------------------------- scene


def _drawn_from(scene: _Scene, *, seed: int, witness_fraction: float = 0.3) -> Bags:
    """Instances from 2-D clusters: the negative ones in all bags, the others in positive bags."""
    random = np.random.RandomState(seed)
    num_bags = 2 * scene.bags_of_each_label
    labels = random.permutation(np.resize([0, 1], num_bags))
    sizes = random.randint(6, 13, size=num_bags)
    bag_index = np.repeat(np.arange(num_bags), sizes)
    # The smallest of a bag is always a witness, so that there is one.
    chance = random.rand(len(bag_index))
    smallest = np.minimum.reduceat(chance, np.cumsum(sizes) - sizes)[bag_index]
    is_witness = (labels[bag_index] == 1) & (chance <= np.maximum(witness_fraction, smallest))
    which, noise = random.rand(len(bag_index)), random.standard_normal((len(bag_index), 2))
    instances = np.where(
        is_witness[:, None],
        _from_clusters(scene.positive, which, noise),
        _from_clusters(scene.negative, which, noise),
    )
    return Bags(
        instances=read_only(instances),
        bag_index=read_only(bag_index),
        labels=read_only(labels),
        instance_labels=read_only(is_witness.astype(np.int64)),
        names=tuple(str(b) for b in range(num_bags)),
        num_bags=num_bags,
    )


def _from_clusters(
    clusters: tuple, which: Float[np.ndarray, " N"], noise: Float[np.ndarray, "N 2"]
) -> Float[np.ndarray, "N 2"]:
    """Standard normal noise transformed to equally likely clusters, chosen by which ∈ [0, 1)."""
    mean, root = (np.array(part) for part in zip(*clusters, strict=True))
    chosen = (which * len(clusters)).astype(int)
    return mean[chosen] + np.einsum("nij,nj->ni", root[chosen], noise)


# --------------------------------------------------------------------------- musk


def _musk_from_uci(name: str, path: Path | None) -> pd.DataFrame:
    """Fetch a musk data set into the user's cache and check the published counts."""
    import pooch

    url, cache = _MUSK_ARCHIVES[name], pooch.os_cache("milzoo")
    try:
        # No hash: UCI packs its archives anew from time to time. The counts are checked instead.
        archive = pooch.retrieve(url, known_hash=None, fname=f"{name}.zip", path=cache)
    except OSError as error:
        raise FileNotFoundError(
            f"data set {name!r}: no {name}.csv.gz in {_where(path and path.parent)}, no {name}.zip "
            f"in the cache {cache}, and {url} could not be fetched ({error}); go online, or put "
            f"that archive there under this name, or set MILZOO_DATA to a folder with "
            f"{name}.csv.gz: {_TABLE_FORMAT}"
        ) from error
    table = _musk_table(_archived_file(Path(archive), f"clean{name[-1]}.data"))
    counts = (table["bag"].nunique(), len(table))
    if counts != _MUSK_COUNTS[name]:
        raise ValueError(
            f"{archive} holds {counts[0]} molecules and {counts[1]} conformations; expected "
            f"{_MUSK_COUNTS[name]}: delete it to have it fetched again"
        )
    return table


def _archived_file(archive: Path, file: str) -> bytes:
    """Read a file of a zip archive, plain or packed by Unix ``compress``."""
    try:
        with zipfile.ZipFile(archive) as content:
            for member in content.namelist():
                if Path(member).name == file:
                    return content.read(member)
                if Path(member).name == f"{file}.Z":
                    return _uncompress(content.read(member))
            raise ValueError(f"{archive} holds {content.namelist()}; expected {file} or {file}.Z")
    except zipfile.BadZipFile as error:
        raise ValueError(
            f"{archive} is not a zip archive ({error}); delete it to have it fetched again"
        ) from error


def _musk_table(text: bytes) -> pd.DataFrame:
    """A frame from UCI's rows: molecule, conformation, features, label (``1.`` or ``0.``)."""
    import pandas as pd

    rows = pd.read_csv(io.BytesIO(text), header=None)
    features = rows.iloc[:, 2:-1].set_axis([f"x{d}" for d in range(rows.shape[1] - 3)], axis=1)
    labels = pd.DataFrame({"bag": rows[0], "bag_label": rows.iloc[:, -1].astype(int)})
    return pd.concat([labels, features], axis=1)


def _uncompress(packed: bytes) -> bytes:
    """Unpack Unix ``compress`` (LZW with codes of growing width; Python has no reader of it).

    Codes are stored lowest bit first in groups of eight of one width; where the width changes, the
    rest of a group is padding. In block mode, code 256 empties the dictionary.
    """
    if packed[:2] != b"\x1f\x9d":
        raise ValueError("not a file packed by Unix compress: it does not start with 1f 9d")
    widest, block_mode = packed[2] & 0x1F, packed[2] & 0x80
    single = [bytes([byte]) for byte in range(256)] + ([b""] if block_mode else [])
    words, width, previous = list(single), 9, b""
    position = group_start = 24
    unpacked = []
    while position + width <= 8 * len(packed):
        four_bytes = int.from_bytes(packed[position // 8 : position // 8 + 4], "little")
        code = four_bytes >> position % 8 & (1 << width) - 1
        position += width
        clear = bool(block_mode) and code == 256
        if clear:
            words, previous = list(single), b""
        else:
            word = words[code] if code < len(words) else previous + previous[:1]
            if previous and len(words) < 1 << widest:
                words.append(previous + word[:1])
            unpacked.append(word)
            previous = word
        if clear or (len(words) == 1 << width and width < widest):
            position += (group_start - position) % (8 * width)
            group_start = position
            width = 9 if clear else width + 1
    return b"".join(unpacked)
