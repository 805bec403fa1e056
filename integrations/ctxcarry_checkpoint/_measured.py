"""How long operators take, measured where they run."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from ctxcarry_checkpoint._kinds import kind_key
from ctxcarry_checkpoint._private import direct, sleep_on_cuda
from ctxcarry_checkpoint._schema import draws_random, has_statistics, written

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ctxcarry_checkpoint._kinds import Block
    from ctxcarry_checkpoint._ops import Op
    from ctxcarry_checkpoint._record import Cost

__all__ = ("Clock", "Times")

# Cycles, about 0.1 ms: longer than Python takes to put an operator between two events.
_AHEAD = 200_000


class Clock:
    """
    Run the operators of one call of a block, and measure each.

    The first time that an operator is called with such arguments it may compile, choose among
    kernels, or load them. So it is called twice then, if that changes nothing, and does not
    count otherwise.

    Args:
        estimator: Tells the milliseconds of an operator without measuring.
        known: Which operators were called before with which arguments, for all clocks.

    Attributes:
        spans: What was measured of each operator that is no view, in order.
    """

    def __init__(self, estimator: Cost, known: set[object]) -> None:
        self.spans: list[_Span | None] = []
        self._estimator = estimator
        self._known = known
        self._last: _Span | None = None

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call an operator, measure how long that takes, and return its result."""
        call = direct(func)
        tensors = [t for t in tree_leaves((args, dict(kwargs))) if isinstance(t, torch.Tensor)]
        devices = {tensor.device for tensor in tensors}
        device = devices.pop() if len(devices) == 1 else None
        if device is None or device.type not in {"cpu", "cuda"}:
            self._last = None
            return call(*args, **kwargs)
        key = func, tuple(_look(tensor) for tensor in tensors)
        first = key not in self._known
        self._known.add(key)
        if first and _changes_nothing(func, args, kwargs, tensors):
            # Let go of at once, so that the peak of memory stays what it is.
            call(*args, **kwargs)
            first = False
        if device.type == "cpu":
            before = time.perf_counter()
            output = call(*args, **kwargs)
            span: _Span = _Span((time.perf_counter() - before) * 1e3)
        else:
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call,unused-ignore]
            with torch.cuda.device(device):
                # All three are waiting when the device comes to them, so that what lies between
                # is the operator and not the time to launch it.
                sleep_on_cuda(_AHEAD)
                start.record()
                output = call(*args, **kwargs)
                end.record()
            span = _Span(0.0, start, end)
        self._last = None if first else span
        return output

    def ms(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> float:
        """Return an estimate for the operator that has just run, and note what it took."""
        self.spans.append(self._last)
        return self._estimator.ms(func, args, kwargs, output)


class Times:
    """
    Keep what was measured of the blocks of a model.

    Args:
        estimator: Tells the milliseconds of an operator without measuring.
    """

    def __init__(self, estimator: Cost) -> None:
        self._estimator = estimator
        self._known: set[object] = set()
        self._found: dict[str, list[list[_Span | None]]] = {}

    def clock(self) -> Clock:
        """Return what measures a call of a block."""
        return Clock(self._estimator, self._known)

    def add(self, name: str, clock: Clock) -> None:
        """Take in a call of a block."""
        self._found.setdefault(name, []).append(clock.spans)

    def settled(self, blocks: Iterable[Block]) -> list[Block]:
        """
        Return blocks whose operators take the time that was measured.

        That is the median of all calls of blocks that run the same operators. What was never
        measured takes its estimate, as far off as those of the others are.
        """
        blocks = list(blocks)
        kinds: dict[object, list[Block]] = {}
        for block in blocks:
            kinds.setdefault(kind_key(block), []).append(block)
        medians = {key: self._medians(alike) for key, alike in kinds.items()}
        pairs = [
            (ms, op.ms)
            for key, alike in kinds.items()
            for ms, op in zip(medians[key], _timed(alike[0]))
            if ms is not None
        ]
        estimated = sum(estimate for _, estimate in pairs)
        scale = sum(ms for ms, _ in pairs) / estimated if estimated else 1.0
        found = []
        for block in blocks:
            left = iter(medians[kind_key(block)])
            ops = tuple(op if op.view else _with(op, next(left), scale) for op in block.ops)
            found.append(replace(block, ops=ops))
        return found

    def _medians(self, alike: Sequence[Block]) -> list[float | None]:
        count = len(_timed(alike[0]))
        calls = [
            spans
            for block in alike
            for spans in self._found.get(block.name, ())
            if len(spans) == count
        ]
        found: list[float | None] = []
        for place in range(count):
            spans = [span for call in calls if (span := call[place]) is not None]
            # Of two the shorter one: what disturbs a measurement makes it longer.
            found.append(statistics.median_low(s.ms() for s in spans) if spans else None)
        return found


@dataclass
class _Span:
    """
    What an operator took.

    Attributes:
        elapsed: Milliseconds, where they are known at once.
        start: The event before it, on a CUDA device.
        end: The event after it.
    """

    elapsed: float
    start: torch.cuda.Event | None = field(default=None)
    end: torch.cuda.Event | None = field(default=None)

    def ms(self) -> float:
        """Return the milliseconds, once the device has come so far."""
        if self.start is not None and self.end is not None:
            self.end.synchronize()
            self.elapsed = self.start.elapsed_time(self.end)
            self.start = self.end = None
        return self.elapsed


def _look(tensor: torch.Tensor) -> object:
    """Return what a kernel may be chosen by."""
    if is_traceable_wrapper_subclass(tensor) or tensor.layout is not torch.strided:
        return type(tensor), tensor.layout
    return tensor.shape, tensor.stride(), tensor.dtype


def _changes_nothing(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], tensors: Sequence[torch.Tensor]
) -> bool:
    """Say whether nobody can tell that an operator was called once more."""
    return not (
        getattr(func, "namespace", None) != "aten"
        or has_statistics(func)
        or written(func, args, kwargs)
        or draws_random(func, args, kwargs)
        or any(is_traceable_wrapper_subclass(tensor) for tensor in tensors)
    )


def _timed(block: Block) -> list[Op]:
    return [op for op in block.ops if not op.view]


def _with(op: Op, ms: float | None, scale: float) -> Op:
    # Memory that is taken and not written, for one, is estimated at nothing, and takes nothing.
    return replace(op, ms=0.0 if not op.ms else op.ms * scale if ms is None else ms)
