"""A device with an autograd thread of its own, for all tests of checkpoints."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path

import pytest

try:
    import torch
except ModuleNotFoundError:  # the core is tested without any framework
    collect_ignore_glob = ["test_*.py"]
else:
    # Torch imports it in passing, and its carrier must not appear in the midst of a test.
    if find_spec("torch.distributed._dist2"):
        import torch.distributed._dist2

    # Now: the engine looks for devices once, when it first needs a thread.
    sys.path.insert(0, str(Path(__file__).parents[1] / "autograd"))
    if torch.cuda.is_available():
        _put, _to_host = torch.Tensor.cuda, torch.Tensor.cpu
    else:
        import python_device

        _put, _to_host = python_device.DeviceTensor, attrgetter("data_on_host")


class Device:
    """Where autograd has a thread of its own."""

    def __init__(self, put, to_host):
        self.put = put
        self.to_host = to_host


@pytest.fixture(scope="session")
def device():
    """Return a CUDA device, or else one that is written in Python."""
    return Device(_put, _to_host)
