"""Work on its way to another thread, with the snapshot that it is to run under."""

from __future__ import annotations

from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from ctxcarry._activate import apply_all, call_under, first_failing
from ctxcarry._capture import read_edits
from ctxcarry._carrier import MISSING
from ctxcarry._plan import same_state
from ctxcarry._snapshot import Snapshot
from ctxcarry._step import STEPPED, made_by, stepped
from ctxcarry._undo import failed
from ctxcarry.errors import LeakError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from concurrent.futures import Future
    from contextvars import ContextVar

    from ctxcarry._plan import Plan

__all__ = ("Handed", "WatchedHanded", "is_handed", "release_when_done")


class Handed:
    """
    One call, to be run once, that lets go of its snapshot as early as it can.

    A queue keeps a cancelled task until a worker comes to it, and a failed
    future keeps the frames of its traceback: neither may keep the snapshot.
    """

    __slots__ = ("args", "context", "edits", "fn", "kwargs", "plan", "states")

    def __init__(
        self, plan: Plan, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        # The parts of a snapshot and not a Snapshot: making one for each task
        # would cost a third of everything else that is done here.
        self.plan = plan
        self.context = copy_context() if plan.copies_context else None
        try:  # read_states, without a frame of its own
            self.states: tuple[object, ...] | None = plan.read()
        except Exception as cause:
            raise failed(first_failing(plan), "capture", cause) from cause
        self.edits = read_edits(plan) if plan.edits else ()
        self.fn = fn
        self.args = args
        self.kwargs = kwargs

    @classmethod
    def of(
        cls,
        snapshot: Snapshot,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Handed:
        """Return a call that runs under a snapshot that was taken before."""
        self = cls.__new__(cls)
        self.plan, self.states, self.edits = snapshot._plan, snapshot._states, snapshot._edits
        # Another task of the same snapshot may be under way.
        self.context = None if snapshot._context is None else snapshot._context.copy()
        self.fn, self.args, self.kwargs = fn, args, kwargs
        return self

    def run(self) -> Any:
        """Run the call under the snapshot."""
        states, context = self.states, self.context
        if states is None:
            msg = "handed over work runs once, and this has run already or was cancelled"
            raise RuntimeError(msg)
        if context is None or self.edits:
            return self._run_snapshot()
        self.states = self.context = None
        try:
            result = context.run(call_under, self.plan, states, self.fn, self.args, self.kwargs)
            if type(result) in STEPPED and made_by(self.fn):
                result = stepped(Snapshot(self.plan, context, states), result)
        except BaseException:
            del states, context  # see call_under
            raise
        return result

    def snapshot(self) -> Snapshot:
        """Return the snapshot that the call is to run under."""
        return Snapshot(self.plan, self.context, self.states or (), self.edits)

    def release(self, _: object = None) -> None:
        """Let go of the snapshot: the call has run, or will not."""
        self.states = self.context = None
        self.edits = ()

    def _run_snapshot(self) -> Any:
        snapshot = self.snapshot()
        self.release()
        try:
            return snapshot.run(self.fn, *self.args, **self.kwargs)
        finally:
            del snapshot


class WatchedHanded(Handed):
    """
    A call with the options of `ctxcarry.executor` that cost something.

    Attributes:
        worker: Fields ``base`` (what the initializer set in this worker).
        check_leaks: Whether the thread must be left as it was found.
        changes: ContextVars that the call set, when they are to be merged back.
    """

    __slots__ = ("changes", "check_leaks", "worker")

    worker: threading.local
    check_leaks: bool
    changes: dict[ContextVar[Any], Any] | None

    def run(self) -> Any:
        """Run the call under the snapshot, over the worker's base."""
        base = getattr(self.worker, "base", None)
        if base is not None and self.states is not None:
            over = self.snapshot().over(base)
            self.states, self.context = over._states, over._context
            del over
        del base
        if self.changes is not None:
            self.fn = _Recorded(self.fn, self.changes)
        if not self.check_leaks:
            return super().run()
        plan = self.plan
        before = plan.here()
        result = super().run()
        leaked = [
            step.name
            for step, was, now in zip(plan.steps, before, plan.here())
            if not same_state(was, now)
        ]
        if leaked:
            apply_all(plan, before)
            msg = (
                f"{self.fn!r} left {', '.join(leaked)} changed on its worker thread; it has been "
                "put back. Change such a context in a `with` block, or undo it before returning"
            )
            raise LeakError(msg)
        return result


class _Recorded:
    """A callable that notes which ContextVars it set."""

    __slots__ = ("__wrapped__", "_changes")

    def __init__(self, fn: Callable[..., Any], changes: dict[ContextVar[Any], Any]) -> None:
        self.__wrapped__ = fn
        self._changes = changes

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        before = copy_context()
        try:
            return self.__wrapped__(*args, **kwargs)
        finally:
            after = copy_context()
            self._changes.update(
                {
                    var: value
                    for var, value in after.items()
                    if before.get(var, MISSING) is not value
                }
            )

    def __repr__(self) -> str:
        return repr(self.__wrapped__)


def is_handed(fn: Callable[..., Any]) -> bool:
    """Say whether `fn` already brings its snapshot along."""
    return isinstance(getattr(fn, "__self__", None), Handed)


def release_when_done(future: Future[Any], handed: Handed) -> None:
    """
    Let go of the snapshot when `future` is cancelled.

    `Future.add_done_callback` takes a lock, for a promise that is not needed
    here: a call that has run has let go of its snapshot itself. Appending to
    the list of callbacks is the same for a future that is still pending, at a
    tenth of the cost.
    """
    callbacks = getattr(future, "_done_callbacks", None)
    if type(callbacks) is list:
        callbacks.append(handed.release)
    else:
        future.add_done_callback(handed.release)
