"""
The mesh stack and type-check mode of spmd_types.

The only file that touches ``spmd_types._state`` (checked against 0.2.5 to 0.3.1).
Losing the mesh fails loudly where a type needs it ("requires an active mesh")
and silently where code asks for a size (torchtitan#3565, verl#6950).
"""

from __future__ import annotations

import copy
import threading
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ctxcarry._carrier import MISSING, UNCHANGED, CarrierBase
from ctxcarry._carriers.torch_modes import FunctionModes
from ctxcarry._states import same_state
from ctxcarry.errors import NotPortableError, WireError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ctxcarry._carrier import Carrier

__all__ = ("SpmdStateCarrier", "carriers", "unavailable")

_STACK, _MODE = "mesh_stack", "current_mode"
# What `typecheck()` and `no_typecheck()` change in place on the mode object.
_FLAGS = ("_strict", "_local", "_disabled")


def carriers() -> Iterator[tuple[Carrier, tuple[str, ...]]]:
    """Yield the carrier, where spmd_types has what it needs."""
    if not unavailable():
        state = import_module("spmd_types._state")
        exempt = getattr(state, "_in_no_typecheck_frame", lambda: False)
        yield SpmdStateCarrier(state._tls, exempt), ("torch.function_modes",)


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
    captures_anew = True

    def __init__(self, local: threading.local, exempt: Callable[[], bool]) -> None:
        self._local = local

        def capture() -> object:
            fields = local.__dict__
            if not fields:
                return MISSING
            stack, mode = fields.get(_STACK), fields.get(_MODE)
            if mode is None:
                return (tuple(stack), None, (), ()) if stack else MISSING
            strict, is_local, disabled = _flags(mode)
            places = _places(mode, FunctionModes.here().types)
            # A function may be exempt by name, which is found on the stack of calls.
            return tuple(stack or ()), mode, (strict, is_local, disabled or exempt()), places

        # A closure, since this runs for every task: `self._local` would cost a third more.
        self.capture = capture

    def apply(self, state: object) -> object:
        """Set the meshes, and make type checking work on this thread as it did on the other."""
        stack, mode, flags, places = state if isinstance(state, tuple) else ((), None, (), ())
        fields = self._local.__dict__
        stack_before, mode_before = fields.get(_STACK), fields.get(_MODE)
        if mode is mode_before is None:
            if stack_before and same_state(stack, tuple(stack_before)):
                return UNCHANGED
            types = None
        else:
            modes = FunctionModes.here()
            types = modes.types
            if (
                mode is mode_before
                and flags == _flags(mode)
                # A backward pass takes the mode off the stack, and leaves it current.
                and places == _places(mode, types)
                and same_state(stack, tuple(stack_before or ()))
            ):
                return UNCHANGED
            if mode is not None:
                mode = _copy(mode, flags)
            modes._replace(types=tuple((place, mode) for place in places)).put()
            fields[_MODE] = mode
        fields[_STACK] = list(stack)
        return stack_before, mode_before, types

    def peek(self) -> object:
        """Return stack, mode, and where the mode is among the function modes."""
        fields = self._local.__dict__
        return fields.get(_STACK), fields.get(_MODE), FunctionModes.here().types

    def token_for(self, state: object) -> object:
        """Return a stack and a mode of its own, as in `state`."""
        if not isinstance(state, tuple):
            return None, None, ()
        stack, mode, flags, places = state
        own = None if mode is None else _copy(mode, flags)
        return list(stack), own, tuple((place, own) for place in places)

    def undo(self, token: Any) -> None:
        """Put the former stack, mode and function modes back."""
        stack, mode, types = token
        fields = self._local.__dict__
        if stack is None:
            fields.pop(_STACK, None)
        else:
            fields[_STACK] = stack
        if types is None:
            return
        if mode is None:
            fields.pop(_MODE, None)
        else:
            fields[_MODE] = mode
        modes = FunctionModes.here()
        if modes.types or types:
            modes._replace(types=types).put()

    def caller(self, state: Any) -> Callable[..., Any] | None:
        """Return what calls a function under the meshes, if these are all there is to set."""
        if state is MISSING or state[1] is not None:
            return None
        return partial(self._call_under, state[0])

    def _call_under(self, stack: tuple[Any, ...], fn: Callable[..., Any], /, *args: Any) -> Any:
        fields = self._local.__dict__
        before = fields.get(_STACK)
        token: object = UNCHANGED
        if fields.get(_MODE) is not None:  # left by another node: more is to be set than the stack
            token = self.apply((stack, None, (), ()))
        fields[_STACK] = list(stack)
        try:
            return fn(*args)
        finally:
            del stack, fn, args  # a traceback keeps this frame
            if before is None:
                fields.pop(_STACK, None)
            else:
                fields[_STACK] = before
            if token is not UNCHANGED:
                self.undo(token)

    def dump(self, state: Any) -> object:
        """
        Return each mesh by its axes and their process groups.

        Raises:
            NotPortableError: While type checking is on, which patches its process.
        """
        from ctxcarry._carriers._groups import dump_group  # noqa: PLC0415 - for processes only

        stack, mode, _, _ = state
        if mode is not None:
            msg = "spmd_types.typecheck() is on: enter it in the other process"
            raise NotPortableError(msg)
        return [
            {
                "axes": [_layout(axis) for axis in entry.axes],
                "local": [_layout(axis) for axis in entry.local_axes],
                "names": {name: _layout(axis) for name, axis in entry.names.items()},
                "all_names": {name: _layout(axis) for name, axis in entry.all_names.items()},
                "groups": [[_layout(axis), dump_group(g)] for axis, g in entry.pgs.items()],
            }
            for entry in stack
        ]

    def load(self, payload: Any) -> object:
        """Return the meshes, with the process groups of this process that are like theirs."""
        from ctxcarry._carriers._groups import find_group  # noqa: PLC0415

        try:
            stack = tuple(
                _entry_class()(
                    frozenset(map(_axis, entry["axes"])),
                    frozenset(map(_axis, entry["local"])),
                    {name: _axis(layout) for name, layout in entry["names"].items()},
                    {name: _axis(layout) for name, layout in entry["all_names"].items()},
                    {_axis(layout): find_group(self.name, g) for layout, g in entry["groups"]},
                )
                for entry in payload
            )
        except (AttributeError, KeyError, TypeError, ValueError) as cause:
            msg = f"{payload!r} does not describe meshes: {type(cause).__name__}: {cause}"
            raise WireError(msg) from cause
        return (stack, None, (), ()) if stack else MISSING

    def describe(self, state: object) -> str:
        """Name the axes of the innermost mesh and the kind of type checking."""
        if not isinstance(state, tuple):
            return "not set"
        stack, mode, _, _ = state
        checking = "type checking" if mode is not None else "no type checking"
        if not stack:
            return f"no mesh, {checking}"
        names = sorted(stack[-1].all_names) or sorted(map(str, stack[-1].axes))
        return f"mesh {', '.join(names)}, depth {len(stack)}, {checking}"


def _places(mode: Any, types: tuple[tuple[int, Any], ...]) -> tuple[int, ...]:
    return tuple(place for place, other in types if other is mode)


def _flags(mode: Any) -> tuple[Any, ...]:
    return tuple(getattr(mode, flag, None) for flag in _FLAGS)


def _copy(mode: Any, flags: tuple[Any, ...]) -> Any:
    """
    Return a copy of `mode` for this thread.

    spmd_types pauses checking by setting a flag on the object: one thread's
    ``no_typecheck()`` must not pause another's.
    """
    own = copy.copy(mode)
    for flag, value in zip(_FLAGS, flags):
        setattr(own, flag, value)
    return own


def _layout(axis: Any) -> list[list[int]]:
    # An axis of one dimension has plain integers in older layouts of torch.
    return [
        [value] if isinstance(value, int) else list(value)
        for value in (axis.layout.shape, axis.layout.stride)
    ]


def _axis(layout: Any) -> Any:
    shape, stride = layout
    source = import_module("spmd_types._mesh_axis")
    make = getattr(source, "_make_axis_layout", None)
    if make is None:
        msg = "this spmd_types has no spmd_types._mesh_axis._make_axis_layout"
        raise NotPortableError(msg)
    return source.MeshAxis(make(tuple(shape), tuple(stride)))


def _entry_class() -> Any:
    return import_module("spmd_types._state").MeshEntry
