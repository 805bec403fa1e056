"""``multiprocessing.Pool``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ctxcarry.boundaries._boundary import Boundary
from ctxcarry.boundaries._patch import Patch
from ctxcarry.boundaries._shipped import for_shipping

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("boundary",)

_METHODS = (
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
        # ThreadPool derives from Pool and has a boundary of its own.
        if not isinstance(self, _pool().ThreadPool):
            func = for_shipping(boundary, func)
        return original(self, func, *args, **kwargs)

    return handing_over


def _pool() -> Any:
    # Not an attribute of its package yet, while it is being imported.
    return import_module("multiprocessing.pool")


def _patches() -> tuple[Patch, ...]:
    return tuple(Patch(_pool().Pool, name, _handing_over) for name in _METHODS)


boundary = Boundary(_patches)
