"""The blocks of a model, those that run the same operators together."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from ctxcarry_checkpoint._evaluate import Choice, Program
from ctxcarry_checkpoint._progress import quiet
from ctxcarry_checkpoint._solver import front

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ctxcarry_checkpoint._evaluate import Transfer
    from ctxcarry_checkpoint._ops import Op
    from ctxcarry_checkpoint._progress import Tell

__all__ = ("Block", "Kind", "Share", "kind_key", "kinds_of", "peak_of")

_SECONDS = 10.0


@dataclass(frozen=True)
class Block:
    """
    A part of a model that is recomputed as a whole.

    Attributes:
        name: Its name in the model.
        ops: The operators of its forward.
        held: Operators whose results the model holds anyway, as the input of the next block is.
        aliases: Names of other blocks that are known to run the same operators.
        gradients: Bytes of gradients within it that its backward needs at once, as far as they
            are counted.
        calls: How often it is called before its backward: by several microbatches of a
            pipeline, or several times in a forward.
    """

    name: str
    ops: tuple[Op, ...]
    held: frozenset[int] = frozenset()
    aliases: tuple[str, ...] = ()
    gradients: int = 0
    calls: int = 1


@dataclass(frozen=True)
class Kind:
    """
    Blocks that run the same operators.

    Attributes:
        names: Their names, in the order of the model.
        ops: The operators of the first of them.
        held: Operators whose results the model holds anyway.
        front: The choices among which a budget decides.
        gradients: Bytes of gradients within one that its backward needs at once, as far as they
            are counted.
        calls: How often each is called before its backward.
    """

    names: tuple[str, ...]
    ops: tuple[Op, ...]
    held: frozenset[int]
    front: tuple[Choice, ...] = field(default=())
    gradients: int = 0
    calls: int = 1

    @cached_property
    def program(self) -> Program:
        """Return what there is to decide in one block."""
        return Program(self.ops, self.held)

    @cached_property
    def workings(self) -> tuple[int, ...]:
        """Return the working set of each choice of the front."""
        return tuple(self.working(choice) for choice in self.front)

    @property
    def held_bytes(self) -> int:
        """Return the bytes of a call that the model holds whatever is chosen."""
        return sum(node.size - node.nbytes for node in self.program.nodes.values())

    @property
    def unchecked_bytes(self) -> int:
        """Return the bytes that a call keeps where nothing is checkpointed."""
        nodes = self.program.nodes.values()
        return self.held_bytes + sum(min(node.nbytes, node.made) for node in nodes if node.packed)

    @property
    def forward_ms(self) -> float:
        """Return the milliseconds of the forward of one block."""
        return sum(op.ms for op in self.ops)

    def kept_bytes(self, choice: Choice) -> int:
        """Return the bytes that one block holds between forward and backward, of all its calls."""
        return self.calls * (self.held_bytes + choice.nbytes)

    def working(self, choice: Choice) -> int:
        """
        Return the bytes that the backward of one block takes for what it recomputes.

        All that autograd has packed is made again before the first of it is used. What lies
        between lives for an operator or two.
        """
        nodes = self.program.nodes
        again = {first for first in nodes if first in choice.reruns and first not in choice.actions}
        packed = sum(nodes[first].made for first in again if nodes[first].packed)
        passing = {first: nodes[first].made for first in again if not nodes[first].packed}
        between = (
            passing.get(first, nodes[first].size if first in choice.actions else 0)
            + sum(passing.get(parent, 0) for parent in nodes[first].parents())
            for first in nodes
            if first in choice.reruns
        )
        return packed + choice.offloaded + max(between, default=0) + self.gradients


@dataclass(frozen=True)
class Share:
    """Some blocks of a kind, which all get the same choice."""

    kind: Kind
    choice: Choice
    count: int


def kinds_of(
    blocks: Iterable[Block],
    *,
    points: int = 12,
    offload_ms: Transfer | None = None,
    time_limit: float = _SECONDS,
    tell: Tell = quiet,
) -> list[Kind]:
    """
    Put blocks that run the same operators together, and solve each kind once.

    How long each operator took is not compared: where it was measured, no two are equal.

    Args:
        blocks: The blocks of a model, in its order.
        points: How many choices to look for in each kind.
        offload_ms: Milliseconds that offloading so many bytes adds, or None without offloading.
        time_limit: Seconds for each choice.
        tell: Called with what is done, and how much of it.
    """
    found: dict[object, tuple[Block, list[str]]] = {}
    for block in blocks:
        _, names = found.setdefault(kind_key(block), (block, []))
        names += [block.name, *block.aliases]
    kinds = []
    for number, (block, names) in enumerate(found.values()):
        tell("what each kind of block may keep", number, len(found))
        choices = front(
            block.ops, points, held=block.held, offload_ms=offload_ms, time_limit=time_limit
        )
        kinds.append(
            Kind(tuple(names), block.ops, block.held, tuple(choices), block.gradients, block.calls)
        )
    tell("what each kind of block may keep", len(found), len(found))
    return kinds


def kind_key(block: Block) -> object:
    """Return what is the same for blocks that run the same operators."""
    return tuple(_signature(op) for op in block.ops), block.held, block.calls


def peak_of(shares: Sequence[Share]) -> int:
    """
    Return the bytes at the peak: all that is kept, and what the worst block recomputes.

    That the blocks after it have let go of theirs by then is not counted on.
    """
    kept = sum(share.count * share.kind.kept_bytes(share.choice) for share in shares)
    return kept + max((share.kind.working(share.choice) for share in shares), default=0)


def _signature(op: Op) -> tuple[object, ...]:
    return (
        op.name,
        op.parents,
        op.nbytes,
        op.owner,
        op.view,
        op.random,
        op.effect,
        op.factory,
        op.scalar,
        op.savable,
        op.packed,
    )
