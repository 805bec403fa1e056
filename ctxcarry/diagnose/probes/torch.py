"""Probes of torch: what an operation does under each mode, and the mesh of a fake process group."""

# ruff: noqa: PLC0415 - torch is imported only when it is probed

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ctxcarry.diagnose.probes._probe import Probe

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ("autocast", "device_mesh", "fake_mesh", "grad_mode", "inference_mode")


@contextmanager
def grad_mode() -> Iterator[Probe]:
    """Probe whether autograd records an operation."""
    import torch

    def read() -> object:
        return torch.ones((), device="cpu", requires_grad=True).neg().requires_grad

    yield Probe(torch.no_grad, read)


@contextmanager
def inference_mode() -> Iterator[Probe]:
    """Probe whether a new tensor is an inference tensor."""
    import torch

    yield Probe(torch.inference_mode, lambda: torch.ones((), device="cpu").is_inference())


@contextmanager
def autocast() -> Iterator[Probe]:
    """Probe the dtype in which two float32 matrices are multiplied."""
    import torch

    def read() -> object:
        one = torch.ones(1, 1, dtype=torch.float32, device="cpu")
        return (one @ one).dtype

    yield Probe(lambda: torch.autocast("cpu", dtype=torch.bfloat16), read)


@contextmanager
def device_mesh() -> Iterator[Probe]:
    """Probe the mesh that DTensor takes when it is given none."""
    # What DTensor itself asks; DTensor takes a second to say the same.
    from torch.distributed.device_mesh import _mesh_resources

    def read() -> object:
        try:
            return _mesh_resources.get_current_mesh()
        except RuntimeError:  # how it says that there is none
            return None

    with fake_mesh() as mesh:
        yield Probe(lambda: mesh, read)


@contextmanager
def fake_mesh() -> Iterator[Any]:
    """
    Yield a mesh with one dimension over the default process group, made without communication.

    Without a default group, a fake one of two ranks stands in for the time being.
    """
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

    def over_world() -> DeviceMesh:
        assert dist.group.WORLD is not None
        return DeviceMesh.from_group(dist.group.WORLD, "cpu", mesh_dim_names=("doctor",))

    if dist.is_initialized():
        yield over_world()
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore

    hook = sys.excepthook
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        yield over_world()
    finally:
        dist.destroy_process_group()
        # init_process_group puts "[rank0]" before tracebacks, and nothing takes that back.
        sys.excepthook = hook
