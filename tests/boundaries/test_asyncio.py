"""asyncio: `ctxcarry.to_thread`, `ctxcarry.run_in_executor` and ``install("asyncio")``."""

from __future__ import annotations

import asyncio
import functools
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import pytest

import ctxcarry

TIMEOUT = 30
SET, UNSET = ("mine", "mine"), ("unset", "unset")


@pytest.fixture
def pool():
    """Give a plain pool of one thread."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


def run(main):
    """Run a coroutine in a loop of its own, with a limit that only a defect reaches."""

    async def limited():
        return await asyncio.wait_for(main, TIMEOUT)

    return asyncio.run(limited())


# Threads


def explicit_default(loop, pool, fn, *args):
    """Hand over with our function, to the default executor."""
    return ctxcarry.run_in_executor(None, fn, *args)


def explicit_given(loop, pool, fn, *args):
    """Hand over with our function, to a given executor."""
    return ctxcarry.run_in_executor(pool, fn, *args)


def plain_default(loop, pool, fn, *args):
    """Hand over as without ctxcarry, to the default executor."""
    return loop.run_in_executor(None, fn, *args)


def plain_given(loop, pool, fn, *args):
    """Hand over as without ctxcarry, to a given executor."""
    return loop.run_in_executor(pool, fn, *args)


def our_to_thread(loop, pool, fn, *args):
    """Hand over with our `to_thread`."""
    return ctxcarry.to_thread(fn, *args)


def plain_to_thread(loop, pool, fn, *args):
    """Hand over with asyncio's `to_thread`."""
    return asyncio.to_thread(fn, *args)


OURS = [explicit_default, explicit_given, our_to_thread]
PLAIN = [plain_default, plain_given, plain_to_thread]


def handed(way, pool, *fns):
    """Hand over functions one after the other and return their results."""

    async def main():
        loop = asyncio.get_running_loop()
        return [await way(loop, pool, fn) for fn in fns]

    return run(main())


@pytest.mark.parametrize("way", PLAIN)
def test_plain_hand_over_loses_the_context(way, pool, seen, ambient):
    """Without ctxcarry run_in_executor loses both contexts, and to_thread the thread's."""
    lost = ("mine", "unset") if way is plain_to_thread else UNSET
    with ambient("mine"):
        assert [lost] == handed(way, pool, seen)


@pytest.mark.parametrize("way", OURS)
def test_explicit_hand_over_carries(way, pool, seen, ambient):
    """Our functions carry both contexts, without any patch."""
    with ambient("mine"):
        assert [SET] == handed(way, pool, seen)
    assert [UNSET] == handed(way, pool, seen)


@pytest.mark.parametrize("way", PLAIN)
def test_installed_hand_over_carries(way, pool, seen, ambient):
    """With the boundary installed the loop's own functions carry, and after uninstall not."""
    ctxcarry.install("asyncio")
    with ambient("mine"):
        assert [SET] == handed(way, pool, seen)
        ctxcarry.uninstall("asyncio")
        assert "mine" != handed(way, pool, seen)[0][1]


@pytest.mark.parametrize("way", PLAIN)
def test_decorated_function_is_carried_on_a_plain_loop(way, pool, seen, ambient):
    """A decorated function carries without install, an undecorated one loses the thread's."""
    decorated = ctxcarry.carry_context(seen)
    with ambient("mine"):
        carried, plain = handed(way, pool, decorated, seen)
    assert (SET, "unset") == (carried, plain[1])


@pytest.mark.parametrize("way", PLAIN)
def test_all_boundaries_together_bind_once(way, pool, seen, ambient, monkeypatch):
    """With everything installed the call is bound once and not in layers."""
    ctxcarry.install()
    depth = []

    def work():
        frame, names = sys._getframe(), []
        while frame:
            names.append(frame.f_code.co_name)
            frame = frame.f_back
        depth.append(names.count("call_under"))
        return seen()

    with ambient("mine"):
        assert [SET] == handed(way, pool, work)
    assert [1] == depth


def test_to_thread_passes_arguments_results_and_errors():
    """Keywords of any name reach the function, and its exception reaches the caller."""
    error = KeyError("theirs")

    def fail():
        raise error

    async def main():
        arguments = await ctxcarry.to_thread(dict, [("a", 1)], fn=2, func=3)
        caught = await asyncio.gather(ctxcarry.to_thread(fail), return_exceptions=True)
        return arguments, caught

    assert ({"a": 1, "fn": 2, "func": 3}, [error]) == run(main())


def test_run_in_executor_needs_a_running_loop():
    """Outside of a loop it is a RuntimeError, as asyncio's own."""
    with pytest.raises(RuntimeError, match="no running event loop"):
        ctxcarry.run_in_executor(None, int)


def test_cancelled_call_still_ends_and_leaves_the_worker_clean(pool, seen, ambient):
    """A cancelled await does not disturb the worker, which has nothing left afterwards."""
    begun, go = threading.Event(), threading.Event()

    def work():
        begun.set()
        assert go.wait(TIMEOUT)

    async def main():
        with ambient("mine"):
            future = ctxcarry.run_in_executor(pool, work)
        await asyncio.to_thread(begun.wait, TIMEOUT)
        future.cancel()
        with pytest.raises(asyncio.CancelledError):
            await future
        go.set()
        return await asyncio.get_running_loop().run_in_executor(pool, seen)

    assert UNSET == run(main())


# Decorated coroutine functions


def test_decorated_coroutine_has_the_context_of_its_call(seen, ambient):
    """A coroutine has the context of its call at each step, whoever awaits it and when."""

    @ctxcarry.carry_context
    async def work():
        first = seen()
        await asyncio.sleep(0)
        return first, seen()

    async def main():
        with ambient("mine"):
            coroutine = work()
        with ambient("awaiter"):
            return await asyncio.ensure_future(coroutine), seen()

    assert ((SET, SET), ("awaiter", "awaiter")) == run(main())


def test_decorated_coroutine_function_is_still_one():
    """Inspection and asyncio still say what the function is."""

    @ctxcarry.carry_context
    async def work(a, b=2):
        """Do it."""
        return a, b

    assert asyncio.iscoroutinefunction(work) is True
    assert ("work", "Do it.") == (work.__name__, work.__doc__)
    assert (1, 2) == run(work(1))


def test_decorated_coroutine_that_is_cancelled(local, ambient):
    """Cancellation reaches the body, its cleanup has the context, and nothing is left."""
    found = []

    @ctxcarry.carry_context
    async def work():
        local.value = "theirs"
        try:
            await asyncio.Event().wait()
        finally:
            found.append(local.value)

    async def main():
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        here = getattr(local, "value", "unset")
        task.cancel("stop")
        with pytest.raises(asyncio.CancelledError):
            await task
        return here, task.cancelled(), getattr(local, "value", "unset")

    assert ("unset", True, "unset") == run(main())
    assert ["theirs"] == found


def test_decorated_partial_and_method_on_a_plain_loop(pool, seen, ambient):
    """A partial of a decorated function, and a decorated method, carry as well."""

    class Job:
        @ctxcarry.carry_context
        def work(self, *_):
            return seen()

    with ambient("mine"):
        found = handed(plain_given, pool, functools.partial(Job().work, 1), Job().work)
    assert [SET, SET] == found


def test_context_of_the_worker_is_not_the_callers(pool, var, ambient):
    """What the function sets in ContextVars is set in a copy, as with asyncio.to_thread."""

    async def main():
        await ctxcarry.to_thread(var.set, "theirs")
        return var.get(), copy_context().get(var)

    with ambient("mine"):
        assert ("mine", "mine") == run(main())
