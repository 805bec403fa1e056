"""A tensor that waits in pinned memory of the CPU, copied by streams of its own."""

from __future__ import annotations

import functools
from typing import Any

import torch

__all__ = ("Offloaded",)


class Offloaded:
    """
    A tensor of a GPU in pinned memory, copied while the GPU computes.

    Streams wait for each other: the copy for what made the tensor, whoever uses it again
    for the copy back. The memory of both is told which streams use it, so that the
    allocator does not give it to others too early (torchtitan#2581).

    Args:
        tensor: On a device with streams.
    """

    __slots__ = ("_back", "_device", "_done", "_host", "_ready")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._device = tensor.device
        module = torch.get_device_module(tensor.device)
        away, _ = _streams(tensor.device)
        self._host = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu", pin_memory=True
        )
        away.wait_stream(module.current_stream(tensor.device))
        with module.stream(away):
            self._host.copy_(tensor, non_blocking=True)
        tensor.record_stream(away)
        self._done = away.record_event()
        self._back: torch.Tensor | None = None
        self._ready: Any = None

    def prefetch(self) -> None:
        """Begin to copy it back, unless that was begun before."""
        if self._back is not None:
            return
        module = torch.get_device_module(self._device)
        _, back = _streams(self._device)
        back.wait_event(self._done)
        with module.stream(back):
            self._back = torch.empty_strided(
                self._host.shape,
                self._host.stride(),
                dtype=self._host.dtype,
                device=self._device,
            )
            self._back.copy_(self._host, non_blocking=True)
        self._ready = back.record_event()

    def get(self) -> torch.Tensor:
        """Return it on its device, and forget the copy there."""
        self.prefetch()
        back = self._back
        assert back is not None
        stream = torch.get_device_module(self._device).current_stream(self._device)
        stream.wait_event(self._ready)
        back.record_stream(stream)
        self._back = self._ready = None
        return back


@functools.cache
def _streams(device: torch.device) -> tuple[Any, Any]:
    """Return the streams to the CPU and back: copies of one kind would hold up the other."""
    module = torch.get_device_module(device)
    return module.Stream(device), module.Stream(device)
