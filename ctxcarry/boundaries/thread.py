"""Threads: `ctxcarry.Thread`, `ctxcarry.Timer`, and every ``threading.Thread`` when installed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ctxcarry._default import registry
from ctxcarry.boundaries._handed import Handed

if TYPE_CHECKING:
    from collections.abc import Callable

    from ctxcarry._snapshot import Snapshot

__all__ = ("Thread", "Timer", "start_under")


class Thread(threading.Thread):
    """
    A ``threading.Thread`` that runs in the context of whoever starts it.

    The snapshot is taken by `start`, and is let go of as soon as the thread has
    it. Subclasses that override `run` carry too.
    """

    def start(self) -> None:
        """Take a snapshot and start the thread under it."""
        start_under(super().start, self, registry.capture())


class Timer(threading.Timer):
    """A ``threading.Timer`` whose function runs in the context of whoever starts it."""

    def start(self) -> None:
        """Take a snapshot and start the timer under it."""
        start_under(super().start, self, registry.capture())


def start_under(start: Callable[[], None], thread: threading.Thread, snapshot: Snapshot) -> None:
    """
    Call `start`, having `thread` run under `snapshot`.

    `run` is replaced on the instance, where neither a subclass's own `run` nor a
    patch of the class gets past it, and only until it is called.
    """
    if "run" in vars(thread):  # started before, which `start` is about to say
        start()
        return
    handed = Handed.of(snapshot, thread.run, (), {})

    def run() -> None:
        vars(thread).pop("run", None)
        handed.run()

    vars(thread)["run"] = run
    try:
        start()
    except BaseException:
        vars(thread).pop("run", None)
        raise
