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
from weakref import ref

from ctxcarry._addresses import address_of, found_at
from ctxcarry._carrier import GONE, MISSING
from ctxcarry._carriers.context_vars import ContextVarCarrier
from ctxcarry._carriers.value import ValueCarrier
from ctxcarry.errors import NotPortableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from ctxcarry._carrier import Carrier

__all__ = ("carriers", "unavailable")

_FIELDS = {"triton.allocator": "_allocator", "triton.profile_allocator": "_profile_allocator"}


def carriers() -> Iterator[tuple[Carrier, tuple[str, ...]]]:
    """Yield a carrier for each allocator that this version of Triton has."""
    module = _allocation()
    lacking = unavailable()
    for name, field in _FIELDS.items():
        if module is not None and name not in lacking:
            yield _carrier(name, module, field), ()


def unavailable() -> dict[str, str]:
    """Return the allocators that this version has not, or not as known, each with the reason."""
    module = _allocation()
    version = import_module("triton").__version__
    reasons: dict[str, str] = {}
    for name, field in _FIELDS.items():
        holder = getattr(module, field, None)
        if module is None or not hasattr(module, field):
            reasons[name] = f"Triton {version} has no triton.runtime._allocation.{field}"
        elif not isinstance(holder, ContextVar) and not (
            callable(holder) and isinstance(getattr(module, "NullAllocator", None), type)
        ):
            reasons[name] = (
                f"triton.runtime._allocation.{field} is {holder!r} in Triton {version}: neither a "
                "ContextVar nor an allocator beside a NullAllocator, as in the versions known"
            )
    return reasons


def _allocation() -> ModuleType | None:
    try:
        return import_module("triton.runtime._allocation")
    except ModuleNotFoundError:  # before Triton 3.3
        return None


def _carrier(name: str, module: ModuleType, field: str) -> Carrier:
    holder = getattr(module, field)
    if isinstance(holder, ContextVar):
        return AllocatorCarrier(holder, name)
    nothing = getattr(module, "_NULL_ALLOCATOR", None) or module.NullAllocator()
    get, put = getattr(holder, "get", None), getattr(holder, "set", None)
    if get is None or put is None:

        def get() -> Any:
            return getattr(module, field)

        def put(allocator: Any) -> None:
            setattr(module, field, allocator)

    def current() -> Any:
        # Every NullAllocator means the same, and there may be several.
        allocator = get()
        return nothing if isinstance(allocator, module.NullAllocator) else allocator

    return SharedAllocatorCarrier(name, current, put, default=nothing, process_wide=True)


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

    def dumps_alike(self, state: Any) -> Callable[[object], bool] | None:
        """Say whether it is the same allocator, and still to be imported."""
        address, reference = address_of(state), ref(state)
        if address is None:
            return None
        return lambda other: other is reference() and found_at(address, imports=False) is other

    def loads_again(self, payload: Any, state: Any) -> Callable[[], object]:  # noqa: ARG002
        """Import the allocator."""

        def load() -> object:
            allocator = found_at(payload, imports=True)
            return allocator if callable(allocator) else GONE

        return load


class AllocatorCarrier(_ByImportPath, ContextVarCarrier):
    """The allocator of scratch memory for kernel launches, a ContextVar (triton#7685)."""

    def state_of(self, values: dict[ContextVar[Any], object]) -> object:
        """Return the allocator; Triton's own, which only complains, is none."""
        allocator = values[self.variable]
        return MISSING if type(allocator).__name__ == "NullAllocator" else allocator


class SharedAllocatorCarrier(_ByImportPath, ValueCarrier):
    """An allocator that all threads share, so that only other processes need to be told of it."""
