"""Count compilations of JAX, and measure their time apart from wall time."""

from __future__ import annotations

import time
from functools import cache

import jax

__all__ = ["Stopwatch", "compile_seconds", "num_compilations"]

# Events of tracing, lowering and XLA; an inner function's lie within those of an outer one.
_COMPILATION = "/jax/core/compile/"
_BY_XLA = "backend_compile"
# Intervals that are remembered: an outer one ends soon after those within it.
_MOST_INTERVALS = 4096


class _Clock:
    """Seconds that this process has spent on compilation, each second counted once."""

    def __init__(self) -> None:
        self.seconds, self.count = 0.0, 0
        self._intervals: list[tuple[float, float]] = []

    def record(self, event: str, duration_secs: float, **_: str | int) -> None:
        """Record an event that has just ended."""
        if not event.startswith(_COMPILATION):
            return
        end = time.perf_counter()
        start = end - duration_secs
        while self._intervals and self._intervals[-1][0] >= start:
            first, last = self._intervals.pop()
            self.seconds -= last - first
        self._intervals.append((start, end))
        del self._intervals[:-_MOST_INTERVALS]
        self.seconds += duration_secs
        self.count += _BY_XLA in event


@cache
def _clock() -> _Clock:
    clock = _Clock()
    jax.monitoring.register_event_duration_secs_listener(clock.record)
    return clock


def compile_seconds() -> float:
    """Seconds of compilation in this process since this was first asked; differences matter."""
    return _clock().seconds


def num_compilations() -> int:
    """Programs compiled in this process since this was first asked; differences matter."""
    return _clock().count


class Stopwatch:
    """Measure wall time and compilation time since its creation.

    Attributes
    ----------
    wall_seconds, compile_seconds : float
        Until now.
    """

    def __init__(self) -> None:
        self._compiled = compile_seconds()
        self._started = time.perf_counter()

    @property
    def wall_seconds(self) -> float:
        """Seconds since its creation."""
        return time.perf_counter() - self._started

    @property
    def compile_seconds(self) -> float:
        """Seconds of compilation since its creation."""
        return compile_seconds() - self._compiled

    @staticmethod
    def now() -> float:
        """Seconds of a clock that stands still while programs are compiled."""
        return time.perf_counter() - compile_seconds()
