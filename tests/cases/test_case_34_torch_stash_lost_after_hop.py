"""
Case 34: torch takes a Context along to the first of autograd's threads only.

Since torch 2.13 it stashes the Context of whoever starts a backward pass, where a
compiled backward looks for it. A pass that starts on such a thread stashes that of
the thread, which is empty.
"""

from __future__ import annotations

import contextvars
import threading

import pytest

torch = pytest.importorskip("torch", minversion="2.13")

import ctxcarry  # noqa: E402

VARIABLE = contextvars.ContextVar("case 34", default="lost")


class Deep(torch.autograd.Function):
    """Note what is there, and start a backward pass in the backward pass, so many times."""

    @staticmethod
    def forward(ctx, x, depth, rows):
        ctx.rest = depth - 1, rows
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        depth, rows = ctx.rest
        worker = threading.current_thread() is not threading.main_thread()
        stashed = None
        if torch._C._is_key_in_tls("context"):
            stashed = torch._C._get_obj_in_tls("context").get(VARIABLE)
        rows.append((worker, VARIABLE.get(), stashed))
        if depth:
            nest(depth, rows)
        return grad, None, None


def nest(depth, rows):
    """Run so many backward passes, one within the other; return what each of them had."""
    with torch.enable_grad():
        Deep.apply(torch.ones(1, requires_grad=True), depth, rows).sum().backward()
    return rows


def rows_on_workers():
    """Return what the passes had that ran on a thread of the engine: more than one."""
    VARIABLE.set("here")
    rows = [row for row in nest(65, []) if row[0]]
    assert 2 < len(rows)
    return rows


def test_fault():
    """The variable is nowhere, and its stashed value is gone from the second pass on."""
    first, *rest = rows_on_workers()
    assert (True, "lost", "here") == first
    assert {(True, "lost", None)} == set(rest)


def test_cure():
    """Installed, the variable is set in every pass, which needs nothing of torch's for it."""
    ctxcarry.install("autograd")
    try:
        assert {(True, "here", None)} == set(rows_on_workers())
    finally:
        ctxcarry.uninstall("autograd")
    assert (True, "lost", "here") == rows_on_workers()[0]
