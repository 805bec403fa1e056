"""How work crosses into a backward pass and into a recompute, in the plain way and carried."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import Context
from importlib import import_module
from threading import get_ident
from typing import TYPE_CHECKING, Any

import ctxcarry
from ctxcarry._policy import ambient_policy
from ctxcarry.diagnose.crossings import Crossing, plain_pool, try_within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ctxcarry.diagnose.crossings import Cross, Handing
    from ctxcarry.diagnose.probes import Read

__all__ = ("autograd_installed", "over_backward", "over_recompute", "single_hooks")

# Past this many passes one within the other the engine goes on on another thread.
_HOP = 60


@contextmanager
def autograd_installed() -> Iterator[None]:
    """Have the boundary installed for a block."""
    ctxcarry.install("autograd")
    try:
        yield
    finally:
        ctxcarry.uninstall("autograd")


@contextmanager
def single_hooks() -> Iterator[None]:
    """Have single hooks carried for a block."""
    engine = import_module("ctxcarry.boundaries.autograd_engine")
    before = engine.boundary.hooks
    try:
        yield
    finally:
        if not before:
            engine.stop_serving_hooks()


def over_backward(
    scope: Callable[[], AbstractContextManager[object]] = nullcontext,
    prepare: Callable[[Any], Any] = lambda hook: hook,
    *,
    by_hook: bool = False,
) -> Cross:
    """
    Cross to the thread on which torch's engine goes on, with or without a GPU.

    Args:
        scope: Entered around the pass.
        prepare: What to do with a hook before it is registered.
        by_hook: Whether the work is a hook, and not the backward of a function.
    """

    def cross(read: Read, handing: Handing) -> Crossing:
        before = _in_engine(read)

        def hand_over() -> object:
            with scope():
                return _in_engine(read, prepare if by_hook else None)

        inside, failure = try_within(handing, hand_over)
        return Crossing(before, inside, _in_engine(read), failure)

    return cross


def over_recompute(
    scope: Callable[[], AbstractContextManager[object]] = nullcontext, **options: Any
) -> Cross:
    """
    Cross to the second run of a checkpointed function, in a thread that starts the pass.

    Args:
        scope: Entered around forward and backward.
        **options: For ``torch.utils.checkpoint.checkpoint``.
    """

    def cross(read: Read, handing: Handing) -> Crossing:
        checkpoint = import_module("torch.utils.checkpoint").checkpoint
        made = {name: make() for name, make in options.items()}
        with plain_pool() as pool:
            before = pool.submit(read).result()

            def hand_over() -> object:
                seen: list[object] = []

                def block(x: Any) -> Any:
                    seen.append(read())
                    return x * x

                with scope():
                    loss = checkpoint(block, _leaf(), use_reentrant=False, **made)
                    pool.submit(Context().run, _start, loss, ambient_policy.get()).result()
                return seen[1]

            inside, failure = try_within(handing, hand_over)
            return Crossing(before, inside, pool.submit(read).result(), failure)

    return cross


def _start(loss: Any, policy: Any) -> None:
    """Start the pass, carrying no more than the thread that asks for it does."""
    ambient_policy.set(policy)
    loss.backward()


def _leaf() -> Any:
    torch: Any = import_module("torch")
    return torch.ones((), device="cpu", requires_grad=True)


def _in_engine(read: Read, hook: Callable[[Any], Any] | None = None) -> object:
    """Return what `read` returns on a thread of the engine, in a function or in a hook."""
    torch: Any = import_module("torch")
    seen: list[object] = []
    started_on = get_ident()

    class Within(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any, depth: int) -> Any:
            ctx.depth = depth
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> tuple[Any, None]:
            if get_ident() == started_on and ctx.depth <= 2 * _HOP:
                with torch.enable_grad():
                    go_deeper(ctx.depth + 1)
            elif hook is None:
                seen.append(read())
            return grad, None

    def go_deeper(depth: int) -> None:
        y = Within.apply(_leaf(), depth)
        if hook is not None:
            y.register_hook(hook(look))
        y.backward()

    def look(_: Any) -> None:
        if get_ident() != started_on:
            seen.append(read())

    # Outside the function modes of the work: that of spmd_types refuses what it has no types of.
    with torch.enable_grad(), torch._C.DisableTorchFunction():
        go_deeper(0)
    if not seen:
        msg = "torch's engine stayed on the thread that started the pass"
        raise RuntimeError(msg)
    return seen[0]
