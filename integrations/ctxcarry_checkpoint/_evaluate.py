"""What a choice costs: which operators run again, for how long, and the bytes that are kept."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ctxcarry_checkpoint._ops import Action, first_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from ctxcarry_checkpoint._ops import Op

    Transfer = Callable[[int], float]

__all__ = ("Choice", "Evaluation", "Node", "Program", "evaluate", "first_of")


@dataclass(frozen=True)
class Choice:
    """
    What becomes of the results of a block.

    Attributes:
        actions: By operator, what is kept and how; all others are recomputed.
        reruns: The operators that the backward calls again.
        nbytes: Bytes that are kept on the device.
        offloaded: Bytes that are kept in the memory of the CPU.
        ms: Milliseconds of recompute.
        transfer_ms: Milliseconds that offloading adds.
        exact: Whether no better choice exists, by what is known of the operators.
    """

    actions: Mapping[int, Action]
    reruns: frozenset[int]
    nbytes: int
    offloaded: int
    ms: float
    transfer_ms: float = 0.0
    exact: bool = False

    @property
    def cost(self) -> float:
        """Return the milliseconds that it adds to a step."""
        return self.ms + self.transfer_ms


class Evaluation(NamedTuple):
    """
    What follows from a choice.

    Attributes:
        reruns: The operators that are called again.
        ms: Milliseconds that they take.
        nbytes: Bytes that are kept on the device.
        offloaded: Bytes that are kept in the memory of the CPU.
        actions: What is kept after all, and how.
    """

    reruns: frozenset[int]
    ms: float
    nbytes: int
    offloaded: int
    actions: dict[int, Action]


@dataclass
class Node:
    """
    An operator together with those that work in place on its result.

    Attributes:
        first: The operator that makes the memory.
        members: All of them, in order.
        size: Bytes of the memory.
        made: Bytes that making it again takes; fewer than its size where that is fused.
        nbytes: Bytes that keeping it takes; 0 where somebody else holds them.
        ms: Milliseconds to run all of them.
        advance: How many members run to advance the random numbers; 0 if none draws any.
        advance_ms: Milliseconds of these.
        savable: Whether it may be kept.
        packed: Whether autograd keeps it for the backward.
        effect: Whether it runs again unless it is kept.
        reads: The nodes that each member reads, and whether that is their last state.
    """

    first: int
    members: tuple[int, ...]
    size: int
    made: int
    nbytes: int
    ms: float
    advance: int
    advance_ms: float
    savable: bool
    packed: bool
    effect: bool
    reads: tuple[tuple[tuple[int, bool], ...], ...] = field(default=())

    def parents(self, *, advance: bool = False) -> dict[int, bool]:
        """Return what it reads, and whether all of these readings are of the last state."""
        found: dict[int, bool] = {}
        for reads in self.reads[: self.advance] if advance else self.reads:
            for parent, last in reads:
                found[parent] = found.get(parent, True) and last
        return found


class Program:
    """
    The operators of a block, as far as there is something to decide.

    Views and what returns no tensor are not in it: they are made again for nothing, and
    always there.

    Args:
        ops: The operators.
        held: Those whose results somebody holds anyway, so that keeping them takes nothing.
    """

    def __init__(self, ops: Sequence[Op], held: Collection[int] = ()) -> None:
        self.ops = ops
        members: dict[int, list[Op]] = defaultdict(list)
        for op in ops:
            if not op.view and not op.scalar:
                members[first_of(op)].append(op)
        self.held = frozenset(first_of(ops[index]) for index in held)
        self.nodes = {first: self._node(first, group) for first, group in members.items()}
        for first, group in members.items():
            self.nodes[first].reads = tuple(tuple(self._reads(first, op.parents)) for op in group)
        # In the order in which they draw: a node may draw more than once.
        self.draws = [first_of(op) for op in ops if op.random and first_of(op) in self.nodes]
        self.rank = {first: rank for rank, first in enumerate(self.draws)}

    def evaluate(self, actions: Mapping[int, Action]) -> Evaluation:
        """
        Return what follows from a choice.

        Args:
            actions: By operator, what is to be kept.

        Returns:
            Without those that cannot be kept: see `ctxcarry_checkpoint._liveness.live`.
        """
        kept = self.settled(actions)
        while True:
            full, advanced, conflicts = self._closure(kept)
            if not conflicts:
                break
            kept = {first: action for first, action in kept.items() if first not in conflicts}
        reruns = [index for first in full for index in self.nodes[first].members]
        ms = sum(self.nodes[first].ms for first in sorted(full))
        for first in sorted(advanced):
            node = self.nodes[first]
            reruns += node.members[: node.advance]
            ms += node.advance_ms
        sizes = {Action.SAVE: 0, Action.OFFLOAD: 0}
        for first, action in kept.items():
            sizes[action] += self.nodes[first].nbytes
        return Evaluation(frozenset(reruns), ms, sizes[Action.SAVE], sizes[Action.OFFLOAD], kept)

    def settled(self, actions: Mapping[int, Action]) -> dict[int, Action]:
        """Return a choice by node, without what can never be kept."""
        kept = {}
        for index in sorted(actions):
            first = first_of(self.ops[index])
            if actions[index] and first in self.nodes and self.nodes[first].savable:
                # What is held stays on the device, so there is nothing to move.
                kept[first] = Action.SAVE if first in self.held else Action(actions[index])
        return kept

    def choice(
        self,
        actions: Mapping[int, Action],
        transfer: Transfer | None = None,
        *,
        exact: bool = False,
    ) -> Choice:
        """Return a choice with all that follows from it."""
        found = self.evaluate(actions)
        return Choice(
            actions=found.actions,
            reruns=found.reruns,
            nbytes=found.nbytes,
            offloaded=found.offloaded,
            ms=found.ms,
            transfer_ms=self.transfer_ms(found.actions, transfer),
            exact=exact,
        )

    def transfer_ms(self, actions: Mapping[int, Action], transfer: Transfer | None) -> float:
        """Return the milliseconds that offloading adds."""
        if transfer is None:
            return 0.0
        moved = [first for first, action in actions.items() if action is Action.OFFLOAD]
        return sum(transfer(self.nodes[first].nbytes) for first in sorted(moved))

    def _closure(self, kept: Mapping[int, Action]) -> tuple[set[int], set[int], set[int]]:
        full: set[int] = set()
        advanced: set[int] = set()
        conflicts: set[int] = set()
        waiting = [
            first
            for first, node in self.nodes.items()
            if (node.packed or node.effect) and first not in kept
        ]
        drawn = -1
        while waiting:
            first = waiting.pop()
            if first in full or first in advanced:
                continue
            node = self.nodes[first]
            (advanced if first in kept else full).add(first)
            for parent, last in node.parents(advance=first in kept).items():
                if parent not in kept:
                    waiting.append(parent)
                elif not last:
                    conflicts.add(parent)
            rank = self.rank.get(first, -1)
            if rank > drawn:
                waiting += self.draws[drawn + 1 : rank]
                drawn = rank
        return full, advanced, conflicts

    def _node(self, first: int, group: Sequence[Op]) -> Node:
        draws = [place for place, op in enumerate(group, 1) if op.random]
        advance = max(draws, default=0)
        size = sum(op.nbytes for op in group)
        return Node(
            first=first,
            members=tuple(op.index for op in group),
            size=size,
            made=sum(op.nbytes for op in group if not op.fused),
            nbytes=0 if first in self.held else size,
            ms=sum(op.ms for op in group),
            advance=advance,
            advance_ms=sum(op.ms for op in group[:advance]),
            savable=group[0].savable and not group[0].factory and group[0].owner is None,
            packed=any(op.packed for op in group),
            effect=any(op.effect for op in group),
        )

    def _reads(self, first: int, parents: Iterable[int]) -> Iterable[tuple[int, bool]]:
        for parent in parents:
            made = first_of(self.ops[parent])
            if made != first and made in self.nodes:
                yield made, parent == self.nodes[made].members[-1]


def evaluate(
    ops: Sequence[Op], actions: Mapping[int, Action], held: Collection[int] = ()
) -> Evaluation:
    """
    Return what a choice costs.

    Args:
        ops: The operators of a block.
        actions: By operator, what is to be kept.
        held: Those whose results somebody holds anyway, so that keeping them takes nothing.
    """
    return Program(ops, held).evaluate(actions)
