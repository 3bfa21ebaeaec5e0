"""The clock of compilation: what it counts, and that it counts no second twice."""

import time

import jax
import numpy as np
import pytest
from milzoo.inference.runtime import programs
from milzoo.inference.runtime.programs import Stopwatch, compile_seconds, num_compilations

TRACING, XLA = (
    "/jax/core/compile/jaxpr_trace_duration",
    "/jax/core/compile/backend_compile_duration",
)


@pytest.fixture
def recorded(monkeypatch):
    """Function of (event, start, end) in the order of their ends that gives a clock."""

    def of(*events):
        clock, ends = programs._Clock(), iter([end for *_, end in events])
        monkeypatch.setattr(programs.time, "perf_counter", lambda: next(ends))
        for event, start, end in events:
            clock.record(event, float(end - start))
        monkeypatch.undo()
        return clock

    return of


def test_a_compilation_inside_another_counts_once(recorded):
    clock = recorded((TRACING, 3, 5), (TRACING, 6, 7), (TRACING, 2, 10), (XLA, 10, 14))
    assert clock.seconds == pytest.approx(12)


def test_a_compilation_behind_another_counts_too(recorded):
    clock = recorded((XLA, 0, 2), (XLA, 5, 6), (TRACING, 7, 7.5), (XLA, 7, 9))
    assert clock.seconds == pytest.approx(5)


def test_only_programs_of_xla_are_counted(recorded):
    clock = recorded((TRACING, 0, 1), (XLA, 1, 2), ("/jax/other", 3, 4), (XLA, 5, 6))
    assert clock.count == 2
    assert clock.seconds == pytest.approx(3)


def test_a_stopwatch_tells_wall_time_and_compilation_in_it():
    watch, before = Stopwatch(), num_compilations()

    @jax.jit
    def inner(x):
        return np.pi * x**3

    jax.block_until_ready(jax.jit(lambda x: inner(x) + inner(2 * x))(np.ones(7)))
    assert num_compilations() > before
    assert 0 < watch.compile_seconds <= watch.wall_seconds


def test_compiled_programs_cost_nothing():
    program = jax.jit(lambda x: x + 11)
    jax.block_until_ready(program(np.ones(5)))
    watch, before = Stopwatch(), num_compilations()
    jax.block_until_ready(program(np.zeros(5)))
    assert num_compilations() == before and watch.compile_seconds == 0


def test_now_stands_still_while_programs_are_compiled(monkeypatch):
    started, wall, compiled = Stopwatch.now(), time.perf_counter(), compile_seconds()
    jax.block_until_ready(jax.jit(lambda x: np.e * x - 3)(np.ones(9)))
    passed = Stopwatch.now() - started
    rest = time.perf_counter() - wall - (compile_seconds() - compiled)
    assert passed == pytest.approx(rest, abs=0.05)
    assert compile_seconds() > compiled
