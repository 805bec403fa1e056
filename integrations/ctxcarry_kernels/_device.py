"""The device of a launch: current and bound to the thread, and how much of it there is."""

from __future__ import annotations

import functools
import itertools
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from ctxcarry_kernels._first_call import told_if_slow
from ctxcarry_kernels._plan import TILE_N, tiles

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

__all__ = ("on_device", "processors", "programs")

_FIRST_USES: Final = 4
_uses = itertools.count()


@functools.cache
def processors(device: torch.device) -> int:
    """Return the number of multiprocessors."""
    if device.type != "cuda":
        return 4
    return torch.cuda.get_device_properties(device).multi_processor_count


def programs(rows: int, words: int, device: torch.device) -> int:
    """Return how many programs share the tiles of a matrix: one per processor at most."""
    return min(processors(device), -(-rows // TILE_N) * tiles(words))


def on_device(tensor: Tensor) -> AbstractContextManager[None]:
    """
    Have the tensor's device current, and its CUDA context bound to this thread.

    A descriptor made on the host fails with "invalid device context" in a thread that
    has run no kernel yet, which a thread of autograd may be; to ask for a device is
    not enough.
    """
    return _bound(tensor.device) if tensor.is_cuda else nullcontext()


@contextmanager
def _bound(device: torch.device) -> Iterator[None]:
    with torch.cuda.device(device):
        torch.cuda.set_device(device)
        # The first forward and the first backward have kernels to compile.
        with told_if_slow() if next(_uses) < _FIRST_USES else nullcontext():
            yield
