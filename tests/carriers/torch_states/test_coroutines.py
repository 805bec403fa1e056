"""Coroutines that hold a state of torch across their awaits."""

from __future__ import annotations

import asyncio
import gc

import pytest
import torch
from torch_states_subjects import AMBIENT, ON_CPU, STEPPED, entered

import ctxcarry


def holding(seen, held, released):
    """Return a coroutine function that holds no_grad while it waits to be released."""

    async def hold():
        with torch.no_grad():
            seen.append(torch.is_grad_enabled())
            held.set()
            await released.wait()
            seen.append(torch.is_grad_enabled())
        seen.append(torch.is_grad_enabled())

    return hold


async def observe(hold, held, released):
    """Return whether grad mode is on while the coroutine of `hold` waits."""
    task = asyncio.ensure_future(hold())
    await held.wait()
    seen = torch.is_grad_enabled()
    released.set()
    await task
    return seen


@pytest.mark.parametrize(("carried", "leaks"), [(False, True), (True, False)])
def test_no_grad_held_across_an_await_is_the_coroutines_own(carried, leaks):
    """Other coroutines do not see a no_grad that a carried one holds, as they do in plain torch."""
    seen = []

    async def main():
        held, released = asyncio.Event(), asyncio.Event()
        hold = holding(seen, held, released)
        return await observe(ctxcarry.carry_context(hold) if carried else hold, held, released)

    others = asyncio.run(main())
    assert leaks is not others
    assert [False, False, True] == seen


@pytest.mark.parametrize("ambient", STEPPED)
def test_carried_coroutines_interleave(ambient, state):
    """Two carried coroutines that take turns each find their own state after every await."""
    outside = state()

    @ctxcarry.carry_context
    async def hold(turns):
        found = []
        with entered(AMBIENT[ambient]):
            found.append(state())
            for _ in range(turns):
                await asyncio.sleep(0)
                found.append(state())
        await asyncio.sleep(0)
        return found, state()

    async def main():
        tasks = [asyncio.ensure_future(hold(n)) for n in (3, 1, 2)]
        between = []
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            between.append(state())
        return [task.result() for task in tasks], between

    results, between = asyncio.run(main())
    with entered(AMBIENT[ambient]):
        expected = state()
    assert [[expected] * 4, [expected] * 2, [expected] * 3] == [found for found, _ in results]
    assert [outside] * 3 == [after for _, after in results]
    assert [outside] * len(between) == between


@pytest.mark.parametrize("ambient", STEPPED)
def test_carried_coroutine_keeps_the_callers_state(ambient, state):
    """Each step of a coroutine is in the state that the caller had at the call."""

    @ctxcarry.carry_context
    async def work():
        found = [state()]
        await asyncio.sleep(0)
        return [*found, state()]

    async def main():
        with entered(AMBIENT[ambient]):
            expected, called = state(), work()
        return expected, await called

    expected, found = asyncio.run(main())
    assert [expected, expected] == found


def test_coroutine_that_is_cancelled_while_it_holds_inference_mode_leaves_none(state):
    """Cancelling a carried coroutine within inference mode leaves the loop's thread as it was."""
    outside = state()

    @ctxcarry.carry_context
    async def hold():
        with torch.inference_mode(), torch.autocast(*ON_CPU):
            await asyncio.Event().wait()

    async def main():
        task = asyncio.ensure_future(hold())
        await asyncio.sleep(0)
        found = [state()]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        del task
        gc.collect()
        return [*found, state()]

    assert [outside, outside] == asyncio.run(main())
