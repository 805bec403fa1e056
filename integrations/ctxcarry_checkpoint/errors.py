"""What a checkpoint raises."""

from __future__ import annotations

from torch.utils.checkpoint import CheckpointError

from ctxcarry.errors import CtxCarryError

__all__ = ("CheckpointMutationError", "RecomputeMismatchError")


class RecomputeMismatchError(CtxCarryError, CheckpointError):
    """
    The recompute did something else than the forward.

    Its gradients would be wrong. The message names the first operator that differs,
    where the forward called it, and which context differs.

    Attributes:
        context: Which carried contexts differ, in words.
    """

    context: str | None = None

    def __str__(self) -> str:
        message = super().__str__()
        return message if self.context is None else f"{message}\n{self.context}"


class CheckpointMutationError(CtxCarryError, CheckpointError):
    """A tensor that the recompute or the backward needs was changed after the forward."""
