"""Measure all candidates at one size: what they return, what they hold, how long they take."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch

from ctxcarry_kernels.bench._inputs import make, reference
from ctxcarry_kernels.bench._timing import free, milliseconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from ctxcarry_kernels.bench._candidates import Candidate
    from ctxcarry_kernels.bench._inputs import Expected, Inputs, Size

__all__ = ("Baseline", "Row", "Table", "measure")


@dataclass
class Baseline:
    """
    The bare products of matrices, in milliseconds.

    Attributes:
        name: Whose.
        logits_ms: ``hidden @ weight.T``.
        dhidden_ms: The gradient of hidden from that of the logits.
        dweight_ms: That of weight.
        floor_ms: The logits twice and both gradients: what forward and backward need
            at least where no logits are kept.
    """

    name: str
    logits_ms: float = 0.0
    dhidden_ms: float = 0.0
    dweight_ms: float = 0.0
    floor_ms: float = 0.0


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
        rounds: The times of each round.
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
    masked = inputs.half_masked()
    of_baseline: dict[str, list[float]] = {}
    for turn in range(rounds):
        say(f"{size}: round {turn + 1} of {rounds}")
        _time_baseline(of_baseline, inputs, device, span)
        for candidate, row in zip(candidates, rows):
            if not row.error:
                free(device)
                _try(row, partial(_time, candidate, row, inputs, masked, device, span))
    free(device)
    baseline = _baseline("cuBLAS" if device == "cuda" else "torch.mm", of_baseline)
    for row in rows:
        _summarise(row, baseline)
    return Table(size, baseline, rows)


def _try(row: Row, run: Callable[[], None]) -> None:
    try:
        run()
    except Exception as error:  # noqa: BLE001 - whatever a foreign kernel raises
        text = str(error).strip().split("\n", 1)[0]
        row.error = f"{type(error).__name__}: {text}"[:300]


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


def _time_baseline(times: dict[str, list[float]], inputs: Inputs, device: str, span: int) -> None:
    hidden, weight = inputs.hidden.detach(), inputs.weight.detach()
    logits = hidden @ weight.t()
    dhidden, dweight = torch.empty_like(hidden), torch.empty_like(weight)
    products: dict[str, Callable[[], object]] = {
        "logits": lambda: torch.mm(hidden, weight.t(), out=logits),
        "dhidden": lambda: torch.mm(logits, weight, out=dhidden),
        "dweight": lambda: torch.mm(logits.t(), hidden, out=dweight),
    }
    for name, run in products.items():
        times.setdefault(name, []).append(milliseconds(run, device, span))


def _baseline(name: str, times: dict[str, list[float]]) -> Baseline:
    logits, dhidden, dweight = (
        statistics.median(times[part]) for part in ("logits", "dhidden", "dweight")
    )
    return Baseline(name, logits, dhidden, dweight, 2 * logits + dhidden + dweight)


def _time(
    candidate: Candidate, row: Row, inputs: Inputs, masked: Inputs, device: str, span: int
) -> None:
    runs: dict[str, Callable[[], object]] = {
        "forward": lambda: candidate.forward(inputs),
        "forward_backward": lambda: candidate.forward_backward(inputs),
    }
    if candidate.ours:
        runs["masked"] = lambda: candidate.forward_backward(masked)
    for name, run in runs.items():
        row.rounds.setdefault(name, []).append(milliseconds(run, device, span))


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
