"""Choose what to keep one by one, each time what spares most for its bytes."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from ctxcarry_checkpoint._ops import Action

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ctxcarry_checkpoint._evaluate import Program, Transfer

__all__ = ("fit", "greedy", "trim")

_LEAST = 1e-12
"""Milliseconds below which a difference is one of rounding."""


def greedy(program: Program, budget: int, transfer: Transfer | None = None) -> dict[int, Action]:
    """
    Return a choice that fits, not always the best.

    Args:
        program: The operators of a block.
        budget: Bytes that may be kept on the device.
        transfer: Milliseconds that offloading so many bytes adds, or None without offloading.

    Returns:
        The better of two: from nothing kept, adding what spares most for its bytes; and from
        all kept, letting go what spares least.
    """
    everything = {first: Action.SAVE for first, node in program.nodes.items() if node.savable}
    found = []
    for start in ({}, fit(program, everything, budget)):
        kept = trim(program, _fill(program, start, budget))
        if transfer is not None:
            kept = trim(program, _offload(program, kept, transfer))
            kept = trim(program, _fill(program, kept, budget))
        cost = program.evaluate(kept).ms + program.transfer_ms(kept, transfer)
        found.append((cost, kept))
    return min(found, key=lambda pair: pair[0])[1]


def trim(program: Program, actions: Mapping[int, Action]) -> dict[int, Action]:
    """Return a choice without what spares nothing, the largest gone first."""
    before = program.evaluate(actions)
    kept = before.actions
    for first in sorted(kept, key=lambda first: (-program.nodes[first].nbytes, -first)):
        fewer = {each: action for each, action in kept.items() if each != first}
        after = program.evaluate(fewer)
        if after.ms <= before.ms + _LEAST:
            kept = after.actions
    return kept


def fit(program: Program, actions: Mapping[int, Action], budget: int) -> dict[int, Action]:
    """Return a choice without what spares least for its bytes, as much as is over the budget."""
    found = program.evaluate(actions)

    def loss(first: int) -> float:
        fewer = {each: action for each, action in found.actions.items() if each != first}
        return (program.evaluate(fewer).ms - found.ms) / program.nodes[first].nbytes

    stale = {first: loss(first) for first in _bulky(program, found.actions)}
    heap = [(each, first) for first, each in stale.items()]
    heapq.heapify(heap)
    while found.nbytes > budget:
        _, first = heapq.heappop(heap)
        if first not in found.actions:
            continue
        now = loss(first)
        # Others went meanwhile, so that it may spare more than when it was looked at last.
        if heap and now > heap[0][0]:
            heapq.heappush(heap, (now, first))
            continue
        fewer = {each: action for each, action in found.actions.items() if each != first}
        found = program.evaluate(fewer)
    return found.actions


def _bulky(program: Program, actions: Mapping[int, Action]) -> list[int]:
    return [
        first
        for first, action in actions.items()
        if action is Action.SAVE and program.nodes[first].nbytes
    ]


def _fill(program: Program, actions: Mapping[int, Action], budget: int) -> dict[int, Action]:
    found = program.evaluate(actions)
    waiting = [first for first, node in program.nodes.items() if node.savable]
    while True:
        before = found
        # By what each was worth when it was looked at last; infinite to have all looked at.
        heap = [(-float("inf"), first) for first in waiting if first not in found.actions]
        heapq.heapify(heap)
        while heap:
            _, first = heapq.heappop(heap)
            more = program.evaluate({**found.actions, first: Action.SAVE})
            spared = found.ms - more.ms
            if spared <= _LEAST or more.nbytes > budget:
                continue
            worth = spared / max(more.nbytes - found.nbytes, 1)
            if heap and -worth > heap[0][0]:
                heapq.heappush(heap, (-worth, first))
                continue
            found = more
        # What was worth nothing alone may be worth something together with others.
        if found.ms >= before.ms - _LEAST:
            return found.actions


def _offload(
    program: Program, actions: Mapping[int, Action], transfer: Transfer
) -> dict[int, Action]:
    found = program.evaluate(actions)
    ranked = sorted(program.nodes.values(), key=lambda node: -node.ms)
    for node in ranked:
        if not node.savable or not node.nbytes or found.actions.get(node.first):
            continue
        more = program.evaluate({**found.actions, node.first: Action.OFFLOAD})
        if found.ms - more.ms > transfer(node.nbytes) + _LEAST:
            found = more
    return found.actions
