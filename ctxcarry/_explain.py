"""Explain: what a snapshot holds, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ctxcarry._carrier import MISSING, shorten
from ctxcarry._contexts import HERE
from ctxcarry._plan import CONTEXTVARS, variables_of
from ctxcarry._policy import CLEAR, UNCHANGED_BY_POLICY, ambient_policy
from ctxcarry._states import is_set

if TYPE_CHECKING:
    from ctxcarry._carrier import Carrier
    from ctxcarry._snapshot import Snapshot

__all__ = ("describe", "explain")


def explain(snapshot: Snapshot) -> str:
    """Return a line for each carrier of the snapshot's plan, and where it was captured."""
    plan = snapshot._plan
    states = {step.name: (step.carrier, state) for step, state in zip(plan.steps, snapshot._states)}
    by_variables = {c.name: c for c in (*plan.absorbed, *(c for c, _ in plan.edits))}
    process_wide = {carrier.name for carrier in plan.process_wide}
    lines = [f"snapshot captured {snapshot._origin or '(place not recorded)'}"]
    for name, action in plan.actions.items():
        if action == UNCHANGED_BY_POLICY:
            text = "skipped: left unchanged by the policy"
        elif action == CLEAR:
            text = "cleared by the policy"
        elif name == CONTEXTVARS:
            count = sum(variable is not ambient_policy for variable in snapshot._context or ())
            text = f"captured: {count} variable{'s' * (count != 1)}" if count else "nothing set"
        elif name in process_wide:
            text = "shared by all threads of a process, so that only other processes are told"
        elif name in by_variables:
            text = _by_variables(snapshot, by_variables[name])
        else:
            text = _line(*states[name])
        lines.append(f"  {name}: {text}")
    return "\n".join(lines)


def describe(carrier: Carrier, state: object) -> str:
    """Return the carrier's own words for `state`, or its shortened repr."""
    own = getattr(carrier, "describe", None)
    return str(own(state)) if own is not None else shorten(state)


def _line(carrier: Carrier, state: object) -> str:
    return f"captured: {describe(carrier, state)}" if is_set(carrier, state) else "not set"


def _by_variables(snapshot: Snapshot, carrier: Carrier) -> str:
    values: dict[str, Any] = {v.name: snapshot._value_of(v) for v in variables_of(carrier)}
    known = {
        name: value for name, value in values.items() if value is not MISSING and value is not HERE
    }
    if not known:
        return "not set"
    if len(known) == 1:
        return f"captured: {describe(carrier, next(iter(known.values())))}"
    return f"captured: {describe(carrier, known)}"
