"""
The wire format: a snapshot for another process, which names contexts and not code.

``CTXC``, a version byte, the CRC-32 of what follows, then JSON::

    {"<carrier>": ["v", <plain data>] | ["p", "<base85 of a pickle>"] | ["c"], …,
     "contextvars": ["v", [{"<module:name>": <plain data>, …}, {…: "<base85>", …}]]}

``c`` clears the context where the snapshot is used. A context that is not set is
not mentioned, and is left there as it is.
"""

from __future__ import annotations

import base64
import json
import pickle
import warnings
from math import isfinite
from typing import TYPE_CHECKING, Any
from zlib import crc32

from ctxcarry.errors import CtxCarryWarning, NotPortableError, WireError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = (
    "CLEARED",
    "boolean",
    "checked_choice",
    "complain",
    "decode",
    "encode",
    "is_entry",
    "is_plain",
    "packed",
    "unpacked",
)

CLEARED = ["c"]
_MAGIC = b"CTXC"
_VERSION = 1
_HEADER = len(_MAGIC) + 1 + 4
_DEPTH = 16
_encoder = json.JSONEncoder(separators=(",", ":"), check_circular=False)
_PLAIN_INTEGERS = range(-(1 << 63), 1 << 63)
_PLAIN_ITEMS = 10_000
_PLAIN_TYPES = frozenset({str, bool, type(None)})


def encode(entries: dict[str, list[Any]]) -> bytes:
    """Return the bytes for `entries`, by carrier name."""
    if not entries:  # as most often where each call of a program asks
        return _NOTHING
    return _framed(entries)


def _framed(entries: dict[str, list[Any]]) -> bytes:
    body = _encoder.encode(entries).encode("ascii")
    return _MAGIC + bytes((_VERSION,)) + crc32(body).to_bytes(4, "big") + body


_NOTHING = _framed({})


def decode(data: bytes) -> dict[str, list[Any]]:
    """
    Return the entries in `data`; executes nothing of it.

    Raises:
        WireError: If it is not what `encode` of this version returns.
    """
    if not isinstance(data, (bytes, bytearray, memoryview)):
        msg = f"a snapshot is loaded from bytes, not from {type(data).__name__}"
        raise WireError(msg)
    data = bytes(data)
    if data[: len(_MAGIC)] != _MAGIC:
        msg = f"these {len(data)} bytes are not a snapshot: they begin with {data[:8]!r}"
        raise WireError(msg)
    if len(data) <= _HEADER:
        msg = f"the snapshot is cut short: {len(data)} bytes"
        raise WireError(msg)
    version = data[len(_MAGIC)]
    if version != _VERSION:
        msg = (
            f"the snapshot is of wire version {version} and this ctxcarry reads {_VERSION}: use "
            "the same version of ctxcarry on both sides"
        )
        raise WireError(msg)
    body = data[_HEADER:]
    if crc32(body).to_bytes(4, "big") != data[len(_MAGIC) + 1 : _HEADER]:
        msg = "the snapshot is damaged or cut short: its checksum does not match"
        raise WireError(msg)
    try:
        entries = json.loads(body.decode())
    except (ValueError, RecursionError) as cause:
        msg = f"the snapshot is not valid JSON: {cause}"
        raise WireError(msg) from cause
    if not isinstance(entries, dict) or not all(map(is_entry, entries.values())):
        msg = "the snapshot is valid JSON but not a map of carriers to entries"
        raise WireError(msg)
    return entries


def checked_choice(not_portable: str | None) -> str | None:
    """
    Return `not_portable`, which is one of the choices or None.

    Raises:
        ValueError: If it is something else.
    """
    if not_portable not in {None, "raise", "warn", "skip"}:
        msg = f"not_portable= is 'raise', 'warn' or 'skip', not {not_portable!r}"
        raise ValueError(msg)
    return not_portable


def packed(value: object) -> list[Any]:
    """
    Return `value` as an entry: plain if JSON gives it back equal, else pickled.

    Raises:
        NotPortableError: If it cannot be pickled either.
    """
    if is_plain(value):
        return ["v", value]
    try:
        data = pickle.dumps(value)
    except Exception as cause:
        msg = f"it is neither plain data nor can it be pickled: {type(cause).__name__}: {cause}"
        raise NotPortableError(msg) from cause
    return ["p", base64.b85encode(data).decode()]


def unpacked(entry: list[Any], *, trusted: bool) -> Any:
    """
    Return the value of an entry.

    Raises:
        NotPortableError: If it is pickled and the bytes are not trusted.
        WireError: If it cannot be unpickled.
    """
    kind, value = entry
    if kind == "v":
        return value
    if not trusted:
        msg = "it is pickled, and unpickling runs code: pass trusted=True if you know the sender"
        raise NotPortableError(msg)
    try:
        return pickle.loads(base64.b85decode(value))  # noqa: S301 - trusted, says the caller
    except Exception as cause:
        msg = f"it cannot be unpickled here: {type(cause).__name__}: {cause}"
        raise WireError(msg) from cause


def complain(how: str, message: str, error: Callable[[str], Exception]) -> None:
    """
    Raise, warn or skip, as a carrier's or caller's choice says.

    Args:
        how: ``"raise"``, ``"warn"`` or ``"skip"``.
        message: What cannot travel, why, and the fix.
        error: The class to raise.
    """
    if how == "raise":
        raise error(message)
    if how == "warn":
        warnings.warn(message, CtxCarryWarning, stacklevel=2)


def boolean(payload: object) -> bool:
    """
    Return `payload`, which is True or False.

    Raises:
        WireError: If it is anything else.
    """
    if type(payload) is not bool:
        msg = f"{payload!r} is neither true nor false"
        raise WireError(msg)
    return payload


def is_entry(entry: object) -> bool:
    """Say whether `entry` has the form of an entry."""
    if not isinstance(entry, list) or not entry:
        return False
    if entry == CLEARED:
        return True
    return len(entry) == 2 and (entry[0] == "v" or (entry[0] == "p" and isinstance(entry[1], str)))  # noqa: PLR2004


def is_plain(value: object) -> bool:  # noqa: C901, PLR0911 - one branch for each kind
    """Say whether JSON gives `value` back equal, of the same type and of about its size."""
    if type(value) in _PLAIN_TYPES or (type(value) is int and value in _PLAIN_INTEGERS):
        return True
    items = 0
    waiting = [(value, 0)]
    while waiting:
        value, depth = waiting.pop()
        items += 1
        kind = type(value)
        if kind is list or kind is dict:
            # JSON repeats what is shared; pickle does not.
            if depth == _DEPTH or items > _PLAIN_ITEMS:
                return False
            if isinstance(value, dict):
                if not all(type(key) is str for key in value):
                    return False
                waiting += [(item, depth + 1) for item in value.values()]
            elif isinstance(value, list):
                waiting += [(item, depth + 1) for item in value]
        elif kind is int:
            if value not in _PLAIN_INTEGERS:
                return False
        elif kind is float:
            if not isfinite(value):  # type: ignore[arg-type]
                return False
        elif kind is not str and kind is not bool and value is not None:
            return False
    return True
