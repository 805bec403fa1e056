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

from ctxcarry._addresses import address_of, found_at
from ctxcarry._carriers.context_vars import ContextVarCarrier
from ctxcarry._carriers.value import ValueCarrier
from ctxcarry.errors import NotPortableError

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
        return AllocatorCarrier(holder, name)
    if hasattr(holder, "get") and hasattr(holder, "set"):
        return SharedAllocatorCarrier(name, holder.get, holder.set, default=holder.get())
    return SharedAllocatorCarrier(
        name,
        lambda: getattr(module, field),
        lambda allocator: setattr(module, field, allocator),
        default=holder,
    )


class _ByImportPath:
    """An allocator travels to another process by the name that it is imported under."""

    pickles = False
    imports = True

    def dump(self, state: Any) -> object:
        """Return ``module:name``."""
        address = address_of(state)
        if address is None:
            msg = (
                f"the allocator {state!r} has no import path: define it with `def` at the top of a "
                "module (no lambda, no method, nothing in __main__ of a notebook)"
            )
            raise NotPortableError(msg)
        return address

    def load(self, payload: Any) -> object:
        """Import the allocator."""
        allocator = found_at(payload, imports=True)
        if not callable(allocator):
            msg = f"there is no allocator {payload!r} in this process"
            raise NotPortableError(msg)
        return allocator


class AllocatorCarrier(_ByImportPath, ContextVarCarrier):
    """The allocator of scratch memory for kernel launches, a ContextVar (triton#7685)."""


class SharedAllocatorCarrier(_ByImportPath, ValueCarrier):
    """An allocator that all threads share, so that only other processes need to be told of it."""

    process_wide = True
