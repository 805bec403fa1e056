"""Case 09 (verl#6950, torchtitan#3565): the mesh of spmd_types does not reach pool threads."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
spmd = pytest.importorskip("spmd_types")

import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402


@pytest.fixture
def mesh():
    """Make a mesh over a process group of this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
    finally:
        dist.destroy_process_group()


def body():
    """Assert the type of a tensor, which needs a mesh, and return the names of its axes."""
    spmd.assert_type(torch.ones(2), spmd.R)
    return list(spmd.current_mesh_all_names())


def test_fault(plain, mesh):
    """In a plain pool no type can be asserted."""
    with spmd.set_current_mesh(mesh):
        assert ["tp"] == body()
        with pytest.raises(spmd.SpmdTypeError, match="requires an active mesh"):
            plain(body)


def test_cure(way, mesh):
    """The mesh is that of whoever handed the work over, and else there is none."""
    with spmd.set_current_mesh(mesh):
        assert ["tp"] == way(body)
    with pytest.raises(spmd.SpmdTypeError, match="requires an active mesh"):
        way(body)


def test_cure_of_type_checking(way, mesh):
    """Types are checked where whoever handed the work over checked them, and only there."""
    from spmd_types.checker import typecheck

    with spmd.set_current_mesh(mesh), typecheck():
        assert way(spmd.is_type_checking)
    assert not way(spmd.is_type_checking)
