"""What the carriers of one flag of a thread have in common."""

from __future__ import annotations

from functools import partial
from operator import is_
from typing import TYPE_CHECKING

from ctxcarry._carrier import UNCHANGED, CarrierBase
from ctxcarry._wire import boolean

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("FlagCarrier", "SettableFlagCarrier")


class FlagCarrier(CarrierBase):
    """A bool of each thread; `default` is what it is where nobody has set it."""

    default: bool

    def wanted(self, state: object) -> bool:
        """Return the flag for `state`; `MISSING` means the default."""
        other = not self.default
        return other if state is other else self.default

    def dump(self, state: object) -> object:
        """Return the bool."""
        return state

    def load(self, payload: object) -> object:
        """Return the bool."""
        return boolean(payload)

    def dumps_alike(self, state: object) -> Callable[[object], bool]:
        """Say whether it is the same bool."""
        return partial(is_, state)

    def loads_again(self, payload: object, state: object) -> Callable[[], object]:  # noqa: ARG002
        """Return the bool."""
        return lambda: state

    def describe(self, state: object) -> str:
        """Say whether it is enabled."""
        return "enabled" if self.wanted(state) else "disabled"


class SettableFlagCarrier(FlagCarrier):
    """
    A flag that a function sets.

    Args:
        capture: Returns the flag of this thread.
        put: Sets it. Both are best C functions, which are called for every task:
            methods around them would double the cost.
    """

    def __init__(self, capture: Callable[[], bool], put: Callable[[bool], None]) -> None:
        self.capture = capture
        self.put = put

    def apply(self, state: object) -> object:
        """Set the flag, unless it is as wanted."""
        wanted = self.wanted(state)
        if self.capture() is wanted:
            return UNCHANGED
        self.put(wanted)
        return not wanted

    def undo(self, token: object) -> None:
        """Set the flag back."""
        self.put(bool(token))
