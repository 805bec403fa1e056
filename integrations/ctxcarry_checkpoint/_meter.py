"""How much memory the blocks of a model really hold."""

from __future__ import annotations

import torch

__all__ = ("Meter",)


class Meter:
    """
    Measure one step.

    That is what all blocks hold after their forward, with what the last takes in its backward.
    What the model has beside the blocks, as its logits, does not count. The statistics of
    CUDA's peak are reset once, where the backward of the last block begins.

    Args:
        names: The blocks, in the order of their forward.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._first, self._last = names[0], names[-1]
        self._before: int | None = None
        self._returned = False
        self._in_last = False
        self._peak: int | None = None

    def begin(self, name: str) -> None:
        """Note that a block is called."""
        if name == self._first and not self._returned:
            self._before = torch.cuda.memory_allocated()

    def end(self, name: str) -> None:
        """Note that it has returned."""
        if name == self._last and self._before is not None:
            self._returned = True

    def backward(self, name: str) -> None:
        """Note that a backward has come to a block."""
        if not self._returned or self._peak is not None:
            return
        if name == self._last and not self._in_last:
            self._in_last = True
            torch.cuda.reset_peak_memory_stats()
        elif name != self._last and self._in_last:
            self._peak = torch.cuda.max_memory_allocated()

    def result(self) -> int | None:
        """Return the bytes at the peak, once they are known."""
        if self._before is None or self._peak is None:
            return None
        return self._peak - self._before
