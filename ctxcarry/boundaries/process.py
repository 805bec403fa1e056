"""Other processes: ``ProcessPoolExecutor``, ``multiprocessing.Process`` and ``Pool``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ctxcarry._bind import Bound
from ctxcarry._snapshot import Snapshot
from ctxcarry.boundaries._boundary import Boundary
from ctxcarry.boundaries._patch import Patch
from ctxcarry.boundaries._shipped import Shipped, shipped

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("boundary",)

_POOL_METHODS = ("apply_async", "imap", "imap_unordered", "map", "map_async", "starmap", "starmap_async")


def _for_shipping(fn: Any) -> Any:
    """Return `fn` with the contexts to hand it over with, or as it is."""
    if type(fn) is Bound:
        return shipped(fn._snapshot, fn)
    snapshot = None if type(fn) is Shipped else boundary.snapshot_for(fn)
    return fn if snapshot is None else shipped(snapshot, fn)


def _submit(original: Callable[..., Any]) -> Callable[..., Any]:
    from ctxcarry.boundaries.process_executor import (  # noqa: PLC0415
        CarryProcessExecutor,
        _submits_for_map,
    )

    def submit(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self, CarryProcessExecutor) and not _submits_for_map(fn):
            fn = _for_shipping(fn)
        return original(self, fn, *args, **kwargs)

    return submit


def _map(original: Callable[..., Any]) -> Callable[..., Any]:
    def map(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:  # noqa: A001
        # ThreadPool derives from Pool and has a boundary of its own.
        if type(self).__name__ != "ThreadPool":
            fn = _for_shipping(fn)
        return original(self, fn, *args, **kwargs)

    return map


def _start(original: Callable[..., Any]) -> Callable[..., Any]:
    from multiprocessing.process import BaseProcess  # noqa: PLC0415 - imports multiprocessing

    def start(self: Any) -> None:
        target = getattr(self, "_target", None)
        if getattr(target, "__module__", None) in _SERVANTS:
            return original(self)
        if target is not None:
            self._target = _for_shipping(target)
            return original(self)
        if type(self).run is BaseProcess.run:
            return original(self)
        snapshot = boundary.snapshot_for(self.run)
        if snapshot is None:
            return original(self)
        # Here for the child, which gets a copy, and for as long as that takes.
        self.run = _OwnRun(snapshot.dumps(), self)
        try:
            return original(self)
        finally:
            del self.run

    return start


class _OwnRun:
    """The `run` of a subclass of Process, under contexts."""

    def __init__(self, payload: bytes, process: Any) -> None:
        self._payload = payload
        self._process = process

    def __call__(self) -> None:
        process = self._process
        Snapshot.loads(self._payload, trusted=True).run(type(process).run, process)


# Workers of pools: their tasks bring their own contexts.
_SERVANTS = frozenset({"concurrent.futures.process", "multiprocessing.pool"})


def _patches() -> tuple[Patch, ...]:
    from concurrent.futures import ProcessPoolExecutor  # noqa: PLC0415 - imports multiprocessing
    from multiprocessing.pool import Pool  # noqa: PLC0415
    from multiprocessing.process import BaseProcess  # noqa: PLC0415

    return (
        Patch(ProcessPoolExecutor, "submit", _submit),
        Patch(ProcessPoolExecutor, "map", _map),
        Patch(BaseProcess, "start", _start),
        *(Patch(Pool, name, _map) for name in _POOL_METHODS),
    )


boundary = Boundary(_patches)
