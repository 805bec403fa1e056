"""Custom ``torch.autograd.Function``: its backward runs in the context of its pass."""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING, Any

from torch.autograd.function import BackwardCFunction

from ctxcarry.boundaries._autograd_tls import KEY, found, lacking
from ctxcarry.boundaries._backward import call_in_pass, current
from ctxcarry.boundaries._boundary import Boundary
from ctxcarry.boundaries._patch import Patch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("boundary",)


def _applying(original: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: Any, *grads: Any) -> Any:
        # What `call_in_pass` and `Backward.call` do, without their frames.
        thread = get_ident()
        running = current.get(thread)
        if running is not None:
            if running.home == thread:
                return original(self, *grads)
            return call_in_pass(original, (self, *grads))
        try:
            backward = found(KEY)
        except RuntimeError:  # nothing is stashed: it is no pass of ours
            backward = None
        if backward is None:
            return original(self, *grads)
        enter = backward.entries.get(thread) or backward.entry(thread)
        current[thread] = backward
        try:
            return enter(original, self, *grads)
        except BaseException:
            del enter, grads  # the traceback keeps this frame
            raise
        finally:
            del current[thread]

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
