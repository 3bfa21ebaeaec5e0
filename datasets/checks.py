"""Checks and conversions for the constructors of `Bags`, with their error messages."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import ArrayLike

if TYPE_CHECKING:
    import pandas as pd

_ROWS_AT_ONCE = 1024
# Up to it, a sum of squares over all instances that fit into memory is finite.
_LARGEST_FEATURE = 1e140
# Columns of labels and targets, which are never taken for features.
NO_FEATURES = ("bag_label", "instance_label", "bag_target")
# Types that pandas infers for an object column whose values are numbers.
_OF_NUMBERS = ("boolean", "integer", "floating", "mixed-integer-float", "decimal", "empty")
_REMEDIES = {
    "m": ": divide it by a unit, such as pandas.Timedelta('1D')",
    "M": ": subtract a date, and divide by a unit",
    "c": ": take its real and imaginary part as two columns",
}


def as_numbers(values: ArrayLike, argument: str) -> np.ndarray:
    """A new float64 array; None becomes NaN."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(
            f"{argument} is ragged; expected rows of one length: for bags of several sizes use "
            "Bags.from_list"
        ) from error
    if array.dtype.kind not in "biufO":
        raise TypeError(f"{argument} has type {array.dtype}; expected numbers")
    if array.dtype.kind == "O" and any(isinstance(one, str | bytes) for one in array.flat):
        raise TypeError(f"{argument} holds text; expected numbers")
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{argument} holds something that is not a number: {error}") from error


def as_table(values: ArrayLike, argument: str) -> Float[np.ndarray, "N D"]:
    """A new (instances, features) float64 array, checked to have at least one of each."""
    table = as_numbers(values, argument)
    if table.shape[:1] == (0,):
        raise ValueError(f"{argument} is empty; expected at least one instance")
    if table.ndim != 2:
        raise ValueError(
            f"{argument} has shape {table.shape}; expected two dimensions (instances, features)"
        )
    if table.shape[1] == 0:
        raise ValueError(f"{argument} has shape {table.shape}; expected at least one feature")
    return table


def as_vector(values: ArrayLike, length: int, argument: str, each: str) -> Float[np.ndarray, " n"]:
    """A new float64 array, checked to have the given length."""
    vector = as_numbers(values, argument)
    if vector.shape != (length,):
        raise ValueError(
            f"{argument} has shape {vector.shape}; expected ({length},), one for each {each}"
        )
    return vector


def check_list(values: object, argument: str, expected: str) -> None:
    """Raise an error unless an argument is a list, a tuple or an array of them."""
    is_list = isinstance(values, Sequence) or (isinstance(values, np.ndarray) and values.ndim)
    if not is_list or isinstance(values, str | bytes):
        raise TypeError(f"{argument} is a {type(values).__name__}; expected a list {expected}")


def as_bag_names(names: Sequence[str] | None, num_bags: int) -> tuple[str, ...]:
    """The names given, one for each bag and all different, or else the bags' numbers."""
    if names is None:
        return tuple(str(b) for b in range(num_bags))
    check_list(names, "names", "of strings, one for each bag")
    names = tuple(str(name) for name in names)
    if len(names) != num_bags:
        raise ValueError(f"names has {len(names)} entries; expected {num_bags}, one for each bag")
    if len(set(names)) < num_bags:
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise ValueError(f"names: two bags are called {twice!r}; expected different names")
    return names


def check_widths(tables: Sequence[np.ndarray], names: tuple[str, ...]) -> None:
    """Raise an error unless all bags have the same number of features."""
    expected = tables[0].shape[1]
    for table, name in zip(tables, names, strict=True):
        if table.shape[1] != expected:
            raise ValueError(
                f"bag {name!r} has {table.shape[1]} features but bag {names[0]!r} has {expected}; "
                "expected the same in every bag"
            )


def join_instance_labels(
    instance_labels: Sequence[ArrayLike | None], sizes: Sequence[int], names: tuple[str, ...]
) -> Float[np.ndarray, " N"]:
    """Concatenate instance labels of bags, NaN for bags without any."""
    check_list(instance_labels, "instance_labels", "with one array for each bag")
    if len(instance_labels) != len(sizes):
        raise ValueError(
            f"instance_labels has {len(instance_labels)} entries; expected {len(sizes)}, one array "
            "for each bag"
        )
    return np.concatenate(
        [
            np.full(size, np.nan)
            if known is None
            else as_vector(known, size, f"instance_labels of bag {name!r}", "instance")
            for known, size, name in zip(instance_labels, sizes, names, strict=True)
        ]
    )


def as_bag_labels(
    labels: ArrayLike,
    codes: Int[np.ndarray, " N"],
    names: tuple[str, ...],
    row_of: Callable[[int], object] = int,
) -> Float[np.ndarray, " B"]:
    """Bag labels from one value for each bag, or for each row and constant within bags."""
    given = as_numbers(labels, "labels")
    num_bags, num_rows = len(names), len(codes)
    if given.shape == (num_bags,):
        return given
    if given.shape != (num_rows,):
        raise ValueError(
            f"labels has shape {given.shape}; expected ({num_bags},), one for each bag, or "
            f"({num_rows},), one for each row"
        )
    code_bag_labels(given, lambda row: f"bag {names[codes[row]]!r}, row {row_of(row)}")
    return one_for_each_bag(given, codes, names, "label", row_of)


def one_for_each_bag(
    given: Float[np.ndarray, " N"],
    codes: Int[np.ndarray, " N"],
    names: tuple[str, ...],
    kind: str,
    row_of: Callable[[int], object] = int,
) -> Float[np.ndarray, " B"]:
    """One value for each bag from values for each row, finite and constant within bags."""
    finite = np.isfinite(given)
    if not finite.all():
        row = int(np.argmin(finite))
        raise ValueError(
            f"{kind}s: bag {names[codes[row]]!r}, row {row_of(row)} has {kind} {given[row]:g}; "
            "expected a finite number, the same in each row of a bag"
        )
    first_row = np.unique(codes, return_index=True)[1]
    differs = given != given[first_row][codes]
    if differs.any():
        row = int(np.argmax(differs))
        first = int(first_row[codes[row]])
        raise ValueError(
            f"{kind}s: bag {names[codes[row]]!r} has two {kind}s, {given[first]:g} in row "
            f"{row_of(first)} and {given[row]:g} in row {row_of(row)}; expected one {kind} "
            "for each bag"
        )
    return given[first_row]


def check_finite(instances: Float[np.ndarray, "N D"], locate: Callable[[int], str]) -> None:
    """Raise an error for NaN and infinite values."""
    # In parts: one large mask would be new memory, which costs more than the check.
    starts = range(0, len(instances), _ROWS_AT_ONCE)
    if not all(np.isfinite(instances[start : start + _ROWS_AT_ONCE]).all() for start in starts):
        finite = np.isfinite(instances)
        n, d = np.argwhere(~finite)[0].tolist()
        raise ValueError(
            f"instances: {locate(n)} holds {instances[n, d]} in feature {d} "
            f"({(~finite).sum()} such values in all); expected finite numbers: impute or leave out"
        )


def check_squares(instances: Float[np.ndarray | Array, "N D"]) -> None:
    """Raise an error for features whose squares overflow, or vanish though the features do not."""
    largest = float(max(instances.max(), -instances.min()))
    if largest > _LARGEST_FEATURE or 0 < largest < 1 / _LARGEST_FEATURE:
        raise ValueError(
            f"instances reach {largest:.3g}, whose square is {largest * largest:g} in double "
            "precision; expected features of a usual scale: bags.standardize()"
        )


def code_bag_labels(
    given: Float[np.ndarray, " B"], locate: Callable[[int], str]
) -> Int[np.ndarray, " B"]:
    """Convert labels coded {0, 1} or {−1, 1}, one coding throughout, to {0, 1}."""
    wrong = ~np.isin(given, (-1, 0, 1))
    if wrong.any():
        b = int(np.argmax(wrong))
        raise ValueError(
            f"labels: {locate(b)} has label {given[b]:g}; expected {{0, 1}} or {{-1, 1}}, or no "
            "labels at all where they are unknown"
        )
    if (given == 0).any() and (given == -1).any():
        raise ValueError(
            f"labels: {locate(int(np.argmax(given == 0)))} has label 0 and "
            f"{locate(int(np.argmax(given == -1)))} has label -1; expected {{0, 1}} or {{-1, 1}}"
        )
    return (given > 0).astype(np.int64)


def code_instance_labels(
    given: Float[np.ndarray, " N"], minus_one_is_negative: bool, locate: Callable[[int], str]
) -> Int[np.ndarray, " N"]:
    """Convert {0, 1}, with −1 or NaN for unknown, to {−1, 0, 1}; refuse an ambiguous −1."""
    known = np.where(np.isnan(given), -1, given)
    wrong = ~np.isin(known, (-1, 0, 1))
    if wrong.any():
        n = int(np.argmax(wrong))
        raise ValueError(
            f"instance_labels: {locate(n)} has label {given[n]:g}; expected 0 or 1, and -1 or NaN "
            "where unknown"
        )
    if minus_one_is_negative and (given == -1).any():
        raise ValueError(
            f"instance_labels: {locate(int(np.argmax(given == -1)))} has label -1, and bag labels "
            "are coded {-1, 1}: it may mean negative or unknown; expected 0 or 1, and NaN where "
            "unknown"
        )
    return known.astype(np.int64)


def check_negative_bags(
    known: Int[np.ndarray, " N"], label_of_bag: Int[np.ndarray, " N"], locate: Callable[[int], str]
) -> None:
    """Raise an error for a positive instance in a negative bag."""
    contradiction = (known == 1) & (label_of_bag == 0)
    if contradiction.any():
        raise ValueError(
            f"instance_labels: {locate(int(np.argmax(contradiction)))} is positive but its bag is "
            "negative; expected no positive instance in a negative bag: correct one of the two"
        )


def warn_if_one_class(labels: Int[np.ndarray, " B"]) -> None:
    """Warn if all bags have one label, which is valid but rarely intended."""
    if (labels == labels[0]).all():
        warnings.warn(
            f"labels: all {len(labels)} bags have label {labels[0]}; nothing can be learned about "
            "the other class",
            UserWarning,
            stacklevel=2,
            skip_file_prefixes=(str(Path(__file__).parent),),
        )


def check_column(columns: Iterable, column: str, where: str, *, optional: bool) -> None:
    """Raise an error unless the column exists; ``optional`` adds a hint for unlabelled bags."""
    known = list(columns)
    if column not in known:
        near = get_close_matches(column, [str(other) for other in known], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        hint += " For unlabelled bags pass bag_label=None." if optional else ""
        raise KeyError(f"{where} has no column {column!r}{hint}")


def check_features(features: Sequence[str], roles: Iterable[str], where: str) -> None:
    """Raise an error unless features are columns, each of them once, without another role."""
    if isinstance(features, str):
        raise TypeError(f"features is {features!r}; expected a list of columns")
    for column in features:
        if column in {*roles, *NO_FEATURES}:
            raise ValueError(
                f"features: column {column!r} of {where} has the ids, labels or targets; leave it "
                "out"
            )
    check_once(features, "features")


def check_once(columns: Iterable, where: str) -> None:
    """Raise an error if two columns have one name."""
    twice = [column for column, number in Counter(columns).items() if number > 1]
    if twice:
        raise ValueError(f"{where}: two columns are called {twice[0]!r}; expected different names")


def as_column(frame: pd.DataFrame, column: str) -> Float[np.ndarray, " N"]:
    """A column of numbers, NaN where empty; True and False are 1 and 0."""
    dtype = frame[column].dtype
    content = _content(frame[column]) if dtype.kind == "O" else None
    if dtype.kind not in "biufO" or content not in (None, *_OF_NUMBERS):
        found = dtype if content is None else f"object, of {content}"
        remedy = _REMEDIES.get(dtype.kind, "")
        raise TypeError(f"column {column!r} has type {found}; expected numbers{remedy}")
    try:
        return frame[column].to_numpy(dtype=np.float64, na_value=np.nan)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"column {column!r} has type {frame[column].dtype}; expected numbers: {error}"
        ) from error


def _content(column: pd.Series) -> str:
    from pandas.api.types import infer_dtype

    return infer_dtype(np.asarray(column), skipna=True)


def read_only(array: np.ndarray) -> np.ndarray:
    """Make an array read-only and return it."""
    array.setflags(write=False)
    return array


def num_distinct_rows(rows: Float[np.ndarray, "N D"]) -> int:
    """Number of distinct rows.

    Rows are compared by their bytes, in a set: sorting long rows takes ten times as long.

    Parameters
    ----------
    rows : array (N, D)

    Returns
    -------
    int

    Examples
    --------
    >>> import numpy as np
    >>> from milzoo.datasets.checks import num_distinct_rows
    >>> num_distinct_rows(np.array([[0.0, 1.0], [-0.0, 1.0], [1.0, 0.0]]))
    2
    """
    return len({(row + 0.0).tobytes() for row in rows})  # −0.0 + 0.0 is 0.0
