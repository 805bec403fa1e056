"""
Selective activation checkpointing that keeps its context.

A recompute runs in the carried contexts of its forward, on whichever thread needs it, and
makes again only what the backward needs. What is kept is said by a policy, or solved for a
budget of memory.
"""

from __future__ import annotations

from ctxcarry_checkpoint import policies
from ctxcarry_checkpoint._budget import BudgetError
from ctxcarry_checkpoint._checkpoint import checkpoint
from ctxcarry_checkpoint._ops import Action, Call, Op
from ctxcarry_checkpoint._plan import Plan
from ctxcarry_checkpoint._policy import Policy
from ctxcarry_checkpoint._region import region
from ctxcarry_checkpoint._roofline import Roofline
from ctxcarry_checkpoint._selective import SelectiveCheckpoint
from ctxcarry_checkpoint.errors import CheckpointMutationError, RecomputeMismatchError

__all__ = (
    "Action",
    "BudgetError",
    "Call",
    "CheckpointMutationError",
    "Op",
    "Plan",
    "Policy",
    "RecomputeMismatchError",
    "Roofline",
    "SelectiveCheckpoint",
    "checkpoint",
    "policies",
    "region",
)
