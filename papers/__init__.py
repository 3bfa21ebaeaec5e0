"""The papers' tables and figures as data, and what reproduces them here.

Examples
--------
>>> from milzoo.papers import PAPERS
>>> for paper in PAPERS:
...     print(f"{paper.name}: {len(paper.exhibits)} tables and figures")
kandemir-2014: 9 tables and figures
venkatesan-2015: 10 tables and figures
kandemir-2016: 5 tables and figures
hajimirsadeghi-2017: 2 tables and figures
castro-macias-2024: 21 tables and figures
"""

from __future__ import annotations

from .catalogue import PAPERS, exhibits_named
from .exhibits import Attempt, Cell, Exhibit, Paper, Published
from .protocols import Protocol
from .reproduction import reproduce, scores_by_setting
from .results import Comparison, Outcome, Result, compared, outcomes_of

__all__ = [
    "PAPERS",
    "Attempt",
    "Cell",
    "Comparison",
    "Exhibit",
    "Outcome",
    "Paper",
    "Protocol",
    "Published",
    "Result",
    "compared",
    "exhibits_named",
    "outcomes_of",
    "reproduce",
    "scores_by_setting",
]
