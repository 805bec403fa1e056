"""Fixtures of the wire format's tests: frameworks, a world of ranks, and a thread left clean."""

import gc
import sys
import threading
from contextlib import suppress
from contextvars import copy_context
from importlib import import_module
from pathlib import Path

import pytest

import ctxcarry
import ctxcarry.process_groups
from ctxcarry._wire import encode

sys.path.insert(0, str(Path(__file__).parent))

try:
    import torch
except ModuleNotFoundError:
    collect_ignore_glob = ["test_*.py"]

# Their carriers must not appear in the midst of a test.
for _name in (
    "torch.distributed.device_mesh",
    "torch.distributed._dist2",
    "triton",
    "spmd_types",
    "torchtitan.distributed.spmd_types",
):
    with suppress(ImportError):
        import_module(_name)


def _state():
    nesting = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return {
        "variables": {var.name: id(value) for var, value in copy_context().items()},
        "carriers": [carrier.name for carrier in ctxcarry.carriers()],
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": (nesting, torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled()),
        "multithreading": torch._C._is_multithreading_enabled(),
        "device": torch.get_default_device(),
        "meshes": list(torch.distributed.device_mesh._mesh_resources.mesh_stack),
        "process group": torch.distributed.is_initialized(),
        "installed": ctxcarry.installed(),
    }


@pytest.fixture(autouse=True)
def _clean_thread():
    """Check that a test leaves the main thread as it found it."""
    before = _state()
    yield
    assert before == _state()


@pytest.fixture
def world():
    """Start a process group of eight ranks that do not exist, and end it."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    gc.collect()  # meshes of ended worlds
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    try:
        yield torch.distributed.group.WORLD
    finally:
        torch.distributed.destroy_process_group()
        if "spmd_types._mesh_axis" in sys.modules:
            sys.modules["spmd_types._mesh_axis"]._reset()


@pytest.fixture
def mesh(world):
    """Return a mesh of all ranks, two by four."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))


@pytest.fixture
def written():
    """Return a function that gives wire bytes, undamaged, for whatever entries one makes up."""
    return encode


@pytest.fixture
def registry():
    """Return a registry of its own with a ThreadLocalCarrier for one field."""
    local = threading.local()
    registry = ctxcarry.Registry()
    registry.register(ctxcarry.ThreadLocalCarrier(local, name="local", fields=("a",)))
    registry.local = local
    return registry
