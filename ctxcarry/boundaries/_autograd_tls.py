"""
What torch brings to its autograd threads by itself: objects stashed under a key.

The only file that touches this part of torch (checked against 2.11 and 2.13). An
object that is stashed on a thread when a backward pass starts there is found under
its key by each node of that pass, on whichever thread the node runs.
"""

from __future__ import annotations

import ctypes
import sys
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("KEY", "found", "lacking", "put", "stashed", "take_torchs_context_away")

KEY: Final = "ctxcarry"  # short: torch makes a string of it each time
_TORCHS_OWN: Final = "context"
_NEEDED = ("_stash_obj_in_tls", "_get_obj_in_tls", "_is_key_in_tls")


def lacking() -> str | None:
    """Return why nothing can be stashed with this torch, or None."""
    missing = [name for name in _NEEDED if not hasattr(torch._C, name)]
    if not missing:
        return None
    return f"torch {torch.__version__} has no torch._C.{', torch._C.'.join(missing)}"


def _stash(key: str, value: object) -> None:
    """Stash `value`, which the thread refers to from then on."""
    if _takes_without_asking:
        _keep(ctypes.py_object(value))
    _raw_stash(key, value)


found: Callable[[str], Any] = getattr(torch._C, _NEEDED[1], lambda _: None)
is_stashed: Callable[[str], bool] = getattr(torch._C, _NEEDED[2], lambda _: False)
_remove: Callable[[str], None] | None = getattr(torch._C, "_remove_obj_from_tls", None)
_raw_stash: Callable[[str, object], None] = getattr(torch._C, _NEEDED[0], lambda *_: None)
_keep = ctypes.pythonapi.Py_IncRef


def _steals() -> bool:
    """
    Say whether this torch stashes an object without counting its own reference to it.

    Torch 2.11 does, and drops the reference nevertheless when the object goes: one
    that was made for the stash is freed while it is in use.
    """
    if lacking() is not None:
        return False
    key, value = f"{KEY}.trial", object()
    before = sys.getrefcount(value)
    _raw_stash(key, value)
    steals = sys.getrefcount(value) == before
    if steals:
        _keep(ctypes.py_object(value))
    if _remove is None:
        _raw_stash(key, None)
    else:
        _remove(key)
    return steals


_takes_without_asking = _steals()


def stashed() -> Any:
    """Return what is stashed under our key for this thread, or None."""
    return found(KEY) if is_stashed(KEY) else None


def put(value: object) -> None:
    """Stash `value` under our key on this thread, or take away what is there if it is None."""
    if value is None and _remove is not None:
        # An object left behind deadlocks the thread at its end, when it needs the GIL.
        _remove(KEY)
    else:
        _stash(KEY, value)


def take_torchs_context_away() -> None:
    """
    Take away the Context that torch stashed on this thread for this pass, if it did.

    Compiled backwards enter it, and two that are under way at once, on two threads or
    one within the other, fail with "cannot enter context: already entered"
    (pytorch#185372). What is stashed by us does for it: a node that finds ours runs in
    the same variables. And torch copies all that is stashed for each node.
    """
    if _remove is not None and is_stashed(_TORCHS_OWN):
        _remove(_TORCHS_OWN)
