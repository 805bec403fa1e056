"""Coroutines and generators: active at each resume, gone at each pause."""

import asyncio
import contextlib
import gc
import inspect
import sys
import threading
import types
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, ContextVar, copy_context

import pytest

import ctxcarry
from ctxcarry import MISSING, CarrierError, Registry, ValueCarrier, carry_context, policy

if sys.version_info < (3, 11):
    from exceptiongroup import ExceptionGroup

TIMEOUT = 30

variable = ContextVar("variable", default="default")
bare = ContextVar("bare")


@pytest.fixture
def seen(default_local):
    """Return a function that says what is set here."""
    return lambda: (variable.get(), getattr(default_local, "value", None))


@pytest.fixture
def set_all(default_local):
    """Return a function that sets everything."""

    def set_all(value):
        variable.set(value)
        default_local.value = value

    return set_all


NEAR, FAR = ("near", "near"), ("far", "far")


def deliver(kind, fn):
    """Return `fn` so that calling it gives something stepped, in one of three ways."""
    if kind == "decorated":
        return carry_context(fn)
    if kind == "bound":
        return ctxcarry.bind(fn)
    return lambda *args, **kwargs: ctxcarry.capture().run(fn, *args, **kwargs)


WAYS = ["decorated", "bound", "run"]


# ---------------------------------------------------------------- what the body sees


@pytest.mark.parametrize("way", WAYS)
def test_generator_sees_the_context_of_the_call(way, seen, set_all):
    """Each step sees what was set at the call; between the steps nothing of it is here."""

    def body():
        for _ in range(3):
            yield seen()

    set_all("near")
    generator = deliver(way, body)()
    set_all("far")
    for _ in range(3):
        assert NEAR == next(generator)
        assert FAR == seen()
    assert [] == list(generator)
    assert FAR == seen()


@pytest.mark.parametrize("way", WAYS)
def test_coroutine_sees_the_context_of_the_call(way, seen, set_all):
    """Each step of a coroutine sees what was set at the call, and others do not."""

    async def body():
        found = []
        for _ in range(3):
            found.append(seen())
            await asyncio.sleep(0)
        return found

    async def main():
        set_all("near")
        coroutine = deliver(way, body)()
        set_all("far")
        task = asyncio.ensure_future(coroutine)
        between = []
        while not task.done():
            await asyncio.sleep(0)
            between.append(seen())
        return task.result(), set(between)

    assert ([NEAR] * 3, {FAR}) == asyncio.run(main())


@pytest.mark.parametrize("way", WAYS)
def test_async_generator_sees_the_context_of_the_call(way, seen, set_all):
    """Each step of an async generator sees what was set at the call, and its consumer does not."""

    async def body():
        for _ in range(3):
            await asyncio.sleep(0)
            yield seen()

    async def main():
        set_all("near")
        generator = deliver(way, body)()
        set_all("far")
        return [(found, seen()) async for found in generator]

    assert [(NEAR, FAR)] * 3 == asyncio.run(main())


def test_call_captures_and_not_the_first_step(seen, set_all):
    """What is set between the call and the first step is not seen."""
    set_all("near")
    generator = carry_context(lambda: (yield seen()))()
    set_all("far")
    assert NEAR == next(generator)


def test_unset_is_seen_as_unset(seen, set_all, default_local):
    """What was not set at the call is not set in the body."""

    @carry_context
    def body():
        yield bare.get(None), hasattr(default_local, "value")

    generator = body()
    bare.set("far")
    set_all("far")
    assert (None, False) == next(generator)


def test_excluded_contexts_are_those_of_the_step(seen, set_all):
    """What is not carried is, at each step, as it is where the step is made."""
    set_all("near")
    no_variables = carry_context(exclude="contextvars")(lambda: (yield from forever(seen)))()
    no_local = carry_context(exclude="test.local")(lambda: (yield from forever(seen)))()
    set_all("one")
    assert [("one", "near"), ("near", "one")] == [next(no_variables), next(no_local)]
    set_all("two")
    assert [("two", "near"), ("near", "two")] == [next(no_variables), next(no_local)]


def forever(fn):
    """Yield what `fn` returns, without end."""
    while True:
        yield fn()


# ---------------------------------------------------------------- what the body sets


def test_generator_keeps_what_it_sets(seen, set_all):
    """What the body sets across a pause is there at the resume, and not in between."""

    @carry_context
    def body():
        set_all("mine")
        yield seen()
        yield seen()
        set_all("more")
        yield seen()

    set_all("near")
    generator = body()
    set_all("far")
    found = []
    for _ in range(3):
        found.append(next(generator))
        assert FAR == seen()
    assert [("mine", "mine"), ("mine", "mine"), ("more", "more")] == found


def test_generator_keeps_what_it_unsets(seen, set_all, default_local):
    """What the body deletes stays deleted for it, and is there outside."""

    @carry_context
    def body():
        del default_local.value
        yield
        yield hasattr(default_local, "value")

    set_all("near")
    generator = body()
    next(generator)
    assert "near" == default_local.value
    assert next(generator) is False
    assert "near" == default_local.value


def test_with_block_across_a_pause(default_local):
    """A block that the body holds across pauses is undone when it ends, in the body only."""

    @contextlib.contextmanager
    def setting(value):
        before = default_local.value
        default_local.value = value
        try:
            yield
        finally:
            default_local.value = before

    @carry_context
    def body():
        found = []
        with setting("inside"):
            yield
            found.append(default_local.value)
            yield
        found.append(default_local.value)
        yield found

    default_local.value = "near"
    generator = body()
    default_local.value = "far"
    next(generator)
    assert "far" == default_local.value
    next(generator)
    assert "far" == default_local.value
    assert ["inside", "near"] == next(generator)
    assert "far" == default_local.value


def test_outside_may_change_between_the_steps(seen, set_all):
    """What others set between the steps is there for them after the next one."""

    @carry_context
    def body():
        set_all("mine")
        while True:
            yield seen()

    set_all("near")
    generator = body()
    for value in ("one", "two", "three"):
        set_all(value)
        assert ("mine", "mine") == next(generator)
        assert (value, value) == seen()


def test_outside_keeps_its_very_objects(default_local):
    """A container that others hold is the very one that is set after a step as before it."""

    @carry_context
    def body():
        while True:
            default_local.stack.append("body")
            yield list(default_local.stack)

    default_local.stack = mine = ["mine"]
    generator = body()
    for number in range(1, 4):
        assert ["mine", *["body"] * number] == next(generator)
        assert mine is default_local.stack
        assert ["mine"] == mine
    generator.close()
    assert mine is default_local.stack


def test_two_generators_interleaved(seen, set_all):
    """Generators that take turns on one thread do not see one another."""

    @carry_context
    def body(name):
        for number in range(3):
            found = seen()
            set_all(f"{name}{number}")
            yield found

    set_all("a")
    a = body("a")
    set_all("b")
    b = body("b")
    set_all("far")
    found = [(next(a), next(b)) for _ in range(3)]
    assert [
        (("a", "a"), ("b", "b")),
        (("a0", "a0"), ("b0", "b0")),
        (("a1", "a1"), ("b1", "b1")),
    ] == found
    assert FAR == seen()


def test_gathered_coroutines_interleaved(seen, set_all):
    """Coroutines gathered on one loop keep what they set to themselves."""

    @carry_context
    async def body(name):
        found = [seen()]
        for number in range(5):
            set_all(f"{name}{number}")
            await asyncio.sleep(0)
            found.append(seen())
        return found

    async def main():
        coroutines = []
        for name in "abcd":
            set_all(name)
            coroutines.append(body(name))
        set_all("far")
        results = await asyncio.gather(*coroutines)
        return results, seen()

    expected = [[(n, n), *((f"{n}{i}", f"{n}{i}") for i in range(5))] for n in "abcd"]
    assert (expected, FAR) == asyncio.run(main())


def test_nested_coroutines(seen, set_all):
    """A carried coroutine that awaits another one gets its own context back."""

    @carry_context
    async def inner():
        found = seen()
        set_all("inner")
        await asyncio.sleep(0)
        return found, seen()

    @carry_context
    async def outer():
        set_all("outer")
        found = await inner()
        return found, seen()

    async def main():
        set_all("near")
        return await outer(), seen()

    outer_seen = ("outer", "outer")
    assert (((outer_seen, ("inner", "inner")), outer_seen), NEAR) == asyncio.run(main())


def test_nested_generators(seen, set_all):
    """`yield from` a carried generator gives the outer one its own context back."""

    @carry_context
    def inner():
        set_all("inner")
        yield seen()
        return seen()

    @carry_context
    def outer():
        set_all("outer")
        result = yield from inner()
        yield result, seen()

    set_all("near")
    assert [("inner", "inner"), (("inner", "inner"), ("outer", "outer"))] == list(outer())
    assert NEAR == seen()


def test_tasks_started_in_the_body(seen, set_all):
    """A task that the body starts has the ContextVars of the body."""

    @carry_context
    async def body():
        variable.set("body")
        return await asyncio.ensure_future(child())

    async def child():
        return variable.get()

    async def main():
        set_all("near")
        return await body(), variable.get()

    assert ("body", "near") == asyncio.run(main())


# ---------------------------------------------------------------- other threads


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


# ---------------------------------------------------------------- send, throw, close, return


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


def test_task_cancelled_before_the_start():
    """A task that is cancelled before its first step does not warn."""

    @carry_context
    async def body():
        pytest.fail("ran")

    async def main():
        task = asyncio.ensure_future(body())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(main())
        gc.collect()
    assert [] == [str(w.message) for w in caught if issubclass(w.category, RuntimeWarning)]


def test_task_cancelled_in_the_middle(seen, set_all):
    """Cancelling reaches the body under its context, and it may clean up there."""
    found = []

    @carry_context
    async def body():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            found.append(seen())
            await asyncio.sleep(0)
            found.append(seen())
            raise

    async def main():
        set_all("near")
        task = asyncio.ensure_future(body())
        set_all("far")
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return seen()

    assert FAR == asyncio.run(main())
    assert [NEAR, NEAR] == found


def test_timeouts_and_shields(seen, set_all):
    """`wait_for` and `shield` work on carried coroutines."""

    @carry_context
    async def body():
        await asyncio.sleep(0)
        return seen()

    @carry_context
    async def endless():
        await asyncio.Event().wait()

    async def main():
        set_all("near")
        one, two = body(), body()
        set_all("far")
        found = [await asyncio.wait_for(one, TIMEOUT), await asyncio.shield(two)]
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(endless(), 0.01)
        return found, seen()

    assert ([NEAR, NEAR], FAR) == asyncio.run(main())


def test_exception_of_a_coroutine(seen, set_all):
    """An exception passes from an awaited future through the body and out."""

    @carry_context
    async def body(future):
        try:
            await future
        except ValueError:
            found.append(seen())
            raise

    found = []

    async def main():
        set_all("near")
        future = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(body(future))
        set_all("far")
        await asyncio.sleep(0)
        future.set_exception(ValueError("mine"))
        with pytest.raises(ValueError, match="mine"):
            await task
        return seen()

    assert FAR == asyncio.run(main())
    assert [NEAR] == found


def test_coroutine_awaited_twice():
    """A finished coroutine cannot be awaited again, as a plain one."""

    @carry_context
    async def body():
        return 1

    async def main():
        coroutine = body()
        assert 1 == await coroutine
        with pytest.raises(RuntimeError, match="already awaited"):
            await coroutine

    asyncio.run(main())


def test_generator_based_coroutine():
    """A generator made awaitable with `types.coroutine` is still awaitable."""

    @carry_context
    @types.coroutine
    def body():
        before = variable.get()
        yield
        return before, variable.get()

    async def main():
        variable.set("near")
        awaitable = body()
        variable.set("far")
        return await awaitable, variable.get()

    awaitable = body()
    assert inspect.isawaitable(awaitable)
    awaitable.close()
    assert (("near", "near"), "far") == asyncio.run(main())


# ---------------------------------------------------------------- async generators


def test_async_generator_send_throw_return(seen, set_all):
    """`asend`, `athrow` and `aclose` reach the body under its context."""
    found = []

    @carry_context
    async def body():
        try:
            got = yield seen()
            try:
                yield got, seen()
            except ValueError as error:
                yield str(error), seen()
        finally:
            await asyncio.sleep(0)
            found.append(seen())

    async def main():
        set_all("near")
        generator = body()
        set_all("far")
        steps = [await generator.asend(None), await generator.asend("sent")]
        steps.append(await generator.athrow(ValueError("mine")))
        await generator.aclose()
        with pytest.raises(StopAsyncIteration):
            await generator.__anext__()
        return steps, seen()

    assert ([NEAR, ("sent", NEAR), ("mine", NEAR)], FAR) == asyncio.run(main())
    assert [NEAR] == found


def test_async_generator_keeps_what_it_sets(seen, set_all):
    """What the body sets is its own, and does not reach the consumer (trap 4)."""

    @carry_context
    async def body():
        for number in range(3):
            set_all(number)
            await asyncio.sleep(0)
            yield seen()

    async def main():
        set_all("near")
        return [(found, seen()) async for found in body()]

    assert [((n, n), NEAR) for n in range(3)] == asyncio.run(main())


def test_async_generator_closed_by_another_task(seen, set_all):
    """Closed from another task, Tokens of the body still work and nothing leaks (traps 3, 4)."""
    found = []

    @carry_context
    async def body():
        token = variable.set("mine")
        try:
            yield variable.get()
        finally:
            found.append(seen())
            variable.reset(token)
            found.append(seen())

    async def main():
        set_all("near")
        generator = body()
        first = await asyncio.ensure_future(generator.__anext__())
        await asyncio.ensure_future(generator.aclose())
        return first, seen()

    assert ("mine", NEAR) == asyncio.run(main())
    assert [("mine", "near"), NEAR] == found


def test_async_generator_that_is_dropped(seen, set_all):
    """An async generator that is dropped half-way is finished by the loop, under its context."""
    found = []

    @carry_context
    async def body():
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0)
            found.append(seen())

    async def main():
        set_all("near")
        generator = body()
        set_all("far")
        async for _ in generator:
            break
        del generator, _
        gc.collect()
        for _ in range(5):
            await asyncio.sleep(0)

    asyncio.run(main())
    assert [NEAR] == found


def test_async_generator_left_to_the_end_of_the_loop(seen, set_all):
    """What is left when the loop ends is finished under its context, without complaints."""
    found, complaints, kept = [], [], []

    @carry_context
    async def body():
        try:
            yield 1
        finally:
            await asyncio.sleep(0)
            found.append(seen())

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda _, c: complaints.append(c))
        set_all("near")
        kept.append(body())
        set_all("far")
        await kept[0].__anext__()

    asyncio.run(main())
    assert [] == complaints
    assert [NEAR] == found


def test_async_generator_exception(seen, set_all):
    """An exception of the body comes out as itself, and the generator is finished."""

    @carry_context
    async def body():
        yield 1
        raise ValueError("mine")

    async def main():
        set_all("near")
        generator = body()
        await generator.__anext__()
        with pytest.raises(ValueError, match="mine"):
            await generator.__anext__()
        return [value async for value in generator], seen()

    assert ([], NEAR) == asyncio.run(main())


def test_async_generator_cancelled(seen, set_all):
    """Cancelling the consumer reaches the body under its context."""
    found = []

    @carry_context
    async def body():
        try:
            await asyncio.Event().wait()
            yield 1
        except asyncio.CancelledError:
            found.append(seen())
            raise

    async def consume(generator):
        async for _ in generator:
            pass

    async def main():
        set_all("near")
        task = asyncio.ensure_future(consume(body()))
        set_all("far")
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert [NEAR] == found


def test_async_generator_never_started():
    """An async generator that is never started, or closed before, warns of nothing."""

    @carry_context
    async def body():
        yield 1

    async def main():
        body()
        await body().aclose()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(main())
        gc.collect()
    assert [] == [str(w.message) for w in caught]


# ---------------------------------------------------------------- looks


def test_objects_look_like_what_they_are():
    """The objects are of the builtin kinds, and named after the function."""

    @carry_context
    def generate():
        yield

    @carry_context
    async def compute():
        pass

    @carry_context
    async def stream():
        yield

    coroutine = compute()
    for made, kind in (
        (generate(), types.GeneratorType),
        (coroutine, types.CoroutineType),
        (stream(), types.AsyncGeneratorType),
    ):
        assert kind is type(made)
        assert made.__name__ in {"generate", "compute", "stream"}
        assert made.__qualname__.startswith("test_objects_look_like_what_they_are")
    coroutine.close()


def test_generator_is_told_apart_while_it_runs():
    """A generator that steps itself is a ValueError, as a plain one."""

    @carry_context
    def body():
        yield next(generator)

    generator = body()
    with pytest.raises(ValueError, match="already executing"):
        next(generator)


# ---------------------------------------------------------------- failing carriers


class Cell:
    """A carrier of one value, which can be told to fail."""

    name = "test.cell"

    def __init__(self):
        self.value = "far"
        self.failing = None

    def fail(self, stage):
        if self.failing == stage:
            self.failing = None
            raise OSError(stage)

    def capture(self):
        self.fail("capture")
        return self.value

    def apply(self, state):
        self.fail("apply")
        before, self.value = self.value, state
        return before

    def undo(self, token):
        self.fail("undo")
        self.value = token


@pytest.fixture
def cell():
    """Return a carrier that fails when it is told to."""
    return Cell()


@pytest.fixture
def cells(cell, registry, local):
    """Return a registry with a threading.local and, behind it, a carrier that may fail."""
    registry.register(cell)
    return registry


def test_apply_fails_at_a_step(cells, cell, local):
    """A context that cannot be applied at a step: the step is not made, and nothing is left."""
    local.value = cell.value = "near"

    def body():
        yield local.value

    generator = cells.capture().run(body)
    local.value = cell.value = "far"
    cell.failing = "apply"
    with pytest.raises(CarrierError, match=r"'test\.cell' failed to apply"):
        next(generator)
    assert ("far", "far") == (local.value, cell.value)


def test_capture_fails_at_a_pause(cells, cell, local):
    """A context that cannot be read at a pause: everything is undone all the same, by name."""

    def body():
        cell.failing = "capture"
        yield

    local.value = cell.value = "near"
    generator = cells.capture().run(body)
    local.value = cell.value = "far"
    with pytest.raises((CarrierError, ExceptionGroup), match=r"'test\.cell'"):
        next(generator)
    assert ("far", "far") == (local.value, cell.value)


@pytest.mark.parametrize("stage", ["capture", "undo"])
def test_carrier_that_fails_at_a_pause_does_not_mask(stage, cells, cell, local):
    """The body's own exception stays what the caller sees when a carrier fails beside it."""

    def body():
        cell.failing = stage
        raise ValueError("mine")
        yield

    local.value = cell.value = "near"
    generator = cells.capture().run(body)
    local.value = cell.value = "far"
    with pytest.raises(ValueError, match="mine") as caught:
        next(generator)
    assert "test.cell" in "".join(getattr(caught.value, "__notes__", []))
    assert "far" == local.value


def test_value_that_cannot_be_unset_outside_does_not_mask():
    """Putting back what was outside may fail too, and does not hide the body's exception."""
    box = {"now": MISSING}
    registry = Registry()
    registry.register(ValueCarrier("box", lambda: box["now"], lambda v: box.update(now=v)))

    def body():
        box["now"] = "body"
        raise ValueError("mine")
        yield

    generator = registry.capture().run(body)
    with pytest.raises(ValueError, match="mine"):
        next(generator)


# ---------------------------------------------------------------- what is kept


class Big:
    """Something that should not be kept."""


@pytest.fixture
def heavy(default_local):
    """Return a function that calls another one where big objects are set, with weak references."""

    def heavy(fn, /, *args):
        def inside():
            bigs = Big(), Big()
            variable.set(bigs[0])
            default_local.value = bigs[1]
            return [weakref.ref(big) for big in bigs], fn(*args)

        try:
            return Context().run(inside)
        finally:
            del default_local.value

    return heavy


def test_finished_generator_keeps_nothing(heavy, is_collected):
    """A generator that has finished, or was closed, holds no context though it is kept."""
    for finish in (list, lambda g: (next(g), g.close())):
        references, generator = heavy(carry_context(lambda: (yield)))
        assert [False, False] == [r() is None for r in references]
        finish(generator)
        assert [True, True] == [is_collected(r) for r in references]
        assert inspect.GEN_CLOSED == inspect.getgeneratorstate(generator)


def test_paused_generator_that_is_dropped_keeps_nothing(heavy, is_collected):
    """A generator that is dropped lets go of its context."""
    references, generator = heavy(carry_context(lambda: (yield)))
    next(generator)
    del generator
    assert [True, True] == [is_collected(r) for r in references]


def test_exception_of_a_generator_keeps_nothing(heavy, is_collected):
    """An exception of a body that is kept does not keep the context (trap 8)."""

    @carry_context
    def body():
        yield
        raise ValueError("mine")

    references, generator = heavy(body)
    next(generator)
    try:
        next(generator)
    except ValueError as error:
        kept = error
    assert [True, True] == [is_collected(r) for r in references]
    assert "mine" == str(kept)


def test_exception_of_a_task_keeps_nothing(heavy, is_collected):
    """A failed task that is kept does not keep the context (trap 8)."""

    @carry_context
    async def body():
        await asyncio.sleep(0)
        raise ValueError("mine")

    async def main():
        references, coroutine = heavy(body)
        task = asyncio.ensure_future(coroutine)
        del coroutine
        await asyncio.wait([task])
        return references, task

    references, task = asyncio.run(main())
    assert [True, True] == [is_collected(r) for r in references]
    assert "mine" == str(task.exception())


def test_exception_of_an_async_generator_keeps_nothing(heavy, is_collected):
    """A failed async generator does not keep the context either."""

    @carry_context
    async def body():
        yield
        raise ValueError("mine")

    async def main():
        references, generator = heavy(body)
        await generator.__anext__()
        try:
            await generator.__anext__()
        except ValueError as error:
            return references, error

    references, kept = asyncio.run(main())
    assert [True, True] == [is_collected(r) for r in references]
    assert "mine" == str(kept)


# ---------------------------------------------------------------- policies


def test_cleared_contexts_are_unset_at_each_step(seen, set_all, default_local):
    """A context that a policy cleared at the call is unset at each step."""

    @carry_context
    def body():
        for _ in range(2):
            yield variable.get(), hasattr(default_local, "value")

    set_all("near")
    with policy(clear=["contextvars", "test.local"]):
        generator = body()
    set_all("far")
    assert [("default", False)] * 2 == list(generator)
    assert FAR == seen()


def test_cleared_context_that_the_body_sets(set_all, default_local):
    """What the body sets in a cleared context is its own too."""

    @carry_context
    def body():
        default_local.value = "mine"
        yield
        yield default_local.value

    with policy(clear="test.local"):
        generator = body()
    set_all("far")
    next(generator)
    assert "far" == default_local.value
    assert "mine" == next(generator)
    assert "far" == default_local.value


def test_nothing_to_carry_returns_plain_objects():
    """With everything suppressed a generator function is called as it is."""
    with ctxcarry.suppress():
        generator = carry_context(lambda: (yield variable.get()))()
    variable.set("far")
    assert ["far"] == list(generator)
