"""The policy that a user means."""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import Any

from ctxcarry_checkpoint._ops import Action
from ctxcarry_checkpoint._policy import Others, Policy
from ctxcarry_checkpoint.policies import as_policy

__all__ = ("RECOMPUTE", "same_policy")

RECOMPUTE = Others(Action.RECOMPUTE)
"""The policy that keeps nothing."""


def same_policy(given: Any) -> Policy:
    """
    Return the policy that is meant, the same object for the same thing each time.

    Raises:
        TypeError: If it is none.
    """
    if given is None:
        return RECOMPUTE
    if isinstance(given, Policy):
        return given
    if isinstance(given, (list, tuple, set)):
        try:
            return _known(frozenset(given))
        except TypeError:
            # Something in it is not hashable, so no operator: this says so.
            return as_policy(given)
    return _known(given) if isinstance(given, Hashable) else as_policy(given)


@functools.lru_cache(maxsize=256)
def _known(given: Any) -> Policy:
    return as_policy(given)
