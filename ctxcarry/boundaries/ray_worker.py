"""The far side of a Ray call: in a worker process, on whichever of its threads."""

from __future__ import annotations

from contextlib import nullcontext
from contextvars import Context, ContextVar
from typing import TYPE_CHECKING, Any

from ctxcarry._active import call_in_place
from ctxcarry._capture import capture_with
from ctxcarry._carrier import MISSING
from ctxcarry._contexts import overlaid
from ctxcarry._decorate_class import base_of, note_base
from ctxcarry._default import registry
from ctxcarry._fill import call_over
from ctxcarry._reload import loaded
from ctxcarry._snapshot import Snapshot
from ctxcarry._states import same_state
from ctxcarry._step import made_by
from ctxcarry.boundaries._ray_payload import HIDDEN
from ctxcarry.boundaries._ray_prepare import policy_for
from ctxcarry.boundaries.ray_calls import boundary

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("run_init", "run_method", "run_stepped_method", "run_task")

Args = tuple[Any, ...]

# The actor, by id, whose method is under way in this Context.
_within: ContextVar[int | None] = ContextVar("ctxcarry.ray.within", default=None)


def run_task(fn: Callable[..., Any], args: Args, kwargs: dict[str, Any]) -> Any:
    """Run a task in the context of whoever called it."""
    if not (boundary.decorated or boundary.everything):
        boundary.serve()  # so that calls which this worker makes carry as well
    if HIDDEN not in kwargs:
        return fn(*args, **kwargs)
    return loaded(kwargs.pop(HIDDEN)).run(fn, *args, **kwargs)


def run_method(fn: Callable[..., Any], args: Args, kwargs: dict[str, Any]) -> Any:
    """
    Run a method of an actor in the context of its caller, over that of ``__init__``.

    What the method itself sets stays set, as without us: it may be there to set
    something up. A method that it calls itself is just called.
    """
    if not (boundary.decorated or boundary.everything):
        boundary.serve()
    instance = args[0]
    base = base_of(instance)
    if HIDDEN not in kwargs and (base is None or _within.get() == id(instance)):
        return fn(*args, **kwargs)
    caller = loaded(kwargs.pop(HIDDEN)) if HIDDEN in kwargs else None
    if base is not None:
        fn, args, kwargs = call_over, (base, fn, args, kwargs), {}
    token = _within.set(id(instance))
    try:
        return fn(*args) if caller is None else call_in_place(caller, fn, args, kwargs)
    finally:
        _within.reset(token)


def run_stepped_method(fn: Callable[..., Any], args: Args, kwargs: dict[str, Any]) -> Any:
    """Do so with a coroutine or generator function, at each step of its body."""
    if not made_by(fn):  # only marked as one
        return run_method(fn, args, kwargs)
    instance = args[0]
    if _within.get() == id(instance) and HIDDEN not in kwargs:
        return fn(*args, **kwargs)
    caller, base = _caller(kwargs), base_of(instance)
    token = _within.set(id(instance))
    try:
        return _both(caller, base).run(fn, *args, **kwargs)
    finally:
        _within.reset(token)


def run_init(fn: Callable[..., Any], args: Args, kwargs: dict[str, Any]) -> None:
    """
    Run ``__init__`` in the context of its caller, and note what it has set.

    That is the base for all methods. What the caller had set is not: whoever makes
    an actor under ``no_grad`` does not mean all of its life.
    """
    caller = _caller(kwargs)
    policy = policy_for(type(args[0]))
    outside = capture_with(registry.plan(policy))
    with nullcontext() if caller is None else caller.active():
        before = capture_with(registry.plan(policy))
        fn(*args, **kwargs)
        after = capture_with(registry.plan(policy))
    note_base(args[0], _set_between(before, after, outside))


def _caller(kwargs: dict[str, Any]) -> Snapshot | None:
    """Take the hidden argument out of `kwargs`, and return the snapshot in it."""
    boundary.serve()  # so that calls which this worker makes carry as well
    payload = kwargs.pop(HIDDEN, None)
    return None if payload is None else loaded(payload)


def _both(caller: Snapshot | None, base: Snapshot | None) -> Snapshot:
    """Return what a body that pauses is to run under, at each of its steps."""
    with nullcontext() if caller is None else caller.active():
        here = capture_with(registry.plan())
    return here if base is None else here.over(base)


def _set_between(before: Snapshot, after: Snapshot, outside: Snapshot) -> Snapshot:
    """Return `outside` with what `after` has otherwise than `before`."""
    states = tuple(
        there if same_state(state, was) else state
        for state, was, there in zip(
            after._states, _for_steps_of(after, before), _for_steps_of(after, outside)
        )
    )
    context = outside._context
    if context is not None:
        was = before._context or Context()
        now = after._context or Context()
        context = overlaid(
            context, [(v, x) for v, x in now.items() if was.get(v, MISSING) is not x]
        )
    return Snapshot(after._plan, context, states, outside._edits)


def _for_steps_of(plan: Snapshot, states: Snapshot) -> list[object]:
    """Return `states` for the steps of `plan`, which may have carriers that came later."""
    found = {step.name: state for step, state in zip(states._plan.steps, states._states)}
    return [
        found.get(step.name, getattr(step.carrier, "default", MISSING)) for step in plan._plan.steps
    ]
