"""`with snapshot.active():`, activation for a block instead of a call."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ctxcarry._activate import apply_all
from ctxcarry._carrier import MISSING
from ctxcarry._contexts import HERE, InPlace
from ctxcarry._plan import CONTEXTVARS
from ctxcarry._policy import CLEAR, PROPAGATE
from ctxcarry._undo import leak, undo_all
from ctxcarry.errors import CarrierError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType
    from typing import Any

    from ctxcarry._snapshot import Snapshot
    from ctxcarry._undo import Undo

__all__ = ("Active", "call_in_place")


class Active:
    """
    Hold one snapshot active for a ``with`` block.

    A class and not a generator: a generator-based manager that is entered in
    one thread and left in another fails in the second and stays set in the first.
    """

    __slots__ = ("_entered", "_names", "_snapshot")

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        # By thread: a thread's number is given to another one when it has ended.
        self._entered = threading.local()
        self._names: list[str] = []

    def __enter__(self) -> Snapshot:
        snapshot = self._snapshot
        try:
            variables, applied = _begin(snapshot)
        except BaseException:
            del self, snapshot  # the traceback keeps this frame
            raise
        vars(self._entered).setdefault("stack", []).append((variables, applied))
        self._names.append(threading.current_thread().name)
        return snapshot

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        stack: list[tuple[InPlace, list[Undo]]] = vars(self._entered).get("stack", [])
        here = threading.current_thread().name
        if not stack:
            msg = (
                f"active() is left in thread {here!r}, but was entered in "
                f"{', '.join(map(repr, self._names)) or 'no thread'}, which keeps the values until "
                "it leaves the block itself. Enter and leave it in one thread; to run something "
                "elsewhere hand over snapshot.wrap(fn)"
            )
            leak(msg, exc)
            return
        variables, applied = stack.pop()
        if here in self._names:
            self._names.remove(here)
        del self, stack  # a traceback would keep this frame, and with it the snapshot
        _end(variables, applied, exc)


def call_in_place(
    snapshot: Snapshot, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Call `fn` in a block of ``snapshot.active()``: ContextVars that it sets stay set."""
    variables, applied = _begin(snapshot)
    del snapshot
    try:
        result = fn(*args, **kwargs)
    except BaseException as error:
        del fn, args, kwargs  # the traceback keeps this frame
        _end(variables, applied, error)
        raise
    _end(variables, applied, None)
    return result


def _begin(snapshot: Snapshot) -> tuple[InPlace, list[Undo]]:
    """Make `snapshot` current; all of it or nothing."""
    variables = _replay(snapshot)
    if not snapshot._states:
        return variables, []
    try:
        return variables, apply_all(snapshot._plan, snapshot._states)
    except BaseException:
        variables.take_back()
        del snapshot, variables  # the traceback keeps this frame
        raise


def _end(variables: InPlace, applied: list[Undo], error: BaseException | None) -> None:
    """Bring back what was before."""
    try:
        if applied:
            undo_all(applied, error)
    finally:
        failures = variables.take_back()
        if failures:
            msg = (
                f"context variables were set in one Context and are taken back in another: "
                f"{', '.join(failures)}. A `with snapshot.active()` block must be left in the "
                "thread and task that entered it; across an `await` or a `yield` use "
                "snapshot.run(fn), snapshot.wrap(fn) or @carry_context"
            )
            leak(msg, error)


def _replay(snapshot: Snapshot) -> InPlace:
    """Set the variables of `snapshot` in the current Context; all of them or none."""
    plan = snapshot._plan
    variables = InPlace()
    tokens = variables.tokens
    try:
        if plan.contexts == CLEAR:
            variables.clear(skip=frozenset(v for v, _ in snapshot._edits))
        elif plan.contexts == PROPAGATE and snapshot._context is not None:
            variables.replay(snapshot._context, skip=frozenset(v for v, _ in snapshot._edits))
        for variable, value in snapshot._edits:
            if value is HERE:
                continue
            if value is not MISSING:
                # Not by a call of `set`, since there may be many.
                if variable.get(MISSING) is not value:
                    tokens.append((variable, variable.set(value)))
            elif not variables.unset(variable):
                raise CarrierError(
                    CONTEXTVARS,
                    "apply",
                    f"{variable.name!r} is set here and has no default, and a `with` block cannot "
                    "unset such a variable: use snapshot.run(fn) or snapshot.wrap(fn), which can",
                )
    except BaseException:
        variables.take_back()
        raise
    return variables
