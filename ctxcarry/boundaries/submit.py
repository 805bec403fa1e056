"""`submit` and `map` of a pool that is not ours: patched for everyone, or by proxy for one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from ctxcarry._bind import Bound
from ctxcarry._capture import capture_with
from ctxcarry._default import registry
from ctxcarry._proxy import CarriedFunction
from ctxcarry.boundaries._handed import Handed, is_handed, release_when_done
from ctxcarry.boundaries._patch import Patch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future

    from ctxcarry._snapshot import Snapshot

__all__ = ("DECORATED", "EVERYTHING", "patches", "snapshot_for", "users")

DECORATED, EVERYTHING = "carry_context", "executor"

users: set[str] = set()
"""Who needs the patches: `DECORATED` callables only, or `EVERYTHING`."""


def snapshot_for(fn: Callable[..., Any]) -> Snapshot | None:
    """Take the snapshot that `fn` is to be handed over with; None when it is not ours to carry."""
    inner = fn
    while type(inner) is partial:
        inner = inner.func
    if isinstance(inner, CarriedFunction):
        return inner._self_capture() if users else None
    if type(fn) is Bound:
        return fn._snapshot
    if EVERYTHING not in users or is_handed(fn):
        return None
    plan = registry.plan()
    return None if plan.empty else capture_with(plan)


def hand_over(
    submit: Callable[..., Future[Any]],
    snapshot: Snapshot,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Future[Any]:
    """Call `submit` with a callable that runs ``fn(*args, **kwargs)`` under `snapshot`."""
    handed = Handed.of(snapshot, fn.__wrapped__ if type(fn) is Bound else fn, args, kwargs)
    future = submit(handed.run)
    release_when_done(future, handed)
    return future


def _submit(original: Callable[..., Future[Any]]) -> Callable[..., Future[Any]]:
    def submit(
        self: ThreadPoolExecutor,
        fn: Callable[..., Any],
        /,
        *args: Any,
        **kwargs: Any,
    ) -> Future[Any]:
        snapshot = snapshot_for(fn)
        if snapshot is None:
            return original(self, fn, *args, **kwargs)
        return hand_over(partial(original, self), snapshot, fn, args, kwargs)

    return submit


def _map(original: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    def map(  # noqa: A001 - the method's name
        self: ThreadPoolExecutor,
        fn: Callable[..., Any],
        /,
        *iterables: Iterable[Any],
        **kwargs: Any,
    ) -> Iterator[Any]:
        # One snapshot for the call: the items may be submitted much later.
        snapshot = snapshot_for(fn)
        return original(self, fn if snapshot is None else Bound(snapshot, fn), *iterables, **kwargs)

    return map


patches = (Patch(ThreadPoolExecutor, "submit", _submit), Patch(ThreadPoolExecutor, "map", _map))
