"""Case 08 (pytorch#159014): `with mesh:` does not reach pool threads."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import _mesh_resources, init_device_mesh  # noqa: E402


@pytest.fixture
def mesh():
    """Make a mesh over a process group of this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,), mesh_dim_names=("dp",))
    finally:
        dist.destroy_process_group()


def current():
    """Return the names of the current mesh's dimensions, and the size of the world."""
    return _mesh_resources.get_current_mesh().mesh_dim_names, dist.get_world_size()


def test_fault(plain, mesh):
    """In a plain pool there is no mesh, although the process group is there."""
    with mesh:
        assert (("dp",), 1) == current()
        with pytest.raises(RuntimeError, match="No device mesh"):
            plain(current)
        assert 1 == plain(dist.get_world_size)


def test_cure(way, mesh):
    """The mesh is that of whoever handed the work over, and else there is none."""
    with mesh:
        assert (("dp",), 1) == way(current)
    with pytest.raises(RuntimeError, match="No device mesh"):
        way(current)
