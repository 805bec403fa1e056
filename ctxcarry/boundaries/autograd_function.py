"""Custom ``torch.autograd.Function``: its backward runs in the context of its pass."""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

from torch.autograd.function import BackwardCFunction, Function

from ctxcarry.boundaries._autograd_tls import KEY, found, lacking
from ctxcarry.boundaries._backward import call_in_pass, current
from ctxcarry.boundaries._boundary import Boundary
from ctxcarry.boundaries._patch import Patch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("boundary",)


# The names that torch's own methods use, by which it is known that all they do is to
# choose between `backward` and `vjp` and call that: 2.5 to 2.12, then 2.13.
_KNOWN: Final = (
    {"_forward_cls", "backward", "vjp", "Function", "RuntimeError"},
    {"_get_user_fn", "_forward_cls", "getattr", "list"},
)
_no_vjp: Final = Function.vjp
_may_box: Final = hasattr(Function, "boxed_grads_call")


def _applying(original: Callable[..., Any]) -> Callable[..., Any]:
    code = getattr(original, "__code__", None)
    if code is None or set(code.co_names) not in _KNOWN:
        return _around(original)

    def apply(self: Any, *grads: Any) -> Any:
        # Frames are what costs here: torch's own and those of `call_in_pass` are saved.
        forward = self._forward_cls
        plain = forward.vjp is _no_vjp and not (_may_box and forward.boxed_grads_call)
        fn = forward.backward if plain else original
        thread = get_ident()
        running = current.get(thread)
        if running is not None:
            if running.home == thread:
                return fn(self, *grads)
            return call_in_pass(fn, (self, *grads))
        try:
            backward = found(KEY)
        except RuntimeError:  # nothing is stashed: it is no pass of ours
            backward = None
        if backward is None:
            return fn(self, *grads)
        enter = backward.entries.get(thread) or backward.entry(thread)
        current[thread] = backward
        try:
            return enter(fn, self, *grads)
        except BaseException:
            del enter, grads  # the traceback keeps this frame
            raise
        finally:
            del current[thread]

    return apply


def _around(original: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: Any, *grads: Any) -> Any:
        return call_in_pass(original, (self, *grads))

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
