"""Undo: bring back what was, in reverse order, all of it, without hiding the user's exception."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

from ctxcarry.errors import CarrierError, LeakError

if TYPE_CHECKING:
    from collections.abc import Callable

    # What undoes one applied carrier: its undo, the token for that, its name.
    Undo = tuple[Callable[[Any], object], Any, str]

__all__ = ("add_note", "failed", "leak", "report", "undo_all")

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
        del undo, token  # the traceback keeps this frame
        _undo_the_rest(applied, error, (name, cause))


def _undo_the_rest(
    applied: list[Undo], error: BaseException | None, first: tuple[str, BaseException]
) -> None:
    """Undo what is left after one undo failed, then report every failure."""
    causes = [first]
    while applied:
        undo, token, name = applied.pop()
        try:
            undo(token)
        except BaseException as another:  # noqa: BLE001 - reported with the others
            causes.append((name, another))
        del undo, token
    failures = [failed(name, "undo", cause) for name, cause in causes]
    interrupt = next((c for _, c in causes if not isinstance(c, Exception)), None)
    if interrupt is not None:
        # Ctrl-C and the like go on; the user's exception is their context.
        others = [f for f in failures if f.__cause__ is not interrupt]
        _note(others, interrupt)
        raise interrupt from error
    report(failures, error)


def report(failures: list[CarrierError], error: BaseException | None) -> None:
    """
    Tell of contexts that could not be brought back.

    Raises:
        ExceptionGroup: Of `failures`, unless `error` is on its way out already:
            that gets a note about each and stays what the caller sees.
    """
    if error is not None:
        _note(failures, error)
        return
    names = ", ".join(repr(failure.carrier) for failure in failures)
    msg = (
        f"the work finished, but {names} could not be undone, so that this thread may keep what "
        "the work was given"
    )
    raise _exception_group()(msg, failures)


def failed(name: str, stage: str, cause: BaseException) -> CarrierError:
    """Return the `CarrierError` that names a carrier and is caused by `cause`."""
    error = CarrierError(name, stage, f"{type(cause).__name__}: {cause}")
    error.__cause__ = cause
    return error


def _note(failures: list[CarrierError], error: BaseException) -> None:
    """Add a note about each failure to `error`, which stays what the caller sees."""
    for failure in failures:
        note = f"ctxcarry, while this exception was on its way: {failure}"
        _log.error(note, exc_info=failure)
        add_note(error, note)


def add_note(error: BaseException, note: str) -> None:
    """Add `note` to `error`, as ``BaseException.add_note`` of Python 3.11 does."""
    if sys.version_info >= (3, 11):
        error.add_note(note)
    else:
        notes = [*getattr(error, "__notes__", ()), note]
        error.__notes__ = notes  # type: ignore[attr-defined]


def _exception_group() -> Any:
    if sys.version_info >= (3, 11):
        return ExceptionGroup  # noqa: F821 - of Python 3.11
    # Imported only here: the backport changes how all tracebacks are printed.
    from exceptiongroup import ExceptionGroup as Backport  # noqa: PLC0415

    return Backport


def leak(message: str, error: BaseException | None) -> None:
    """
    Tell of a context that is left where it was not entered.

    Raises:
        LeakError: Unless an exception is on its way out already: that gets a note.
    """
    if error is None or isinstance(error, GeneratorExit):  # which nobody would see
        raise LeakError(message)
    add_note(error, f"ctxcarry, while this exception was on its way: {message}")
