"""The policy that a user means."""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import Any

from ctxcarry_checkpoint._ops import Action
from ctxcarry_checkpoint._policy import Others, Policy
from ctxcarry_checkpoint.policies import as_policy

__all__ = ("RECOMPUTE", "Slot", "same_policy")

RECOMPUTE = Others(Action.RECOMPUTE)
"""The policy that keeps nothing."""


class Slot:
    """
    What a block goes by, until a plan says something else.

    Compiled code looks at nothing but this of an engine, so that blocks with the same policy
    share what was compiled: whatever differs by block would have each compiled anew.

    Attributes:
        policy: The policy.
        recomputes: Whether anything is recomputed. A compiler that nothing is asked of is
            left alone.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.recomputes = True

    def __deepcopy__(self, memo: dict[int, Any]) -> Slot:
        # A copy of a model follows the same engine.
        return self


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
