"""Work on its way to another thread, with the snapshot that it is to run under."""

from __future__ import annotations

from concurrent.futures._base import CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from ctxcarry._activate import call_under, capture_error
from ctxcarry._capture import capture_with, read_edits
from ctxcarry._carrier import MISSING
from ctxcarry._policy import ambient_policy
from ctxcarry._snapshot import Snapshot
from ctxcarry._states import same_state
from ctxcarry._step import STEPPED, made_by, stepped
from ctxcarry.errors import LeakError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from concurrent.futures import Future
    from contextvars import ContextVar

    from ctxcarry._plan import Plan

__all__ = ("Handed", "OverWorker", "WatchedHanded", "is_handed", "release_when_done")


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
            raise capture_error(plan, cause) from cause
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
            snapshot = self.snapshot()
            context = snapshot._context_to_enter() if self.plan.in_context else None
        plan, fn, args, kwargs = self.plan, self.fn, self.args, self.kwargs
        # A future keeps its callbacks, and so this; it is to keep nothing else.
        self.release()
        try:
            if context is None:
                result = call_under(plan, states, fn, args, kwargs)
            else:
                result = context.run(call_under, plan, states, fn, args, kwargs)
            if type(result) in STEPPED and made_by(fn):
                result = stepped(Snapshot(plan, context, states), result)
        except BaseException:
            del states, context, fn, args, kwargs  # see call_under
            raise
        return result

    def snapshot(self) -> Snapshot:
        """Return the snapshot that the call is to run under."""
        return Snapshot(self.plan, self.context, self.states or (), self.edits)

    def release(self, _: object = None) -> None:
        """Let go of the snapshot and of the call: it has run, or will not."""
        self.states = self.context = None
        self.edits = ()
        self.fn = _gone
        self.args = ()
        self.kwargs = {}


def _gone() -> None:
    """Stand where a call was that has run or was cancelled."""


class OverWorker(Handed):
    """
    A call that sees what is set on its worker where its snapshot has nothing.

    For pools with an initializer, which is there to set something for all calls.
    """

    __slots__ = ()

    def run(self) -> Any:
        """Run the call under the snapshot, over what the worker has."""
        if self.states is not None:
            self._over(capture_with(self.plan))
        return super().run()

    def _over(self, base: Snapshot) -> None:
        over = self.snapshot().over(base)
        self.states, self.context, self.edits = over._states, over._context, over._edits


class WatchedHanded(OverWorker):
    """
    A call with the options of `ctxcarry.executor` that cost something.

    Attributes:
        worker: Has ``base``, what the initializer set in this worker.
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
            self._over(base)
        del base
        if self.changes is not None:
            self.fn = _recorded(self.fn, self.changes)
        if self.check_leaks:
            self.fn = _checked(self.fn, self.plan)
        return Handed.run(self)


def _checked(fn: Callable[..., Any], plan: Plan) -> Callable[..., Any]:
    """Return `fn` so that it is an error to leave a context of `plan` changed."""
    if made_by(fn):  # its body runs elsewhere
        return fn

    def checked(*args: Any, **kwargs: Any) -> Any:
        before = plan.here()
        try:
            result = fn(*args, **kwargs)
        except BaseException:
            del before, args, kwargs  # the traceback keeps this frame
            raise
        leaked = [
            step.name
            for step, was, now in zip(plan.steps, before, plan.here())
            if not same_state(was, now)
        ]
        if leaked:
            del before, result, args, kwargs  # the traceback keeps this frame
            msg = (
                f"{fn!r} left {', '.join(leaked)} changed on its worker thread; it has been put "
                "back. Change such a context in a `with` block, or undo it before returning"
            )
            raise LeakError(msg)
        return result

    return checked


def _recorded(fn: Callable[..., Any], changes: dict[ContextVar[Any], Any]) -> Callable[..., Any]:
    """Return `fn` so that it notes which ContextVars it sets."""
    if made_by(fn):  # its body runs elsewhere
        return fn

    def recorded(*args: Any, **kwargs: Any) -> Any:
        before = copy_context()
        try:
            return fn(*args, **kwargs)
        finally:
            after = copy_context()
            changes.update(
                (v, value)
                for v, value in after.items()
                if before.get(v, MISSING) is not value and v is not ambient_policy
            )
            del before, after, args, kwargs  # a traceback keeps this frame

    return recorded


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
    if type(callbacks) is not list:
        future.add_done_callback(handed.release)
        return
    callbacks.append(handed.release)
    # Done before the callback was there. A call that has run has nothing left to let go of.
    if future._state in _DONE:
        handed.release()


_DONE = frozenset({CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED})
