"""Coroutines as tasks: cancelled, timed out, awaited twice."""

import asyncio
import gc
import inspect
import types
import warnings

import pytest
from stepping_subjects import FAR, NEAR, TIMEOUT, variable

from ctxcarry import carry_context


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
