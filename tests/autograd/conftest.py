"""A device with an autograd thread of its own, and contexts to look for on it."""

from __future__ import annotations

import contextvars
import sys
import threading
import types
from operator import attrgetter
from pathlib import Path

import pytest

import ctxcarry

try:
    import torch
except ModuleNotFoundError:  # the core is tested without any framework
    collect_ignore_glob = ["test_*.py"]
else:
    # Torch imports it in passing, and its carrier must not appear in the midst of a test.
    import torch.distributed._dist2

    class _Tap(torch.autograd.Function):
        """Pass a tensor through, and call a function in backward."""

        @staticmethod
        def forward(ctx, tensor, fn):
            ctx.fn = fn
            return tensor.view_as(tensor)

        @staticmethod
        def backward(ctx, grad):
            ctx.fn()
            return grad, None

    if torch.cuda.is_available():
        _put, _to_host = torch.Tensor.cuda, torch.Tensor.cpu
    else:
        # Now: the engine looks for devices once, when it first needs a thread.
        sys.path.insert(0, str(Path(__file__).parent))
        import python_device

        _put, _to_host = python_device.DeviceTensor, attrgetter("data_on_host")


variable = contextvars.ContextVar("tests.autograd", default="LOST")
ambient = types.ModuleType("ambient_of_autograd_tests")
ambient.local = threading.local()
sys.modules[ambient.__name__] = ambient


class Device:
    """Where tensors are put so that autograd runs their nodes on a thread of its own."""

    def __init__(self, put, to_host):
        self.put = put
        self.to_host = to_host

    def leaf(self, *shape):
        """Return a tensor of ones on the device that requires a gradient."""
        return self.put(torch.ones(*shape or (2,))).requires_grad_()


@pytest.fixture(scope="session")
def device():
    """Return a CUDA device, or else one that is written in Python."""
    return Device(_put, _to_host)


@pytest.fixture
def installed():
    """Install the boundary, and take it off again."""
    ctxcarry.install("autograd")
    yield
    ctxcarry.uninstall("autograd")


@pytest.fixture
def tap():
    """Return ``tap(tensor, fn)``, which calls ``fn()`` in the backward of what it returns."""
    return _Tap.apply


class Ambient:
    """Two contexts: a ContextVar, and a field of a ``threading.local``."""

    def set(self, value):
        """Set both on this thread."""
        variable.set(value)
        ambient.local.value = value

    def unset(self):
        """Unset both, as far as a variable with a default can be."""
        variable.set("LOST")
        vars(ambient.local).pop("value", None)

    def seen(self):
        """Return both as this thread has them, and whether it is not the main thread."""
        elsewhere = threading.current_thread() is not threading.main_thread()
        return variable.get(), getattr(ambient.local, "value", "LOST"), elsewhere


@pytest.fixture
def contexts():
    """Give two contexts that are set to "SET" on this thread, and carried."""
    carrier = ctxcarry.ThreadLocalCarrier(f"{ambient.__name__}:local", fields=("value",))
    ctxcarry.register(carrier)
    contexts = Ambient()
    token = variable.set("SET")
    ambient.local.value = "SET"
    yield contexts
    variable.reset(token)
    vars(ambient.local).clear()
    ctxcarry.unregister(carrier.name)
