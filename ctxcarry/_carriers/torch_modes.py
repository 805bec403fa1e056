"""
Torch's stacks of modes: default device, function modes, dispatch modes.

Modes are pushed on the thread's stack as they are and never entered again:
``__enter__`` writes to the mode itself, so that a second entry from another
thread leaks modes or changes their order (pytorch#180423).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    from collections.abc import Iterable, Iterator

    from torch.overrides import TorchFunctionMode

    from ctxcarry._carrier import Carrier

__all__ = ("carriers", "function_modes", "set_function_modes", "unavailable")


def carriers() -> Iterator[tuple[Carrier, tuple[str, ...]]]:
    """Yield each carrier with the names that it comes after."""
    yield DefaultDeviceCarrier(), ()
    yield FunctionModesCarrier(), ("torch.default_device",)
    yield DispatchModesCarrier(), ()


def unavailable() -> dict[str, str]:
    """Return what this torch lacks: nothing, in the versions supported."""
    return {}


def function_modes() -> list[TorchFunctionMode]:
    """Return this thread's stack of function modes, the outermost first."""
    return [_get_function_stack_at(i) for i in range(_len_torch_function_stack())]


def set_function_modes(modes: Iterable[TorchFunctionMode]) -> None:
    """Replace this thread's stack of function modes."""
    for _ in range(_len_torch_function_stack()):
        _pop_torch_function_stack()
    for mode in modes:
        _push_on_torch_function_stack(mode)


class DefaultDeviceCarrier(CarrierBase):
    """``torch.set_default_device`` and ``with torch.device(...):`` (pytorch#115917)."""

    name = "torch.default_device"

    def __init__(self) -> None:
        # Since torch 2.0 `set_default_device` also notes what it entered in a thread-local.
        thread_local = getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None)
        self._fields = (lambda: {}) if thread_local is None else (lambda: thread_local.__dict__)

        def capture() -> object:
            if not _len_torch_function_stack():
                return MISSING
            # Torch keeps the one device context at the bottom of the stack.
            bottom = _get_function_stack_at(0)
            return bottom if isinstance(bottom, DeviceContext) else MISSING

        self.capture = capture

    def apply(self, state: object) -> object:
        """Put the device context at the bottom of the stack, or take away what is there."""
        before = function_modes()
        others = [mode for mode in before if not isinstance(mode, DeviceContext)]
        set_function_modes(others if state is MISSING else [state, *others])
        fields: dict[str, Any] = self._fields()
        noted = fields.pop("device_context", MISSING)
        return before, noted

    def undo(self, token: Any) -> None:
        """Bring back the device context that was there, if any."""
        before, noted = token
        others = [mode for mode in function_modes() if not isinstance(mode, DeviceContext)]
        set_function_modes([*(m for m in before if isinstance(m, DeviceContext)), *others])
        if noted is not MISSING:
            self._fields()["device_context"] = noted

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
    """The stack of ``TorchFunctionMode``, but for the default device (pytorch#148023)."""

    name = "torch.function_modes"

    def __init__(self) -> None:
        def capture() -> object:
            if not _len_torch_function_stack():
                return MISSING
            modes = tuple(m for m in function_modes() if not isinstance(m, DeviceContext))
            return modes or MISSING

        self.capture = capture

    def apply(self, state: object) -> object:
        """Replace the modes on this thread by those of `state`."""
        before = function_modes()
        devices = [mode for mode in before if isinstance(mode, DeviceContext)]
        set_function_modes([*devices, *(state if isinstance(state, tuple) else ())])
        return tuple(mode for mode in before if not isinstance(mode, DeviceContext))

    def undo(self, token: Any) -> None:
        """Bring back the modes that were there."""
        devices = [mode for mode in function_modes() if isinstance(mode, DeviceContext)]
        set_function_modes([*devices, *token])

    def describe(self, state: object) -> str:
        """Name the classes of the modes, the outermost first."""
        return _class_names(state)


class DispatchModesCarrier(CarrierBase):
    """The stack of ``TorchDispatchMode``, fake tensors and other infrastructure included."""

    name = "torch.dispatch_modes"

    def __init__(self) -> None:
        def capture() -> object:
            if not _len_torch_dispatch_stack():
                return MISSING
            return _dispatch_modes(), torch._C._only_lift_cpu_tensors()

        self.capture = capture

    def apply(self, state: object) -> object:
        """Replace the modes on this thread by those of `state`."""
        before = _dispatch_modes(), torch._C._only_lift_cpu_tensors()
        _set_dispatch_modes(*(state if isinstance(state, tuple) else ((), False)))
        return before

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
