"""Compare captured states."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ctxcarry._carrier import MISSING

if TYPE_CHECKING:
    from ctxcarry._carrier import Carrier

__all__ = ("is_set", "same_state")


def is_set(carrier: Carrier, state: object) -> bool:
    """Say whether `state` is anything else than "not set" for `carrier`."""
    if state is MISSING:
        return False
    default = getattr(carrier, "default", MISSING)
    return default is MISSING or (state is not default and not same_state(state, default))


def same_state(one: object, other: object) -> bool:
    """
    Compare two captured states, element by element within containers.

    What is within containers is compared by identity: two equal tensors are two
    scratch buffers, and ``==`` on them is not even a bool. Containers themselves
    are not, since a captured one is a copy.
    """
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, (tuple, list, deque)) and isinstance(other, (tuple, list, deque)):
        return len(one) == len(other) and all(map(same_state, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_state(one[k], other[k]) for k in one)
    if isinstance(one, float) and isinstance(other, float):
        return one.hex() == other.hex()  # 0.0 is not -0.0
    return isinstance(one, (bool, int, str, bytes, bytearray, set, frozenset)) and one == other
