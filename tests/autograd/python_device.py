"""
A device written in Python, so that autograd has a thread for it on a machine without a GPU.

Torch's PrivateUse1 backend, with tensors that keep their data on the CPU. The engine
starts a thread for each device that a graph is on, whatever is behind it.
"""

from __future__ import annotations

import contextlib

import torch
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

NAME = "pydev"


class _Module(_DummyBackendModule):
    """What torch asks a backend's module for; there is no random state to save."""

    _initialized = False

    def get_amp_supported_dtype(self):
        return [torch.bfloat16]

    def get_rng_state(self, device=0):
        return torch.zeros(1, dtype=torch.uint8)

    def set_rng_state(self, state, device=0):
        pass

    def device(self, index):
        return contextlib.nullcontext()


class DeviceTensor(torch.Tensor):
    """A tensor that says it is on the device."""

    @staticmethod
    def __new__(cls, data):
        wrapper = torch.Tensor._make_wrapper_subclass(
            cls, data.shape, strides=data.stride(), dtype=data.dtype, device=f"{NAME}:0"
        )
        wrapper.data_on_host = data
        return wrapper

    def __repr__(self):
        return f"DeviceTensor({self.data_on_host})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        """Compute on the CPU."""

        def to_host(value):
            if isinstance(value, DeviceTensor):
                return value.data_on_host
            return torch.device("cpu") if isinstance(value, torch.device) else value

        def to_device(value):
            return DeviceTensor(value) if isinstance(value, torch.Tensor) else value

        result = func(*tree_map(to_host, args), **tree_map(to_host, kwargs or {}))
        return tree_map(to_device, result)


def _empty(size, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    return DeviceTensor(torch.empty(size, dtype=dtype))


_setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
_library = torch.library.Library("aten", "IMPL")
_library.impl("empty.memory_format", _empty, "PrivateUse1")
