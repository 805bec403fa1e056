"""Thread pools that carry: `ctxcarry.executor()`."""

from __future__ import annotations

import sys
import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context
from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any, Literal, overload

from ctxcarry._bind import Carried
from ctxcarry._capture import capture_with
from ctxcarry._default import registry as default_registry
from ctxcarry._policy import Policy, checked, policy_of
from ctxcarry.boundaries._handed import Handed, WatchedHanded, release_when_done

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import ParamSpec, TypeVar

    from ctxcarry._plan import Plan
    from ctxcarry._registry import Registry
    from ctxcarry.boundaries.process_executor import CarryProcessExecutor

    P = ParamSpec("P")
    T = TypeVar("T")

__all__ = ("CarryExecutor", "executor")


@overload
def executor(
    max_workers: int | None = None,
    *,
    kind: Literal["thread"] = "thread",
    policy: Policy | None = None,
    registry: Registry | None = None,
    check_leaks: bool = False,
    bind_callbacks: bool = False,
    merge_back: bool = False,
    **kwargs: Any,
) -> CarryExecutor: ...
@overload
def executor(
    max_workers: int | None = None,
    *,
    kind: Literal["process"],
    policy: Policy | None = None,
    registry: Registry | None = None,
    **kwargs: Any,
) -> CarryProcessExecutor: ...
def executor(
    max_workers: int | None = None,
    *,
    kind: str = "thread",
    policy: Policy | None = None,
    registry: Registry | None = None,
    check_leaks: bool = False,
    bind_callbacks: bool = False,
    merge_back: bool = False,
    **kwargs: Any,
) -> CarryExecutor | CarryProcessExecutor:
    """
    Return a pool whose tasks run in the context of whoever submitted them.

    A drop-in for `concurrent.futures.ThreadPoolExecutor`, or with
    ``kind="process"`` for `concurrent.futures.ProcessPoolExecutor`. Each `submit`, and
    each `map` as a whole, takes a snapshot; what was applied on the worker is
    undone once the task has run.

    Args:
        max_workers: As for ``ThreadPoolExecutor``.
        kind: ``"thread"`` or ``"process"``. To another process contexts travel
            by name; see `Snapshot.dumps`.
        policy: What to propagate, clear or leave unchanged, within the policies
            in force at each `submit`.
        registry: Carriers to use instead of `ctxcarry.registry`.
        check_leaks: Fail a task with `LeakError` if it leaves its thread changed.
        bind_callbacks: Run callbacks given to ``Future.add_done_callback`` in the
            context of the thread that gave them.
        merge_back: Note the ContextVars that each task sets, for
            `CarryExecutor.merge_back`.
        **kwargs: As for ``ThreadPoolExecutor`` or ``ProcessPoolExecutor``; for the
            latter also ``not_portable=``, as for `Snapshot.dumps`. What an
            ``initializer`` sets in a worker is there for a task whose submitter
            had nothing set.

    Raises:
        ValueError: If `kind` is unknown, or an option is not for that kind.
        TypeError: If `policy` is no policy.
    """
    if kind == "process":
        # Imported here: it imports all of multiprocessing.
        from ctxcarry.boundaries.process_executor import CarryProcessExecutor  # noqa: PLC0415

        if check_leaks or bind_callbacks or merge_back:
            msg = "check_leaks, bind_callbacks and merge_back are for kind='thread' only"
            raise ValueError(msg)
        return CarryProcessExecutor(max_workers, policy=policy, registry=registry, **kwargs)
    if kind != "thread":
        msg = f"executor(kind={kind!r}) is unknown. Available: 'thread', 'process'"
        raise ValueError(msg)
    return CarryExecutor(
        max_workers,
        policy=policy,
        registry=registry,
        check_leaks=check_leaks,
        bind_callbacks=bind_callbacks,
        merge_back=merge_back,
        **kwargs,
    )


class CarryExecutor(ThreadPoolExecutor):
    """The pool that `executor` returns; its arguments are described there."""

    _carries = True

    def __init__(
        self,
        max_workers: int | None = None,
        thread_name_prefix: str = "",
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        *,
        policy: Policy | None = None,
        registry: Registry | None = None,
        check_leaks: bool = False,
        bind_callbacks: bool = False,
        merge_back: bool = False,
        **kwargs: Any,
    ) -> None:
        self._policy = checked(policy)
        self._registry = default_registry if registry is None else registry
        self._registry.plan(policy)  # a name that is unknown is an error here, not at each submit
        self._worker = threading.local()
        self._check_leaks = check_leaks
        self._bind_callbacks = bind_callbacks
        self._merged: weakref.WeakKeyDictionary[Future[Any], WatchedHanded] | None = None
        if merge_back:
            self._merged = weakref.WeakKeyDictionary()
        watched = check_leaks or merge_back or initializer is not None
        self._make = WatchedHanded if watched else Handed
        if callable(initializer):
            # Not a bound method: a worker must not keep its executor alive.
            initargs = (self._registry, self._worker, initializer, initargs)
            initializer = _initialize
        super().__init__(max_workers, thread_name_prefix, initializer, initargs, **kwargs)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Schedule ``fn(*args, **kwargs)`` in the context of this moment."""
        make = self._make
        handed: Handed
        if type(fn) is Carried:
            handed = make.of(fn._snapshot, fn.__wrapped__, args, kwargs)
        else:
            plan = self._registry.plan(self._policy_for(fn))
            if plan.empty and make is Handed:
                return super().submit(fn, *args, **kwargs)
            handed = make(plan, fn, args, kwargs)
        if isinstance(handed, WatchedHanded):
            self._watch(handed)
        try:
            if _THREADS_INHERIT:
                # Else a worker's own context would for ever be the first submitter's.
                future = Context().run(super().submit, handed.run)
            else:
                future = super().submit(handed.run)
        except BaseException:
            handed.release()
            raise
        release_when_done(future, handed)
        if self._bind_callbacks:
            future.__class__ = _BoundCallbacks
            future._plan = partial(self._registry.plan, self._policy)  # type: ignore[attr-defined]
        if self._merged is not None and isinstance(handed, WatchedHanded):
            self._merged[future] = handed
        return future

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        **kwargs: Any,
    ) -> Iterator[T]:
        """Map `fn` over `iterables` in the context of this moment."""
        snapshot = capture_with(self._registry.plan(self._policy_for(fn)))
        return super().map(Carried(snapshot, fn), *iterables, **kwargs)

    def merge_back(self, future: Future[T]) -> T:
        """
        Wait for `future`, set here the ContextVars that its task set, return its result.

        Raises:
            ValueError: If `future` is not one of this executor, or the executor
                was made without ``merge_back=True``.
        """
        handed = None if self._merged is None else self._merged.get(future)
        if handed is None:
            why = "is not of this executor" if self._merged is not None else "was not watched"
            msg = f"{future!r} {why}: submit it to an executor made with merge_back=True"
            raise ValueError(msg)
        result = future.result()
        for variable, value in (handed.changes or {}).items():
            variable.set(value)
        return result

    def _policy_for(self, fn: Callable[..., Any]) -> Policy | None:
        """Return the policy for handing over `fn`: its own, within the pool's."""
        if type(fn) in _PLAIN:
            return self._policy
        own = policy_of(fn)
        return self._policy if own is None else own.within(self._policy)

    def _watch(self, handed: WatchedHanded) -> None:
        handed.worker = self._worker
        handed.check_leaks = self._check_leaks
        handed.changes = {} if self._merged is not None else None

    def _adjust_thread_count(self) -> None:
        # A full pool starts no thread, so it need not ask, under a lock, whether
        # one is idle. Private, and not needed: without it submit is only slower.
        if len(self._threads) < self._max_workers:
            super()._adjust_thread_count()


class _BoundCallbacks(Future[Any]):
    """A future whose callbacks run in the context of whoever added them."""

    _plan: Callable[[], Plan]

    def add_done_callback(self, fn: Callable[[Future[Any]], object], /) -> None:
        super().add_done_callback(capture_with(self._plan()).wrap(fn))


def _initialize(
    registry: Registry,
    worker: threading.local,
    initializer: Callable[..., object],
    initargs: tuple[Any, ...],
) -> None:
    """Run the user's initializer and note what it set, which is this worker's base."""
    initializer(*initargs)
    worker.base = registry.capture()


# Since Python 3.14 a thread may start in a copy of the context of whoever started it.
_THREADS_INHERIT = bool(getattr(sys.flags, "thread_inherit_context", 0))

# What most submitted functions are, and what has no policy of its own.
_PLAIN = frozenset({BuiltinFunctionType, FunctionType})
