"""How much time recomputing takes, where all keep the same number of bytes."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from ctxcarry_checkpoint import SelectiveCheckpoint, checkpoint
from ctxcarry_checkpoint._planned import Planned
from ctxcarry_checkpoint._solver import solve

from . import rivals
from .model import SMALL, TINY, Step
from .turns import keep_memory, processor_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ctxcarry_checkpoint import Action
    from ctxcarry_checkpoint._evaluate import Choice
    from ctxcarry_checkpoint._whole import Kind

    from .model import Model

__all__ = ("Equal", "measure_equal")

PARTS = (0.1, 0.2, 0.35, 0.5, 0.7)


@dataclass
class Equal:
    """
    What is kept, and what that costs.

    Attributes:
        size: Of the model.
        budget_mib: What a block may keep, beside its own arguments and its result.
        rule: By which rule it is chosen.
        kept_mib: What is kept of each block.
        extra_ms: What is added to a step of one block.
        ours_kept_mib: What ours keeps of each block.
        ours_extra_ms: What ours adds.
        ratio: What ours adds over what the other one adds.
        predicted_ms: What runs again with the rule, by the times of the plan.
        ours_predicted_ms: What runs again with ours.
        rounds: The milliseconds of a step in each round: without a checkpoint, with the rule,
            and with ours.
    """

    size: str
    budget_mib: float
    rule: str
    kept_mib: float
    extra_ms: float
    ours_kept_mib: float
    ours_extra_ms: float
    ratio: float
    predicted_ms: float = 0.0
    ours_predicted_ms: float = 0.0
    rounds: dict[str, list[float]] = field(default_factory=dict)


def measure_equal(*, tiny: bool, rounds: int, span: int) -> list[Equal]:
    """Measure ours beside a plain knapsack, TorchTitan's rule and full checkpoints."""
    size = TINY if tiny else SMALL
    keep_memory()
    step = Step(size, "cpu", torch.float32)
    kind = _recorded(step)
    titan = _titan(kind)
    everything = kind.unchecked_bytes - kind.held_bytes
    pairs: dict[str, tuple[int, Model, Mapping[Any, Any]]] = {}
    plain = {"none": step.model.twin(), "full": _with(step, rivals.full)}
    for part in PARTS:
        budget = int(everything * part)
        saved = rivals.knapsack(kind.ops, kind.held, budget)
        call = rivals.selective(rivals.chosen(saved))
        pairs[f"knapsack {part}"] = budget, _with(step, call), saved
    call = rivals.selective(rivals.titan_rule)
    pairs["TorchTitan's rule"] = _bytes(kind, titan), _with(step, call), titan
    pairs["full"] = 0, plain["full"], {}
    runs: dict[str, Callable[[], object]] = {"none": _run(step, plain["none"])}
    choices = {}
    for name, (budget, model, _) in pairs.items():
        choice = choices[name] = solve(kind.ops, budget, held=kind.held)
        actions = {(kind.ops[i].name, kind.ops[i].nth): a for i, a in choice.actions.items()}
        runs[name] = _run(step, model)
        runs[f"ours, {name}"] = _run(step, _with(step, _ours(actions)))
    times = processor_ms(runs, "equal memory", rounds=rounds, span=span)
    return [
        _row(size, name, budget, kind, saved, choices[name], times)
        for name, (budget, _, saved) in sorted(pairs.items(), key=lambda item: item[1][0])
    ]


def _recorded(step: Step) -> Kind:
    engine = SelectiveCheckpoint(budget=1.0)
    plan = engine.plan(step.model.twin(), step.x, blocks="layers.*", profile=True)
    return plan.groups[0].kind


def _titan(kind: Kind) -> dict[tuple[str, int], Any]:
    rule = rivals.titan_rule()
    saved = {}
    for op in kind.ops:
        packet, _, overload = op.name.removeprefix("aten.").partition(".")
        found = getattr(getattr(torch.ops.aten, packet, None), overload, None)
        if found is not None and rule(found):
            saved[op.name, op.nth] = True
    return saved


def _bytes(kind: Kind, saved: Mapping[tuple[str, int], Any]) -> int:
    """Return what torch's selective checkpoint keeps of a block."""
    return sum(
        op.nbytes for op in kind.ops if (op.name, op.nth) in saved and op.index not in kind.held
    )


def _again_ms(kind: Kind, saved: Mapping[tuple[str, int], Any]) -> float:
    """Return what torch's checkpoint runs again: all before the last that autograd keeps."""
    end = max(at for op in kind.ops for at in op.packed_at)
    return sum(op.ms for op in kind.ops[:end] if (op.name, op.nth) not in saved)


def _ours(actions: Mapping[tuple[str, int], Action]) -> Callable[..., Any]:
    policy = Planned(actions)
    return lambda *args: checkpoint(*args, policy=policy)


def _with(step: Step, call: Callable[..., Any]) -> Model:
    model = step.model.twin()
    model.call = call
    return model


def _run(step: Step, model: Model) -> Callable[[], object]:
    return lambda: step.run(model)


def _row(
    size: Any,
    name: str,
    budget: int,
    kind: Kind,
    saved: Mapping[tuple[str, int], Any],
    ours: Choice,
    times: dict[str, list[float]],
) -> Equal:
    none, rule, our = times["none"], times[name], times[f"ours, {name}"]
    extra = statistics.median(b - a for a, b in zip(none, rule)) / size.layers
    ours_extra = statistics.median(b - a for a, b in zip(none, our)) / size.layers
    return Equal(
        str(size),
        budget / 2**20,
        name.partition(" 0")[0] if name.startswith("knapsack") else name,
        _bytes(kind, saved) / 2**20,
        extra,
        ours.nbytes / 2**20,
        ours_extra,
        ours_extra / extra,
        _again_ms(kind, saved),
        ours.ms,
        {"none": none, "rule": rule, "ours": our},
    )
