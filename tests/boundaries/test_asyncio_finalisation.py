"""Coroutines and generators that end elsewhere, or never begin, under ``install("asyncio")``."""

from __future__ import annotations

import asyncio
import contextvars
import gc

import pytest

pytest.importorskip("torch")

import torch

import ctxcarry
from ctxcarry import process_groups

TIMEOUT = 30


@pytest.fixture
def installed():
    """Install the boundary."""
    ctxcarry.install("asyncio")


def run(main):
    """Run a coroutine in a loop of its own, with a limit that only a defect reaches."""

    async def limited():
        return await asyncio.wait_for(main, TIMEOUT)

    return asyncio.run(limited())


async def looks():
    """Say whether grad is enabled, before and after a pause."""
    before = torch.is_grad_enabled()
    await asyncio.sleep(0)
    return before, torch.is_grad_enabled()


def generators():
    """Return the ways to have an async generator that holds a setting across its yields."""

    async def plain():
        with torch.enable_grad():
            yield torch.is_grad_enabled()
            yield torch.is_grad_enabled()

    return {"plain": plain, "decorated": ctxcarry.carry_context(plain)}


@pytest.mark.parametrize("kind", ["plain", "decorated"])
@pytest.mark.parametrize("closed", ["by the loop", "by another task"])
def test_async_generator_finalised_elsewhere_leaves_nothing(kind, closed, installed):
    """Whoever finalises it, the state of the loop's thread and of other tasks is as before."""
    make = generators()[kind]
    kept = []

    async def consume():
        with torch.no_grad():
            generator = make()
            assert await anext(generator) is True
            if closed == "by another task":
                kept.append(generator)
            return torch.is_grad_enabled()

    async def close():
        if kept:
            await kept.pop().aclose()
        return torch.is_grad_enabled()

    async def main():
        loop = asyncio.get_running_loop()
        await asyncio.create_task(consume())
        gc.collect()
        await asyncio.create_task(close())
        for _ in range(3):
            await asyncio.sleep(0)
        found = loop.create_future()
        loop.call_soon(lambda: found.set_result(torch.is_grad_enabled()))
        return await found, await asyncio.create_task(looks()), torch.is_grad_enabled()

    assert (True, (True, True), True) == run(main())


async def begun(generator):
    """Take an async generator to its first yield in this task."""
    await anext(generator)
    return generator


def test_roles_in_a_generator_closed_by_another_task():
    """Roles that an async generator holds reset no token in the Context of who closes it."""

    async def generate():
        with process_groups.use(tp=torch.distributed.ProcessGroup(0, 1)):
            yield

    async def closing(generator):
        with pytest.raises(ctxcarry.LeakError):
            await generator.aclose()

    async def main():
        generator = await asyncio.create_task(begun(generate()))
        await asyncio.create_task(closing(generator))
        return process_groups.roles()

    assert () == run(main())


@pytest.mark.parametrize("block", ["active", "policy", "suppress"])
def test_our_blocks_in_a_generator_closed_by_another_task(block, var):
    """Leaving a block of ours in another task is a LeakError, and changes nothing there."""
    var.set("captured")
    snapshot = ctxcarry.capture()
    var.set("unset")
    manager = {
        "active": snapshot.active,
        "policy": lambda: ctxcarry.policy(clear="contextvars"),
        "suppress": ctxcarry.suppress,
    }[block]

    async def generate():
        with manager():
            yield

    async def closing(generator):
        before = dict(contextvars.copy_context())
        with pytest.raises(ctxcarry.LeakError):
            await generator.aclose()
        return before == dict(contextvars.copy_context())

    async def main():
        generator = await asyncio.create_task(begun(generate()))
        return await asyncio.create_task(closing(generator))

    assert run(main()) is True


@pytest.mark.parametrize("carried", [False, True])
def test_token_of_the_user_in_a_generator_closed_by_another_task(carried, var):
    """A carried async generator resets its token in its own Context, where a plain one fails."""

    async def generate():
        token = var.set("theirs")
        try:
            yield var.get()
        finally:
            var.reset(token)

    async def closing(generator):
        try:
            await generator.aclose()
        except ValueError as error:
            return "different Context" in str(error), var.get()
        return None, var.get()

    async def main():
        make = ctxcarry.carry_context(generate) if carried else generate
        generator = await asyncio.create_task(begun(make()))
        return await asyncio.create_task(closing(generator))

    assert (None if carried else True, "unset") == run(main())


def test_coroutine_refused_by_a_closed_loop_can_be_closed(installed, recwarn):
    """A coroutine that no task was made of is the caller's again, to close without a warning."""
    loop = asyncio.new_event_loop()
    loop.close()
    coroutine = looks()
    with pytest.raises(RuntimeError, match="closed"):
        loop.create_task(coroutine)  # noqa: RUF006 - is refused
    coroutine.close()
    gc.collect()
    assert [] == [str(w.message) for w in recwarn]
