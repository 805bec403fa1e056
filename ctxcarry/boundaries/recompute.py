"""
The recompute of ``torch.utils.checkpoint``: in the context of its forward.

Also when the scope of that context has closed by then, and with the function modes
that ``backward()`` takes off (pytorch#148919, pytorch#148023).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils import checkpoint

from ctxcarry.boundaries._backward import capture_for_engine
from ctxcarry.boundaries._boundary import Boundary
from ctxcarry.boundaries._patch import Patch

if TYPE_CHECKING:
    from collections.abc import Callable

    from ctxcarry._snapshot import Snapshot

__all__ = ("Recompute", "boundary", "capture_forward", "is_traced", "lacking")


class Recompute:
    """What a checkpoint calls again, in the context of the first time."""

    __slots__ = ("__weakref__", "__wrapped__", "_snapshot")

    def __init__(self, snapshot: Snapshot, fn: Callable[..., Any]) -> None:
        self._snapshot = snapshot
        self.__wrapped__ = fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it in that context."""
        try:
            return self._snapshot.run(self.__wrapped__, *args, **kwargs)
        except BaseException:
            del self  # the traceback keeps this frame
            raise


def capture_forward() -> Snapshot:
    """Return the context for a recompute, what the whole process shares included."""
    return capture_for_engine(everywhere=True)


def is_traced() -> bool:
    """Say whether a compiler is tracing: what it makes of a checkpoint has no context."""
    if torch.compiler.is_compiling():
        return True
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None


def lacking() -> str | None:
    """Return why this torch's checkpoint cannot be reached, or None."""
    missing = [n for n in ("_CheckpointFrame", "CheckpointFunction") if not hasattr(checkpoint, n)]
    if not missing:
        return None
    return f"torch {torch.__version__} has no torch.utils.checkpoint.{', '.join(missing)}"


def _framing(original: Callable[..., Any]) -> Callable[..., Any]:
    def __init__(self: Any, recompute_fn: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        # Around all that the checkpoint itself brings back, its context_fn included.
        if boundary.everything and not is_traced():
            recompute_fn = Recompute(capture_forward(), recompute_fn)
        original(self, recompute_fn, *args, **kwargs)

    return __init__


def _reentrant(original: Callable[..., Any]) -> Callable[..., Any]:
    def forward(ctx: Any, run_function: Any, *args: Any) -> Any:
        outputs = original(ctx, run_function, *args)
        # Around the function alone: the backward pass within is the outer one's business.
        if boundary.everything and not is_traced():
            ctx.run_function = Recompute(capture_forward(), run_function)
        return outputs

    return forward


def _patches() -> tuple[Patch, ...]:
    return (
        Patch(checkpoint._CheckpointFrame, "__init__", _framing),
        Patch(checkpoint.CheckpointFunction, "forward", _reentrant),
    )


boundary = Boundary(_patches, for_decorated=False, lacking=lacking)
