"""Probes of torch.distributed, over a fake process group: its meshes and its current group."""

# ruff: noqa: PLC0415 - torch is imported only when it is probed

from __future__ import annotations

import sys
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ctxcarry.diagnose.probes._probe import Probe

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ("device_mesh", "fake_mesh", "fake_world", "process_group", "told_group", "told_mesh")


@contextmanager
def process_group() -> Iterator[Probe]:
    """Probe the current group of ``torch.distributed._dist2``."""
    dist2 = import_module("torch.distributed._dist2")
    with fake_mesh() as mesh:
        group = mesh.get_group()
        yield Probe(
            lambda: dist2.process_group(group), dist2.current_process_group, tell=told_group
        )


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
        yield Probe(lambda: mesh, read, tell=told_mesh)


world = 0, 2  # rank and size of a fake group


def fake_world() -> tuple[int, int]:
    """Return the rank and the size of the default process group, or of the fake one."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return world
    return dist.get_rank(), dist.get_world_size()


def told_group(group: Any) -> object:
    """Return the name and the size of a group; None for None."""
    return None if group is None else (group.group_name, group.size())


def told_mesh(mesh: Any) -> object:
    """Return the dimensions and the ranks of a mesh; None for None."""
    return None if mesh is None else (mesh.mesh_dim_names, tuple(mesh.mesh.flatten().tolist()))


@contextmanager
def fake_mesh() -> Iterator[Any]:
    """
    Yield a mesh with one dimension over the default process group, made without communication.

    Without a default group, a fake one of the ranks in `world` stands in for the time being.
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
    dist.init_process_group("fake", store=FakeStore(), rank=world[0], world_size=world[1])
    try:
        yield over_world()
    finally:
        dist.destroy_process_group()
        # init_process_group puts "[rank0]" before tracebacks, and nothing takes that back.
        sys.excepthook = hook
