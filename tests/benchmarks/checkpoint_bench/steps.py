"""Time and memory of a step: forward and backward of blocks in the shape of Llama's."""

from __future__ import annotations

import math
import statistics
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch._dynamo.config
import torch._functorch.config
from ctxcarry_checkpoint import SelectiveCheckpoint
from ctxcarry_kernels.bench._timing import by_turns, free

from . import rivals
from .model import Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from .model import Model, Size

__all__ = ("Row", "Steps", "measure_steps")

# Between full checkpointing, 0, and none, 1.
PARTS = (0.1, 0.3, 0.5, 0.7, 0.9)
OFFLOADED = (0.1, 0.5)
# One is recorded, and the plan is made again after others, where it was off.
WARM_UP = 6
# What ours on compiled blocks is made again, for a peak that is so far off.
CORRECTIONS = 2
CLOSE = 0.01
MIB = 1 << 20


@dataclass
class Row:
    """
    One way to run a step; None for what was not measured.

    Attributes:
        name: Its name.
        series: What it belongs to: "none", "full", "titan", "compile", "ours", "offload" or
            "compiled", which is ours on compiled blocks.
        budget_mib: What it may hold.
        peak_mib: The most that it held beyond parameters, gradients, input and their like.
        held_mib: What it held between forward and backward.
        of_budget: The peak over the budget.
        ms: Time of a step.
        ratio: Over a step without checkpoints.
        gradient_error: How far its gradients are from those without checkpoints, over their
            norm.
        error: Why it was not measured, or "".
        rounds: The median of each round.
    """

    name: str
    series: str
    budget_mib: float | None = None
    peak_mib: float | None = None
    held_mib: float | None = None
    of_budget: float | None = None
    ms: float | None = None
    ratio: float | None = None
    gradient_error: float | None = None
    error: str = ""
    rounds: list[float] = field(default_factory=list)


@dataclass
class Steps:
    """All ways to run a step of one model."""

    size: str
    dtype: str
    rows: list[Row]


def measure_steps(
    size: Size,
    device: str,
    *,
    budgets: Sequence[float],
    compile_seconds: float,
    rounds: int,
    span: int,
) -> Steps:
    """
    Measure all ways to run a step, by turns.

    Args:
        size: How large the model is.
        device: "cuda" or "cpu", where memory is not known.
        budgets: Memory budgets of torch.compile.
        compile_seconds: After how many seconds nothing more is compiled.
        rounds: How often each has its turn.
        span: For about how many milliseconds a turn repeats a step.
    """
    step = Step(size, device, torch.bfloat16 if device == "cuda" else torch.float32)
    none, full = step.model.twin(), _with(step, rivals.full)
    bench = _Bench(step, device)
    bench.add(Row("no checkpointing", "none"), none)
    bench.add(Row("full checkpointing, torch", "full"), full)
    bench.add(
        Row("TorchTitan's rule, torch", "titan"), _with(step, rivals.selective(rivals.titan_rule))
    )
    for budget, offload in bench.budgets():
        engine = SelectiveCheckpoint(budget=budget, offload=offload)
        model = step.model.twin()
        engine.apply(model, blocks="layers.*")
        text = f"{budget / MIB:.0f} MiB" if isinstance(budget, int) else f"{budget:.0%}"
        row = Row(
            f"ctxcarry, {text}" + (", offload" if offload else ""),
            "offload" if offload else "ours",
            budget / MIB if isinstance(budget, int) else None,
        )
        bench.add(row, model, warm_up=WARM_UP)
    # Each plan is compiled once for each of its policies, and again where it is adjusted.
    torch._dynamo.config.recompile_limit = 64
    bench.deadline = time.monotonic() + compile_seconds
    for part in budgets:
        row = Row(f"torch.compile, budget {part:g}", "compile")
        with torch._functorch.config.patch(activation_memory_budget=part):
            if bench.in_time(row):
                bench.add(row, _with(step, rivals.compiled(bench.backend)))
        bench.add_compiled(row.peak_mib, part)
    bench.time(rounds=rounds, span=span)
    return Steps(str(size), str(step.x.dtype).removeprefix("torch."), bench.rows)


class _Bench:
    def __init__(self, step: Step, device: str) -> None:
        self.rows: list[Row] = []
        self._step = step
        self._device = device
        self._models: dict[str, Model] = {}
        self.deadline = math.inf
        self.backend = "inductor" if device == "cuda" else "aot_eager_decomp_partition"
        self._expected: list[Tensor] = []

    def add(self, row: Row, model: Model, warm_up: int = 2) -> None:
        """Run a model some times, and note its gradients and its memory."""
        self.rows.append(row)
        sys.stderr.write(f"{row.name}: gradients and memory\n")
        try:
            for _ in range(warm_up):
                self._step.run(model)
            self._compare(row, model)
            if self._device == "cuda":
                self._weigh(row, model)
        except Exception as error:  # a row says why
            row.error = _told(error)
        else:
            self._models[row.name] = model

    def add_compiled(self, peak_mib: float | None, part: float) -> None:
        """
        Add ours on compiled blocks, with the peak of torch.compile for a budget.

        As on other blocks, the plan is made again where the peak is off; there the engine sees
        that by itself.
        """
        text = f"{part:.0%}" if peak_mib is None else f"{peak_mib:.0f} MiB"
        row = Row(f"ctxcarry, compiled, {text}", "compiled", peak_mib)
        if not self.in_time(row):
            return
        budget = 0.4 + 0.6 * part if peak_mib is None else int(peak_mib * MIB)
        engine = SelectiveCheckpoint(budget=budget)
        model = self._step.model.twin()
        try:
            engine.plan(model, self._step.x, blocks="layers.*", compiled=True)
        except ValueError as error:
            row.error = _told(error)
            self.rows.append(row)
            return
        engine.apply(model, blocks="layers.*")
        for block in model.layers:
            block.compile(backend=self.backend, fullgraph=True)
        self.add(row, model)
        for _ in range(CORRECTIONS):
            if row.of_budget is None or abs(row.of_budget - 1) < CLOSE:
                break
            try:
                engine.adjust(int(row.peak_mib * MIB))
            except ValueError:  # nothing fits: the plan stays as it is
                break
            self.rows.remove(row)
            self.add(row, model)

    def in_time(self, row: Row) -> bool:
        """Say whether there is time to compile; where not, the row says so."""
        if time.monotonic() < self.deadline:
            return True
        row.error = "the time to compile was over"
        self.rows.append(row)
        return False

    def budgets(self) -> Iterator[tuple[int | float, bool]]:
        """Return the budgets of ours, and whether to offload."""
        peaks = {row.series: row.peak_mib for row in self.rows}
        least, most = peaks["full"], peaks["none"]
        for parts, offload in ((PARTS, False), (OFFLOADED, True)):
            for part in parts:
                if least is None or most is None:
                    # A ratio of what is held without checkpoints; all recomputed is near a third.
                    yield 0.4 + 0.6 * part, offload
                else:
                    yield int((least + part * (most - least)) * MIB), offload

    def time(self, *, rounds: int, span: int) -> None:
        """Time all that ran, by turns."""
        rows = {row.name: row for row in self.rows}
        free(self._device)
        times, failed = by_turns(
            {name: partial(self._step.run, model) for name, model in self._models.items()},
            self._device,
            rounds=rounds,
            span=span,
            say=lambda number: sys.stderr.write(f"steps: round {number} of {rounds}\n"),
        )
        for name, error in failed.items():
            rows[name].error = _told(error)
        for name, each in times.items():
            if name not in failed:
                rows[name].rounds = each
                rows[name].ms = statistics.median(each)
        none = self.rows[0].ms
        for row in self.rows:
            if row.ms is not None and none is not None:
                row.ratio = row.ms / none

    def _compare(self, row: Row, model: Model) -> None:
        found = self._step.gradients(model)
        if not self._expected:
            self._expected = [gradient.clone() for gradient in found]
        off = sum(float((a - b).double().pow(2).sum()) for a, b in zip(found, self._expected))
        norm = sum(float(each.double().pow(2).sum()) for each in self._expected)
        row.gradient_error = (off / norm) ** 0.5

    def _weigh(self, row: Row, model: Model) -> None:
        free(self._device)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        output: Any = model(self._step.x)
        row.held_mib = (torch.cuda.memory_allocated() - before) / MIB
        output.backward(self._step.dy)
        del output
        row.peak_mib = (torch.cuda.max_memory_allocated() - before) / MIB
        if row.budget_mib is not None:
            row.of_budget = row.peak_mib / row.budget_mib


def _with(step: Step, call: Callable[..., Any]) -> Model:
    model = step.model.twin()
    model.call = call
    return model


def _told(error: Exception) -> str:
    text = str(error).strip().split("\n", 1)[0]
    return f"{type(error).__name__}: {text}"[:300]
