"""`ctxcarry.wrap_executor(pool)`: a pool that exists already, made to carry."""

from __future__ import annotations

import sys
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, TypeVar

import wrapt

from ctxcarry._bind import Carried
from ctxcarry._capture import capture_with
from ctxcarry._default import registry as default_registry
from ctxcarry._policy import checked, policy_of
from ctxcarry.boundaries._shipped import shipped
from ctxcarry.boundaries.submit import hand_over, quiet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future

    from ctxcarry._policy import Policy
    from ctxcarry._registry import Registry
    from ctxcarry._snapshot import Snapshot

__all__ = ("WrappedExecutor", "wrap_executor")

E = TypeVar("E", bound=Executor)


class WrappedExecutor(wrapt.ObjectProxy):
    """A pool that hands each call over with a snapshot; all else is the pool's own."""

    def __init__(self, pool: Executor, registry: Registry, policy: Policy | None) -> None:
        super().__init__(pool)
        self._self_registry = registry
        self._self_policy = policy
        # Importing it would import all of multiprocessing.
        processes = sys.modules.get("concurrent.futures.process")
        self._self_ships = processes is not None and isinstance(pool, processes.ProcessPoolExecutor)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Schedule ``fn(*args, **kwargs)`` in the context of this moment."""
        pool: Any = self.__wrapped__
        future: Future[Any]
        snapshot = self._self_snapshot(fn)
        if snapshot is None:
            with quiet():
                future = pool.submit(fn, *args, **kwargs)
        elif self._self_ships:
            future = pool.submit(shipped(snapshot, fn), *args, **kwargs)
        else:
            initializer = getattr(pool, "_initializer", None)
            future = hand_over(pool.submit, snapshot, fn, args, kwargs, initializer)
        return future

    def map(
        self, fn: Callable[..., Any], *iterables: Iterable[Any], **kwargs: Any
    ) -> Iterator[Any]:
        """Map `fn` over `iterables` in the context of this moment."""
        snapshot = self._self_snapshot(fn)
        results: Iterator[Any]
        if snapshot is None:
            with quiet():
                results = self.__wrapped__.map(fn, *iterables, **kwargs)
        else:
            # The pool's own `map` calls the pool's own `submit`; the callable brings the snapshot.
            fn = shipped(snapshot, fn) if self._self_ships else Carried(snapshot, fn)
            results = self.__wrapped__.map(fn, *iterables, **kwargs)
        return results

    def __enter__(self) -> WrappedExecutor:  # noqa: PYI034 - not meant to be derived from
        self.__wrapped__.__enter__()
        return self

    def _self_snapshot(self, fn: Callable[..., Any]) -> Snapshot | None:
        own = policy_of(fn)
        policy = self._self_policy if own is None else own.within(self._self_policy)
        plan = self._self_registry.plan(policy)
        return None if plan.empty else capture_with(plan)


def wrap_executor(pool: E, *, policy: Policy | None = None, registry: Registry | None = None) -> E:
    """
    Return `pool` so that each `submit` and `map` carries; the pool itself is not changed.

    The result is still an instance of the pool's class, so that it can be given
    to whatever asks for one. A pool that carries already is returned as it is.

    Args:
        pool: An executor. To a ``ProcessPoolExecutor`` the contexts travel as
            bytes; see `Snapshot.dumps`.
        policy: What to propagate, clear or leave unchanged.
        registry: Carriers to use instead of `ctxcarry.registry`.

    Raises:
        TypeError: If `pool` is no executor, or `policy` no policy.
    """
    if type(pool) is WrappedExecutor or hasattr(pool, "_carries"):
        return pool
    if isinstance(pool, type) or not callable(getattr(pool, "submit", None)):
        msg = f"wrap_executor takes a concurrent.futures.Executor, not {pool!r}"
        raise TypeError(msg)
    policy = checked(policy)
    registry = default_registry if registry is None else registry
    registry.plan(policy)  # a name that is unknown is an error here, not at each submit
    return WrappedExecutor(pool, registry, policy)
