"""Carry fields of any `threading.local`."""

from __future__ import annotations

import copy
import threading
from collections import deque
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ctxcarry._carrier import MISSING, UNCHANGED, CarrierBase
from ctxcarry.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ("ThreadLocalCarrier", "thread_fields")

_CONTAINERS = (list, dict, set, bytearray, deque)


class ThreadLocalCarrier(CarrierBase):
    """
    Carry fields of a ``threading.local``.

    Lists, dicts, sets, deques and bytearrays are copied (one level deep) when
    captured and again when applied: their owners change them in place. A field
    that was not set is deleted where the snapshot is active, and undo puts back
    the very object that was there.

    Args:
        local: Where it is, as ``"package.module:attribute"``, or the object.
        name: Name of the carrier; ``"package.module.attribute"`` unless given.
        fields: Names of the fields to carry; all of them unless given.

    Raises:
        ImportError: If the module does not exist.
        AttributeError: If the module has no such attribute.
        TypeError: If what is there is not a ``threading.local``.
        ValueError: If `local` is an object and no name is given.
    """

    captures_anew = True
    pickles = True

    def __init__(
        self,
        local: str | threading.local,
        *,
        name: str | None = None,
        fields: Iterable[str] | None = None,
    ) -> None:
        if isinstance(local, str):
            found = _find(local)
            self.name = local.replace(":", ".") if name is None else name
        elif name is None:
            msg = f"give a name: ThreadLocalCarrier({local!r}, name='my.context')"
            raise ValueError(msg)
        else:
            found, self.name = local, name
        if not isinstance(found, threading.local):
            msg = (
                f"{local!r} is {found!r} of type {type(found).__name__}, not a threading.local; "
                "use ContextVarCarrier for a ContextVar and ValueCarrier for a pair of functions"
            )
            raise TypeError(msg)
        self._local = found
        if isinstance(fields, str):
            fields = (fields,)
        self._fields = None if fields is None else tuple(fields)

    def capture(self) -> object:
        """Return a copy of the fields, or `MISSING` when none is set."""
        return {
            key: _copied(value) for key, value in self._current(thread_fields(self._local)).items()
        } or MISSING

    def apply(self, state: object) -> object:
        """Set the fields to copies of those in `state`, delete the others, return the former."""
        fields = thread_fields(self._local)
        before = self._current(fields)
        wanted: dict[str, Any] = state if isinstance(state, dict) else {}
        if before.keys() == wanted.keys() and all(
            before[k] is v and not isinstance(v, _CONTAINERS) for k, v in wanted.items()
        ):
            return UNCHANGED
        _replace(fields, before, {key: _copied(value) for key, value in wanted.items()})
        return before

    def peek(self) -> object:
        """Return the objects that are in the fields."""
        return self._current(thread_fields(self._local))

    def token_for(self, state: object) -> object:
        """Return the fields of `state`, containers copied."""
        return {k: _copied(v) for k, v in state.items()} if isinstance(state, dict) else {}

    def undo(self, token: object) -> None:
        """Put back the objects that were in the fields."""
        assert isinstance(token, dict)
        fields = thread_fields(self._local)
        _replace(fields, self._current(fields), token)

    def dump(self, state: object) -> object:
        """Return the fields; their values travel as plain data or pickled."""
        return state

    def load(self, payload: object) -> object:
        """Return the fields."""
        if not isinstance(payload, dict) or not all(
            isinstance(key, str) and (self._fields is None or key in self._fields)
            for key in payload
        ):
            msg = f"{payload!r} is not a map of the fields {self._fields or 'by name'}"
            raise WireError(msg)
        return payload or MISSING

    def _current(self, fields: dict[str, Any]) -> dict[str, Any]:
        if self._fields is None:
            return dict(fields)
        return {key: fields[key] for key in self._fields if key in fields}


def thread_fields(local: threading.local) -> dict[str, Any]:
    """
    Return the attributes of `local` on this thread.

    In a thread that has not touched `local` this runs the ``__init__`` of a
    subclass, with the arguments of the first thread, as any access does.
    """
    return local.__dict__


def _replace(fields: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> None:
    for key in before:
        if key not in after:
            del fields[key]
    fields.update(after)


def _copied(value: Any) -> Any:
    return copy.copy(value) if isinstance(value, _CONTAINERS) else value


def _find(path: str) -> object:
    module_name, colon, attribute = path.partition(":")
    if not colon or not module_name or not attribute:
        msg = f"{path!r} is not of the form 'package.module:attribute'"
        raise ValueError(msg)
    module = import_module(module_name)
    found: object = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            locals_here = [k for k, v in vars(module).items() if isinstance(v, threading.local)]
            msg = (
                f"{module_name!r} has no attribute {attribute!r}. Its threading.local objects: "
                f"{', '.join(sorted(locals_here)) or 'none'}"
            )
            raise AttributeError(msg)
        found = getattr(found, part)
    return found
