"""
Swap the state of a thread for that of a body which pauses, and back.

Apply and undo nest; the steps of coroutines and generators do not. Whatever the
body has changed is still changed when it pauses, and its consumer may have
changed something else before it resumes. So each side's state is taken off the
thread as a whole, with the very objects in it, and put back as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ctxcarry._carrier import UNCHANGED, CarrierBase
from ctxcarry._states import same_state

if TYPE_CHECKING:
    from collections.abc import Callable

    from ctxcarry._plan import Step

__all__ = ("Swap", "swap_for")


class Swap(NamedTuple):
    """
    How one carrier takes turns.

    Attributes:
        name: The carrier's name.
        begin: Makes a captured state current; returns what was outside.
        resume: Makes what `pause` returned current; returns what was outside.
        pause: Brings back what was outside; returns what the body leaves.
    """

    name: str
    begin: Callable[[Any], Any]
    resume: Callable[[Any], Any]
    pause: Callable[[Any], Any]


def swap_for(step: Step) -> Swap:
    """Return how the carrier of `step` takes turns, by what it offers."""
    if not isinstance(step.carrier, CarrierBase):
        return _by_contract(step)
    own = getattr(step.carrier, "swap", None)
    if own is not None:
        return Swap(step.name, own.begin, own.resume, own.pause)
    if step.put is not None:
        exchange = _exchange(step.capture, step.put)
        return Swap(step.name, exchange, exchange, exchange)
    peek = getattr(step.carrier, "peek", None)
    if peek is not None:
        exchange = _exchange(peek, step.undo)
        token_for = step.carrier.token_for  # type: ignore[attr-defined]
        return Swap(step.name, lambda state: exchange(token_for(state)), exchange, exchange)
    return _by_contract(step)


def _exchange(take: Callable[[], Any], put: Callable[[Any], object]) -> Callable[[Any], Any]:
    def exchange(wanted: Any) -> Any:
        former = take()
        put(wanted)
        return former

    return exchange


def _by_contract(step: Step) -> Swap:
    """Take turns with nothing but capture, apply and undo, which may copy what they keep."""

    def enter(wanted: Any) -> Any:
        outside = step.capture()
        return outside, step.apply(wanted)

    def pause(former: Any) -> Any:
        outside, token = former
        inside = outside
        try:
            inside = step.capture()
        finally:
            if token is not UNCHANGED:
                step.undo(token)
            elif not same_state(inside, outside):
                step.apply(outside)
        return inside

    return Swap(step.name, enter, enter, pause)
