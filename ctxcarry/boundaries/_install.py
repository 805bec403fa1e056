"""`install` and `uninstall`: zero-code instrumentation of the boundaries."""

from __future__ import annotations

import threading
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ("install", "installed", "uninstall")

_BOUNDARIES = {"executor": "ctxcarry.boundaries.submit"}
_lock = threading.RLock()


def install(*boundaries: str) -> None:
    """
    Make boundaries carry without a change to the code that uses them.

    Idempotent; can be undone by `uninstall`, in any order with the patches of
    others.

    Args:
        *boundaries: ``"executor"`` (every ``ThreadPoolExecutor``); all unless given.

    Raises:
        ValueError: If a boundary is unknown.
    """
    _use(boundaries or _BOUNDARIES, True)


def uninstall(*boundaries: str) -> None:
    """
    Take back what `install` did; functions under `ctxcarry.carry_context` stay carried.

    Args:
        *boundaries: Names as for `install`; all unless given, and then the
            patches that `ctxcarry.carry_context` put on too.

    Raises:
        ValueError: If a boundary is unknown.
    """
    _use(boundaries or (*_BOUNDARIES, _DECORATED), False)


def installed() -> tuple[str, ...]:
    """Return the names of the boundaries that are installed."""
    return tuple(name for name in _BOUNDARIES if name in _users)


def serve_decorated() -> None:
    """Put on the patches that callables under `ctxcarry.carry_context` need."""
    _use((_DECORATED,), True)


_DECORATED = "carry_context"
_users: set[str] = set()


def _use(names: Iterable[str], wanted: bool) -> None:  # noqa: FBT001 - on or off
    names = tuple(names)
    for name in names:
        if name not in _BOUNDARIES and name != _DECORATED:
            from difflib import get_close_matches  # noqa: PLC0415 - only to tell of a mistake

            close = get_close_matches(name, _BOUNDARIES, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            msg = f"no boundary is named {name!r}.{hint} Available: {', '.join(_BOUNDARIES)}"
            raise ValueError(msg)
    with _lock:
        _users.update(names) if wanted else _users.difference_update(names)
        for name, module in _BOUNDARIES.items():
            source = import_module(module)
            needed = {name, _DECORATED} & _users
            source.users.clear()
            source.users.update(needed)
            for patch in source.patches:
                patch.put_on() if needed else patch.take_off()
