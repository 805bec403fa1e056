"""
Case 40 (pytorch#191777, torchtitan#3565): autograd's threads have no mesh and no function modes.

Dispatch modes torch takes along itself. Function modes it takes off for the whole
backward pass, on every thread.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import _mesh_resources, init_device_mesh  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import ctxcarry  # noqa: E402


class Pass(TorchDispatchMode):
    """A dispatch mode that changes nothing."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Seen(NamedTuple):
    """What a backward has."""

    mesh: bool
    device: str
    function_modes: int
    dispatch_modes: int


def seen():
    """Return what is on this thread."""
    return Seen(
        bool(_mesh_resources.mesh_stack),
        torch.empty(1).device.type,
        torch._C._len_torch_function_stack(),
        torch._C._len_torch_dispatch_stack(),
    )


class Deep(torch.autograd.Function):
    """Note what is there, and start a backward pass in the backward pass, so many times."""

    @staticmethod
    def forward(ctx, x, depth, rows):
        ctx.rest = depth - 1, rows
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        depth, rows = ctx.rest
        rows.append((threading.current_thread() is threading.main_thread(), seen()))
        if depth:
            nest(ctx._forward_cls, depth, rows)
        return grad, None, None


@ctxcarry.carry_context
class CarriedDeep(Deep):
    """The same, with the context of its forward in its backward."""


def nest(function, depth, rows):
    """Run so many backward passes, one within the other."""
    x = torch.ones(1, requires_grad=True, device="cpu")
    with torch.enable_grad():
        function.apply(x, depth, rows).sum().backward()


@pytest.fixture
def mesh():
    """Make a mesh over a process group of this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        dist.destroy_process_group()


def rows(mesh, function):
    """Return what passes under all of it see on this thread, and on those of the engine."""
    found = []
    with mesh, torch.device("meta"), Pass():
        nest(function, 65, found)
    assert Seen(mesh=False, device="cpu", function_modes=0, dispatch_modes=0) == seen()
    return {row for here, row in found if here}, {row for here, row in found if not here}


IN_BACKWARD = Seen(mesh=True, device="cpu", function_modes=0, dispatch_modes=1)


def test_fault(mesh):
    """On this thread there is the mesh, and on the engine's there is not."""
    here, there = rows(mesh, Deep)
    assert {IN_BACKWARD} == here
    assert {IN_BACKWARD._replace(mesh=False)} == there


def test_cure(mesh):
    """Installed, its threads have what this one has: the mesh, and without function modes."""
    ctxcarry.install("autograd")
    try:
        assert ({IN_BACKWARD}, {IN_BACKWARD}) == rows(mesh, Deep)
    finally:
        ctxcarry.uninstall("autograd")


def test_cure_of_one_function(mesh):
    """Under ``carry_context`` a function has all that its forward had, the function mode too."""
    in_forward = IN_BACKWARD._replace(device="meta", function_modes=1)
    assert ({in_forward}, {in_forward}) == rows(mesh, CarriedDeep)
