"""Activate: make the states of a plan current around one call, all of them or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from ctxcarry._undo import failed, undo_all

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ctxcarry._plan import Plan
    from ctxcarry._undo import Undo

__all__ = ("apply_all", "call_under", "first_failing")


def apply_all(plan: Plan, states: Sequence[object]) -> list[Undo]:
    """
    Apply `states` in the order of the plan.

    A context that already is as asked costs one read and is not touched.

    Returns:
        What `undo_all` takes: an entry for each context that was changed.

    Raises:
        CarrierError: Naming the carrier that failed. What came before it has
            been undone.
    """
    applied: list[Any] = []
    try:
        plan.enter(states, applied)
    except BaseException as cause:  # noqa: BLE001 - _give_up raises it
        # This frame stays alive with the traceback; the states must not.
        del states
        _give_up(plan, applied, cause)
    return applied


def call_under(
    plan: Plan,
    states: Sequence[object],
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Call `fn` with `states` current, and undo them whatever happens."""
    applied: list[Any] = []
    try:  # apply_all, without a frame of its own
        plan.enter(states, applied)
    except BaseException as cause:  # noqa: BLE001 - _give_up raises it
        del states, fn, args, kwargs
        _give_up(plan, applied, cause)
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


def first_failing(plan: Plan) -> str:
    """Return the name of the first carrier of `plan` that cannot capture, asking one by one."""
    for step in plan.steps:
        try:
            step.capture()
        except Exception:  # noqa: BLE001 - the caller has the exception already
            return step.name
    return plan.steps[-1].name


def _give_up(plan: Plan, applied: list[Any], cause: BaseException) -> NoReturn:
    """Undo what was applied before `cause`, and raise the error that names the carrier."""
    at_work = applied.pop() if applied and isinstance(applied[-1], int) else None
    if not isinstance(cause, Exception):
        undo_all(applied, cause)
        raise cause
    if at_work is None:
        error = failed(first_failing(plan), "capture", cause)
    else:
        error = failed(plan.steps[at_work].name, "apply", cause)
    undo_all(applied, error)
    raise error from cause
