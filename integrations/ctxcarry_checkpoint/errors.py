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
    """


class CheckpointMutationError(CtxCarryError, CheckpointError):
    """A tensor that the recompute or the backward needs was changed after the forward."""
