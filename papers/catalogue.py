"""All papers, and their exhibits by name."""

from __future__ import annotations

from collections.abc import Iterator

from ..datasets.arguments import look_up
from . import (
    castro_macias_2024,
    hajimirsadeghi_2017,
    kandemir_2014,
    kandemir_2016,
    venkatesan_2015,
)
from .exhibits import Exhibit, Paper

__all__ = ["PAPERS", "exhibits_named"]

PAPERS: tuple[Paper, ...] = (
    kandemir_2014.PAPER,
    venkatesan_2015.PAPER,
    kandemir_2016.PAPER,
    hajimirsadeghi_2017.PAPER,
    castro_macias_2024.PAPER,
)


def exhibits_named(name: str) -> Iterator[tuple[Paper, Exhibit]]:
    """Exhibits by a name such as ``castro-macias-2024/table-6``, or all of ``castro-macias-2024``.

    Parameters
    ----------
    name : str

    Yields
    ------
    Paper, Exhibit

    Raises
    ------
    ValueError
        If the paper or the exhibit is unknown, with the nearest name.

    Examples
    --------
    >>> from milzoo.papers import exhibits_named
    >>> for paper, exhibit in exhibits_named("castro-macias-2024/table-6"):
    ...     print(f"{paper.name}, {exhibit.name}: {exhibit.title}, {len(exhibit.cells)} cells")
    castro-macias-2024, table-6: Scores on musk1, 6 cells
    """
    paper_name, _, exhibit_name = name.partition("/")
    paper = look_up("paper", paper_name, {paper.name: paper for paper in PAPERS})
    by_name = {exhibit.name: exhibit for exhibit in paper.exhibits}
    if exhibit_name:
        yield paper, look_up(f"table or figure of {paper_name}", exhibit_name, by_name)
    else:
        yield from ((paper, exhibit) for exhibit in paper.exhibits)
