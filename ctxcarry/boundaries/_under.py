"""Callables that the autograd engine calls: each runs in the context of its backward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ctxcarry.boundaries._backward import call_in_pass

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("UnderBackward", "under_backward")


class UnderBackward:
    """A callable that the engine may call on a thread of its own."""

    # A compiler guards on the dictionary of what it traces.
    __slots__ = ("__dict__", "__weakref__", "__wrapped__")

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.__wrapped__ = fn

    def __call__(self, *args: Any) -> Any:
        """Call it in the context of the pass whose node this thread runs."""
        if torch.compiler.is_compiling():
            return self.__wrapped__(*args)  # it is being made part of a graph
        return call_in_pass(self.__wrapped__, args)

    def __getattr__(self, name: str) -> Any:
        if name == "__wrapped__":  # copying looks for attributes before __init__ has run
            raise AttributeError(name)
        return getattr(self.__wrapped__, name)

    def __reduce__(self) -> Any:
        return type(self), (self.__wrapped__,)

    def __repr__(self) -> str:
        return f"<{self.__wrapped__!r} in the context of the backward pass>"


def under_backward(fn: Any) -> Any:
    """Return `fn` so that it runs in the context of the backward pass that calls it."""
    if isinstance(fn, UnderBackward) or not callable(fn):
        return fn  # what is no callable is for torch to refuse
    return UnderBackward(fn)
