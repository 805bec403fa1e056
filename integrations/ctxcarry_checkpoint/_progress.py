"""Show how far a plan is, where making it takes long."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    Tell: TypeAlias = Callable[[str, int, int], None]

__all__ = ("quiet", "showing")

_PATIENCE = 1.0


def quiet(what: str, done: int, of: int) -> None:
    """Tell nobody."""


@contextmanager
def showing(*, wanted: bool | None) -> Iterator[Tell]:
    """
    Have a bar on the standard error show what is told, once that has taken a second.

    Args:
        wanted: Whether to; None, if the standard error is a terminal and rich is there.

    Raises:
        ImportError: It is wanted, and rich is missing.
    """
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        yield quiet
        return
    try:
        from rich.console import Console  # noqa: PLC0415 - optional
        from rich.progress import Progress  # noqa: PLC0415 - optional
    except ImportError as error:
        if wanted is None:
            yield quiet
            return
        msg = 'progress needs rich. Install it with: pip install "ctxcarry[checkpoint]"'
        raise ImportError(msg) from error
    # What was asked for is shown in a log, too.
    bar = _Bar(Progress(console=Console(stderr=True), transient=wanted is None))
    try:
        yield bar.tell
    finally:
        bar.stop()


class _Bar:
    """A line for each thing that takes its time."""

    def __init__(self, shown: Any) -> None:
        self._shown = shown
        self._since = time.monotonic()
        self._started = False
        self._tasks: dict[str, Any] = {}

    def tell(self, what: str, done: int, of: int) -> None:
        """Take in that so many are done."""
        if what not in self._tasks:
            self._tasks[what] = self._shown.add_task(what, total=of)
        self._shown.update(self._tasks[what], completed=done, total=of)
        if not self._started and time.monotonic() - self._since >= _PATIENCE:
            self._started = True
            self._shown.start()

    def stop(self) -> None:
        """Leave the line as it is."""
        if self._started:
            self._shown.stop()
