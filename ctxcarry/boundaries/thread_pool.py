"""``multiprocessing.pool.ThreadPool`` and ``Pool``: functions and callbacks."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ctxcarry.boundaries._boundary import Boundary
from ctxcarry.boundaries._patch import Patch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("boundary",)

_METHODS = (
    "apply",
    "apply_async",
    "imap",
    "imap_unordered",
    "map",
    "map_async",
    "starmap",
    "starmap_async",
)


def _handing_over(original: Callable[..., Any]) -> Callable[..., Any]:
    def handing_over(self: Any, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        # Callbacks run in a thread of the pool too: "(callback, error_callback)" come
        # last in all the methods that take them, and are mostly given by name.
        args = tuple(boundary.bound(a) if _is_callback(a) else a for a in args)
        for name in ("callback", "error_callback"):
            if kwargs.get(name) is not None:
                kwargs[name] = boundary.bound(kwargs[name])
        return original(self, boundary.bound(func), *args, **kwargs)

    return handing_over


def _is_callback(argument: object) -> bool:
    return callable(argument) and not hasattr(argument, "__iter__")


def _patches() -> tuple[Patch, ...]:
    pool = import_module("multiprocessing.pool")  # imports all of multiprocessing
    return tuple(Patch(pool.ThreadPool, name, _handing_over) for name in _METHODS)


boundary = Boundary(_patches)
