"""`with snapshot.active():`, activation for a block instead of a call."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ctxcarry._activate import apply_all
from ctxcarry._carrier import MISSING
from ctxcarry._contexts import HERE, InPlace
from ctxcarry._plan import CONTEXTVARS
from ctxcarry._policy import CLEAR, PROPAGATE
from ctxcarry._undo import undo_all
from ctxcarry.errors import CarrierError, LeakError

if TYPE_CHECKING:
    from types import TracebackType

    from ctxcarry._snapshot import Snapshot
    from ctxcarry._undo import Undo

__all__ = ("Active",)


class Active:
    """
    Hold one snapshot active for a ``with`` block.

    A class and not a generator: a generator-based manager that is entered in
    one thread and left in another fails in the second and stays set in the first.
    """

    __slots__ = ("_entered", "_snapshot")

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._entered: list[tuple[int, InPlace, list[Undo]]] = []

    def __enter__(self) -> Snapshot:
        snapshot = self._snapshot
        variables = _replay(snapshot)
        try:
            applied = apply_all(snapshot._plan, snapshot._states)
        except BaseException:
            variables.take_back()
            raise
        self._entered.append((threading.get_ident(), variables, applied))
        return snapshot

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        here = threading.get_ident()
        for index in range(len(self._entered) - 1, -1, -1):
            if self._entered[index][0] == here:
                _, variables, applied = self._entered.pop(index)
                break
        else:
            others = ", ".join(str(thread) for thread, _, _ in self._entered) or "no thread"
            msg = (
                f"active() is left in thread {here}, but was entered in {others}, which keeps the "
                "values until it leaves the block itself. Enter and leave it in one thread; to run "
                "something elsewhere hand over snapshot.wrap(fn)"
            )
            raise LeakError(msg)
        try:
            undo_all(applied, exc)
        finally:
            variables.take_back()


def _replay(snapshot: Snapshot) -> InPlace:
    """Set the variables of `snapshot` in the current Context; all of them or none."""
    plan = snapshot._plan
    variables = InPlace()
    try:
        if plan.contexts == CLEAR:
            variables.clear(skip=frozenset(v for v, _ in snapshot._edits))
        elif plan.contexts == PROPAGATE and snapshot._context is not None:
            variables.replay(snapshot._context, skip=frozenset(v for v, _ in snapshot._edits))
        for variable, value in snapshot._edits:
            if value is HERE:
                continue
            if value is not MISSING:
                variables.set(variable, value)
            elif not variables.unset(variable):
                raise CarrierError(
                    CONTEXTVARS,
                    "apply",
                    f"{variable.name!r} is set here and has no default, and a `with` block cannot "
                    "unset such a variable: use snapshot.run(fn) or snapshot.wrap(fn), which can",
                )
    except BaseException:
        variables.take_back()
        raise
    return variables
