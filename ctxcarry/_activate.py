"""Activate: make the states of a plan current around one call, all of them or none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ctxcarry._carrier import UNCHANGED
from ctxcarry._undo import failed, undo_all

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from ctxcarry._plan import Plan, Step

__all__ = ("apply_all", "call_under")


def apply_all(plan: Plan, states: Sequence[object]) -> list[tuple[Step, object]]:
    """
    Apply `states` in the order of the plan.

    A context that already is as asked costs one read and is not touched.

    Returns:
        What `undo_all` needs: a pair of step and token for each context changed.

    Raises:
        CarrierError: Naming the carrier that failed. What came before it has
            been undone.
    """
    applied: list[tuple[Step, object]] = []
    step = None
    try:
        for step, state in zip(plan.steps, states):
            if step.capture() is not state:
                token = step.apply(state)
                if token is not UNCHANGED:
                    applied.append((step, token))
    except BaseException as cause:
        # This frame stays alive with the traceback; the states must not.
        del states
        state = None
        assert step is not None
        error = failed(step, "apply", cause) if isinstance(cause, Exception) else cause
        undo_all(applied, error)
        if error is cause:
            raise
        raise error from cause
    return applied


def call_under(
    plan: Plan,
    states: Sequence[object],
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:  # noqa: ANN401 - whatever fn returns
    """Call `fn` with `states` current, and undo them whatever happens."""
    applied = apply_all(plan, states)
    try:
        result = fn(*args, **kwargs)
    except BaseException as error:
        # A traceback keeps this frame, and so its locals, for as long as the
        # exception lives: a future would pin the captured objects.
        del plan, states, fn, args, kwargs
        undo_all(applied, error)
        raise
    if applied:
        undo_all(applied)
    return result
