"""Work on its way to another thread, with the snapshot that it is to run under."""

from __future__ import annotations

from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from ctxcarry._activate import apply_all
from ctxcarry._carrier import MISSING
from ctxcarry._plan import same_state
from ctxcarry.errors import LeakError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from concurrent.futures import Future
    from contextvars import ContextVar

    from ctxcarry._snapshot import Snapshot

__all__ = ("Handed", "WatchedHanded", "is_handed", "release_when_done")


class Handed:
    """
    One call, to be run once, that lets go of its snapshot as early as it can.

    A queue keeps a cancelled task until a worker comes to it, and a failed
    future keeps the frames of its traceback: neither may keep the snapshot.
    """

    __slots__ = ("args", "fn", "kwargs", "snapshot")

    def __init__(
        self,
        snapshot: Snapshot,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.snapshot: Snapshot | None = snapshot
        self.fn = fn
        self.args = args
        self.kwargs = kwargs

    def run(self) -> Any:  # noqa: ANN401 - whatever fn returns
        """Run the call under the snapshot."""
        snapshot, self.snapshot = self.snapshot, None
        if snapshot is None:
            msg = "handed over work runs once, and this has run already or was cancelled"
            raise RuntimeError(msg)
        try:
            return snapshot.run(self.fn, *self.args, **self.kwargs)
        finally:
            del snapshot

    def release(self, _: object = None) -> None:
        """Let go of the snapshot: the call has run, or will not."""
        self.snapshot = None


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

    def run(self) -> Any:  # noqa: ANN401 - whatever fn returns
        """Run the call under the snapshot, over the worker's base."""
        snapshot = self.snapshot
        base = getattr(self.worker, "base", None)
        if snapshot is not None and base is not None:
            self.snapshot = snapshot.over(base)
        del base
        if self.changes is not None:
            self.fn = _Recorded(self.fn, self.changes)
        if not self.check_leaks or snapshot is None:
            del snapshot
            return super().run()
        plan = snapshot._plan
        del snapshot
        before = plan.read()
        result = super().run()
        leaked = [
            step.name
            for step, was, now in zip(plan.steps, before, plan.read())
            if not same_state(was, now)
        ]
        if leaked:
            apply_all(plan, before)
            msg = (
                f"{self.fn!r} left {', '.join(leaked)} changed on its worker thread; it has been put "
                "back. Change such a context in a `with` block, or undo it before returning"
            )
            raise LeakError(msg)
        return result


class _Recorded:
    """A callable that notes which ContextVars it set."""

    __slots__ = ("__wrapped__", "_changes")

    def __init__(self, fn: Callable[..., Any], changes: dict[ContextVar[Any], Any]) -> None:
        self.__wrapped__ = fn
        self._changes = changes

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the function
        before = copy_context()
        try:
            return self.__wrapped__(*args, **kwargs)
        finally:
            after = copy_context()
            self._changes.update(
                {var: value for var, value in after.items() if before.get(var, MISSING) is not value}
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
