"""
The mesh stack and type-check mode of spmd_types.

The only file that touches ``spmd_types._state`` (checked against 0.2.5 to 0.3.1).
Losing the mesh fails loudly where a type needs it ("requires an active mesh")
and silently where code asks for a size (torchtitan#3565, verl#6950).
"""

from __future__ import annotations

import copy
import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any

from torch._C import (
    _get_function_stack_at,
    _len_torch_function_stack,
    _pop_torch_function_stack,
    _push_on_torch_function_stack,
)

from ctxcarry._carrier import MISSING, CarrierBase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.overrides import TorchFunctionMode

    from ctxcarry._carrier import Carrier

__all__ = ("SpmdStateCarrier", "carriers", "unavailable")

_STACK, _MODE = "mesh_stack", "current_mode"
# What `typecheck()` and `no_typecheck()` change in place on the mode object.
_FLAGS = ("_strict", "_local", "_disabled")


def carriers() -> Iterator[tuple[Carrier, tuple[str, ...]]]:
    """Yield the carrier, where spmd_types has what it needs."""
    if not unavailable():
        yield SpmdStateCarrier(import_module("spmd_types._state")._tls), ("torch.function_modes",)


def unavailable() -> dict[str, str]:
    """Return why the state cannot be carried, if it cannot."""
    try:
        state = import_module("spmd_types._state")
    except ModuleNotFoundError:
        reason = "spmd_types has no module _state"
    else:
        if isinstance(getattr(state, "_tls", None), threading.local):
            return {}
        reason = "spmd_types._state._tls is no threading.local"
    return {SpmdStateCarrier.name: f"{reason}; ctxcarry knows spmd-types 0.2.5 to 0.3"}


class SpmdStateCarrier(CarrierBase):
    """Both things that ``spmd_types._state._tls`` holds: the meshes and the type-check mode."""

    name = "spmd_types.state"

    def __init__(self, local: threading.local) -> None:
        self._local = local

        def capture() -> object:
            fields = local.__dict__
            if not fields:
                return MISSING
            stack, mode = fields.get(_STACK), fields.get(_MODE)
            if mode is None:
                return (tuple(stack), None, ()) if stack else MISSING
            return tuple(stack or ()), mode, tuple(getattr(mode, flag, None) for flag in _FLAGS)

        # A closure, since this runs for every task: `self._local` would cost a third more.
        self.capture = capture

    def apply(self, state: object) -> object:
        """Set the meshes, and make type checking work on this thread as it did on the other."""
        stack, mode, flags = state if isinstance(state, tuple) else ((), None, ())
        fields = self._local.__dict__
        stack_before, mode_before = fields.get(_STACK, MISSING), fields.get(_MODE, MISSING)
        modes = None
        if mode is not None or (mode_before is not None and mode_before is not MISSING):
            mode, modes = _switched(mode_before, mode, flags)
        fields[_STACK] = list(stack)
        fields[_MODE] = mode
        return fields, stack_before, mode_before, modes

    def undo(self, token: Any) -> None:
        """Put the former stack, mode and function modes back."""
        fields, stack, mode, modes = token
        if stack is MISSING:
            del fields[_STACK]
        else:
            fields[_STACK] = stack
        if mode is MISSING:
            del fields[_MODE]
        else:
            fields[_MODE] = mode
        if modes is not None:
            _set_function_modes(modes)

    def describe(self, state: object) -> str:
        """Name the axes of the innermost mesh and the kind of type checking."""
        if not isinstance(state, tuple):
            return "not set"
        stack, mode, _ = state
        checking = "type checking" if mode is not None else "no type checking"
        if not stack:
            return f"no mesh, {checking}"
        names = sorted(stack[-1].all_names) or sorted(map(str, stack[-1].axes))
        return f"mesh {', '.join(names)}, depth {len(stack)}, {checking}"


def _switched(
    before: Any, mode: Any, flags: tuple[object, ...]
) -> tuple[Any, list[TorchFunctionMode]]:
    """
    Put a copy of `mode` on this thread's stack of function modes, in the place of `before`.

    A copy, since spmd_types pauses checking by setting a flag on the object: one
    thread's ``no_typecheck()`` must not pause another's.

    Returns:
        The copy (None when `mode` is None), and the function modes as they were.
    """
    former = _function_modes()
    own = None
    if mode is not None:
        own = copy.copy(mode)
        for flag, value in zip(_FLAGS, flags):
            setattr(own, flag, value)
    # Where the modes themselves were carried, the captured one is already there.
    stale = [m for m in (before, mode) if m is not None and m is not MISSING]
    modes = [m for m in former if not any(m is s for s in stale)]
    if own is not None:
        places = [i for i, m in enumerate(former) if any(m is s for s in stale)]
        modes.insert(places[0] if places else len(modes), own)
    _set_function_modes(modes)
    return own, former


def _function_modes() -> list[TorchFunctionMode]:
    return [_get_function_stack_at(i) for i in range(_len_torch_function_stack())]


def _set_function_modes(modes: list[TorchFunctionMode]) -> None:
    for _ in range(_len_torch_function_stack()):
        _pop_torch_function_stack()
    for mode in modes:
        _push_on_torch_function_stack(mode)
