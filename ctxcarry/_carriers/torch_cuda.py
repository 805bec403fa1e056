"""
The current CUDA device and stream.

Nothing here initialises CUDA: until the program does, there is no device to
carry, and a process that has initialised it can no longer fork.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch

from ctxcarry._carrier import MISSING, UNCHANGED, CarrierBase
from ctxcarry.errors import NotPortableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ctxcarry._carrier import Carrier

__all__ = ("CudaDeviceCarrier", "CudaStreamCarrier", "carriers", "unavailable")


def carriers() -> Iterator[tuple[Carrier, tuple[str, ...]]]:
    """Yield both carriers where torch is built with CUDA and finds a device."""
    if not unavailable():
        yield CudaDeviceCarrier(), ()
        # A stream belongs to a device, and setting it makes that device current.
        yield CudaStreamCarrier(), ("torch.cuda_device",)


def unavailable() -> dict[str, str]:
    """Return why there is nothing to carry, if there is not."""
    if not hasattr(torch._C, "_cuda_getDevice"):
        reason = "this torch is built without CUDA"
    elif torch.cuda.device_count() == 0:  # through NVML, without initialising CUDA
        reason = "no CUDA device is visible"
    else:
        return {}
    return dict.fromkeys((CudaDeviceCarrier.name, CudaStreamCarrier.name), reason)


class CudaDeviceCarrier(CarrierBase):
    """
    The current device, bound even when it is device 0.

    A new thread has no CUDA context until something binds one, and Triton's
    host-side descriptors fail without ("invalid device context",
    pytorch#124565); with the wrong one, work goes to GPU 0.
    """

    name = "torch.cuda_device"
    # So that `apply` is asked even where the index is the same: a new thread says 0.
    captures_anew = True

    def __init__(self) -> None:
        self._bound = threading.local()
        initialized: Callable[[], bool] = torch.cuda.is_initialized
        get = torch._C._cuda_getDevice

        def capture() -> object:
            return get() if initialized() else MISSING

        self.capture = capture
        self._initialized = initialized

    def apply(self, state: object) -> object:
        """Make the device current and bind its context to this thread."""
        if not isinstance(state, int) or not self._initialized():
            return UNCHANGED
        before: int = torch._C._cuda_getDevice()
        if before != state:
            torch._C._cuda_setDevice(state)
            return before
        self._bind(state)
        return UNCHANGED

    def bind_current(self) -> None:
        """Bind the context of the current device to this thread, without changing the device."""
        if self._initialized():
            self._bind(torch._C._cuda_getDevice())

    def _bind(self, device: int) -> None:
        bound: dict[Any, Any] = vars(self._bound)
        if device not in bound:
            # Binds the device's context, which torch itself does only when a
            # thread calls something that needs one. It stays: it is no state.
            torch._C._cuda_setDevice(device)
            bound[device] = True

    def undo(self, token: Any) -> None:
        """Make the former device current."""
        torch._C._cuda_setDevice(token)

    def dump(self, state: object) -> object:
        """Return the index, which CUDA_VISIBLE_DEVICES may give another meaning over there."""
        return state

    def load(self, payload: Any) -> object:
        """Return the index, if the device is there."""
        if int(payload) >= torch.cuda.device_count():
            msg = f"cuda:{payload} was current and this process sees {torch.cuda.device_count()}"
            raise NotPortableError(msg)
        return int(payload)

    def describe(self, state: object) -> str:
        """Name the device."""
        return f"cuda:{state}" if isinstance(state, int) else "CUDA not initialised"


class CudaStreamCarrier(CarrierBase):
    """The current stream of the current device; the default stream is "not set"."""

    name = "torch.cuda_stream"

    def __init__(self) -> None:
        initialized: Callable[[], bool] = torch.cuda.is_initialized
        get_device = torch._C._cuda_getDevice
        get_stream = torch._C._cuda_getCurrentStream

        def capture() -> object:
            if not initialized():
                return MISSING
            # (stream id, device index, device type); the id of the default stream is 0.
            stream = get_stream(get_device())
            return MISSING if stream[0] == 0 else stream

        self.capture = capture
        self._initialized = initialized

    def apply(self, state: object) -> object:
        """Make the stream current on its device."""
        if not self._initialized():
            return UNCHANGED
        device = torch._C._cuda_getDevice()
        if isinstance(state, tuple):
            stream_id, index, device_type = state
        else:
            index = device
            stream_id, _, device_type = torch._C._cuda_getDefaultStream(device)
        before = torch._C._cuda_getCurrentStream(index)
        torch._C._cuda_setStream(stream_id=stream_id, device_index=index, device_type=device_type)
        return before, device

    def undo(self, token: Any) -> None:
        """Make the former stream current, and the device that was."""
        (stream_id, index, device_type), device = token
        torch._C._cuda_setStream(stream_id=stream_id, device_index=index, device_type=device_type)
        torch._C._cuda_setDevice(device)

    def describe(self, state: object) -> str:
        """Name the stream by its id."""
        return f"stream {state[0]} of cuda:{state[1]}" if isinstance(state, tuple) else "default"
