"""The tests of the meshes and the type checking of spmd_types, over ranks that do not exist."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def mesh(world):
    """Make a mesh of two by four ranks, so that no axis is dropped for being of size 1."""
    from torch.distributed import device_mesh

    return device_mesh.init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))


@pytest.fixture
def flat(world):
    """Make a mesh of one axis of eight ranks."""
    from torch.distributed import device_mesh

    return device_mesh.init_device_mesh("cpu", (8,), mesh_dim_names=("world",))


@pytest.fixture
def tensors(mesh):
    """Make tensors that are replicated, partial and varying on tp, and one without a type."""
    import spmd_types as spmd
    import torch

    made = {"untyped": torch.ones(2)}
    for name in "RPV":
        made[name] = torch.ones(2)
        with spmd.set_current_mesh(mesh):
            spmd.assert_type(made[name], {"dp": spmd.R, "tp": getattr(spmd, name)})
    return made
