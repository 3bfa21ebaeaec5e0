"""The papers' tables and figures as data, and what reproduces them here."""

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
