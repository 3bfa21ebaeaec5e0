"""What drives a closed form, told of a toy that is one: how it ends, and on how many threads."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import numpy as np
import pytest
from milzoo.datasets import Bags
from milzoo.inference.closed_form import ClosedForm
from milzoo.inference.closed_form.drivers import Limits, ascend_in_memory, judge, repeat_steps
from milzoo.models.numerics.threads import one_lapack_thread
from milzoo.models.numerics.tracing import as_pytree
from threadpoolctl import threadpool_info, threadpool_limits

BAGS = Bags.from_arrays(np.zeros((2, 1)), np.arange(2), np.array([0, 1]))
# By each step of the toy.
SEEN: list[int] = []


def lapack_threads() -> int:
    return max(x["num_threads"] for x in threadpool_info() if x["user_api"] == "blas")


@as_pytree()
@dataclass(frozen=True)
class Toy(ClosedForm):
    """Its bound starts at ``first`` and changes by ``change`` in each step."""

    model: ClassVar[None] = None
    first: float
    change: float
    no_statistics = approximation = draw = guide = None  # nothing here asks for them

    def chunk(self, bags):
        return np.zeros(1)

    def start(self, subsample, key):
        return np.ones(())

    def prepare(self, chunk):
        return chunk

    def initial(self, prepared, start):
        return start * self.first, None

    def m_step(self, statistics):
        return statistics

    def e_step(self, prepared, q, local):
        jax.debug.callback(lambda: SEEN.append(lapack_threads()))
        return q + self.change, None

    def elbo(self, q, statistics):
        return statistics


def in_memory(toy, max_steps):
    """Trace and status, by one program."""
    with jax.enable_x64(True):
        ascent = ascend_in_memory(toy, BAGS, Limits(max_steps, 1e-8), key=jax.random.key(0))
        jax.effects_barrier()
    return ascent.elbo, ascent.status


def one_by_one(toy, max_steps):
    """The same, by a call for each step."""

    def advance(state, _):
        SEEN.append(lapack_threads())
        return state + toy.change, np.asarray([state + toy.change])

    _, elbo, status, _ = repeat_steps(
        advance, np.asarray(toy.first), Limits(max_steps, 1e-8), toy.allowed_fall
    )
    return elbo, status


both_ways = pytest.mark.parametrize("way", [in_memory, one_by_one])


@both_ways
def test_lapack_keeps_to_one_thread_during_the_ascent(way):
    with one_lapack_thread():
        pass  # what is remembered of this is where LAPACK is, not how many threads it had
    SEEN.clear()
    with threadpool_limits(limits=3, user_api="blas"):
        way(Toy(1.0, 1.0), max_steps=3)
        assert SEEN == [1, 1, 1]
        assert lapack_threads() == 3  # and only then


@both_ways
def test_a_falling_bound_is_reported_as_a_failure(way):
    elbo, status = way(Toy(5.0, -1.0), max_steps=10)
    assert status.kind == "failed"
    assert "fell by 1 at step 2" in status.sentence
    np.testing.assert_allclose(elbo, [4.0, 3.0])


@both_ways
def test_a_bound_that_is_none_is_a_failure(way):
    _, status = way(Toy(5.0, np.nan), max_steps=10)
    assert status.kind == "failed"
    assert "became nan at step 1" in status.sentence


@both_ways
def test_steps_end_where_the_bound_no_longer_moves(way):
    elbo, status = way(Toy(5.0, 1e-9), max_steps=10)
    assert status.kind == "converged" and len(elbo) == 2


@pytest.mark.slow
@both_ways
def test_steps_end_at_their_limit(way):
    elbo, status = way(Toy(5.0, 1.0), max_steps=300)  # of more than one block
    assert status.kind == "max_steps"
    np.testing.assert_allclose(elbo, 5.0 + np.arange(1, 301))


@pytest.mark.parametrize(
    ("trace", "kind"),
    [
        ([], None),
        ([[1.0, 2.0]], None),
        ([[1.0, 2.0], [1.0, 3.0]], None),  # the second start still rises
        ([[1.0, 2.0], [1.0, 2.0]], "converged"),
        ([[1.0, 2.0], [1.0, 1.5]], "failed"),
        ([[1.0, 2.0], [1.0, -np.inf]], "failed"),
    ],
)
def test_all_starts_are_judged_together(trace, kind):
    status = judge([np.array(bounds) for bounds in trace], 1e-8, 1e-9)
    assert (status and status.kind) == kind


def test_an_update_that_is_no_ascent_may_fall():
    bounds = [np.asarray(1.0), np.asarray(0.5)]
    assert judge(bounds, 1e-8, np.inf) is None
