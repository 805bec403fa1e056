"""Fixtures for real frameworks: threads that are clean before and after, and a world of ranks."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from importlib import import_module

import pytest

import ctxcarry

try:
    import torch
except ModuleNotFoundError:  # the core is tested without any framework
    collect_ignore_glob = ["test_*.py", "*/test_*.py"]

# Torch imports them in passing, and their carriers must not appear in the midst of a test.
for _name in ("torch.distributed.device_mesh", "triton", "spmd_types"):
    with suppress(ModuleNotFoundError):
        import_module(_name)

DEVICE_TYPES = ("cpu", "cuda", "xpu", "hpu", "mps", "privateuseone")


def nesting_depth():
    """Return how many autocast regions this thread is in."""
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return depth


def state_of_thread():
    """Return everything that these tests may change on a thread, to be compared."""
    dtypes = {t: torch.get_autocast_dtype(t) for t in DEVICE_TYPES}
    modes = torch.overrides._get_current_function_mode_stack()
    return {
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "forward grad": torch._C._is_fwd_grad_enabled(),
        "multithreading": torch._C._is_multithreading_enabled(),
        "autocast": {t: torch.is_autocast_enabled(t) for t in DEVICE_TYPES},
        "autocast dtypes": dtypes,
        "autocast cache": torch.is_autocast_cache_enabled(),
        "autocast nesting": nesting_depth(),
        "keys included": str(torch._C._dispatch_tls_local_include_set()),
        "keys excluded": str(torch._C._dispatch_tls_local_exclude_set()),
        "function modes": [id(mode) for mode in modes],
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "device meshes": _device_meshes(),
        "spmd": _spmd(),
    }


def _device_meshes():
    # By sys.modules, since a test may have taken the attribute away.
    module = sys.modules.get("torch.distributed.device_mesh")
    stack = getattr(getattr(module, "_mesh_resources", None), "mesh_stack", [])
    return [id(mesh) for mesh in stack]


def _spmd():
    module = sys.modules.get("spmd_types._state")
    fields = getattr(getattr(module, "_tls", None), "__dict__", {})
    # An empty stack and no stack, and no mode and None, are the same to spmd_types.
    return [id(entry) for entry in fields.get("mesh_stack", ())], fields.get("current_mode")


def _everything():
    return {
        **state_of_thread(),
        "variables": {var.name: id(value) for var, value in copy_context().items()},
        "carriers": [carrier.name for carrier in ctxcarry.carriers()],
        "unavailable": ctxcarry.registry.unavailable(),
        "installed": ctxcarry.installed(),
        "process group": torch.distributed.is_initialized(),
    }


def _repair(before):
    """Make this thread usable for the tests after one that left it changed."""
    while torch.overrides._get_current_function_mode_stack():
        torch.overrides._pop_mode()
    for device_type in DEVICE_TYPES:
        torch.set_autocast_enabled(device_type, False)
        torch.set_autocast_dtype(device_type, before["autocast dtypes"][device_type])
    torch.set_autocast_cache_enabled(True)
    while nesting_depth() > 0:
        torch.autocast_decrement_nesting()
    torch.clear_autocast_cache()
    torch._C._set_grad_enabled(True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    ctxcarry.uninstall("executor")


def uncarried(pool, fn, *args):
    """Call `fn` on a worker of a carrying `pool` as a plain pool would."""
    return ThreadPoolExecutor.submit(pool, fn, *args).result()


@pytest.fixture(autouse=True)
def _clean_thread():
    """Check that a test leaves the main thread as it found it."""
    before = _everything()
    yield
    after = _everything()
    if before != after:
        _repair(before)
        left = {key: (before[key], after[key]) for key in before if before[key] != after[key]}
        pytest.fail(f"the main thread is left changed: {left}")


@pytest.fixture
def state():
    """Return the function that tells the state of the thread which calls it."""
    return state_of_thread


@pytest.fixture
def nesting():
    """Return the function that tells the autocast nesting of the thread which calls it."""
    return nesting_depth


@pytest.fixture
def worker():
    """Give a plain pool of one thread, and check that the thread is as new in the end."""
    with ThreadPoolExecutor(1) as pool:
        before = pool.submit(state_of_thread).result()
        yield pool
        assert before == pool.submit(state_of_thread).result()


@pytest.fixture
def carrying():
    """Give a carrying pool of one thread, and check that the thread is as new in the end."""
    with ctxcarry.executor(1) as pool:
        before = uncarried(pool, state_of_thread)
        yield pool
        assert before == uncarried(pool, state_of_thread)


@pytest.fixture
def gate(carrying):
    """Keep the worker of `carrying` busy until the test sets the event."""
    event = threading.Event()
    carrying.submit(event.wait)
    yield event
    event.set()


@pytest.fixture
def barrier(carrying):
    """Give a barrier for the test and a task of `carrying`, which ends with the test."""
    barrier = threading.Barrier(2, timeout=60)
    yield barrier
    barrier.abort()


@pytest.fixture
def world():
    """Start a process group of eight ranks that do not exist, and end it."""
    dist = torch.distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    try:
        yield
    finally:
        dist.destroy_process_group()
        if "spmd_types._mesh_axis" in sys.modules:
            sys.modules["spmd_types._mesh_axis"]._reset()
