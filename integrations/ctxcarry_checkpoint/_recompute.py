"""The recompute of a block: the operators that are needed, in the order of the forward."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ctxcarry_checkpoint import _mismatch as mismatch
from ctxcarry_checkpoint._hidden import fingerprint
from ctxcarry_checkpoint._kept import LostError
from ctxcarry_checkpoint._mode import BlockMode
from ctxcarry_checkpoint._placeholder import NeededError, Placeholder
from ctxcarry_checkpoint._private import IGNORED
from ctxcarry_checkpoint._results import brief, stand_in, tensors
from ctxcarry_checkpoint._schema import has_statistics, may_be_random, without_statistics
from ctxcarry_checkpoint._steps import NAMED, VALUES, VERSIONS, Role, again_steps

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ctxcarry_checkpoint._kept import Tensors
    from ctxcarry_checkpoint._ops import Op
    from ctxcarry_checkpoint._steps import AgainStep
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
        places: Of each operator: where arguments are no tensors, and whether its keyword
            arguments are none.
        constants: By operator: what is in those places, as `taking` takes it.
        named: By operator: its keyword arguments, if those are no tensors.
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
    places: Sequence[tuple[tuple[int, ...], bool]]
    constants: Mapping[int, Any]
    named: Mapping[int, Mapping[str, Any]]
    versions: Mapping[int, tuple[tuple[int, ...], list[int]]]
    kept: dict[int, Tensors]
    where: Sequence[tuple[str, ...]]
    ops: Sequence[Op]
    trace: Trace | None
    values: dict[int, list[Tensor | None]] = field(default_factory=dict)


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
        self._steps: Sequence[AgainStep]
        if trace is not None and skip:
            self._steps = trace.again
        else:
            self._steps = again_steps(
                record.funcs[: len(record.noted)],
                [places for places, _ in record.places],
                _all(record),
                named=record.named,
                versions=record.versions,
                values=record.values,
            )
        self._noted = record.noted
        self._constants = record.constants

    def __torch_dispatch__(  # noqa: C901 - a frame less for each operator
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if self.stop is not None:
            raise self.stop
        index = self.index
        expected, call, take, role, checks = self._steps[index]
        if expected is not func:
            return self._otherwise(index, func, types, args, kwargs or {})
        self.index = index + 1
        if take is not None:
            try:
                same = take(args) == self._constants[index]
            except IndexError:
                same = False
            if not same:
                mismatch.check_constants(self.record, index, args, kwargs or {})
        if checks:
            # What few operators have.
            if checks & NAMED and self.record.named[index] != kwargs:
                mismatch.check_constants(self.record, index, args, kwargs or {})
            if checks & VERSIONS:
                mismatch.check_versions(self.record, index, args)
        if role is not _RUN:
            return self._not_run(role, index, func, types, args, kwargs or {})
        if types and Placeholder in types:
            msg = f"{func} reads a result that a recompute has left out"
            raise NeededError(msg)
        output = call(*args, **kwargs) if kwargs else call(*args)
        found = (output.shape, output.dtype) if type(output) is Tensor else brief(output)
        if self._noted[index] != found:
            mismatch.check_result(self.record, index, output)
        if checks >= VALUES:
            values = [fingerprint(tensor) for tensor in tensors(output)]
            mismatch.check_values(self.record, index, values)
        return output

    def _otherwise(
        self, index: int, func: Any, types: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call what is not the operator of the forward, if a checkpoint itself does."""
        if func not in IGNORED:
            raise mismatch.other_operator(self.record, index, func)
        return Placeholder.like(args[0]) if Placeholder in types else func(*args, **kwargs)

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
    if record.ops and record.ops[index].once:
        return Role.PASS
    return Role.APART if has_statistics(record.funcs[index]) else Role.RUN
