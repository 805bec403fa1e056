"""Stand in, around one call, for the contexts that are not set on this thread."""

from __future__ import annotations

from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from ctxcarry._carrier import MISSING, UNCHANGED
from ctxcarry._contexts import HERE, value_here
from ctxcarry._policy import ambient_policy
from ctxcarry._states import is_set, same_state
from ctxcarry._undo import failed, undo_all

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextvars import ContextVar, Token

    from ctxcarry._plan import Step
    from ctxcarry._snapshot import Snapshot

__all__ = ("call_over",)


def call_over(
    base: Snapshot, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """
    Call `fn` with the contexts of `base` where this thread has none of its own.

    Unlike under `Snapshot.run`, what `fn` itself sets stays set: it is called as
    a method is, and a method may be there to set something up.
    """
    variables = _fill_variables(base)
    steps: list[tuple[Step, object, object]] = []
    try:
        _fill_steps(base, steps)
        result = fn(*args, **kwargs)
    except BaseException as error:
        _take_back(steps, variables, error)
        del base, fn, args, kwargs, steps, variables  # the traceback keeps this frame
        raise
    _take_back(steps, variables, None)
    return result


def _fill_variables(base: Snapshot) -> list[tuple[ContextVar[Any], object, Token[Any]]]:
    here = copy_context()
    wanted = {**(base._context or {}), **dict(base._edits)}
    return [
        (v, value, v.set(value))
        for v, value in wanted.items()
        # The policy in force was about the work that set up the base.
        if v not in here and v is not ambient_policy and value is not MISSING and value is not HERE
    ]


def _fill_steps(base: Snapshot, filled: list[tuple[Step, object, object]]) -> None:
    for step, state in zip(base._plan.steps, base._states):
        if is_set(step.carrier, state) and not is_set(step.carrier, step.capture()):
            try:
                token = step.apply(state)
            except Exception as cause:
                raise failed(step.name, "apply", cause) from cause
            if token is not UNCHANGED:
                filled.append((step, step.capture(), token))


def _take_back(
    steps: list[tuple[Step, object, object]],
    variables: list[tuple[ContextVar[Any], object, Token[Any]]],
    error: BaseException | None,
) -> None:
    for variable, value, token in variables:
        if value_here(variable) is value:
            variable.reset(token)
    still = [(s, token) for s, state, token in steps if same_state(state, s.capture())]
    undo_all([(step.undo, token, step.name) for step, token in still], error)
