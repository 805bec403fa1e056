"""What compiling changes: what lies between products is fused, and takes no memory."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch

from ctxcarry_checkpoint._ops import first_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ctxcarry_checkpoint._ops import Op
    from ctxcarry_checkpoint._roofline import Roofline

__all__ = ("as_compiled", "is_fusible")

# Beside those that torch says of that they go element by element.
_FUSED = frozenset(
    [
        "_fused_rms_norm",
        "_log_softmax",
        "_softmax",
        "_to_copy",
        "all",
        "amax",
        "amin",
        "any",
        "argmax",
        "argmin",
        "cat",
        "clone",
        "constant_pad_nd",
        "copy",
        "copy_",
        "cumsum",
        "embedding",
        "fill",
        "fill_",
        "gather",
        "index",
        "index_select",
        "logsumexp",
        "mean",
        "native_group_norm",
        "native_layer_norm",
        "prod",
        "repeat",
        "select_scatter",
        "slice_scatter",
        "stack",
        "std",
        "sum",
        "tril",
        "triu",
        "var",
        "var_mean",
        "where",
    ]
)
# What is that much smaller than what it was made of is kept by the compiler in any case.
_REDUCED = 4


def is_fusible(func: Any) -> bool:
    """Say whether a compiler puts an operator into one kernel with its neighbours."""
    if torch.Tag.pointwise in getattr(func, "tags", ()):
        return True
    packet = getattr(func, "_overloadpacket", None)
    return getattr(func, "namespace", "") == "aten" and getattr(packet, "__name__", "") in _FUSED


def as_compiled(
    ops: Sequence[Op], funcs: Sequence[Any], returned: Collection[int], roofline: Roofline
) -> tuple[tuple[Op, ...], int]:
    """
    Return the operators of a block as they are where it is compiled.

    A result that only fused operators read, in the forward and in the backward, is never in
    memory, and making it again takes no time beside theirs. One that a product reads is
    written once, and what its kernel is made from is read once.

    Args:
        ops: The operators, as they were recorded.
        funcs: Their overloads.
        returned: Those whose results the block returns.
        roofline: What the device can do.

    Returns:
        The operators with other times, those fused that are, and the bytes of the gradients
        that are alive together in the backward, which compiled code does not let go of in
        between.
    """
    block = _Block(ops, funcs, returned)
    found = []
    for op in ops:
        if op.index not in block.fusible:
            found.append(op)
        elif op.index in block.written:
            seconds = block.moved(op.index) / roofline.memory_bytes + roofline.launch
            found.append(replace(op, ms=seconds * 1e3))
        else:
            found.append(replace(op, ms=0.0, fused=True))
    return tuple(found), block.gradients()


class _Block:
    def __init__(self, ops: Sequence[Op], funcs: Sequence[Any], returned: Collection[int]) -> None:
        self._ops = ops
        self._size: dict[int, int] = defaultdict(int)
        self._readers: dict[int, list[int]] = defaultdict(list)
        for op in ops:
            self._size[first_of(op)] += op.nbytes
            # What reads a view has its maker for a parent, too.
            for parent in () if op.view else op.parents:
                self._readers[parent].append(op.index)
        self.fusible = frozenset(
            op.index for op in ops if is_fusible(funcs[op.index]) and not (op.random or op.effect)
        )
        self.written: set[int] = set()
        for op in ops:
            if not op.view and not op.scalar and self._is_written(op, returned):
                self.written |= {op.index, first_of(op)}

    def moved(self, index: int) -> int:
        """Return the bytes that the kernel reads and writes that ends with an operator."""
        size = self.bytes_of(index)
        read = sum(map(self.bytes_of, self._sources(index)))
        # What comes from outside of the block is not known: about as much as is made of it.
        return size + (read or max(size, self._largest(self._ops[index])))

    def gradients(self) -> int:
        """
        Return the most bytes of gradients that are alive together.

        That of a result lives from the backward of its last reader to that of its maker.
        """
        ends: dict[int, int] = {}
        for op in reversed(self._ops):
            ends[op.index] = max(
                (
                    reader if reader in self.written else ends[reader]
                    for reader in self._readers[op.index]
                ),
                default=op.index if op.packed else len(self._ops),
            )
        change = [0] * (len(self._ops) + 2)
        for index in self.written:
            # A kernel that is fused may put a gradient where that which it reads was.
            change[index + (index in self.fusible)] += self.bytes_of(index)
            change[ends[index] + 1] -= self.bytes_of(index)
        return max(accumulate(change), default=0)

    def bytes_of(self, index: int) -> int:
        return self._size[first_of(self._ops[index])]

    def _is_written(self, op: Op, returned: Collection[int]) -> bool:
        if op.index not in self.fusible or first_of(op) in returned:
            return True
        if any(reader not in self.fusible for reader in self._kept_by(op)):
            return True
        return self.bytes_of(op.index) * _REDUCED <= self._largest(op)

    def _largest(self, op: Op) -> int:
        return max(map(self.bytes_of, op.parents), default=0)

    def _kept_by(self, op: Op) -> list[int]:
        """Return what reads a result, in the forward or in the backward."""
        found = list(self._readers[op.index])
        for at in op.packed_at:
            # An argument is kept before the operator runs, a result after it.
            keeper = at if at < len(self._ops) and op.index in self._ops[at].parents else at - 1
            found.append(keeper)
        return found

    def _sources(self, index: int) -> set[int]:
        """Return the results in memory that the kernel of an operator reads."""
        found: set[int] = set()
        waiting = list(self._ops[index].parents)
        seen = set(waiting)
        while waiting:
            parent = waiting.pop()
            if parent in self.fusible and parent not in self.written:
                new = set(self._ops[parent].parents) - seen
                seen |= new
                waiting += new
            else:
                found.add(parent)
        return found
