"""`submit` and `map` of executors that are not ours."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from ctxcarry._bind import Bound
from ctxcarry.boundaries._boundary import Boundary
from ctxcarry.boundaries._handed import Handed, release_when_done
from ctxcarry.boundaries._patch import Patch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future

    from ctxcarry._snapshot import Snapshot

__all__ = ("boundary", "hand_over")


def hand_over(
    submit: Callable[..., Future[Any]],
    snapshot: Snapshot,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Future[Any]:
    """Call `submit` with a callable that runs ``fn(*args, **kwargs)`` under `snapshot`."""
    handed = Handed.of(snapshot, fn, args, kwargs)
    future = submit(handed.run)
    release_when_done(future, handed)
    return future


def _submit(original: Callable[..., Future[Any]]) -> Callable[..., Future[Any]]:
    def submit(
        self: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Future[Any]:
        if type(fn) is Bound:
            return hand_over(partial(original, self), fn._snapshot, fn.__wrapped__, args, kwargs)
        snapshot = boundary.snapshot_for(fn)
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
        return original(self, boundary.bound(fn), *iterables, **kwargs)

    return map


def _patches() -> tuple[Patch, ...]:
    return Patch(ThreadPoolExecutor, "submit", _submit), Patch(ThreadPoolExecutor, "map", _map)


boundary = Boundary(_patches)
