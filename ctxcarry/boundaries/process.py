"""``multiprocessing.Process``, and its subclasses with a `run` of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ctxcarry._snapshot import Snapshot
from ctxcarry.boundaries._boundary import Boundary
from ctxcarry.boundaries._patch import Patch
from ctxcarry.boundaries._shipped import for_shipping

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("boundary",)


def _start(original: Callable[..., Any]) -> Callable[..., Any]:
    def start(self: Any) -> Any:
        target = getattr(self, "_target", None)
        if getattr(target, "__module__", None) in _SERVANTS:
            return original(self)
        if type(self).run is not _base().run:
            snapshot = boundary.snapshot_for(target or self.run)
            if snapshot is None:
                return original(self)
            # Here for the child, which gets a copy, and for as long as that takes.
            self.run = _OwnRun(snapshot.dumps(), self)
            try:
                return original(self)
            finally:
                del self.run
        if target is None:
            return original(self)
        self._target = for_shipping(boundary, target)
        try:
            return original(self)
        except BaseException:
            self._target = target
            raise

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


def _base() -> Any:
    from multiprocessing.process import BaseProcess  # noqa: PLC0415 - is being imported when we are

    return BaseProcess


def _patches() -> tuple[Patch, ...]:
    return (Patch(_base(), "start", _start),)


boundary = Boundary(_patches)
