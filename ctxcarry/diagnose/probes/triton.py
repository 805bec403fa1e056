"""Probe of Triton: the allocator that a kernel launch would ask for scratch memory."""

# ruff: noqa: PLC0415 - Triton is imported only when it is probed

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from ctxcarry.diagnose.probes._probe import Probe

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ("allocator",)


@contextmanager
def allocator() -> Iterator[Probe]:
    """Probe ``triton.set_allocator``."""
    import triton

    # A launch reads it here; there is no public getter, and a launch needs a GPU.
    from triton.runtime import _allocation

    def scratch(size: int, alignment: int, stream: int | None) -> object:
        raise NotImplementedError

    def read() -> object:
        return _allocation._allocator.get()

    @contextmanager
    def allocating() -> Iterator[None]:
        before = read()
        triton.set_allocator(scratch)
        try:
            yield
        finally:
            triton.set_allocator(before)

    yield Probe(allocating, read)
