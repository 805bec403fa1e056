"""Activate: make the states of a plan current around one call, all of them or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from ctxcarry._undo import failed, report, undo_all

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ctxcarry._plan import Plan
    from ctxcarry._undo import Undo
    from ctxcarry.errors import CarrierError

__all__ = ("apply_all", "call_under", "capture_error", "set_back")


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
    applied: list[Undo] = []
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
    applied: list[Undo] = []
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
        del fn, args, kwargs
        set_back(plan, states, applied, error)
        del plan, states
        raise
    del fn, args, kwargs
    try:
        if len(applied) == len(plan.steps):
            undo_all(applied)  # which is all that set_back would do
        else:
            set_back(plan, states, applied, None)
    except BaseException:
        del plan, states, result
        raise
    return result


def set_back(
    plan: Plan,
    states: Sequence[object],
    applied: list[Undo],
    error: BaseException | None,
) -> None:
    """
    Bring the thread back: set back what the work left changed, then undo what was applied.

    Raises:
        ExceptionGroup: As `undo_all`.
    """
    undone = [name for _, _, name in applied] if applied else ()
    try:
        plan.leave(states, undone)
    except Exception as cause:  # noqa: BLE001 - reported
        del states  # the traceback keeps this frame
        name, _ = plan.fused.failing(cause)
        failure = failed(name, "undo", cause)
        undo_all(applied, error or failure)
        report([failure], error)
    if applied:
        del states
        undo_all(applied, error)


def capture_error(plan: Plan, cause: Exception) -> CarrierError:
    """Return the error that names the carrier whose capture raised `cause`."""
    name, _ = plan.fused.failing(cause)
    return failed(name, "capture", cause)


def _give_up(plan: Plan, applied: list[Undo], cause: BaseException) -> NoReturn:
    """Undo what was applied before `cause`, and raise the error that names the carrier."""
    error = failed(*plan.fused.failing(cause), cause) if isinstance(cause, Exception) else cause
    undo_all(applied, error)
    if error is cause:
        raise cause
    raise error from cause
