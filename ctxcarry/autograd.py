"""
Contexts in backward passes, with autograd's threads left on.

Torch runs the nodes of a backward pass on threads of its own where there is a GPU,
and does not bring along what is set where ``backward()`` was called.
``ctxcarry.install("autograd")`` has it come along everywhere; the functions here do
so at single places, without a patch that others would meet.
"""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from ctxcarry.boundaries import _autograd_tls as tls
from ctxcarry.boundaries._backward import call_in_pass, capture_for_engine
from ctxcarry.boundaries._under import UnderBackward
from ctxcarry.boundaries.autograd_engine import serve_hooks, under_way
from ctxcarry.boundaries.recompute_context import carried_pair
from ctxcarry.errors import CtxCarryError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from ctxcarry._snapshot import Snapshot

    H = TypeVar("H", bound=Callable[..., Any])
    Pair = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]

__all__ = ("context_fn", "hook")


def hook(fn: H) -> H:
    """
    Return `fn` as a hook that runs in the context of the backward pass that calls it.

    For ``Tensor.register_hook`` and ``register_post_accumulate_grad_hook``, for
    ``register_hook`` and ``register_prehook`` of a node, and for the hooks of a
    module. Where the pass was started by code that Python does not see, the hook runs
    in the context of this moment.

    Args:
        fn: Called with what torch gives such a hook.

    Returns:
        The hook.

    Raises:
        TypeError: If `fn` cannot be called.
        CtxCarryError: If this torch lacks what brings a context to its threads.
    """
    if not callable(fn):
        msg = f"ctxcarry.autograd.hook takes a callable, not {fn!r} of type {type(fn).__name__}"
        raise TypeError(msg)
    if isinstance(fn, _Hook):
        return fn
    reason = tls.lacking()
    if reason is not None:
        msg = f"{reason}, so that no hook can find the context of its backward pass"
        raise CtxCarryError(msg)
    serve_hooks()
    return _Hook(fn, capture_for_engine())  # type: ignore[return-value]


def context_fn(inner: Callable[[], Pair] | None = None) -> Callable[[], Pair]:
    """
    Return a ``context_fn`` for ``checkpoint``, whose recompute has the context of its forward.

    The recompute may run on another thread, and after the scope of that context has
    closed. It also gets back its function modes, which ``backward()`` takes off
    (pytorch#148919). What the checkpoint restores itself is left to it: autocast,
    random states, dispatch modes.

        checkpoint(block, x, use_reentrant=False, context_fn=ctxcarry.autograd.context_fn())

    Args:
        inner: A ``context_fn`` of your own, such as a partial of
            ``create_selective_checkpoint_contexts``; its contexts are entered within.

    Returns:
        A function for the argument ``context_fn``. Where a compiler traces the
        checkpoint, it returns what `inner` does: a compiled recompute has no context.

    Raises:
        TypeError: If `inner` is not callable.
    """
    if inner is not None and not callable(inner):
        msg = (
            "ctxcarry.autograd.context_fn takes a function that returns two context managers, "
            f"not {inner!r} of type {type(inner).__name__}"
        )
        raise TypeError(msg)

    def contexts() -> Pair:
        return carried_pair(inner)

    return contexts


class _Hook(UnderBackward):
    """A hook that also has the context of its registration, for want of another."""

    __slots__ = ("_snapshot", "_thread")

    def __init__(self, fn: Callable[..., Any], snapshot: Snapshot) -> None:
        super().__init__(fn)
        self._snapshot = snapshot
        self._thread = get_ident()

    def __call__(self, *args: Any) -> Any:
        if torch.compiler.is_compiling():
            return self.__wrapped__(*args)
        # A pass that was started on this very thread needs nothing.
        thread = get_ident()
        if thread in under_way or thread == self._thread or tls.stashed() is not None:
            return call_in_pass(self.__wrapped__, args)
        try:
            return self._snapshot.run(self.__wrapped__, *args)
        except BaseException:
            del self, args  # the traceback keeps this frame
            raise

    def __reduce__(self) -> Any:
        return hook, (self.__wrapped__,)
