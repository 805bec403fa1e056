"""Fixtures of the boundary tests: clean threads and patches, and a context to be carried."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar, copy_context
from importlib import import_module
from multiprocessing.pool import Pool, ThreadPool

import pytest

import ctxcarry

TIMEOUT = 30
VAR = ContextVar("boundaries.var", default="unset")

# Their carriers must not appear in the midst of a test that compares.
for _name in (
    "torch",
    "torch.distributed.device_mesh",
    "torch.distributed._dist2",
    "triton",
    "spmd_types",
    "joblib",
    "ctxcarry.process_groups",
):
    with suppress(ModuleNotFoundError):
        import_module(_name)


def _functions():
    """Return what the boundaries patch."""
    owners = [
        (threading.Thread, "start"),
        (ThreadPoolExecutor, "submit"),
        (ThreadPool, "apply_async"),
        (ThreadPool, "map"),
        (Pool, "apply_async"),
        (asyncio, "to_thread"),
        (asyncio.BaseEventLoop, "create_task"),
        (asyncio.BaseEventLoop, "run_in_executor"),
    ]
    for module, cls, name in (
        ("joblib", "Parallel", "__call__"),
        ("torch.futures", "Future", "then"),
        ("torch.utils.data", "DataLoader", "_get_iterator"),
    ):
        if module in sys.modules:
            owners.append((getattr(sys.modules[module], cls), name))
    found = {f"{o.__name__}.{name}": getattr(o, name) for o, name in owners}
    # Two boundaries patch it; a test of its own says that nothing of either may stay.
    found["Thread.start"] = inspect.unwrap(found["Thread.start"])
    return found


def _state():
    found = {
        "variables": {var.name: id(value) for var, value in copy_context().items()},
        "installed": ctxcarry.installed(),
        "carriers": [carrier.name for carrier in ctxcarry.carriers()],
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        found["grad"] = torch.is_grad_enabled()
        found["inference"] = torch.is_inference_mode_enabled()
        found["function modes"] = len(torch.overrides._get_current_function_mode_stack())
        found["dispatch modes"] = torch._C._len_torch_dispatch_stack()
        found["autocast"] = torch.is_autocast_enabled("cpu")
    return found


def _repair():
    """Make this thread usable for the tests after one that left it changed."""
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        torch._C._set_grad_enabled(True)
        torch._C._autograd._saved_tensors_hooks_enable()
        while torch._C._len_torch_function_stack():
            torch._C._pop_torch_function_stack()


@pytest.fixture(autouse=True)
def _clean_slate(request):
    """Check that a test leaves this thread as it was, and that `uninstall` removes every patch."""
    patched = hasattr(ThreadPoolExecutor.submit, "__wrapped__")
    ctxcarry.uninstall()
    before, functions = _state(), _functions()
    yield
    ctxcarry.uninstall()
    after, functions_after = _state(), _functions()
    _repair()
    if patched:  # a module of decorated functions has been imported, and needs its patches
        ctxcarry.carry_context(lambda: None)
    assert before == after
    assert functions == functions_after


@pytest.fixture
def local():
    """Return a ``threading.local`` that is carried as ``test.local``."""
    local = threading.local()
    ctxcarry.register(ctxcarry.ThreadLocalCarrier(local, name="test.local"))
    yield local
    ctxcarry.unregister("test.local")


@pytest.fixture
def var():
    """Return the ContextVar that the tests set."""
    return VAR


@pytest.fixture
def seen(local):
    """Return a function that tells what the thread that calls it has of both contexts."""
    return lambda *_: (VAR.get(), getattr(local, "value", "unset"))


@pytest.fixture
def results():
    """Return the list to which work appends what it saw."""
    return []


@pytest.fixture
def work(seen, results):
    """Return work that notes what it sees."""
    return lambda: results.append(seen())


@pytest.fixture
def ambient(local):
    """Return a context manager that sets both contexts, to what it is given."""

    class Ambient:
        def __init__(self, value):
            self.value = value

        def __enter__(self):
            self.token = VAR.set(self.value)
            self.former = vars(local).get("value")
            local.value = self.value

        def __exit__(self, *_):
            VAR.reset(self.token)
            del local.value
            if self.former is not None:
                local.value = self.former

    return Ambient


class Counted:
    """An object to be referred to weakly."""


@pytest.fixture
def watched(local):
    """Return a function that makes an object current in both contexts, and a weak reference."""

    def make():
        value = Counted()
        VAR.set(value)
        local.value = value
        return weakref.ref(value)

    def forget():
        VAR.set("unset")
        del local.value

    make.forget = forget
    return make
