"""The container `Bags`: bags of instances in flat arrays, without padding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, Self

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike

from .arguments import check_counts, check_probability, checked_seed
from .checks import (
    NO_FEATURES,
    as_bag_labels,
    as_bag_names,
    as_column,
    as_numbers,
    as_table,
    as_vector,
    check_column,
    check_features,
    check_finite,
    check_list,
    check_negative_bags,
    check_once,
    check_widths,
    code_bag_labels,
    code_instance_labels,
    join_instance_labels,
    one_for_each_bag,
    read_only,
    warn_if_one_class,
)
from .edges import Edges, checked_edges, refuse_edges
from .writing import check_writable, written_whole

if TYPE_CHECKING:
    import pandas as pd
    import scipy.sparse

__all__ = ["Bags", "Standardization"]

# Rows of a Parquet file that are read at once, at least.
_ROW_GROUP = 2**14


@dataclass(frozen=True, eq=False)
class Bags:
    """N instances in B bags, with a label T_b ∈ {0, 1} or a target Y_b ∈ ℝ for each bag.

    Build it with `from_list`, `from_arrays`, `from_frame` or `from_padded`: they check everything
    once and name the bag, row or argument that is wrong. The plain constructor does not
    check its arguments. Arrays are 64-bit NumPy copies, read only.

    A ``Bags`` is a JAX pytree whose leaves are the arrays, so it passes through ``jax.jit``;
    ``num_bags`` stays static, and ``names`` are dropped (empty after unflattening).

    To scikit-learn a ``Bags`` is a container of B samples: ``len(bags)`` is B, ``bags.shape`` is
    ``(B,)`` and ``bags[indices]`` are bags, so that splitters, searches and pipelines take it for X
    and ``bags.labels`` for y.

    Parameters
    ----------
    instances : (N, D) float array
        One row x_n per instance, in the units of the features; rows of a bag are contiguous.
    bag_index : (N,) int array
        Bag b(n) of each instance: 0 … B−1, non-decreasing, every number present.
    labels : (B,) int array or None
        T_b ∈ {0, 1}; None where the bags are unlabelled.
    instance_labels : (N,) int array or None
        y_n ∈ {0, 1}, −1 where unknown; None where all are unknown.
    names : tuple of str
        The name of each bag, used in messages and to find published folds.
    num_bags : int
        B.
    targets : (B,) float array or None
        Y_b, for regression; see `with_targets`.
    present : (B,) bool array or None
        Which bags are present; None where all are. Absent bags pad arrays to sizes that programs
        are compiled for (`padded`), and are masked.
    edges : Edges or None
        Weighted edges between instances of one bag; see `with_edges`. None where there is no graph.

    Examples
    --------
    >>> from milzoo.datasets import Bags
    >>> bags = Bags.from_list([[[0.1, 2.0], [0.3, 1.5]], [[2.2, 0.4]]], labels=[0, 1])
    >>> bags
    Bags(2 bags (1 positive, 1 negative) of 1 to 2 instances, 3 instances of 2 features)
    >>> bags[1].instances
    array([[2.2, 0.4]])
    """

    instances: Float[np.ndarray | Array, "N D"]
    bag_index: Int[np.ndarray | Array, " N"]
    labels: Int[np.ndarray | Array, " B"] | None
    instance_labels: Int[np.ndarray | Array, " N"] | None
    names: tuple[str, ...]
    num_bags: int
    targets: Float[np.ndarray | Array, " B"] | None = None
    present: Bool[np.ndarray | Array, " B"] | None = None
    edges: Edges | None = None

    # ---------------------------------------------------------------- constructors

    @classmethod
    def from_list(
        cls,
        bags: Sequence[ArrayLike],
        labels: ArrayLike | None = None,
        instance_labels: Sequence[ArrayLike | None] | None = None,
        names: Sequence[str] | None = None,
    ) -> Self:
        """Bags from a list with one (N_b, D) array for each bag.

        Parameters
        ----------
        bags : sequence of (N_b, D) arrays
            The instances of each bag, one row each.
        labels : (B,) array or None
            Bag labels, coded {0, 1} or {−1, 1}.
        instance_labels : sequence of (N_b,) arrays or None
            0 or 1, and −1, NaN or None where unknown; None in place of an array means that
            all its labels are unknown. −1 is refused beside bag labels coded {−1, 1}, where it
            might mean "negative".
        names : sequence of str or None
            One for each bag, all different; "0", "1", … if left out.

        Returns
        -------
        Bags
            In the order given.

        Raises
        ------
        ValueError
            If a bag is empty, not two-dimensional or of another width, if a number is NaN or
            infinite, or if labels are of a wrong length or coding or contradict each other.
        TypeError
            If a value is not a number.

        Warns
        -----
        UserWarning
            If all bags have the same label.
        """
        check_list(bags, "bags", "with one (instances, features) array for each bag")
        if len(bags) == 0:
            raise ValueError("bags is an empty list; expected one (instances, features) array each")
        names = as_bag_names(names, len(bags))
        tables = [as_table(bag, f"bag {name!r}") for bag, name in zip(bags, names, strict=True)]
        check_widths(tables, names)
        sizes = [len(table) for table in tables]
        known = None
        if instance_labels is not None:
            known = join_instance_labels(instance_labels, sizes, names)
        return cls.checked(
            instances=np.concatenate(tables),
            bag_index=np.repeat(np.arange(len(tables)), sizes),
            labels=labels,
            instance_labels=known,
            names=names,
            row_of=np.concatenate([np.arange(size) for size in sizes]).__getitem__,
        )

    @classmethod
    def from_arrays(
        cls,
        instances: ArrayLike,
        bag_ids: ArrayLike,
        labels: ArrayLike | None = None,
        instance_labels: ArrayLike | None = None,
        names: Sequence[str] | None = None,
    ) -> Self:
        """Bags from flat arrays, one row for each instance, in any order.

        Rows are sorted, stably, into contiguous bags; bags are in order of first appearance.

        Parameters
        ----------
        instances : (N, D) array
            One row for each instance.
        bag_ids : (N,) array
            Numbers or strings; rows with the same id form a bag.
        labels : (B,) or (N,) array or None
            Bag labels, coded {0, 1} or {−1, 1}: one for each bag in order of first appearance, or
            one for each row, the same throughout a bag.
        instance_labels : (N,) array or None
            0 or 1, and −1, NaN or None where unknown; see `from_list`.
        names : sequence of str or None
            One for each bag in order of first appearance; the ids if left out.

        Returns
        -------
        Bags

        Raises
        ------
        ValueError, TypeError
            As in `from_list`; or if a bag has two labels, or a row has no bag.

        Warns
        -----
        UserWarning
            If all bags have the same label.
        """
        table = as_table(instances, "instances")
        bag_ids = np.asarray(bag_ids)
        if bag_ids.shape != (len(table),):
            raise ValueError(
                f"bag_ids has shape {bag_ids.shape}; expected ({len(table)},), one id for each row "
                "of instances"
            )
        codes, ids = _numbered(bag_ids)
        if (codes < 0).any():
            row = int(np.argmax(codes < 0))
            raise ValueError(f"bag_ids: row {row} has no bag ({bag_ids[row]}); give it an id")
        order = np.argsort(codes, kind="stable")
        known = None
        if instance_labels is not None:
            known = as_vector(instance_labels, len(table), "instance_labels", "row")[order]
        names = as_bag_names([str(i) for i in ids] if names is None else names, len(ids))
        if labels is not None:
            labels = as_bag_labels(labels, codes, names)
        return cls.checked(
            instances=table[order],
            bag_index=codes[order],
            labels=labels,
            instance_labels=known,
            names=names,
            row_of=order.__getitem__,
        )

    @classmethod
    def from_frame(
        cls,
        frame: pd.DataFrame,
        bag: str = "bag",
        bag_label: str | None = "bag_label",
        instance_label: str | None = "instance_label",
        features: Sequence[str] | None = None,
        bag_target: str | None = "bag_target",
    ) -> Self:
        """Bags from a data frame with one row for each instance.

        Parameters
        ----------
        frame : pandas.DataFrame
            Rows in any order; rows are counted from 0 in messages.
        bag : str
            The column of bag ids.
        bag_label : str or None
            The column of bag labels, the same throughout a bag; None for unlabelled bags. The
            column ``"bag_label"`` need not be there beside one of targets.
        instance_label : str or None
            The column of instance labels, empty (NaN) where unknown. The column
            ``"instance_label"`` need not be there.
        features : sequence of str or None
            The columns of features. If left out: all other columns, except text and those named
            ``bag_label``, ``instance_label`` or ``bag_target``. True and False are 1 and 0.
        bag_target : str or None
            The column of targets, the same throughout a bag. The column ``"bag_target"`` need not
            be there.

        Returns
        -------
        Bags

        Raises
        ------
        KeyError
            If a column is not there.
        ValueError, TypeError
            As in `from_arrays`; or if two columns have one name, a column has two roles, or a
            feature is complex or a time.

        Warns
        -----
        UserWarning
            If all bags have the same label.
        """
        import pandas as pd

        if instance_label == "instance_label" and instance_label not in frame:
            instance_label = None
        if bag_target == "bag_target" and bag_target not in frame:
            bag_target = None
        if bag_label == "bag_label" and bag_label not in frame and bag_target is not None:
            bag_label = None
        given = (bag, bag_label, instance_label, bag_target)
        roles = [column for column in given if column is not None]
        check_once(roles, "bag, bag_label, instance_label and bag_target")
        if features is not None:
            check_features(features, roles, "the frame")
        for column in [*roles, *(features or ())]:
            check_column(frame.columns, column, "the frame", optional=column == bag_label)
        if features is None:
            taken = [column for column in frame if column in {*roles, *NO_FEATURES}]
            features = [
                name for name, kind in frame.drop(columns=taken).dtypes.items() if kind.kind != "O"
            ]
        check_once([one for one in frame if one in {*roles, *features}], "the frame")
        if len(features) == 0:
            raise ValueError(f"features: no numeric column besides {roles}; expected at least one")
        bags = cls.from_arrays(
            np.column_stack([as_column(frame, feature) for feature in features]),
            frame[bag].to_numpy(),
            labels=None if bag_label is None else as_column(frame, bag_label),
            instance_labels=None if instance_label is None else as_column(frame, instance_label),
        )
        if bag_target is None:
            return bags
        codes = pd.factorize(frame[bag])[0]
        targets = one_for_each_bag(as_column(frame, bag_target), codes, bags.names, "target")
        return bags.with_targets(targets)

    @classmethod
    def from_padded(
        cls,
        X: ArrayLike,
        Y: ArrayLike | None = None,
        mask: ArrayLike | None = None,
        y_inst: ArrayLike | None = None,
        names: Sequence[str] | None = None,
    ) -> Self:
        """Bags from padded arrays under torchmil's keys: ``Bags.from_padded(**batch)``.

        Parameters
        ----------
        X : (B, L, D) array
            Instances, padded to the length L of the longest bag.
        Y : (B,) array or None
            Bag labels, coded {0, 1} or {−1, 1}.
        mask : (B, L) array or None
            True (or 1) where there is an instance; everywhere if left out.
        y_inst : (B, L) array or None
            Instance labels, 0 or 1, and −1 or NaN where unknown; see `from_list`.
        names : sequence of str or None
            One for each bag, all different; "0", "1", … if left out.

        Returns
        -------
        Bags
            Padding left out.

        Raises
        ------
        ValueError, TypeError
            As in `from_list`; rows are positions 0 … L−1 in the padded bag.

        Warns
        -----
        UserWarning
            If all bags have the same label.
        """
        padded = as_numbers(X, "X")
        if padded.ndim != 3:
            raise ValueError(f"X has shape {padded.shape}; expected (bags, positions, features)")
        shape = padded.shape[:2]
        present = np.ones(shape, bool) if mask is None else _as_mask(mask)
        known = None if y_inst is None else as_numbers(y_inst, "y_inst")
        for argument, array in (("mask", present), ("y_inst", known)):
            if array is not None and array.shape != shape:
                raise ValueError(
                    f"{argument} has shape {array.shape}; expected {shape}, the first two of X"
                )
        names = as_bag_names(names, shape[0])
        if not present.any(axis=1).all():
            empty = int(np.argmin(present.any(axis=1)))
            raise ValueError(
                f"bag {names[empty]!r} is empty: its mask is 0 throughout; leave it out"
            )
        bag_index, rows = np.nonzero(present)
        return cls.checked(
            instances=as_table(padded[present], "X"),
            bag_index=bag_index,
            labels=Y,
            instance_labels=None if known is None else known[present],
            names=names,
            row_of=rows.__getitem__,
        )

    @classmethod
    def from_sawmil(cls, bags: Iterable[Any], names: Sequence[str] | None = None) -> Self:
        """Bags from those of sawmil: ``Bags.from_sawmil(dataset.bags)``.

        Parameters
        ----------
        bags : iterable of objects
            Each with ``X``, its (N_b, D) instances, ``y``, its label, coded {0, 1} or {−1, 1}, and
            ``intra_bag_mask``, (N_b,): 1 where an instance may be a witness, and 0 where it is
            none. None in its place means that all may be.
        names : sequence of str or None
            One for each bag, all different; "0", "1", … if left out.

        Returns
        -------
        Bags
            A mask of 0 is the instance label 0; one of 1 says nothing, and the label is unknown.

        Raises
        ------
        ValueError, TypeError
            As in `from_list`; or if a mask is of another length, or has other values.
        AttributeError
            If an object has no ``X`` or no ``y``.

        Warns
        -----
        UserWarning
            If all bags have the same label.
        """
        bags = list(bags)
        shown = as_bag_names(names, len(bags))
        labels = np.array([bag.y for bag in bags], float)
        known = [_labels_of_mask(bag, name) for bag, name in zip(bags, shown, strict=True)]
        return cls.from_list(
            [bag.X for bag in bags],
            # −1 beside labels coded {−1, 1} might mean "negative"
            labels=np.where(labels == -1, 0, labels),
            instance_labels=None if all(one is None for one in known) else known,
            names=names,
        )

    def without_labels(self) -> Self:
        """Bags without their labels, instance labels and targets; edges stay.

        Returns
        -------
        Bags
        """
        return replace(self, labels=None, instance_labels=None, targets=None)

    def with_targets(self, targets: ArrayLike) -> Self:
        """Bags with a target, a real number, for each: multiple-instance regression.

        Parameters
        ----------
        targets : (B,) array
            Y_b, in any units; the models have prior mean 0, so centre them.

        Returns
        -------
        Bags

        Raises
        ------
        ValueError
            If there is not one finite number for each bag.
        TypeError
            If a value is not a number.
        """
        given = as_vector(targets, self.num_bags, "targets", "bag")
        if not np.isfinite(given).all():
            bag = int(np.argmin(np.isfinite(given)))
            name = self.names[bag] if self.names else bag
            raise ValueError(f"targets: bag {name!r} has {given[bag]}; expected a finite number")
        return replace(self, targets=read_only(given))

    def with_edges(
        self,
        adjacency: scipy.sparse.sparray
        | scipy.sparse.spmatrix
        | Sequence[scipy.sparse.sparray | scipy.sparse.spmatrix]
        | None,
    ) -> Self:
        """Bags with a graph of their instances, such as neighbours in an image.

        Edges stay with their bags through `select`, `split`, `folds`, `standardize` and saved
        posteriors. Files, frames and padded arrays have none: `to_frame`, `to_parquet`,
        `to_padded` and `to_sawmil` refuse bags with edges, and `stream` reads bags without.

        Parameters
        ----------
        adjacency : scipy.sparse array (N, N), or sequence of (N_b, N_b), or None
            Weights w_nj ≥ 0 between all instances, in the order of ``bags.instances``, or a matrix
            for each bag. Symmetric, with a zero diagonal, and without edges between bags. None for
            bags without a graph.

        Returns
        -------
        Bags

        Raises
        ------
        TypeError
            If it is neither a scipy.sparse array of numbers nor a sequence of them.
        ValueError
            If a shape is wrong, a weight is negative or not finite, the matrix is not symmetric, an
            instance has an edge to itself, or an edge leads from one bag to another.

        Examples
        --------
        >>> import scipy.sparse
        >>> from milzoo.datasets import Bags
        >>> chain = scipy.sparse.csr_array([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
        >>> bags = Bags.from_list([[[0.1], [0.4], [0.2]]]).with_edges([chain])
        >>> bags.edges.row.tolist(), bags.edges.column.tolist()
        ([0, 1, 1, 2], [1, 0, 2, 1])
        """
        edges = None if adjacency is None else checked_edges(adjacency, self.bag_sizes, self.names)
        return replace(self, edges=edges)

    @classmethod
    def checked(
        cls,
        *,
        instances: Float[np.ndarray, "N D"],
        bag_index: Int[np.ndarray, " N"],
        labels: ArrayLike | None,
        instance_labels: np.ndarray | None,
        names: tuple[str, ...],
        row_of: Callable[[int], object],
        is_part: bool = False,
    ) -> Self:
        """Bags from arrays, with the checks that all constructors share.

        Parameters
        ----------
        instances, bag_index, labels, instance_labels, names
            As the fields.
        row_of : callable
            The row of an instance as the caller knows it, for messages.
        is_part : bool
            Whether there are more bags than these, so that they may all have one label.
        """

        def locate(n: int) -> str:
            return f"bag {names[bag_index[n]]!r}, row {row_of(n)}"

        check_finite(instances, locate)
        coded = None
        minus_one_is_negative = False
        if labels is not None:
            given = as_vector(labels, len(names), "labels", "bag")
            minus_one_is_negative = bool((given == -1).any())
            coded = code_bag_labels(given, lambda b: f"bag {names[b]!r}")
            if not is_part:
                warn_if_one_class(coded)
        known = None
        if instance_labels is not None:
            known = code_instance_labels(instance_labels, minus_one_is_negative, locate)
            if coded is not None:
                check_negative_bags(known, coded[bag_index], locate)
        return cls(
            instances=read_only(instances),
            bag_index=read_only(bag_index.astype(np.int64)),
            labels=None if coded is None else read_only(coded),
            instance_labels=None if known is None else read_only(known),
            names=names,
            num_bags=len(names),
        )

    # ------------------------------------------------------------- export

    def to_list(self) -> list[Float[np.ndarray, "_ D"]]:
        """The (N_b, D) instances of each bag, as read-only views; nothing else of the bags."""
        return np.split(np.asarray(self.instances), self.starts[1:])

    def to_frame(self) -> pd.DataFrame:
        """A data frame as `from_frame` reads: bag, bag_label, bag_target, instance_label, x0 … .

        There are columns of labels and targets if the bags have them; an unknown instance label is
        missing (NA).

        Raises
        ------
        ValueError
            If two bags have the same name, as after `select` with repetition, or the bags have
            edges.
        """
        import pandas as pd

        refuse_edges(self.edges, "a frame or a file of it")
        names = np.array(self.names or [str(b) for b in range(self.num_bags)], dtype=object)
        if len(set(names)) < len(names):
            raise ValueError(
                "names: two bags have the same name, and a frame would merge them; expected "
                "different names"
            )
        bag_index = np.asarray(self.bag_index)
        columns: dict[str, Any] = {"bag": names[bag_index]}
        if self.labels is not None:
            columns["bag_label"] = np.asarray(self.labels)[bag_index]
        if self.targets is not None:
            columns["bag_target"] = np.asarray(self.targets)[bag_index]
        if self.instance_labels is not None:
            known = pd.Series(np.asarray(self.instance_labels), dtype="Int64")
            columns["instance_label"] = known.mask(known == -1)
        features = pd.DataFrame(
            np.asarray(self.instances), columns=[f"x{d}" for d in range(self.num_features)]
        )
        return pd.concat([pd.DataFrame(columns), features], axis=1)

    def to_parquet(self, path: str | PathLike) -> None:
        """Write the frame of `to_frame` to a Parquet file, which `stream` reads in chunks.

        Data larger than memory are written part by part, as several files in one folder.

        Parameters
        ----------
        path : path
            Conventionally ``*.parquet``; written whole, or not at all.

        Raises
        ------
        ValueError
            If two bags have the same name, or the bags have edges.
        """
        check_writable(path)
        frame = self.to_frame()
        with written_whole(path) as file:
            frame.to_parquet(file, engine="pyarrow", index=False, row_group_size=_ROW_GROUP)

    def to_padded(self) -> dict[str, np.ndarray | None]:
        """Arrays padded to the longest bag under torchmil's keys ``X, Y, y_inst, mask``.

        Padding is 0 in ``X`` and −1 (unknown) in ``y_inst``; unknown labels are None, and
        targets are dropped.

        Raises
        ------
        ValueError
            If the bags have edges.
        """
        refuse_edges(self.edges, "padded arrays")
        sizes = self.bag_sizes
        mask = np.arange(sizes.max()) < sizes[:, None]
        X = np.zeros((*mask.shape, self.num_features))
        X[mask] = self.instances
        y_inst = None
        if self.instance_labels is not None:
            y_inst = np.full(mask.shape, -1)
            y_inst[mask] = self.instance_labels
        Y = None if self.labels is None else np.array(self.labels)
        return {"X": X, "Y": Y, "y_inst": y_inst, "mask": mask}

    def to_sawmil(self) -> list[dict[str, Any]]:
        """Arguments of sawmil's bags, ``[Bag(**one) for one in bags.to_sawmil()]``.

        Each has ``X``, ``y`` and ``intra_bag_mask``, as `from_sawmil` reads. The mask is 0 for an
        instance that is known to be negative in a positive bag, else 1.

        Raises
        ------
        ValueError
            If the bags have no labels, or have edges.
        """
        refuse_edges(self.edges, "sawmil's bags")
        if self.labels is None:
            raise ValueError("bags have no labels; expected one for each bag, as sawmil needs")
        mask = np.ones(self.num_instances)
        if self.instance_labels is not None:
            in_positive = np.asarray(self.labels)[self.bag_index] == 1
            mask[in_positive & (np.asarray(self.instance_labels) == 0)] = 0.0
        masks = np.split(mask, self.starts[1:])
        return [
            {"X": np.array(X), "y": float(y), "intra_bag_mask": one}
            for X, y, one in zip(self.to_list(), self.labels, masks, strict=True)
        ]

    # ------------------------------------------------------------------ selection

    def __len__(self) -> int:
        """Number B of bags."""
        return self.num_bags

    @property
    def shape(self) -> tuple[int]:
        """(B,): bags are the samples, as scikit-learn counts them."""
        return (self.num_bags,)

    def __getitem__(self, key: Any) -> Bags:
        """Select bags by Python's and NumPy's rules of indices, one bag by a number.

        Parameters
        ----------
        key : int, slice, (B,) array of bool, array of int, or any of these and ``...``

        Returns
        -------
        Bags
            Also for a single number: bags of one.

        Raises
        ------
        IndexError
            If a bag does not exist, or a mask is not of length B.
        ValueError
            If no bag is chosen.
        """
        if isinstance(key, tuple):  # scikit-learn indexes arrays of any rank: X[indices, ...]
            key = tuple(part for part in key if part is not Ellipsis)
            if len(key) != 1:
                raise IndexError(f"bags have one axis, and {len(key)} indices were given")
            (key,) = key
        return self.select(np.atleast_1d(np.arange(self.num_bags)[key]))

    def __iter__(self) -> Iterator[Bags]:
        """Iterate over the bags, each as bags of one."""
        return (self[b] for b in range(self.num_bags))

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        # NumPy would otherwise take bags of one for sequences of themselves, without end.
        raise TypeError(
            "Bags are not an array; use bags.instances, an array of instances by features, or "
            "bags.to_padded()"
        )

    def select(self, chosen: ArrayLike) -> Bags:
        """Select bags by number or by mask, in the order chosen.

        Parameters
        ----------
        chosen : array of int, or (B,) array of bool
            Bag numbers 0 … B−1 (a bag may be chosen twice, as in a bootstrap), or a mask.

        Returns
        -------
        Bags

        Raises
        ------
        IndexError
            If a bag number does not exist, or the mask is not of length B.
        ValueError
            If no bag is chosen.
        """
        numbers = self._bag_numbers(np.asarray(chosen))
        sizes = self.bag_sizes[numbers]
        ends = np.cumsum(sizes)
        rows = np.arange(ends[-1]) + np.repeat(self.starts[numbers] - (ends - sizes), sizes)

        def part(array: np.ndarray | Array | None, index: np.ndarray) -> np.ndarray | None:
            return None if array is None else read_only(np.asarray(array)[index])

        return Bags(
            instances=read_only(np.asarray(self.instances)[rows]),
            bag_index=read_only(np.repeat(np.arange(len(numbers)), sizes)),
            labels=part(self.labels, numbers),
            instance_labels=part(self.instance_labels, rows),
            names=tuple(self.names[b] for b in numbers) if self.names else (),
            num_bags=len(numbers),
            targets=part(self.targets, numbers),
            present=part(self.present, numbers),
            edges=None if self.edges is None else self.edges.select(self.starts[numbers], sizes),
        )

    def split(self, fraction: float, *, seed: int) -> tuple[Bags, Bags]:
        """Split the bags into two random parts, stratified by label.

        Parameters
        ----------
        fraction : float
            Fraction of the bags in the first part, 0 < fraction < 1. Of each label, the first part
            gets that fraction to within one bag.
        seed : int
            Seed of the shuffle.

        Returns
        -------
        tuple of two Bags
            Disjoint, together all bags; each keeps the bags' order.

        Raises
        ------
        ValueError
            If a part would be empty, or the seed is out of range.
        TypeError
            If the seed is not an integer.
        """
        check_probability(fraction=fraction)
        cumulative = np.floor(np.arange(self.num_bags + 1) * fraction + 0.5)
        in_first = np.zeros(self.num_bags, bool)
        # Bags are sorted by label, so an evenly spaced choice is stratified.
        in_first[self._shuffled_by_label(_random(seed))] = np.diff(cumulative) == 1
        if in_first.all() or not in_first.any():
            raise ValueError(
                f"fraction is {fraction}, which leaves a part of {self.num_bags} bags empty; "
                "expected a fraction between 0 and 1 with at least one bag on each side"
            )
        return self.select(in_first), self.select(~in_first)

    def folds(self, k: int, *, repeats: int = 1, seed: int) -> Iterator[tuple[Bags, Bags]]:
        """Pairs (train, test) of k-fold cross-validation by bag, stratified by label.

        In each repetition every bag is tested once; folds differ by at most one bag, and by at most
        one bag of each label. ``k = num_bags`` leaves one bag out at a time.

        Parameters
        ----------
        k : int
            Number of folds, 2 … B.
        repeats : int
            Number of repetitions, each with a new shuffle.
        seed : int
            Seed of the shuffles.

        Returns
        -------
        iterator over ``k · repeats`` pairs of Bags
            (train, test), repetition by repetition.

        Raises
        ------
        ValueError
            If k is not in 2 … B, repeats is below 1, or the seed is out of range.
        TypeError
            If the seed is not an integer.
        """
        check_counts(k=k, repeats=repeats)
        if not 2 <= k <= self.num_bags:
            raise ValueError(f"k is {k}; expected 2 to {self.num_bags}, the number of bags")
        random = _random(seed)
        fold = np.empty((repeats, self.num_bags), int)
        for repetition in range(repeats):
            # Folds in turn, label by label.
            fold[repetition, self._shuffled_by_label(random)] = np.arange(self.num_bags) % k
        return (
            (self.select(fold[repetition] != test), self.select(fold[repetition] == test))
            for repetition in range(repeats)
            for test in range(k)
        )

    def standardize(self, reference: Bags | None = None) -> Bags:
        """Features centred and scaled, x ↦ (x − mean) / sd, over the instances of ``reference``.

        Parameters
        ----------
        reference : Bags or None
            The bags that the mean and sd are taken from, as a rule the training bags; these bags
            themselves if left out. A feature that is constant there keeps its scale.

        Returns
        -------
        Bags

        Raises
        ------
        ValueError
            If the reference has another number of features, or a feature would be infinite.
        """
        return Standardization.of(self if reference is None else reference)(self)

    # ------------------------------------------------------------------ sizes

    @property
    def num_instances(self) -> int:
        """Number N of instances."""
        return self.instances.shape[0]

    @property
    def num_features(self) -> int:
        """Number D of features."""
        return self.instances.shape[1]

    @property
    def bag_sizes(self) -> Int[np.ndarray, " B"]:
        """(B,) number of instances N_b of each bag. Not for traced bags (inside ``jax.jit``)."""
        return np.bincount(np.asarray(self.bag_index), minlength=self.num_bags)

    @property
    def starts(self) -> Int[np.ndarray, " B"]:
        """(B,) row of each bag's first instance. Not for traced bags (inside ``jax.jit``)."""
        sizes = self.bag_sizes
        return np.cumsum(sizes) - sizes

    def __repr__(self) -> str:
        if not isinstance(self.bag_index, np.ndarray):
            return f"Bags({self.num_bags} bags, instances={self.instances!r})"
        counts = f"{self.num_bags} bags"
        if isinstance(self.labels, np.ndarray):
            positive = int(self.labels.sum())
            counts += f" ({positive} positive, {self.num_bags - positive} negative)"
        else:
            counts += " (with targets)" if self.targets is not None else " (unlabelled)"
        sizes = self.bag_sizes
        graph = "" if self.edges is None else f", {self.edges.num_edges // 2} pairs of neighbours"
        return (
            f"Bags({counts} of {sizes.min()} to {sizes.max()} instances, {self.num_instances} "
            f"instances of {self.num_features} features{graph})"
        )

    def _bag_numbers(self, chosen: np.ndarray) -> Int[np.ndarray, " chosen"]:
        if chosen.dtype == bool:
            if chosen.shape != (self.num_bags,):
                raise IndexError(
                    f"chosen is a mask of shape {chosen.shape}; expected ({self.num_bags},)"
                )
            chosen = np.flatnonzero(chosen)
        if chosen.size == 0:
            raise ValueError("chosen is empty; expected at least one bag")
        if chosen.ndim != 1 or not np.issubdtype(chosen.dtype, np.integer):
            raise IndexError(
                f"chosen has shape {chosen.shape} and type {chosen.dtype}; expected a list of bag "
                "numbers or a mask"
            )
        unknown = chosen[(chosen < 0) | (chosen >= self.num_bags)]
        if unknown.size:
            raise IndexError(
                f"chosen: there is no bag {unknown[0]}; bags are numbered 0 to {self.num_bags - 1}"
            )
        return chosen

    def _shuffled_by_label(self, random: np.random.Generator) -> Int[np.ndarray, " B"]:
        """Bag numbers in random order within each label, negative bags first."""
        order = random.permutation(self.num_bags)
        if self.labels is None:
            return order
        return order[np.argsort(np.asarray(self.labels)[order], kind="stable")]


@dataclass(frozen=True, eq=False)
class Standardization:
    """Features centred and scaled, x ↦ (2^−e x − centre) / scale, by the instances of some bags.

    Attributes
    ----------
    exponent : (D,) int array
        e: powers of two are exact, and squares of features so scaled neither overflow nor vanish.
    centre, scale : (D,) float array
        Mean and sd of the scaled features; a constant feature has scale 1.
    """

    exponent: Int[np.ndarray, " D"]
    centre: Float[np.ndarray, " D"]
    scale: Float[np.ndarray, " D"]

    @classmethod
    def of(cls, bags: Bags) -> Self:
        """Take the mean and sd from the instances of ``bags``."""
        rows = np.asarray(bags.instances)
        constant = rows.min(axis=0) == rows.max(axis=0)
        exponent = np.where(constant, 0, np.frexp(np.abs(rows).max(axis=0))[1])
        # The mean of a constant column has a rounding error, and nothing can be divided by its sd.
        varying = np.ldexp(np.where(constant, 0.0, rows), -exponent)
        return cls(
            exponent=exponent,
            centre=np.where(constant, rows[0], varying.mean(axis=0)),
            scale=np.where(constant, 1.0, varying.std(axis=0)),
        )

    def __call__(self, bags: Bags) -> Bags:
        """The bags with their features centred and scaled.

        Raises
        ------
        ValueError
            If they have another number of features, or a feature would be infinite.
        """
        if bags.num_features != len(self.scale):
            raise ValueError(
                f"reference has {len(self.scale)} features, these bags {bags.num_features}; "
                "expected the same"
            )
        with np.errstate(over="ignore"):  # what overflows is refused
            scaled = (np.ldexp(bags.instances, -self.exponent) - self.centre) / self.scale
        if not np.isfinite(scaled).all():
            n, d = np.argwhere(~np.isfinite(scaled))[0].tolist()
            bag = int(bags.bag_index[n])
            raise ValueError(
                f"bag {bags.names[bag] if bags.names else bag!r}, row {n - bags.starts[bag]} has "
                f"{bags.instances[n, d]:g} in feature {d}, which is beyond all numbers in standard "
                "deviations of the reference; expected features of one scale: leave that one out"
            )
        return replace(bags, instances=read_only(scaled))


def _numbered(bag_ids: np.ndarray) -> tuple[Int[np.ndarray, " N"], np.ndarray]:
    """Bags numbered in order of first appearance, −1 where an id is missing, and their ids."""
    import pandas as pd

    try:
        return pd.factorize(bag_ids)
    except TypeError as error:
        raise TypeError(f"bag_ids: {error}; expected numbers or strings") from error


def _labels_of_mask(bag: Any, name: str) -> Float[np.ndarray, " N_b"] | None:
    """Instance labels of a bag of sawmil: 0 where its mask is, else −1; None if nowhere."""
    mask = getattr(bag, "intra_bag_mask", None)
    if mask is None:
        return None
    given = as_vector(mask, len(bag.X), f"bag {name!r}: intra_bag_mask", "instance")
    if not np.isin(given, (0, 1)).all():
        wrong = given[~np.isin(given, (0, 1))][0]
        raise ValueError(f"bag {name!r}: intra_bag_mask has value {wrong:g}; expected 0 or 1")
    return None if given.all() else np.where(given == 0, 0.0, -1.0)


def _as_mask(mask: ArrayLike) -> np.ndarray:
    numbers = as_numbers(mask, "mask")
    if np.isnan(numbers).any():
        position = np.argwhere(np.isnan(numbers))[0].tolist()
        raise ValueError(
            f"mask{position} is NaN; expected True or False (1 or 0), False where there is no "
            "instance"
        )
    return numbers.astype(bool)


def _random(seed: int) -> np.random.Generator:
    return np.random.default_rng(checked_seed(seed))


# ------------------------------------------------------------------------ pytree

_LEAVES = ("instances", "bag_index", "labels", "instance_labels", "targets", "present", "edges")


def _flatten_with_keys(bags: Bags) -> tuple[tuple[tuple[Any, Any], ...], int]:
    return tuple((jax.tree_util.GetAttrKey(leaf), getattr(bags, leaf)) for leaf in _LEAVES), (
        bags.num_bags
    )


def _flatten(bags: Bags) -> tuple[tuple[Any, ...], int]:
    return tuple(getattr(bags, leaf) for leaf in _LEAVES), bags.num_bags


def _unflatten(num_bags: int, leaves: Iterable[Any]) -> Bags:
    # JAX also puts tracers, gradients and placeholders here: no __init__, so no checks.
    bags = object.__new__(Bags)
    for name, leaf in zip(_LEAVES, leaves, strict=True):
        object.__setattr__(bags, name, leaf)
    object.__setattr__(bags, "names", ())
    object.__setattr__(bags, "num_bags", num_bags)
    return bags


jax.tree_util.register_pytree_with_keys(Bags, _flatten_with_keys, _unflatten, _flatten)
