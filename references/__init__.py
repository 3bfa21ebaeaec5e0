"""Reference posteriors: draws that passed hard gates, a yardstick for engines."""

from .benchmarking import benchmark_engine
from .entries import ENTRIES, Entry, entry_named
from .gates import Gate
from .league import LEAGUE, league, picture
from .making import Length, make_reference
from .stan import StanProgram, stan_program
from .stored import Reference, load_reference, save_reference

__all__ = [
    "ENTRIES",
    "LEAGUE",
    "Entry",
    "Gate",
    "Length",
    "Reference",
    "StanProgram",
    "benchmark_engine",
    "entry_named",
    "league",
    "load_reference",
    "make_reference",
    "picture",
    "save_reference",
    "stan_program",
]
