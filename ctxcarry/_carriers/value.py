"""Carry anything that has a getter and a setter."""

from __future__ import annotations

from functools import partial
from operator import is_
from typing import TYPE_CHECKING, Any

from ctxcarry._carrier import MISSING, UNCHANGED, CarrierBase
from ctxcarry._constant import is_constant
from ctxcarry.errors import CarrierError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("ValueCarrier",)


class ValueCarrier(CarrierBase):
    """
    Carry a thread's value through a pair of functions.

    A setting of the whole process (attention backends, the default dtype) is seen
    by every thread anyway, and setting it for one is a race with the others. With
    ``process_wide=True`` threads leave it alone: it is carried into the recompute
    of a checkpoint and to other processes only.

    Args:
        name: Name of the carrier.
        get: Called without arguments; returns the value, or `MISSING`.
        set: Called with a value, and with `default` to unset it.
        default: The value that means "not set".
        process_wide: Whether all threads share the value.
    """

    pickles = True

    def __init__(
        self,
        name: str,
        get: Callable[[], Any],
        set: Callable[[Any], object],  # noqa: A002 - the field's word for it
        default: object = MISSING,
        *,
        process_wide: bool = False,
    ) -> None:
        for what, function in (("get", get), ("set", set)):
            if not callable(function):
                msg = f"ValueCarrier({name!r}): {what} must be callable, not {function!r}"
                raise TypeError(msg)
        self.name = name
        self.capture = get
        self.default = default
        self.process_wide = process_wide
        self._set = set

    def apply(self, state: object) -> object:
        """Set the value and return the former one."""
        wanted = self.default if state is MISSING else state
        before = self.capture()
        if before is wanted:
            return UNCHANGED
        self._put(wanted, "apply")
        return before

    def undo(self, token: object) -> None:
        """Set the former value."""
        self._put(self.default if token is MISSING else token, "undo")

    def dump(self, state: object) -> object:
        """Return the value, which travels as plain data or pickled."""
        return state

    def load(self, payload: object) -> object:
        """Return the value."""
        return payload

    def dumps_alike(self, state: object) -> Callable[[object], bool] | None:
        """Say whether it is the same value, if nobody can change that."""
        if type(self).dump is not ValueCarrier.dump or not is_constant(state):
            return None
        return partial(is_, state)

    def loads_again(self, payload: object, state: object) -> Callable[[], object] | None:
        """Return the value, if nobody can change it."""
        if type(self).load is not ValueCarrier.load or not is_constant(payload):
            return None
        return lambda: state

    def _put(self, value: object, stage: str) -> None:
        if value is MISSING:
            reason = (
                "the value was not set and no default was given, so it cannot be unset: pass "
                f"ValueCarrier({self.name!r}, get, set, default=...)"
            )
            raise CarrierError(self.name, stage, reason)
        self._set(value)
