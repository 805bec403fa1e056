"""Case 10 (pytorch#147995, pytorch#148023): a recompute does not go through function modes."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from ctxcarry_checkpoint import checkpoint as our_checkpoint
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils.checkpoint import checkpoint

import ctxcarry


class Count(TorchFunctionMode):
    """Count the sines."""

    count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.Tensor.sin
        return func(*args, **(kwargs or {}))


@pytest.fixture(params=["install", "context_fn"])
def arguments(request):
    """Give the arguments for a checkpoint whose recompute is carried, in each way."""
    if request.param == "context_fn":
        yield {"use_reentrant": False, "context_fn": ctxcarry.autograd.context_fn()}
        return
    ctxcarry.install("autograd")
    try:
        yield {"use_reentrant": False}
    finally:
        ctxcarry.uninstall("autograd")


def count(*, in_scope=True, **arguments):
    """Return how many sines a mode sees in the forward, and in the backward pass."""
    x = torch.ones(2, requires_grad=True)
    with Count() as mode:
        y = checkpoint(lambda t: t.sin().cos(), x, **arguments).sum()
        forward = mode.count
        if in_scope:
            y.backward()
    if not in_scope:
        y.backward()
    return forward, mode.count - forward


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_fault(use_reentrant):
    """The mode is on around both, and sees the forward only."""
    assert (1, 0) == count(use_reentrant=use_reentrant)


@pytest.mark.parametrize("in_scope", [True, False])
def test_cure(arguments, in_scope):
    """The recompute goes through the mode, also when its block has ended."""
    assert (1, 1) == count(in_scope=in_scope, **arguments)


@pytest.mark.parametrize("in_scope", [True, False])
def test_cure_of_the_older_checkpoint(in_scope):
    """So does that of the reentrant checkpoint, which takes no ``context_fn``."""
    ctxcarry.install("autograd")
    try:
        assert (1, 1) == count(in_scope=in_scope, use_reentrant=True)
    finally:
        ctxcarry.uninstall("autograd")


def test_cure_keeps_the_order(arguments):
    """All modes of the forward are there in their order, and none that was entered since."""
    seen = []

    def block(t):
        seen.append(_get_current_function_mode_stack())
        return t.sin()

    with Count() as outer, Count() as inner:
        y = checkpoint(block, torch.ones(2, requires_grad=True), **arguments).sum()
    with Count() as later:
        y.backward()
        assert [later] == _get_current_function_mode_stack()
    assert [[outer, inner]] * 2 == seen


def test_cure_leaves_the_rest_of_the_backward_alone(arguments):
    """A hook in the backward pass sees no mode, as without us."""
    seen = []
    x = torch.ones(2, requires_grad=True)
    with Count():
        y = checkpoint(torch.sin, x, **arguments)
        y.register_hook(lambda grad: seen.append(_get_current_function_mode_stack()))
        y.sum().backward()
    assert [[]] == seen


@pytest.mark.parametrize("in_scope", [True, False])
def test_cure_of_our_checkpoint(in_scope):
    """Our own checkpoint carries them by itself."""
    x = torch.ones(2, requires_grad=True)
    for _ in range(3):
        with Count() as mode:
            y = our_checkpoint(lambda t: t.sin().cos(), x).sum()
            if in_scope:
                y.backward()
        if not in_scope:
            y.backward()
        assert 2 == mode.count
    assert [] == _get_current_function_mode_stack()
