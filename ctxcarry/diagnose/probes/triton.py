"""Probes of Triton: the allocators that a kernel launch would ask for scratch memory."""

from __future__ import annotations

from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ctxcarry.diagnose.probes._probe import Probe

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ("allocator", "profile_allocator")


@contextmanager
def allocator() -> Iterator[Probe]:
    """Probe ``triton.set_allocator``."""
    yield _probe("_allocator", import_module("triton").set_allocator)


@contextmanager
def profile_allocator() -> Iterator[Probe]:
    """Probe the allocator for profiling, which one release keeps for each thread."""
    yield _probe("_profile_allocator", _allocation().set_profile_allocator)


def scratch(size: int, alignment: int, stream: int | None) -> object:
    """Stand for an allocator; here, where another process can import it from."""
    raise NotImplementedError


def _told(allocator: object) -> object:
    # A function by its name, and the object that refuses to allocate by its class.
    return getattr(allocator, "__qualname__", type(allocator).__qualname__)


def _probe(field: str, set_allocator: Any) -> Probe:
    def read() -> object:
        return getattr(_allocation(), field).get()

    @contextmanager
    def allocating() -> Iterator[None]:
        before = read()
        set_allocator(scratch)
        try:
            yield
        finally:
            set_allocator(before)

    return Probe(allocating, read, tell=_told)


def _allocation() -> Any:
    # A launch reads it there; there is no public getter, and a launch needs a GPU.
    return import_module("triton.runtime._allocation")
