"""The plan: which carriers a snapshot uses, in which order, frozen when it is taken."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple

from ctxcarry._carrier import MISSING, CarrierBase
from ctxcarry._fuse import fuse
from ctxcarry._policy import CLEAR, PROPAGATE, UNCHANGED_BY_POLICY
from ctxcarry._swap import Swap, swap_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextvars import ContextVar

    from ctxcarry._carrier import Carrier
    from ctxcarry._policy import Policy

__all__ = ("CONTEXTVARS", "Plan", "Step", "variables_of")

CONTEXTVARS = "contextvars"
_LEANS_KEPT = 64


class Step(NamedTuple):
    """
    One carrier of a plan, its methods bound.

    Attributes:
        put: `ctxcarry._carrier.CarrierBase.put`, or None.
        read: What the snapshot takes as the state: `capture`, or a function that
            returns the unset state when the policy clears this context.
    """

    name: str
    read: Callable[[], object]
    capture: Callable[[], object]
    apply: Callable[[object], object]
    undo: Callable[[object], None]
    carrier: Carrier
    put: Callable[[Any], object] | None


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
        fused: The steps as flat functions; `read`, `here`, `enter` and `leave` are
            among them.
    """

    __slots__ = (
        "_leans",
        "_swaps",
        "absorbed",
        "actions",
        "contexts",
        "copies_context",
        "edits",
        "empty",
        "enter",
        "fused",
        "here",
        "in_context",
        "leave",
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
        self._swaps: tuple[Swap, ...] | None = None
        self._leans: dict[tuple[bool, ...], Plan] = {}
        self.edits = tuple(edits)
        self.absorbed = tuple(absorbed)
        self.process_wide = tuple(process_wide)
        self.in_context = self.contexts != UNCHANGED_BY_POLICY or bool(edits)
        self.empty = not steps and not self.in_context
        self.fused = fuse(steps)
        self.read, self.here, self.enter, self.leave, _ = self.fused

    def swaps(self) -> tuple[Swap, ...]:
        """Return how each step takes turns with a body that pauses."""
        if self._swaps is None:
            self._swaps = tuple(map(swap_for, self.steps))
        return self._swaps

    def lean(self, wanted: tuple[bool, ...]) -> Plan:
        """Return this plan with those of its steps only that `wanted` marks."""
        lean = self._leans.get(wanted)
        if lean is None:
            lean = copy(self)
            lean.steps = tuple(step for step, want in zip(self.steps, wanted) if want)
            lean._swaps = None
            lean.fused = fuse(lean.steps)
            lean.read, lean.here, lean.enter, lean.leave, _ = lean.fused
            if len(self._leans) >= _LEANS_KEPT:
                self._leans.clear()
            self._leans[wanted] = lean
        return lean


def _step(carrier: Carrier, action: str) -> Step:
    unset = getattr(carrier, "default", MISSING)
    read = (lambda: unset) if action == CLEAR else carrier.capture
    # A method of that name on somebody else's carrier is their own business.
    put = getattr(carrier, "put", None) if isinstance(carrier, CarrierBase) else None
    return Step(carrier.name, read, carrier.capture, carrier.apply, carrier.undo, carrier, put)


def variables_of(carrier: Carrier) -> tuple[ContextVar[Any], ...]:
    """Return the variables in which the context of `carrier` lives."""
    return tuple(carrier.variables())  # type: ignore[attr-defined]
