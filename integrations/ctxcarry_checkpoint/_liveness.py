"""Which operators a recompute has to call, and which results it can do without."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from ctxcarry_checkpoint._ops import first_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ctxcarry_checkpoint._ops import Op

__all__ = ("Live", "groups", "live")


class Live(NamedTuple):
    """
    What a recompute does.

    Attributes:
        saved: The operators whose results are kept after all.
        reruns: Those that are called again. One that is also saved is called only so that
            the generator of random numbers advances.
    """

    saved: frozenset[int]
    reruns: frozenset[int]


def groups(ops: Sequence[Op]) -> dict[int, list[int]]:
    """Return, by the operator that made a result, all that write to it, itself first."""
    found: dict[int, list[int]] = defaultdict(list)
    for op in ops:
        found[first_of(op)].append(op.index)
    return dict(found)


def live(ops: Sequence[Op], keep: Collection[int]) -> Live:
    """
    Return what a recompute has to call.

    Args:
        ops: The operators of a block.
        keep: Those whose results are to be kept. What works in place is kept with the
            operator that made its memory; naming it names that one.

    Returns:
        Without those that cannot be kept: what is kept is the last state of the memory,
        so nothing that is called again may have read an earlier one.
    """
    of_group = groups(ops)
    firsts = {first_of(ops[index]) for index in keep}
    kept = {index for index in firsts if ops[index].savable and ops[index].owner is None}
    while True:
        reruns, conflicts = _closure(ops, of_group, kept)
        if not conflicts:
            return Live(frozenset(kept), frozenset(reruns))
        kept -= conflicts


def _closure(
    ops: Sequence[Op], of_group: dict[int, list[int]], kept: set[int]
) -> tuple[set[int], set[int]]:
    reruns: set[int] = set()
    conflicts: set[int] = set()
    waiting = [op.index for op in ops if _is_root(op, kept)]
    while True:
        while waiting:
            op = ops[waiting.pop()]
            first = first_of(op)
            if first in reruns:
                continue
            # One that is kept and called again for its random numbers is called alone.
            members = [first] if first in kept else of_group[first]
            reruns.update(members)
            for member in members:
                waiting += [
                    parent
                    for parent in ops[member].parents
                    if not _is_made(ops, of_group, parent, first, kept, conflicts)
                ]
        drawn = [index for index in reruns if ops[index].random]
        waiting = [
            op.index for op in ops[: max(drawn, default=0)] if op.random and op.index not in reruns
        ]
        if not waiting:
            return reruns, conflicts


def _is_root(op: Op, kept: set[int]) -> bool:
    if op.reshapes and op.owner is not None and op.owner not in kept:
        # A stand-in would keep its sizes.
        return True
    if op.view or op.scalar or op.once or op.owner is not None or op.index in kept:
        return False
    return op.packed or op.effect


def _is_made(
    ops: Sequence[Op],
    of_group: dict[int, list[int]],
    parent: int,
    reader: int,
    kept: set[int],
    conflicts: set[int],
) -> bool:
    """Say whether what a reader needs is there without calling `parent`."""
    first = first_of(ops[parent])
    if first == reader or ops[first].scalar:
        return True
    if first not in kept:
        return False
    if parent != of_group[first][-1]:
        conflicts.add(first)
    return True
