"""
Torch's stacks of modes: default device, function modes, dispatch modes.

Modes are pushed on the thread's stack as they are and never entered again:
``__enter__`` writes to the mode itself, so that a second entry from another
thread leaks modes or changes their order (pytorch#180423).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._C import (
    _get_dispatch_stack_at,
    _get_function_stack_at,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
    _pop_torch_dispatch_stack,
    _pop_torch_function_stack,
    _push_on_torch_dispatch_stack,
    _push_on_torch_function_stack,
)
from torch.utils._device import DeviceContext

from ctxcarry._carrier import MISSING, CarrierBase, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ctxcarry._carrier import Carrier

__all__ = ("FunctionModes", "carriers", "unavailable")


def carriers() -> Iterator[tuple[Carrier, tuple[str, ...]]]:
    """Yield each carrier with the names that it comes after."""
    yield DefaultDeviceCarrier(), ()
    yield FunctionModesCarrier(), ("torch.default_device",)
    yield DispatchModesCarrier(), ()


def unavailable() -> dict[str, str]:
    """Return what this torch lacks: nothing, in the versions supported."""
    return {}


class FunctionModes(NamedTuple):
    """
    This thread's stack of function modes, by whose they are.

    Attributes:
        devices: The default device, which torch keeps at the bottom.
        types: Type-check modes of spmd_types, each with how many of `others` are
            above it.
        others: All other modes, the outermost first.
    """

    devices: tuple[Any, ...]
    types: tuple[tuple[int, Any], ...]
    others: tuple[Any, ...]

    @classmethod
    def here(cls) -> FunctionModes:
        """Return the stack of this thread."""
        devices: list[Any] = []
        types: list[tuple[int, Any]] = []
        others: list[Any] = []
        for i in range(_len_torch_function_stack()):
            mode = _get_function_stack_at(i)
            if isinstance(mode, DeviceContext):
                devices.append(mode)
            elif type(mode).__module__.startswith("spmd_types."):
                types.append((len(others), mode))
            else:
                others.append(mode)
        above = tuple((len(others) - below, mode) for below, mode in types)
        return cls(tuple(devices), above, tuple(others))

    def put(self) -> None:
        """Make this the stack of this thread."""
        for _ in range(_len_torch_function_stack()):
            _pop_torch_function_stack()
        for mode in self.devices:
            _push_on_torch_function_stack(mode)
        types = list(self.types)
        for i, mode in enumerate(self.others):
            while types and types[0][0] >= len(self.others) - i:
                _push_on_torch_function_stack(types.pop(0)[1])
            _push_on_torch_function_stack(mode)
        for _, mode in types:
            _push_on_torch_function_stack(mode)


class DefaultDeviceCarrier(CarrierBase):
    """``torch.set_default_device`` and ``with torch.device(...):`` (pytorch#115917)."""

    name = "torch.default_device"

    def __init__(self) -> None:
        # `set_default_device` also notes in a thread-local what it has entered.
        noted = getattr(torch, "_GLOBAL_DEVICE_CONTEXT", threading.local())
        self._noted = noted

        def capture() -> object:
            if not _len_torch_function_stack():
                return MISSING
            # Torch keeps the one device context at the bottom of the stack.
            bottom = _get_function_stack_at(0)
            return bottom if isinstance(bottom, DeviceContext) else MISSING

        self.capture = capture

    def apply(self, state: object) -> object:
        """Put the device context at the bottom of the stack, or take away what is there."""
        before = self.peek()
        self.undo((() if state is MISSING else (state,), MISSING))
        return before

    def token_for(self, state: object) -> object:
        """Return what `peek` returns where `state` is current."""
        return () if state is MISSING else (state,), MISSING

    def peek(self) -> object:
        """Return the device context, and what `set_default_device` noted."""
        noted = self._noted.__dict__.get("device_context", MISSING)
        return FunctionModes.here().devices, noted

    def undo(self, token: Any) -> None:
        """Bring back the device context that was there, if any."""
        devices, noted = token
        FunctionModes.here()._replace(devices=devices).put()
        if noted is MISSING:
            self._noted.__dict__.pop("device_context", None)
        else:
            self._noted.__dict__["device_context"] = noted

    def dump(self, state: Any) -> object:
        """Return the device as a string."""
        return str(state.device)

    def load(self, payload: Any) -> object:
        """Return a device context for it, which is not entered."""
        return DeviceContext(torch.device(payload))

    def describe(self, state: object) -> str:
        """Name the device."""
        return str(state.device) if isinstance(state, DeviceContext) else "not set"


class FunctionModesCarrier(CarrierBase):
    """The stack of ``TorchFunctionMode``, but for modes with a carrier of their own."""

    name = "torch.function_modes"
    captures_anew = True

    def __init__(self) -> None:
        def capture() -> object:
            if not _len_torch_function_stack():
                return MISSING
            return FunctionModes.here().others or MISSING

        self.capture = capture

    def apply(self, state: object) -> object:
        """Replace the modes on this thread by those of `state`."""
        before = FunctionModes.here()
        before._replace(others=state if isinstance(state, tuple) else ()).put()
        return before.others

    def peek(self) -> object:
        """Return the modes."""
        return FunctionModes.here().others

    def token_for(self, state: object) -> object:
        """Return what `peek` returns where `state` is current."""
        return state if isinstance(state, tuple) else ()

    def undo(self, token: Any) -> None:
        """Bring back the modes that were there."""
        FunctionModes.here()._replace(others=token).put()

    def describe(self, state: object) -> str:
        """Name the classes of the modes, the outermost first."""
        return _class_names(state)


class DispatchModesCarrier(CarrierBase):
    """The stack of ``TorchDispatchMode``, fake tensors and other infrastructure included."""

    name = "torch.dispatch_modes"
    captures_anew = True

    def __init__(self) -> None:
        def capture() -> object:
            if not _len_torch_dispatch_stack():
                return MISSING
            return _dispatch_modes(), torch._C._only_lift_cpu_tensors()

        self.capture = capture

    def apply(self, state: object) -> object:
        """Replace the modes on this thread by those of `state`."""
        before = self.peek()
        _set_dispatch_modes(*(state if isinstance(state, tuple) else ((), False)))
        return before

    def peek(self) -> object:
        """Return the modes."""
        return _dispatch_modes(), torch._C._only_lift_cpu_tensors()

    def token_for(self, state: object) -> object:
        """Return what `peek` returns where `state` is current."""
        return state if isinstance(state, tuple) else ((), False)

    def undo(self, token: Any) -> None:
        """Bring back the modes that were there."""
        _set_dispatch_modes(*token)

    def describe(self, state: object) -> str:
        """Name the classes of the modes, the outermost first."""
        return _class_names(state[0] if isinstance(state, tuple) else state)


def _dispatch_modes() -> tuple[Any, ...]:
    return tuple(_get_dispatch_stack_at(i) for i in range(_len_torch_dispatch_stack()))


def _set_dispatch_modes(modes: tuple[Any, ...], only_lift_cpu_tensors: bool) -> None:  # noqa: FBT001
    # Modes of torch's own (fake tensors, proxies) lie beneath all others and are
    # popped by their key.
    for mode in reversed(_dispatch_modes()):
        _pop_torch_dispatch_stack(getattr(mode, "_mode_key", None))
    for mode in modes:
        _push_on_torch_dispatch_stack(mode)
    # FakeTensorMode sets this where there is no GPU.
    torch._C._set_only_lift_cpu_tensors(only_lift_cpu_tensors)


def _class_names(state: object) -> str:
    if not isinstance(state, tuple):
        return "not set"
    return shorten([type(mode).__name__ for mode in state])
