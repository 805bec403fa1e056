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
from ctxcarry.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ctxcarry._carrier import Carrier

__all__ = ("FunctionModes", "carriers", "unavailable")


def carriers() -> Iterator[tuple[Carrier, tuple[str, ...]]]:
    """Yield each carrier with the names that it comes after."""
    yield FunctionModesCarrier(), ()
    # Its places are among the other modes.
    yield DefaultDeviceCarrier(), ("torch.function_modes",)
    yield DispatchModesCarrier(), ()


def unavailable() -> dict[str, str]:
    """Return what this torch lacks: nothing, in the versions supported."""
    return {}


_BOTTOM = 1 << 30


class FunctionModes(NamedTuple):
    """
    This thread's stack of function modes, by whose they are.

    Attributes:
        devices: Default devices (``torch.set_default_device`` puts one at the
            bottom, ``with torch.device(...):`` on top), each with how many of
            `others` are above it.
        types: Type-check modes of spmd_types, likewise.
        others: All other modes, the outermost first.
    """

    devices: tuple[tuple[int, Any], ...]
    types: tuple[tuple[int, Any], ...]
    others: tuple[Any, ...]

    @classmethod
    def here(cls) -> FunctionModes:
        """Return the stack of this thread."""
        devices: list[tuple[int, Any]] = []
        types: list[tuple[int, Any]] = []
        others: list[Any] = []
        for i in range(_len_torch_function_stack()):
            mode = _get_function_stack_at(i)
            if isinstance(mode, DeviceContext):
                devices.append((len(others), mode))
            elif type(mode).__module__.startswith("spmd_types."):
                types.append((len(others), mode))
            else:
                others.append(mode)
        # Beneath nothing counts as the bottom, where torch keeps the default device.
        count = len(others)
        return cls(
            tuple(((count or _BOTTOM) - below, mode) for below, mode in devices),
            tuple((count - below, mode) for below, mode in types),
            tuple(others),
        )

    def put(self) -> None:
        """Make this the stack of this thread."""
        for _ in range(_len_torch_function_stack()):
            _pop_torch_function_stack()
        placed = sorted((*self.devices, *self.types), key=lambda entry: -entry[0])
        for i, mode in enumerate(self.others):
            while placed and placed[0][0] >= len(self.others) - i:
                _push_on_torch_function_stack(placed.pop(0)[1])
            _push_on_torch_function_stack(mode)
        for _, mode in placed:
            _push_on_torch_function_stack(mode)


class DefaultDeviceCarrier(CarrierBase):
    """``torch.set_default_device`` and ``with torch.device(...):`` (pytorch#115917)."""

    name = "torch.default_device"
    captures_anew = True

    def __init__(self) -> None:
        # `set_default_device` also notes in a thread-local what it has entered.
        self._noted = getattr(torch, "_GLOBAL_DEVICE_CONTEXT", threading.local())

        def capture() -> object:
            if not _len_torch_function_stack():
                return MISSING
            devices, noted = peek()
            return (devices, noted) if devices else MISSING

        peek = self.peek
        self.capture = capture

    def apply(self, state: object) -> object:
        """Put the device contexts in their places, and take away those that are here."""
        before = self.peek()
        self.undo(self.token_for(state))
        return before

    def token_for(self, state: object) -> object:
        """Return what `peek` returns where `state` is current."""
        return state if isinstance(state, tuple) else ((), MISSING)

    def peek(self) -> tuple[tuple[tuple[int, Any], ...], object]:
        """Return the device contexts, and what `set_default_device` noted."""
        noted = self._noted.__dict__.get("device_context", MISSING)
        return FunctionModes.here().devices, noted

    def undo(self, token: Any) -> None:
        """Bring back the device contexts that were there."""
        devices, noted = token
        FunctionModes.here()._replace(devices=devices).put()
        if noted is MISSING:
            self._noted.__dict__.pop("device_context", None)
        else:
            self._noted.__dict__["device_context"] = noted

    def dump(self, state: Any) -> object:
        """Return the innermost device, which decides, as a string."""
        return str(state[0][-1][1].device)

    def load(self, payload: Any) -> object:
        """Return a device context for it, which is not entered."""
        if not isinstance(payload, str):
            msg = f"{payload!r} is not the name of a device"
            raise WireError(msg)
        return ((_BOTTOM, DeviceContext(torch.device(payload))),), MISSING

    def describe(self, state: object) -> str:
        """Name the device."""
        return str(state[0][-1][1].device) if isinstance(state, tuple) else "not set"


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
