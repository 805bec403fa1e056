"""Which context a recompute had, and how it differs from that of the forward."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ctxcarry.boundaries.recompute import capture_forward

if TYPE_CHECKING:
    from ctxcarry._snapshot import Snapshot

__all__ = ("explained",)


def explained(forward: Snapshot) -> str:
    """Return the carried contexts that are others here than in a forward, a line for each."""
    before, now = forward.explain().splitlines()[1:], capture_forward().explain().splitlines()[1:]
    lines = [
        f"  forward  {old.strip()}\n  backward {new.strip()}"
        for old, new in zip(before, now)
        if old != new
    ]
    if not lines:
        return "Carried contexts: the same where the forward and where the backward ran."
    return "Carried contexts that differ where the backward runs:\n" + "\n".join(lines)
