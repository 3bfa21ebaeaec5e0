"""Reference posteriors: draws that passed hard gates, a yardstick for engines.

Examples
--------
>>> from milzoo.references import ENTRIES, LEAGUE
>>> ENTRIES["vwsgp-musk1-20"].about
'Twenty values under the logistic likelihood of 92 bags: nearly Gaussian.'
>>> list(LEAGUE)[:4]
['coordinate_ascent', 'laplace', 'svi', 'svi, flow']
"""

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
