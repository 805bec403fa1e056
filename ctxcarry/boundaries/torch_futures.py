"""``torch.futures.Future``: callbacks run in the context of whoever added them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ctxcarry.boundaries._boundary import Boundary
from ctxcarry.boundaries._patch import Patch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("boundary",)


_METHODS = ("then", "add_done_callback")


def _adding(original: Callable[..., Any]) -> Callable[..., Any]:
    def adding(self: Any, callback: Callable[..., Any]) -> Any:
        return original(self, boundary.bound(callback))

    return adding


def _patches() -> tuple[Patch, ...]:
    from torch._C import Future as Base  # noqa: PLC0415 - only where it is installed
    from torch.futures import Future  # noqa: PLC0415

    # `then` returns a future of the base class, which has a `then` of its own.
    owners = (Future, Base)
    return tuple(Patch(o, name, _adding) for o in owners for name in _METHODS if hasattr(o, name))


boundary = Boundary(_patches)
