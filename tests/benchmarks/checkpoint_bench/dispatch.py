"""What each operator of a checkpointed block costs beside its own time."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from ctxcarry_checkpoint import checkpoint, policies
from torch.utils._python_dispatch import TorchDispatchMode

from . import rivals
from .model import TINY, Step
from .turns import processor_ms

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("Overhead", "measure_dispatch")

CHAIN = 200


@dataclass
class Overhead:
    """
    What one way to call the blocks adds for each operator of their forward.

    Attributes:
        program: What the blocks do.
        name: How they are called.
        operators: How many there are.
        forward_us: Microseconds that it adds to the forward.
        step_us: Microseconds that it adds to forward and backward.
        ratio: What it adds to a step, over torch's selective checkpoint.
        rounds: The median of each round, by what was timed, in milliseconds.
    """

    program: str
    name: str
    operators: int
    forward_us: float = 0.0
    step_us: float = 0.0
    ratio: float = 0.0
    rounds: dict[str, list[float]] = field(default_factory=dict)


class _Counted(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.count += 1
        return func(*args, **kwargs or {})


def measure_dispatch(*, rounds: int, span: int) -> list[Overhead]:
    """Measure a chain of operators on small tensors, and small blocks of Llama's shape."""
    titan, products = rivals.by_titan(), policies.torchtitan()
    x = torch.ones(4, 4, requires_grad=True)
    small = Step(TINY, "cpu", torch.float32)
    chain = {
        "no checkpoint": _chain,
        "torch, full": lambda x: rivals.full(_chain, x),
        "torch, selective": lambda x: rivals.selective(rivals.titan_rule)(_chain, x),
        "ctxcarry, full": lambda x: checkpoint(_chain, x),
        "ctxcarry, selective": lambda x: checkpoint(_chain, x, policy=products),
    }
    calls: dict[str, Callable[..., Any]] = {
        "no checkpoint": small.model.call,
        "torch, full": rivals.full,
        "torch, selective": rivals.selective(rivals.titan_rule),
        "ctxcarry, full": checkpoint,
        "ctxcarry, selective": lambda *args: checkpoint(*args, policy=titan),
    }
    blocks = {}
    for name, call in calls.items():
        model = small.model.twin()
        model.call = call
        blocks[name] = model
    return [
        *_compare(f"a chain of {CHAIN}", chain, x, rounds=rounds, span=span),
        *_compare("blocks of Llama's shape", blocks, small.x, rounds=rounds, span=span),
    ]


def _chain(x: torch.Tensor) -> torch.Tensor:
    for _ in range(CHAIN // 20):
        for _ in range(9):
            x = x.sin() * 1.01
        x = (x @ x).cos()
    return x


def _compare(
    program: str,
    ways: dict[str, Callable[..., Any]],
    x: torch.Tensor,
    *,
    rounds: int,
    span: int,
) -> list[Overhead]:
    with _Counted() as counted:
        ways["no checkpoint"](x)
    runs: dict[tuple[str, str], Callable[[], object]] = {}
    for name, way in ways.items():
        runs[name, "forward"] = lambda way=way: way(x)
        runs[name, "step"] = lambda way=way: way(x).sum().backward()
    times = processor_ms(runs, f"dispatch, {program}", rounds=rounds, span=span)
    rows = []
    for name in ways:
        row = Overhead(program, name, counted.count)
        row.rounds = {part: times[name, part] for part in ("forward", "step")}
        row.forward_us, row.step_us = (
            _added(times["no checkpoint", part], times[name, part]) / counted.count
            for part in ("forward", "step")
        )
        rows.append(row)
    of_torch = next(row.step_us for row in rows if row.name == "torch, selective")
    for row in rows:
        row.ratio = row.step_us / of_torch
    return rows


def _added(plain: list[float], other: list[float]) -> float:
    """Return the microseconds that are added, the median of what each round says."""
    return statistics.median(b - a for a, b in zip(plain, other)) * 1e3
