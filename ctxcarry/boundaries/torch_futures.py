"""``torch.futures.Future``: callbacks run in the context of whoever added them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ctxcarry.boundaries._boundary import Boundary
from ctxcarry.boundaries._patch import Patch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("boundary",)


def _adding(original: Callable[..., Any]) -> Callable[..., Any]:
    def adding(self: Any, callback: Callable[..., Any]) -> Any:
        return original(self, boundary.bound(callback))

    return adding


def _patches() -> tuple[Patch, ...]:
    from torch.futures import Future  # noqa: PLC0415 - only where it is installed

    return Patch(Future, "then", _adding), Patch(Future, "add_done_callback", _adding)


boundary = Boundary(_patches)
