"""`@carry_context` on a ``torch.autograd.Function``: backward in the context of its forward."""

from __future__ import annotations

import sys
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from ctxcarry._policy import Policy

__all__ = ("carry_function", "is_autograd_function")

_SNAPSHOT: Final = "_ctxcarry_snapshot"
_MARK: Final = "_ctxcarry_wrapped"


def is_autograd_function(cls: type) -> bool:
    """Say whether `cls` is a ``torch.autograd.Function``, without importing torch."""
    source = sys.modules.get("torch.autograd.function")
    return source is not None and issubclass(cls, source.Function)


def carry_function(cls: Any, policy: Policy | None) -> type:
    """
    Wrap the static methods of `cls`, and of classes derived from it.

    The context is noted in ``forward`` (or ``setup_context``, where there is one) and
    is current in ``backward``, ``vjp`` and ``jvp``; what the engine sets for each
    node itself is left alone.
    """
    from torch.autograd import Function  # noqa: PLC0415 - imported, or there were no such class

    notes = "forward" if cls.setup_context is Function.setup_context else "setup_context"
    _wrap(cls, notes, lambda method: _noting(method, policy))
    for name in ("backward", "vjp", "jvp"):
        if getattr(cls, name) is not getattr(Function, name):
            _wrap(cls, name, _under_forward)
    _follow_subclasses(cls, policy)
    return cls  # type: ignore[no-any-return]


def _wrap(cls: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    method = getattr(cls, name)
    if not hasattr(method, _MARK):
        wrapped = wraps(method)(make(method))
        setattr(wrapped, _MARK, True)
        setattr(cls, name, staticmethod(wrapped))


def _noting(method: Callable[..., Any], policy: Policy | None) -> Callable[..., Any]:
    from ctxcarry.boundaries._backward import capture_for_engine  # noqa: PLC0415 - needs torch
    from ctxcarry.boundaries.recompute import is_traced  # noqa: PLC0415

    def noting(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_traced():
            setattr(ctx, _SNAPSHOT, capture_for_engine(policy))
        return method(ctx, *args, **kwargs)

    return noting


def _under_forward(method: Callable[..., Any]) -> Callable[..., Any]:
    import torch  # noqa: PLC0415

    from ctxcarry.boundaries._backward import bind_device  # noqa: PLC0415 - needs torch

    is_compiling = torch.compiler.is_compiling

    def under_forward(ctx: Any, *grads: Any) -> Any:
        snapshot = None if is_compiling() else getattr(ctx, _SNAPSHOT, None)
        if snapshot is None:  # compiled: its forward has noted none
            return method(ctx, *grads)
        bind_device()
        try:
            return snapshot.run(method, ctx, *grads)
        except BaseException:
            del snapshot, ctx, grads  # the traceback keeps this frame
            raise

    return under_forward


def _follow_subclasses(cls: Any, policy: Policy | None) -> None:
    own = vars(cls).get("__init_subclass__")

    def __init_subclass__(subclass: Any, /, **kwargs: Any) -> None:  # noqa: N807
        if own is None:
            super(cls, subclass).__init_subclass__(**kwargs)
        else:
            own.__get__(None, subclass)(**kwargs)
        carry_function(subclass, policy)

    cls.__init_subclass__ = classmethod(__init_subclass__)
