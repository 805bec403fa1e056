"""
What torch brings to its autograd threads by itself: objects stashed under a key.

The only file that touches this part of torch (checked against 2.11 and 2.13). An
object that is stashed on a thread when a backward pass starts there is found under
its key by each node of that pass, on whichever thread the node runs.
"""

from __future__ import annotations

import ctypes
import sys
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("KEY", "CopiedContext", "copy_torchs_context", "found", "lacking", "put", "stashed")

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


class CopiedContext:
    """
    A `contextvars.Context` of which each `run` enters a copy.

    Torch stashes one Context for each backward pass, and compiled backwards enter
    it. Two that are under way at once, on two threads or one within the other, fail
    with "cannot enter context: already entered" (pytorch#185372).
    """

    __slots__ = ("_context",)

    def __init__(self, context: Context) -> None:
        self._context = context

    def end(self) -> None:
        """Let go of the Context: a thread of the engine may hold this a little longer."""
        self._context = Context()

    def run(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call `fn` in a copy of the Context."""
        return self._context.copy().run(fn, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def __getitem__(self, variable: Any) -> Any:
        return self._context[variable]

    def __contains__(self, variable: object) -> bool:
        return variable in self._context

    def __len__(self) -> int:
        return len(self._context)

    def __iter__(self) -> Any:
        return iter(self._context)


def copy_torchs_context() -> CopiedContext | None:
    """Have the Context that torch stashed on this thread, if it did, entered in copies."""
    context = found(_TORCHS_OWN) if is_stashed(_TORCHS_OWN) else None
    if type(context) is not Context:
        return None
    copied = CopiedContext(context)
    _stash(_TORCHS_OWN, copied)
    return copied
