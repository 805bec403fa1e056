"""Undo: bring back what was, in reverse order, all of it, without hiding the user's exception."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

from ctxcarry.errors import CarrierError

if TYPE_CHECKING:
    from collections.abc import Callable

    # What undoes one applied carrier: its undo, the token for that, its name.
    Undo = tuple[Callable[[Any], object], Any, str]

__all__ = ("failed", "undo_all")

_log = logging.getLogger("ctxcarry")


def undo_all(applied: list[Undo], error: BaseException | None = None) -> None:
    """
    Undo what was applied, the last first; a failure does not stop the others.

    Args:
        applied: Emptied.
        error: The exception that is on its way out, if there is one.

    Raises:
        ExceptionGroup: Of one `CarrierError` for each carrier that failed. When
            `error` is given it is not raised: `error` stays what the caller
            sees, and gets a note about each failure.
    """
    name = ""
    try:
        while applied:
            undo, token, name = applied.pop()
            undo(token)
    except BaseException as cause:  # noqa: BLE001 - reported; the other undos must run
        _undo_the_rest(applied, error, name, cause)


def _undo_the_rest(
    applied: list[Undo], error: BaseException | None, name: str, cause: BaseException
) -> None:
    """Undo what is left after the undo of `name` failed, then report every failure."""
    causes = [(name, cause)]
    while applied:
        undo, token, name = applied.pop()
        try:
            undo(token)
        except BaseException as another:  # noqa: BLE001 - reported with the others
            causes.append((name, another))
    failures = [failed(n, "undo", c) for n, c in causes if isinstance(c, Exception)]
    interrupt = next((c for _, c in causes if not isinstance(c, Exception)), None)
    if failures:
        _report(failures, error)
    if interrupt is not None and error is None:
        raise interrupt


def failed(name: str, stage: str, cause: BaseException) -> CarrierError:
    """Return the `CarrierError` that names a carrier and is caused by `cause`."""
    error = CarrierError(name, stage, f"{type(cause).__name__}: {cause}")
    error.__cause__ = cause
    return error


def _report(failures: list[CarrierError], error: BaseException | None) -> None:
    if error is None:
        if sys.version_info < (3, 11):
            # Imported only here: the backport changes how tracebacks are printed.
            from exceptiongroup import ExceptionGroup  # noqa: PLC0415
        names = ", ".join(repr(failure.carrier) for failure in failures)
        msg = (
            f"the work finished, but {names} could not be undone, so that this thread may keep "
            "what the work was given"
        )
        raise ExceptionGroup(msg, failures)
    for failure in failures:
        note = f"ctxcarry, while this exception was on its way: {failure}"
        _log.error(note, exc_info=failure)
        if sys.version_info >= (3, 11):
            error.add_note(note)
        else:
            notes = [*getattr(error, "__notes__", ()), note]
            error.__notes__ = notes  # type: ignore[attr-defined]
