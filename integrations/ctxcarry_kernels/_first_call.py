"""Say what takes long when the kernels are used for the first time."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ("told_if_slow",)

_log = logging.getLogger("ctxcarry_kernels")
_PATIENCE = 2.0  # seconds
_told = threading.Event()


@contextmanager
def told_if_slow() -> Iterator[None]:
    """Log one line, once in a process, if what is done here takes more than two seconds."""
    timer = threading.Timer(_PATIENCE, _tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _tell() -> None:
    if not _told.is_set():
        _told.set()
        _log.warning(
            "linear_cross_entropy: Triton compiles the kernels for this device, some 10 seconds "
            "for the forward and for the backward. It is done once: Triton keeps them on disk"
        )
