"""The executor's map."""

import itertools
import sys
import threading

import pytest
from executor_subjects import TIMEOUT, look, variable

import ctxcarry

# Whether other pools are instrumented must make no difference to this one.
pytestmark = pytest.mark.usefixtures("instrumentation")


def test_map_carries_the_context_of_the_call(make, local):
    """`map` captures once, when it is called, however late its results are asked for (trap 16)."""
    pool = make(2)
    variable.set("near")
    local.value = "near"
    results = pool.map(lambda n: (n, look(), local.value), range(3))
    variable.set("later")
    local.value = "later"
    assert [(n, "near", "near") for n in range(3)] == list(results)


def test_map_captures_once(make, registry):
    """One `map` call takes one snapshot."""
    calls = []

    class Counting:
        name = "counting"

        def capture(self):
            if threading.current_thread() is threading.main_thread():
                calls.append(1)
            return ctxcarry.MISSING

        def apply(self, state):
            pass

        def undo(self, token):
            pass

    registry.register(Counting())
    assert [0, 1, 2] == list(make().map(int, range(3)))
    assert [1] == calls


def test_map_of_unequal_lengths(make):
    """The shortest iterable decides, as for a plain pool."""
    assert [(0, "a"), (1, "b")] == list(make().map(lambda *p: p, range(5), "ab"))
    assert [] == list(make().map(lambda *p: p, range(5), ""))


def test_map_of_unsized_iterables(make):
    """Iterables without a length work, in any place."""
    pool = make()
    generator = (n for n in range(3))
    assert [(0, 5), (1, 6), (2, 7)] == list(pool.map(lambda *p: p, generator, iter([5, 6, 7])))


def test_map_of_an_endless_iterable(make):
    """An endless iterable is no trouble when another one ends, whichever comes first."""
    pool = make()
    assert [(5, 0), (6, 1)] == list(pool.map(lambda *p: p, [5, 6], itertools.count()))
    assert [(0, 5), (1, 6)] == list(pool.map(lambda *p: p, itertools.count(), [5, 6]))


def test_map_consumes_its_iterables_at_the_call(make):
    """Items are taken in the calling thread and context, as by a plain pool."""
    pool = make()
    variable.set("near")
    results = pool.map(lambda seen: (seen, look()), (look() for _ in range(2)))
    variable.set("later")
    assert [("near", "near")] * 2 == list(results)


def test_map_with_chunksize_and_timeout(make, occupied):
    """`chunksize` and `timeout` mean what they do for a plain pool."""
    pool = make()
    assert [0, 1, 2] == list(pool.map(int, range(3), timeout=TIMEOUT, chunksize=2))
    with occupied(pool):
        results = pool.map(int, range(3), timeout=0)
        with pytest.raises(TimeoutError if sys.version_info >= (3, 11) else Exception):
            next(results)


def test_map_raises_where_the_failing_item_is(make):
    """The exception of an item comes when its result is asked for."""
    results = make().map(lambda n: 1 // n, [1, 0, 2])
    assert 1 == next(results)
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_map_cancels_the_rest_when_it_is_closed(make, occupied):
    """Closing the iterator cancels what has not started."""
    pool, ran = make(), []
    with occupied(pool):
        results = pool.map(ran.append, range(3), timeout=0)
        with pytest.raises(TimeoutError if sys.version_info >= (3, 11) else Exception):
            next(results)
        results.close()
    pool.submit(int).result(TIMEOUT)
    assert [] == ran


def test_map_with_a_wrong_option(make):
    """An option that `map` does not have is a TypeError."""
    with pytest.raises(TypeError):
        make().map(int, [1], no_such_option=1)
