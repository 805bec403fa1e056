"""
Triton's allocators of scratch memory.

The only file that touches ``triton.runtime._allocation``, which keeps them
differently by version:

========  ==========================  ===========================
Triton    allocator                   profile allocator
========  ==========================  ===========================
≤ 3.2     none                        none
3.3, 3.4  module global               none
3.5       ContextVar                  ContextVar
≥ 3.6     ContextVar                  one object for the process
========  ==========================  ===========================
"""

from __future__ import annotations

from contextvars import ContextVar
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ctxcarry._carrier import MISSING
from ctxcarry._carriers.context_vars import ContextVarCarrier
from ctxcarry._carriers.value import ValueCarrier

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from ctxcarry._carrier import Carrier

__all__ = ("carriers", "unavailable")

_FIELDS = {"triton.allocator": "_allocator", "triton.profile_allocator": "_profile_allocator"}


def carriers() -> Iterator[tuple[Carrier, tuple[str, ...]]]:
    """Yield a carrier for each allocator that this version of Triton has."""
    module = _allocation()
    for name, field in _FIELDS.items():
        if module is not None and hasattr(module, field):
            yield _carrier(name, module, field), ()


def unavailable() -> dict[str, str]:
    """Return the allocators that this version has not, each with the reason."""
    module = _allocation()
    # triton.__version__ needs no metadata, unlike importlib.metadata.
    version = import_module("triton").__version__
    return {
        name: f"Triton {version} has no such allocator (triton.runtime._allocation.{field})"
        for name, field in _FIELDS.items()
        if module is None or not hasattr(module, field)
    }


def _allocation() -> ModuleType | None:
    try:
        return import_module("triton.runtime._allocation")
    except ModuleNotFoundError:  # before Triton 3.3
        return None


def _carrier(name: str, module: ModuleType, field: str) -> Carrier:
    holder = getattr(module, field)
    if isinstance(holder, ContextVar):
        return ContextVarCarrier(holder, name)
    if hasattr(holder, "get") and hasattr(holder, "set"):
        return _ProcessWide(name, holder.get, holder.set, default=_null(module))
    return _ProcessWide(
        name,
        lambda: getattr(module, field),
        lambda allocator: setattr(module, field, allocator),
        default=holder if type(holder) is module.NullAllocator else module.NullAllocator(),
    )


class _ProcessWide(ValueCarrier):
    """An allocator that all threads share, so that only other processes need to be told of it."""

    process_wide = True


def _null(module: ModuleType) -> Any:
    return getattr(module, "_NULL_ALLOCATOR", MISSING)
