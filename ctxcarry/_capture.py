"""Capture: take the picture, on the side that hands the work over."""

from __future__ import annotations

import sys
from contextvars import copy_context
from typing import TYPE_CHECKING

from ctxcarry._activate import capture_error
from ctxcarry._carrier import MISSING
from ctxcarry._contexts import HERE, value_here
from ctxcarry._plan import variables_of
from ctxcarry._policy import CLEAR, PROPAGATE
from ctxcarry._snapshot import Snapshot

if TYPE_CHECKING:
    from contextvars import ContextVar
    from typing import Any

    from ctxcarry._plan import Plan

    # What becomes of single variables: a value, MISSING to unset it, HERE to leave it.
    Edits = tuple[tuple[ContextVar[Any], object], ...]

__all__ = ("capture_with", "origins", "read_edits", "read_states")


class _Origins:
    """Whether snapshots note where they were captured, which costs about as much as the rest."""

    recorded = False


origins = _Origins()


def capture_with(plan: Plan) -> Snapshot:
    """Return a snapshot of this thread as `plan` asks for it."""
    return Snapshot(
        plan,
        copy_context() if plan.copies_context else None,
        read_states(plan),
        read_edits(plan) if plan.edits else (),
        _caller() if origins.recorded else None,
    )


def read_states(plan: Plan) -> tuple[object, ...]:
    """
    Return the state of each step of `plan`.

    Raises:
        CarrierError: Naming the carrier that failed.
    """
    try:
        return plan.read()
    except Exception as cause:
        raise capture_error(plan, cause) from cause


def read_edits(plan: Plan) -> Edits:
    """Return, for carriers that the plan treats on their own, what their variables become."""
    edits: list[tuple[ContextVar[Any], object]] = []
    for carrier, action in plan.edits:
        for variable in variables_of(carrier):
            if action == PROPAGATE:
                edits.append((variable, value_here(variable)))
            else:
                edits.append((variable, MISSING if action == CLEAR else HERE))
    return tuple(edits)


def _caller() -> str:
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("ctxcarry."):
        frame = frame.f_back
    return f"at {frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
