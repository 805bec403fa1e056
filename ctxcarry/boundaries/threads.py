"""Every ``threading.Thread``, patched."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

from ctxcarry.boundaries._boundary import Boundary
from ctxcarry.boundaries._patch import Patch
from ctxcarry.boundaries.thread import Thread, Timer, start_under

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("boundary",)

# Threads that serve whoever comes: the context of the one who happened to need
# them first would stay in them (and in whatever they run) for good.
_SERVANTS = frozenset(
    {
        "concurrent.futures.process",
        "concurrent.futures.thread",
        "logging.handlers",
        "multiprocessing.managers",
        "multiprocessing.pool",
        "multiprocessing.queues",
        "multiprocessing.resource_sharer",
        "torch._inductor.compile_worker.subproc_pool",
        "tqdm._monitor",
    }
)


def _start(original: Callable[..., None]) -> Callable[..., None]:
    def start(self: threading.Thread) -> None:
        if isinstance(self, (Thread, Timer)):
            return original(self)
        work = getattr(self, "_target", None) or getattr(self, "function", None) or self.run
        if getattr(work, "__module__", None) in _SERVANTS:
            return original(self)
        snapshot = boundary.snapshot_for(work)
        if snapshot is None:
            return original(self)
        return start_under(partial(original, self), self, snapshot)

    return start


def _patches() -> tuple[Patch, ...]:
    return (Patch(threading.Thread, "start", _start),)


boundary = Boundary(_patches)
