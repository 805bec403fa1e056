"""`submit` and `map` of executors that are not ours."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from ctxcarry._bind import Carried
from ctxcarry.boundaries._boundary import Boundary
from ctxcarry.boundaries._handed import Handed, OverWorker, release_when_done
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
    initializer: object = None,
) -> Future[Any]:
    """
    Call `submit` with a callable that runs ``fn(*args, **kwargs)`` under `snapshot`.

    With `initializer`, that of the pool, what it set stays where `snapshot` has nothing.
    """
    handed = (Handed if initializer is None else OverWorker).of(snapshot, fn, args, kwargs)
    try:
        future = submit(handed.run)
    except BaseException:
        handed.release()
        raise
    release_when_done(future, handed)
    return future


_quiet = threading.local()


@contextmanager
def quiet() -> Iterator[None]:
    """Have the patches of this thread pass through what was told not to carry."""
    vars(_quiet)["depth"] = vars(_quiet).get("depth", 0) + 1
    try:
        yield
    finally:
        vars(_quiet)["depth"] -= 1


def _submit(original: Callable[..., Future[Any]]) -> Callable[..., Future[Any]]:
    def submit(
        self: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Future[Any]:
        if hasattr(self, "_carries") or vars(_quiet).get("depth"):
            return original(self, fn, *args, **kwargs)
        if type(fn) is Carried:
            snapshot, fn = fn._snapshot, fn.__wrapped__
        else:
            found = boundary.snapshot_for(fn)
            if found is None:
                return original(self, fn, *args, **kwargs)
            snapshot = found
        initializer = getattr(self, "_initializer", None)
        return hand_over(partial(original, self), snapshot, fn, args, kwargs, initializer)

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
        if not (hasattr(self, "_carries") or vars(_quiet).get("depth")):
            fn = boundary.bound(fn)
        return original(self, fn, *iterables, **kwargs)

    return map


def _patches() -> tuple[Patch, ...]:
    return Patch(ThreadPoolExecutor, "submit", _submit), Patch(ThreadPoolExecutor, "map", _map)


boundary = Boundary(_patches)
