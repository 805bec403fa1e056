"""The recompute of a block: the operators that are needed, in the order of the forward."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ctxcarry_checkpoint import _mismatch as mismatch
from ctxcarry_checkpoint._hidden import fingerprint
from ctxcarry_checkpoint._kept import LostError
from ctxcarry_checkpoint._mode import BlockMode
from ctxcarry_checkpoint._placeholder import NeededError, Placeholder
from ctxcarry_checkpoint._private import IGNORED
from ctxcarry_checkpoint._results import brief, stand_in, tensors
from ctxcarry_checkpoint._schema import has_statistics, may_be_random, without_statistics
from ctxcarry_checkpoint._trace import Role

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ctxcarry_checkpoint._forward import Constants
    from ctxcarry_checkpoint._kept import Tensors
    from ctxcarry_checkpoint._ops import Op
    from ctxcarry_checkpoint._trace import Trace

__all__ = ("Recompute", "Record")

_RUN = Role.RUN


@dataclass
class Record:
    """
    What a forward has left for its recompute.

    Attributes:
        funcs: Its operators.
        noted: Shape and type of each result, or its layout.
        constants: By operator: where arguments are no tensors, what they are, and its keyword
            arguments if those are none.
        versions: By operator: which arguments come from outside, and how often they were
            written to.
        kept: By operator: its result.
        where: By operator: the lines that called it, as far as they are known.
        ops: Its operators as they are known, for messages.
        trace: The known forward that it followed, if any.
        values: By operator: a number of what it returned, where that was asked for.
    """

    funcs: Sequence[Any]
    noted: Sequence[Any]
    constants: Mapping[int, Constants]
    versions: Mapping[int, tuple[tuple[int, ...], list[int]]]
    kept: dict[int, Tensors]
    where: Sequence[tuple[str, ...]]
    ops: Sequence[Op]
    trace: Trace | None
    values: dict[int, list[torch.Tensor | None]] = field(default_factory=dict)


class Recompute(BlockMode):  # type: ignore[no-untyped-call,unused-ignore]
    """
    Sees each operator of a block while it runs again.

    Args:
        record: What the forward has left.
        skip: Whether to leave out what is not needed.

    Attributes:
        skipped: Whether something was left out.
        index: How many operators were seen.
        stop: What to raise at the next operator. Torch never frees a hook for packing that
            raises something itself.
    """

    def __init__(self, record: Record, *, skip: bool) -> None:
        super().__init__()
        self.skipped = False
        self.stop: BaseException | None = None
        self.index = 0
        self.record = record
        trace = record.trace
        self._roles: Sequence[Role]
        if trace is not None and skip:
            self._roles = trace.roles
        else:
            self._roles = _all(record)
        self._length = len(record.noted)
        self._funcs = record.funcs
        self._noted = record.noted
        self._constants = record.constants
        self._versions = record.versions
        self._values = bool(record.values)

    def __torch_dispatch__(  # noqa: C901 - a frame less for each operator
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if self.stop is not None:
            raise self.stop
        if kwargs is None:
            kwargs = {}
        index = self.index
        if index >= self._length or self._funcs[index] is not func:
            if func in IGNORED:
                return Placeholder.like(args[0]) if Placeholder in types else func(*args, **kwargs)
            raise mismatch.other_operator(self.record, index, func)
        self.index = index + 1
        constants = self._constants.get(index)
        if constants is not None:
            positions, given, named = constants
            now = tuple([args[position] for position in positions if position < len(args)])
            if now != given or (named is not None and named != kwargs):
                mismatch.check_constants(self.record, index, args, kwargs)
        role = self._roles[index]
        if role is not _RUN:
            return self._not_run(role, index, func, types, args, kwargs)
        if index in self._versions:
            mismatch.check_versions(self.record, index, args)
        if types and Placeholder in types:
            msg = f"{func} reads a result that a recompute has left out"
            raise NeededError(msg)
        output = func(*args, **kwargs)
        noted = self._noted[index]
        found = (output.shape, output.dtype) if type(output) is torch.Tensor else brief(output)
        if noted != found:
            mismatch.check_result(self.record, index, output)
        if self._values and index in self.record.values:
            values = [fingerprint(tensor) for tensor in tensors(output)]
            mismatch.check_values(self.record, index, values)
        return output

    def _not_run(
        self,
        role: Role,
        index: int,
        func: Any,
        types: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        if role is Role.DEAD:
            self.skipped = True
            return stand_in(self._noted[index])
        if role is Role.PASS:
            return args[0]
        if role is Role.APART:
            if Placeholder in types:
                raise NeededError
            return func(*without_statistics(args), **kwargs)
        if role is Role.ADVANCE:
            if Placeholder in types:
                raise NeededError
            func(*args, **kwargs)
        try:
            return self.record.kept[index].get()
        except LostError:
            # Written to outside of the block: make it again, from what is there.
            if role is Role.ADVANCE or Placeholder in types:
                raise NeededError from None
            return func(*args, **kwargs)


def _all(record: Record) -> list[Role]:
    """Call everything that is not kept as it was at that operator."""
    trace = record.trace
    kept = set(record.kept)
    if trace is not None:
        # Kept after it was written to; what reads it before would see the last state.
        kept -= trace.groups
    roles = [_whole(record, i, kept) for i in range(len(record.noted))]
    drawn = [
        i for i, role in enumerate(roles) if role is Role.RUN and may_be_random(record.funcs[i])
    ]
    for index in range(max(drawn, default=0)):
        if roles[index] is Role.KEPT and may_be_random(record.funcs[index]):
            roles[index] = Role.ADVANCE
    return roles


def _whole(record: Record, index: int, kept: set[int]) -> Role:
    if index in kept:
        return Role.KEPT
    if record.trace is not None and record.trace.ops[index].once:
        return Role.PASS
    return Role.APART if has_statistics(record.funcs[index]) else Role.RUN
