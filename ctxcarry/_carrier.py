"""The carrier contract: how ONE ambient context is read, applied and undone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("GONE", "MISSING", "UNCHANGED", "Carrier", "CarrierBase", "Marker", "shorten")

_DESCRIPTION_LIMIT = 80


class Marker:
    """A named singleton that survives copying and pickling as itself."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name

    def __reduce__(self) -> str:
        return self._name


MISSING: Final = Marker("MISSING")
"""The state of a context that is not set. Not ``None``, which is a value like any other."""

UNCHANGED: Final = Marker("UNCHANGED")
"""What `Carrier.apply` returns when the context already was as asked: there is nothing to undo."""


GONE: Final = Marker("GONE")
"""What a function of `CarrierBase.loads_again` returns when the payload is to be loaded anew."""


@runtime_checkable
class Carrier(Protocol):
    """
    Read, apply and undo one ambient context.

    A carrier is shared by every thread, so it holds no state of its own. Any
    object with these members will do; nothing needs to be inherited.

    It may also have:

    - ``default``: the captured state that means "not set" (`MISSING` unless given);
    - ``describe(state) -> str``: one short line for a person to read;
    - ``process_wide = True``: every thread already sees this context, so that
      thread boundaries leave it alone;
    - ``variables() -> iterable of ContextVar``: the context lives in these
      variables only, so that carrying ``contextvars`` carries it too.
    """

    name: str

    def capture(self) -> object:
        """
        Return the state on this thread, or `MISSING`.

        Must not change anything, and must copy what its owner changes in place.
        """

    def apply(self, state: object) -> object:
        """
        Make `state` current on this thread, or unset the context for `MISSING`.

        Returns:
            A token for `undo`, or `UNCHANGED` when there is nothing to undo.
        """

    def undo(self, token: object) -> None:
        """Bring back what was current before the `apply` that returned `token`."""


class CarrierBase:
    """
    What the carriers of this package have in common: a default and a description.

    Some have more, which is theirs alone to offer:

    - ``put(state)``: sets any captured state, so that undo is to put the former
      one; then neither `apply` nor `undo` is called on the way of a task;
    - ``captures_anew = True``: two captures of one state are never identical;
    - ``peek()`` and ``token_for(state)``: the token that brings back what is
      current now, or would bring back `state`, so that a paused coroutine and
      its consumer take turns with the very objects that each has set;
    - ``caller(state)``: what calls a function with `state` current where the
      context is usually not set, sooner than `apply` and `undo` do, or None;
    - ``swap``: its own way of taking turns, see `ctxcarry._swap`.
    """

    name: str = ""
    default: object = MISSING
    process_wide: bool = False

    def dumps_alike(self, state: object) -> Callable[[object], bool] | None:  # noqa: ARG002
        """
        Return what says of another captured state whether `dump` returns the same for it.

        None if that cannot be told, as where what `state` holds may be changed in
        place. Must keep no object alive that may go away.
        """
        return None

    def loads_again(
        self,
        payload: object,  # noqa: ARG002
        state: object,  # noqa: ARG002
    ) -> Callable[[], object] | None:
        """
        Return what returns the state that ``load(payload)`` would, or `GONE` if that is unsure.

        None if several calls cannot have one state. `state` is what it returned now;
        no object that may go away must be kept alive.
        """
        return None

    def describe(self, state: object) -> str:
        """Return one short line about `state`."""
        return "not set" if state is MISSING else shorten(state)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


def shorten(value: object) -> str:
    """Return ``repr(value)`` on one line of at most 80 characters."""
    text = " ".join(repr(value).split())
    if len(text) <= _DESCRIPTION_LIMIT:
        return text
    return text[: _DESCRIPTION_LIMIT - 1] + "…"
