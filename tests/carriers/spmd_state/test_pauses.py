"""Meshes and checking held across an await or a yield."""

from __future__ import annotations

import asyncio

import pytest
import torch
from torch.overrides import _get_current_function_mode_stack

import ctxcarry

spmd = pytest.importorskip("spmd_types")

from spmd_state_subjects import (  # noqa: E402
    Other,
    function_modes,
    names,
    outcome,
)
from spmd_types import _state as upstream  # noqa: E402
from spmd_types import no_typecheck, set_current_mesh  # noqa: E402
from spmd_types.checker import typecheck  # noqa: E402


def test_mesh_and_checking_held_across_an_await(mesh):
    """What a carried coroutine holds is there after the await and seen by nobody else."""

    @ctxcarry.carry_context
    async def hold():
        with set_current_mesh(mesh), typecheck():
            before = names(), spmd.is_type_checking()
            await asyncio.sleep(0)
            after = names(), spmd.is_type_checking()
        return before, after, names(), spmd.is_type_checking(), function_modes()

    async def main():
        task = asyncio.ensure_future(hold())
        await asyncio.sleep(0)
        return (names(), spmd.is_type_checking(), function_modes()), await task

    others, found = asyncio.run(main())
    inside = ["dp", "tp"], True
    assert (None, False, []) == others
    assert (inside, inside, None, False, []) == found


def test_no_typecheck_held_across_an_await_ends(mesh, tensors):
    """Checking that a coroutine paused around an await is on again after the block."""

    @ctxcarry.carry_context
    async def pause():
        found = [spmd.is_type_checking()]
        with no_typecheck():
            await asyncio.sleep(0)
            found.append(spmd.is_type_checking())
        found.append(spmd.is_type_checking())
        return found, outcome(torch.mul, tensors["P"], tensors["P"])[0]

    async def main():
        with set_current_mesh(mesh), typecheck():
            return await pause()

    found = asyncio.run(main())
    assert ([True, False, True], "SpmdTypeError") == found


@pytest.mark.parametrize("hop", [False, True], ids=["same thread", "another thread"])
def test_checking_changed_across_a_pause_ends(hop, mesh, worker):
    """Checking that a generator loosens and pauses around a yield is as before after the block."""

    @ctxcarry.carry_context
    def generate():
        with set_current_mesh(mesh), typecheck():
            yield spmd.is_type_checking(), upstream.is_strict()
            with typecheck(strict_mode="permissive"):
                yield spmd.is_type_checking(), upstream.is_strict()
                with no_typecheck():
                    yield spmd.is_type_checking(), upstream.is_strict()
                yield spmd.is_type_checking(), upstream.is_strict()
            yield spmd.is_type_checking(), upstream.is_strict()
        yield spmd.is_type_checking(), upstream.is_strict()

    generator = generate()
    found = []
    for turn in range(6):
        step = worker.submit(next, generator) if hop and turn % 2 else None
        found.append(next(generator) if step is None else step.result())
    assert [
        (True, True),
        (True, False),
        (False, False),
        (True, False),
        (True, True),
        (False, False),
    ] == found
    assert [] == function_modes()


@pytest.mark.parametrize("hop", [False, True], ids=["same thread", "another thread"])
def test_consumer_keeps_the_function_modes_that_it_entered(hop, mesh, worker):
    """A step of a generator that checks types does not drop a mode of its consumer."""

    @ctxcarry.carry_context
    def generate():
        with set_current_mesh(mesh), typecheck():
            yield
            yield

    generator = generate()
    next(generator)

    def step():
        with Other():
            before = _get_current_function_mode_stack()
            next(generator)
            after = _get_current_function_mode_stack()
            if before != after:  # so that the thread can be used again
                while _get_current_function_mode_stack():
                    torch.overrides._pop_mode()
                torch.overrides._push_mode(before[0])
            return before == after

    same = worker.submit(step).result() if hop else step()
    generator.close()
    assert same
    assert [] == function_modes()
