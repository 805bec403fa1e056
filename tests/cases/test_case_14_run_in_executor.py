"""Case 14 (cpython#78195, ragflow#16247): run_in_executor drops context, to_thread torch's."""

from __future__ import annotations

import asyncio
import contextvars

import pytest

pytest.importorskip("torch")

import torch

import ctxcarry

TENANT = contextvars.ContextVar("tenant", default="lost")


def seen():
    """Return a ContextVar and torch's grad mode."""
    return TENANT.get(), torch.is_grad_enabled()


def results(executor, thread, fn=seen):
    """Hand `fn` over in both ways, under a set variable and no_grad."""

    async def main():
        with torch.no_grad():
            TENANT.set("mine")
            return await executor(None, fn), await thread(fn)

    return asyncio.run(main())


def run_in_executor(executor, fn):
    """Hand over by the running loop's own method."""
    return asyncio.get_running_loop().run_in_executor(executor, fn)


def test_fault():
    """A plain run_in_executor loses both, a plain to_thread torch's."""
    assert (("lost", True), ("mine", True)) == results(run_in_executor, asyncio.to_thread)


def test_cure_by_functions():
    """With our functions both are carried."""
    found = results(ctxcarry.run_in_executor, ctxcarry.to_thread)
    assert (("mine", False), ("mine", False)) == found
    assert ("lost", True) == seen()


def test_cure_by_install():
    """With the boundary installed both are carried, and not after uninstall."""
    ctxcarry.install("asyncio")
    try:
        found = results(run_in_executor, asyncio.to_thread)
    finally:
        ctxcarry.uninstall("asyncio")
    assert (("mine", False), ("mine", False)) == found
    assert (("lost", True), ("mine", True)) == results(run_in_executor, asyncio.to_thread)


def test_cure_by_decoration():
    """A decorated function has both."""
    fn = ctxcarry.carry_context(seen)
    found = results(run_in_executor, asyncio.to_thread, fn)
    assert (("mine", False), ("mine", False)) == found
