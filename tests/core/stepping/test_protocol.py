"""Steps in other threads, and send, throw, close and return."""

import gc
import sys
import threading
import types
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import pytest
from stepping_subjects import FAR, NEAR, TIMEOUT, variable

from ctxcarry import carry_context


def test_generator_moves_between_threads(seen, set_all):
    """A generator may make each step on another thread; each thread is as before."""

    @carry_context
    def body():
        for number in range(4):
            found = seen()
            set_all(number)
            yield found, threading.get_ident()

    set_all("near")
    generator = body()
    set_all("far")
    found = []
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two:
        for pool in (one, two, one, two):
            pool.submit(set_all, "there").result(TIMEOUT)
            found.append(pool.submit(next, generator).result(TIMEOUT))
            assert ("there", "there") == pool.submit(seen).result(TIMEOUT)
    assert [NEAR, (0, 0), (1, 1), (2, 2)] == [step for step, _ in found]
    assert 2 == len({thread for _, thread in found})
    assert FAR == seen()


def test_generator_moves_to_fresh_threads(seen, set_all, in_thread):
    """Threads that have ended give their numbers to new ones; nothing of one reaches another."""

    @carry_context
    def body():
        for number in range(8):
            found = seen()
            set_all(number)
            yield found

    set_all("near")
    generator = body()

    def step(value):
        set_all(value)
        found = next(generator)
        return found, seen()

    steps = [in_thread(step, f"there {number}") for number in range(8)]
    assert [NEAR, *((n, n) for n in range(7))] == [found for found, _ in steps]
    assert [(f"there {n}", f"there {n}") for n in range(8)] == [after for _, after in steps]


def test_coroutine_moves_between_loops(seen, set_all, in_thread):
    """A coroutine stepped by hand on two threads keeps its context."""

    @types.coroutine
    def pause():
        yield

    @carry_context
    async def body():
        found = [seen()]
        set_all("mine")
        await pause()
        return [*found, seen()]

    set_all("near")
    coroutine = body()
    set_all("far")
    coroutine.send(None)
    assert FAR == seen()

    def finish():
        with pytest.raises(StopIteration) as stop:
            coroutine.send(None)
        return stop.value.value, seen()

    assert ([NEAR, ("mine", "mine")], ("default", None)) == in_thread(finish)


def test_send_and_return():
    """Values go in by `send` and out by `return`, as for a plain generator."""

    def body():
        got = []
        while len(got) < 3:
            got.append((yield len(got)))
        return got

    def drive(generator):
        out = [next(generator), generator.send("a"), generator.send(None)]
        try:
            generator.send("b")
        except StopIteration as stop:
            return out, stop.value
        pytest.fail("did not stop")

    assert drive(body()) == drive(carry_context(body)())


def test_throw():
    """An exception thrown in reaches the body under its context, and the next value comes out."""

    @carry_context
    def body():
        while True:
            try:
                yield variable.get()
            except ValueError as error:
                yield str(error), variable.get()

    variable.set("near")
    generator = body()
    variable.set("far")
    assert "near" == next(generator)
    assert ("mine", "near") == generator.throw(ValueError("mine"))
    assert "near" == next(generator)
    with pytest.raises(KeyError):
        generator.throw(KeyError("out"))
    with pytest.raises(StopIteration):
        next(generator)


def test_throw_before_the_start():
    """Thrown into a generator that has not started, an exception comes out, and it is finished."""
    ran = []

    @carry_context
    def body():
        ran.append(1)
        yield

    generator = body()
    with pytest.raises(ValueError, match="mine"):
        generator.throw(ValueError("mine"))
    assert ([], []) == (ran, list(generator))


def test_stop_iteration_in_a_body():
    """A StopIteration that escapes a body is a RuntimeError, as for a plain generator."""

    @carry_context
    def body():
        yield
        raise StopIteration  # noqa: PLR1708 - what becomes of it is the question

    for step in (next, lambda generator: generator.throw(StopIteration())):
        generator = body()
        next(generator)
        with pytest.raises(RuntimeError, match="StopIteration"):
            step(generator)


def test_close_runs_the_cleanup_under_the_context(seen, set_all):
    """`close` runs the body's `finally` under its context, once."""
    found = []

    @carry_context
    def body():
        try:
            yield
        finally:
            found.append(seen())

    set_all("near")
    generator = body()
    set_all("far")
    next(generator)
    generator.close()
    generator.close()
    assert ([NEAR], FAR) == (found, seen())


def test_close_of_a_body_that_goes_on():
    """A body that yields at its closing is a RuntimeError, as for a plain generator."""

    @carry_context
    def body():
        try:
            yield
        except GeneratorExit:
            yield

    generator = body()
    next(generator)
    with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
        generator.close()


@pytest.mark.skipif(sys.version_info < (3, 13), reason="close() returns nothing before Python 3.13")
def test_close_returns_what_the_body_returns():
    """Since Python 3.13 `close` returns what the body returns then."""

    @carry_context
    def body():
        try:
            yield
        except GeneratorExit:
            return "closed"

    generator = body()
    next(generator)
    assert "closed" == generator.close()


def test_collected_generator_is_closed(seen, set_all):
    """A generator that is dropped runs its `finally`, under its context."""
    found = []

    @carry_context
    def body():
        try:
            yield
        finally:
            found.append(seen())

    set_all("near")
    generator = body()
    next(generator)
    set_all("far")
    del generator
    gc.collect()
    assert ([NEAR], FAR) == (found, seen())


def test_generator_closed_in_another_thread(seen, set_all, in_thread):
    """Closed on another thread, the `finally` sees its context, and both are clean (trap 2)."""
    found = []

    @carry_context
    def body():
        try:
            set_all("mine")
            yield
        finally:
            found.append(seen())

    set_all("near")
    generator = body()
    set_all("far")
    next(generator)

    def close():
        set_all("there")
        generator.close()
        return seen()

    assert ("there", "there") == in_thread(close)
    assert ([("mine", "mine")], FAR) == (found, seen())


def test_token_is_reset_across_steps(set_all):
    """A Token that the body made before a pause can be reset after it (trap 3)."""

    @carry_context
    def body():
        token = variable.set("mine")
        yield variable.get()
        variable.reset(token)
        yield variable.get()

    variable.set("near")
    generator = body()
    found = [next(generator)]
    found.append(copy_context().run(next, generator))
    assert ["mine", "near"] == found


def test_exception_of_a_body(seen, set_all):
    """An exception of the body comes out as itself, and everything is as before."""
    error = ValueError("mine")

    @carry_context
    def body():
        yield
        set_all("mine")
        raise error

    set_all("near")
    generator = body()
    set_all("far")
    next(generator)
    with pytest.raises(ValueError, match="mine") as caught:
        next(generator)
    assert error is caught.value
    assert not getattr(error, "__notes__", [])
    assert FAR == seen()


def test_never_started(seen, set_all, is_collected):
    """What is never started warns once, as a plain coroutine does, and is collected."""

    @carry_context
    async def body():
        pass

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        coroutine = body()
        reference = weakref.ref(coroutine)
        del coroutine
        assert is_collected(reference)
    assert 1 == len(caught)
    assert "never awaited" in str(caught[0].message)
    generator = carry_context(lambda: (yield))()
    reference = weakref.ref(generator)
    del generator
    assert is_collected(reference)


def test_closed_before_the_start():
    """A coroutine that is closed before it has started does not warn."""

    @carry_context
    async def body():
        pytest.fail("ran")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        body().close()
        gc.collect()


def test_thrown_into_before_the_start():
    """A coroutine that an exception is thrown into before it has started does not warn."""

    @carry_context
    async def body():
        pytest.fail("ran")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        coroutine = body()
        with pytest.raises(ValueError, match="mine"):
            coroutine.throw(ValueError("mine"))
        del coroutine
        gc.collect()
    assert [] == [str(w.message) for w in caught]
