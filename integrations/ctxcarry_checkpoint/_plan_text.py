"""A plan as text, to keep it in a file."""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, fields
from typing import Any

from ctxcarry_checkpoint._evaluate import Choice
from ctxcarry_checkpoint._ops import Action, Op
from ctxcarry_checkpoint._plan import Group, Plan
from ctxcarry_checkpoint._whole import Kind

__all__ = ("read", "written")

_VERSION = 1
_DEFAULTS = {each.name: each.default for each in fields(Op) if each.default is not MISSING}


def written(plan: Plan) -> str:
    """Return a plan as JSON."""
    kinds = list({id(group.kind): group.kind for group in plan.groups}.values())
    place = {id(kind): at for at, kind in enumerate(kinds)}
    data = {
        "version": _VERSION,
        "budget": plan.budget,
        "roofline": plan.roofline,
        "offset": plan.offset,
        "measured": plan.measured,
        "pareto": plan.pareto,
        "kinds": [_kind(kind) for kind in kinds],
        "groups": [
            {
                "names": group.names,
                "kind": place[id(group.kind)],
                "choice": _choice(group.choice),
            }
            for group in plan.groups
        ],
    }
    return json.dumps(data)


def read(text: str) -> Plan:
    """Return a plan from JSON."""
    data = json.loads(text)
    version = data.get("version") if isinstance(data, dict) else None
    if version != _VERSION:
        msg = (
            f"this is no plan of version {_VERSION}, but of {version}: "
            "make the plan anew, or use the version of ctxcarry that wrote it"
        )
        raise ValueError(msg)
    try:
        kinds = [_read_kind(each) for each in data["kinds"]]
        groups = tuple(
            Group(tuple(each["names"]), kinds[each["kind"]], _read_choice(each["choice"]))
            for each in data["groups"]
        )
        pareto = tuple((int(nbytes), float(ms)) for nbytes, ms in data["pareto"])
        return Plan(
            groups,
            data["budget"],
            data["roofline"],
            pareto,
            data["offset"],
            data.get("measured", False),
        )
    except (KeyError, IndexError, TypeError) as error:
        msg = f"this plan is not whole, since {error!r}: make it anew"
        raise ValueError(msg) from error


def _kind(kind: Kind) -> dict[str, Any]:
    return {
        "names": kind.names,
        "held": sorted(kind.held),
        "ops": [_op(op) for op in kind.ops],
        "front": [_choice(choice) for choice in kind.front],
        "gradients": kind.gradients,
        "calls": kind.calls,
    }


def _op(op: Op) -> dict[str, Any]:
    # Most operators have most of what is usual, which would fill the file.
    return {
        name: value
        for name, value in asdict(op).items()
        if name not in _DEFAULTS or value != _DEFAULTS[name]
    }


def _choice(choice: Choice) -> dict[str, Any]:
    return {
        "actions": {index: action.name for index, action in sorted(choice.actions.items())},
        "reruns": sorted(choice.reruns),
        "nbytes": choice.nbytes,
        "offloaded": choice.offloaded,
        "ms": choice.ms,
        "transfer_ms": choice.transfer_ms,
        "exact": choice.exact,
    }


def _read_kind(data: dict[str, Any]) -> Kind:
    return Kind(
        names=tuple(data["names"]),
        ops=tuple(_read_op(each) for each in data["ops"]),
        held=frozenset(data["held"]),
        front=tuple(_read_choice(each) for each in data["front"]),
        gradients=data.get("gradients", 0),
        calls=data.get("calls", 1),
    )


def _read_op(data: dict[str, Any]) -> Op:
    op = Op(**data)
    op.parents, op.regions = tuple(op.parents), tuple(op.regions)
    op.packed_at = tuple(op.packed_at)
    op.shapes = tuple(tuple(shape) for shape in op.shapes)
    return op


def _read_choice(data: dict[str, Any]) -> Choice:
    return Choice(
        actions={int(index): Action[name] for index, name in data["actions"].items()},
        reruns=frozenset(data["reruns"]),
        nbytes=data["nbytes"],
        offloaded=data["offloaded"],
        ms=data["ms"],
        transfer_ms=data["transfer_ms"],
        exact=data["exact"],
    )
