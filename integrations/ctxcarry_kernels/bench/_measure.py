"""Measure all candidates at one size: what they return, what they hold, how long they take."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch

from ctxcarry_kernels.bench._inputs import make, reference
from ctxcarry_kernels.bench._timing import by_turns, free

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from ctxcarry_kernels.bench._candidates import Candidate
    from ctxcarry_kernels.bench._inputs import Expected, Inputs, Size

__all__ = ("Baseline", "Row", "Table", "measure")

_BASELINE = "baseline"


@dataclass
class Baseline:
    """
    The bare products of matrices, in milliseconds.

    Attributes:
        name: Whose.
        logits_ms: ``hidden @ weight.T``.
        floor_ms: The logits twice and both gradients, one after the other: what forward and
            backward need at least where no logits are kept.
    """

    name: str
    logits_ms: float
    floor_ms: float


@dataclass
class Row:
    """
    One candidate; None for what it does not have, or what cannot be told here.

    Attributes:
        name: Its name.
        ours: Whether it is ours.
        forward_ms: Time of the forward.
        forward_ratio: Over the time of the logits.
        forward_backward_ms: Time of forward and backward.
        forward_backward_ratio: Over the floor.
        masked_backward_ratio: The backward where half of the tokens have no gradient,
            over that where all have one.
        extra_mib: Most memory beyond inputs and gradients.
        held_mib: Memory held between forward and backward.
        logprob_error: Largest absolute error.
        entropy_error: The same.
        dhidden_error: Relative error, by the Frobenius norm.
        dweight_error: The same.
        error: Why it could not be measured, or "".
        rounds: The median of each round, by what was timed.
    """

    name: str
    ours: bool
    forward_ms: float | None = None
    forward_ratio: float | None = None
    forward_backward_ms: float | None = None
    forward_backward_ratio: float | None = None
    masked_backward_ratio: float | None = None
    extra_mib: float | None = None
    held_mib: float | None = None
    logprob_error: float | None = None
    entropy_error: float | None = None
    dhidden_error: float | None = None
    dweight_error: float | None = None
    error: str = ""
    rounds: dict[str, list[float]] = field(default_factory=dict)


@dataclass
class Table:
    """All candidates at one size."""

    size: Size
    baseline: Baseline
    rows: list[Row]


def measure(
    size: Size,
    candidates: Sequence[Candidate],
    device: str,
    *,
    rounds: int,
    span: int,
    say: Callable[[str], object],
) -> Table:
    """
    Measure the candidates at one size, by turns.

    Args:
        size: How much there is to do.
        candidates: What to measure.
        device: "cuda" or "cpu".
        rounds: How often each has its turn.
        span: For about how many milliseconds a turn repeats a call.
        say: Called with what is going on.
    """
    inputs = make(size, device)
    rows = [Row(c.name, c.ours, error=c.error) for c in candidates]
    say(f"{size}: reference")
    expected = reference(inputs)
    for candidate, row in zip(candidates, rows):
        if not row.error:
            say(f"{size}: {row.name}: errors and memory")
            _try(row, partial(_errors, candidate, row, inputs, expected))
        free(device)
    del expected
    for candidate, row in zip(candidates, rows):
        if not row.error and device == "cuda":
            free(device)
            _try(row, partial(_memory, candidate, row, inputs))
    baseline = _time(inputs, candidates, rows, device, rounds=rounds, span=span, say=say)
    for row in rows:
        _summarise(row, baseline)
    return Table(size, baseline, rows)


def _try(row: Row, run: Callable[[], None]) -> None:
    try:
        run()
    except Exception as error:  # noqa: BLE001 - whatever a foreign kernel raises
        row.error = _told(error)


def _told(error: Exception) -> str:
    text = str(error).strip().split("\n", 1)[0]
    return f"{type(error).__name__}: {text}"[:300]


def _errors(candidate: Candidate, row: Row, inputs: Inputs, expected: Expected) -> None:
    logprobs, entropy = candidate.forward(inputs)
    gradients = candidate.backward(inputs, logprobs, entropy)
    row.logprob_error = _furthest(logprobs, expected.logprobs)
    if entropy is not None:
        row.entropy_error = _furthest(entropy, expected.entropy)
        # Without an entropy there is no gradient of it either: another result.
        row.dhidden_error = _relative(gradients[0], expected.dhidden)
        row.dweight_error = _relative(gradients[1], expected.dweight)


def _furthest(found: Tensor, expected: Tensor) -> float:
    return float((found.detach().double() - expected).abs().max())


def _relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def _memory(candidate: Candidate, row: Row, inputs: Inputs) -> None:
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    outputs = candidate.forward(inputs)
    held = torch.cuda.memory_allocated() - before
    gradients = candidate.backward(inputs, *outputs)
    # The peak is a time when the gradients are there, or about to be.
    made = sum(gradient.nbytes for gradient in gradients)
    row.extra_mib = (torch.cuda.max_memory_allocated() - before - made) / (1 << 20)
    row.held_mib = held / (1 << 20)


def _time(
    inputs: Inputs,
    candidates: Sequence[Candidate],
    rows: Sequence[Row],
    device: str,
    *,
    rounds: int,
    span: int,
    say: Callable[[str], object],
) -> Baseline:
    """Time the products and, into their rows, the candidates that are left."""
    runs = _baseline_runs(inputs)
    masked = inputs.half_masked()
    for candidate, row in zip(candidates, rows):
        if not row.error:
            runs |= _runs(candidate, inputs, masked)
    times, failed = by_turns(
        runs,
        device,
        rounds=rounds,
        span=span,
        say=lambda number: say(f"{inputs.size}: round {number} of {rounds}"),
    )
    del runs
    free(device)
    of_rows = {row.name: row for row in rows}
    for (name, _), error in failed.items():
        if name == _BASELINE:
            raise error
        of_rows[name].error = _told(error)
    for (name, part), each in times.items():
        if name != _BASELINE:
            of_rows[name].rounds[part] = each
    return Baseline(
        "cuBLAS" if device == "cuda" else "torch.mm",
        statistics.median(times[_BASELINE, "logits"]),
        statistics.median(times[_BASELINE, "floor"]),
    )


def _baseline_runs(inputs: Inputs) -> dict[tuple[str, str], Callable[[], object]]:
    hidden, weight = inputs.hidden.detach(), inputs.weight.detach()
    logits = hidden @ weight.t()
    dhidden, dweight = torch.empty_like(hidden), torch.empty_like(weight)

    def make_logits() -> None:
        torch.mm(hidden, weight.t(), out=logits)

    def make_all() -> None:
        make_logits()
        make_logits()
        torch.mm(logits, weight, out=dhidden)
        torch.mm(logits.t(), hidden, out=dweight)

    return {(_BASELINE, "logits"): make_logits, (_BASELINE, "floor"): make_all}


def _runs(
    candidate: Candidate, inputs: Inputs, masked: Inputs
) -> dict[tuple[str, str], Callable[[], object]]:
    runs: dict[tuple[str, str], Callable[[], object]] = {
        (candidate.name, "forward"): partial(candidate.forward, inputs),
        (candidate.name, "forward_backward"): partial(candidate.forward_backward, inputs),
    }
    if candidate.ours:
        runs[candidate.name, "masked"] = partial(candidate.forward_backward, masked)
    return runs


def _summarise(row: Row, baseline: Baseline) -> None:
    if row.error:
        return
    times = {name: statistics.median(each) for name, each in row.rounds.items()}
    row.forward_ms = times["forward"]
    row.forward_backward_ms = times["forward_backward"]
    row.forward_ratio = times["forward"] / baseline.logits_ms
    row.forward_backward_ratio = times["forward_backward"] / baseline.floor_ms
    backward = times["forward_backward"] - times["forward"]
    if "masked" in times and backward > 0:
        masked = max(0.0, times["masked"] - times["forward"])
        row.masked_backward_ratio = masked / backward
