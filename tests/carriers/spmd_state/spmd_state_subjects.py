"""What the tests of meshes and type checking share."""

from __future__ import annotations

import spmd_types as spmd
import torch
from spmd_types import _state as upstream
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

NAME = "spmd_types.state"


def outcome(fn, *args):
    """Return what `fn` says: its result, or the error that it raises, in words."""
    try:
        result = fn(*args)
    except Exception as error:
        return type(error).__name__, str(error).split("\n\n")[0]
    return "ok", str(spmd.get_local_type(result)) if isinstance(result, torch.Tensor) else result


def names():
    """Return the names of the current mesh's axes."""
    found = spmd.current_mesh_names()
    return None if found is None else sorted(found)


def stack():
    """Return the mesh stack itself, or None where this thread has none."""
    return getattr(upstream._tls, "mesh_stack", None)


def function_modes():
    """Return the kinds of function modes on this thread's stack, the outermost first."""
    return [type(mode).__name__ for mode in _get_current_function_mode_stack()]


def replicate():
    """Type a new tensor with a bare R, which needs a mesh."""
    tensor = torch.ones(2)
    spmd.assert_type(tensor, spmd.R)
    return tensor


class Other(TorchFunctionMode):
    """A function mode that notes what it saw."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))
