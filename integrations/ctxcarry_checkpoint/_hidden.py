"""Find out that a kernel which torch does not see has written to a result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ctxcarry_checkpoint._kept import version_of

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ("Watch", "fingerprint")

_PIECE = 1 << 24
_FACTOR = 0x9E3779B1
"""Odd, so that no place counts nothing; sums wrap around."""


def fingerprint(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a number of the bits of a tensor, or None if it has none that can be read."""
    if isinstance(tensor, FakeTensor) or type(tensor) is not torch.Tensor:
        return None
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        return None
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        return None
    with torch.no_grad():
        flat = tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
        flat = flat.view(torch.uint8)
        rest = flat.numel() % 4
        whole = flat[: flat.numel() - rest].view(torch.int32)
        return _weighed(whole) + _weighed(flat[flat.numel() - rest :])


def _weighed(words: torch.Tensor) -> torch.Tensor:
    """Return a sum in which each place counts otherwise, so that an exchange shows as well."""
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for start in range(0, words.numel(), _PIECE):
        piece = words[start : start + _PIECE]
        places = torch.arange(start, start + piece.numel(), device=words.device)
        total = total * _FACTOR + (piece * ((2 * places + 1) * _FACTOR)).sum()
    return total


class Watch:
    """Results that are kept, with what was in them when they were."""

    def __init__(self) -> None:
        self._before: list[tuple[int, torch.Tensor, int | None, torch.Tensor]] = []

    def add(self, index: int, tensors: Iterable[torch.Tensor]) -> None:
        """Note what an operator has returned, as it is kept."""
        for tensor in tensors:
            before = fingerprint(tensor)
            if before is not None:
                self._before.append((index, tensor, version_of(tensor), before))

    def changed(self) -> set[int]:
        """Return the operators whose results are others now, though torch saw no change."""
        differ: list[tuple[int, Any]] = []
        for index, tensor, version, before in self._before:
            if version_of(tensor) != version:
                continue
            after = fingerprint(tensor)
            assert after is not None
            differ.append((index, before != after))
        self._before.clear()
        return {index for index, answer in differ if bool(answer)}
