"""
The wire format: a snapshot for another process, which names contexts and not code.

``CTXC``, a version byte, the CRC-32 of what follows, then JSON::

    {"<carrier>": ["v", <plain data>] | ["p", "<base64 of a pickle>"] | ["c"], …}

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

__all__ = ("CLEARED", "complain", "decode", "encode", "is_plain", "packed", "unpacked")

CLEARED = ["c"]
_MAGIC = b"CTXC"
_VERSION = 1
_HEADER = len(_MAGIC) + 1 + 4
_DEPTH = 16
_encoder = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)


def encode(entries: dict[str, list[Any]]) -> bytes:
    """Return the bytes for `entries`, by carrier name."""
    body = _encoder.encode(entries).encode()
    return _MAGIC + bytes((_VERSION,)) + crc32(body).to_bytes(4, "big") + body


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
        entries = json.loads(body)
    except (ValueError, RecursionError) as cause:
        msg = f"the snapshot is not valid JSON: {cause}"
        raise WireError(msg) from cause
    if not isinstance(entries, dict) or not all(map(_is_entry, entries.values())):
        msg = "the snapshot is valid JSON but not a map of carriers to entries"
        raise WireError(msg)
    return entries


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


def _is_entry(entry: object) -> bool:
    if not isinstance(entry, list) or not entry:
        return False
    if entry == CLEARED:
        return True
    return len(entry) == 2 and (entry[0] == "v" or (entry[0] == "p" and isinstance(entry[1], str)))  # noqa: PLR2004


def is_plain(value: object, depth: int = _DEPTH) -> bool:
    """Say whether JSON gives `value` back equal and of the same type."""
    kind = type(value)
    if kind in {str, int, bool, type(None)}:
        return True
    if kind is float:
        return isfinite(value)  # type: ignore[arg-type]
    if depth == 0:
        return False
    if kind is list:
        return all(is_plain(item, depth - 1) for item in value)  # type: ignore[attr-defined]
    if kind is dict:
        return all(
            type(key) is str and is_plain(item, depth - 1)
            for key, item in value.items()  # type: ignore[attr-defined]
        )
    return False
