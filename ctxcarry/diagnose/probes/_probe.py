"""The probe: a context that can be set for real, and what code under it sees."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ("CannotProbeError", "Maker", "Probe", "ProbeError", "Read")

Read: TypeAlias = Callable[[], object]


class ProbeError(RuntimeError):
    """
    A probe did not do its part, so that its cell says nothing about the carrier.

    Subclasses `RuntimeError`: what failed is the check, not what it was given.
    """


class CannotProbeError(RuntimeError):
    """
    This machine lacks what a probe needs, such as a second device.

    Subclasses `RuntimeError`: nothing is wrong with the carrier or with the probe.
    """


def _as_it_is(seen: object) -> object:
    return seen


@dataclass(frozen=True)
class Probe:
    """
    Set one context for real, and read it as other code would.

    Attributes:
        set: Returns a context manager that sets the context, on this thread and
            by the public API of its owner, to something else than the default.
        read: Returns what code on this thread sees: by what the owner does under
            the context where that is cheap, not by what the carrier captures.
            Two reads are compared as `ctxcarry` compares states: objects by
            identity, tuples by their elements.
        alone: Whether only this carrier carries during the probe. For a carrier
            of variables, which ``contextvars`` would carry along.
        tell: Returns what was read as values that mean the same in another
            process, where the objects themselves are others.
        stays: Why what is set here has no counterpart in another process, if so.
    """

    set: Callable[[], AbstractContextManager[object]]
    read: Read
    alone: bool = False
    tell: Callable[[object], object] = _as_it_is
    stays: str | None = None


Maker: TypeAlias = Callable[[], AbstractContextManager[Probe]]
