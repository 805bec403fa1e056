"""Custom ``torch.autograd.Function``: its backward runs in the context of its pass."""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING, Any

from torch.autograd.function import BackwardCFunction

from ctxcarry.boundaries._autograd_tls import KEY, found, is_stashed, lacking
from ctxcarry.boundaries._backward import current
from ctxcarry.boundaries._boundary import Boundary
from ctxcarry.boundaries._patch import Patch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("boundary",)


def _applying(original: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: Any, *grads: Any) -> Any:
        if not is_stashed(KEY):
            return original(self, *grads)
        backward = found(KEY)
        if backward is None or backward is current.get(get_ident()):
            return original(self, *grads)
        return backward.call(original, (self, *grads))

    return apply


def _patches() -> tuple[Patch, ...]:
    # The engine looks the method up by name for each node; torch 2.13 has two of them.
    names = ("apply", "apply_boxed")
    return tuple(
        Patch(BackwardCFunction, name, _applying)
        for name in names
        if hasattr(BackwardCFunction, name)
    )


boundary = Boundary(_patches, for_decorated=False, lacking=lacking)
