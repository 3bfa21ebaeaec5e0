"""A progress bar that costs nothing when it is not shown."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

__all__ = ["Progress"]


class Progress:
    """Context manager around a bar of known length.

    Parameters
    ----------
    label : str
        What is counted.
    total : int
        The final count.
    shown : bool
        Whether anything is drawn.
    """

    def __init__(self, label: str, total: int, *, shown: bool) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._bar = RichProgress(*columns, TimeRemainingColumn(), disable=not shown, transient=True)
        self._task = self._bar.add_task(label, total=total)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def advance(self, steps: int) -> None:
        """Count ``steps`` more."""
        self._bar.advance(self._task, steps)
