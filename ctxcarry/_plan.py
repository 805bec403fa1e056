"""The plan: which carriers a snapshot uses, in which order, frozen when it is taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ctxcarry._carrier import MISSING
from ctxcarry._fuse import fuse
from ctxcarry._policy import CLEAR, PROPAGATE, UNCHANGED_BY_POLICY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextvars import ContextVar
    from typing import Any

    from ctxcarry._carrier import Carrier
    from ctxcarry._policy import Policy

__all__ = ("CONTEXTVARS", "Plan", "Step", "is_set", "same_state", "variables_of")

CONTEXTVARS = "contextvars"


class Step(NamedTuple):
    """
    One carrier of a plan, its methods bound.

    Attributes:
        read: What the snapshot takes as the state: `capture`, or a function that
            returns the unset state when the policy clears this context.
    """

    name: str
    read: Callable[[], object]
    capture: Callable[[], object]
    apply: Callable[[object], object]
    undo: Callable[[object], None]
    carrier: Carrier


class Plan:
    """
    What to capture and apply, decided once for a registry and a policy.

    With `everywhere`, contexts that all threads share are applied like the others.

    Attributes:
        steps: Carriers of thread state, in the order in which they are applied.
        contexts: What happens to the ContextVars as a whole: an action of a policy.
        copies_context: Whether the ContextVars are propagated.
        edits: Carriers whose variables are treated otherwise than `contexts` says.
        absorbed: Carriers whose variables `contexts` already carries.
        process_wide: Carriers of what all threads share, which other processes need.
        actions: The action for every carrier, by name.
        in_context: Whether a call runs in a Context of its own.
        empty: Whether there is nothing to carry at all.
        read, here, enter: See `ctxcarry._fuse`.
    """

    __slots__ = (
        "absorbed",
        "actions",
        "contexts",
        "copies_context",
        "edits",
        "empty",
        "enter",
        "here",
        "in_context",
        "process_wide",
        "read",
        "steps",
    )

    def __init__(
        self, carriers: Iterable[Carrier], policy: Policy, *, everywhere: bool = False
    ) -> None:
        carriers = tuple(carriers)
        process_wide: list[Carrier] = []
        self.actions = {c.name: policy.action(c.name) for c in carriers}
        self.contexts = self.actions.get(CONTEXTVARS, UNCHANGED_BY_POLICY)
        self.copies_context = self.contexts == PROPAGATE
        steps: list[Step] = []
        edits: list[tuple[Carrier, str]] = []
        absorbed: list[Carrier] = []
        for carrier in carriers:
            action = self.actions[carrier.name]
            if carrier.name == CONTEXTVARS:
                continue
            if getattr(carrier, "process_wide", False) and not everywhere:
                if action != UNCHANGED_BY_POLICY:
                    process_wide.append(carrier)
            elif hasattr(carrier, "variables"):
                if action == self.contexts:
                    absorbed.append(carrier)
                else:
                    edits.append((carrier, action))
            elif action != UNCHANGED_BY_POLICY:
                steps.append(_step(carrier, action))
        self.steps = tuple(steps)
        self.edits = tuple(edits)
        self.absorbed = tuple(absorbed)
        self.process_wide = tuple(process_wide)
        self.in_context = self.contexts != UNCHANGED_BY_POLICY or bool(edits)
        self.empty = not steps and not self.in_context
        self.read, self.here, self.enter = fuse(steps)


def _step(carrier: Carrier, action: str) -> Step:
    unset = getattr(carrier, "default", MISSING)
    read = (lambda: unset) if action == CLEAR else carrier.capture
    return Step(carrier.name, read, carrier.capture, carrier.apply, carrier.undo, carrier)


def variables_of(carrier: Carrier) -> tuple[ContextVar[Any], ...]:
    """Return the variables in which the context of `carrier` lives."""
    return tuple(carrier.variables())  # type: ignore[attr-defined]


def is_set(carrier: Carrier, state: object) -> bool:
    """Say whether `state` is anything else than "not set" for `carrier`."""
    if state is MISSING:
        return False
    default = getattr(carrier, "default", MISSING)
    return default is MISSING or not same_state(state, default)


def same_state(one: object, other: object) -> bool:
    """
    Compare two captured states, element by element within tuples.

    Objects are compared by identity: two equal tensors are two scratch buffers,
    and ``==`` on them is not even a bool.
    """
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        return len(one) == len(other) and all(map(same_state, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_state(one[k], other[k]) for k in one)
    return isinstance(one, (bool, int, float, complex, str, bytes)) and one == other
