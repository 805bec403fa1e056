"""What is known of the operators of a block, and what is to become of each result."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ("Action", "Call", "Op", "first_of")


class Action(enum.IntEnum):
    """
    What becomes of the result of an operator after the forward.

    Attributes:
        RECOMPUTE: It is let go, and made again in the backward if that needs it.
        SAVE: It is kept.
        OFFLOAD: It is kept in pinned memory of the CPU, and brought back ahead of its use.
    """

    RECOMPUTE = 0
    SAVE = 1
    OFFLOAD = 2


@dataclass
class Call:
    """
    One call of an operator in a forward, as a policy sees it.

    Attributes:
        op: The overload, such as ``torch.ops.aten.mm.default``.
        index: How many operators the block called before, whatever they were.
        nth: How often it called this one before.
        args: Positional arguments, tensors included. Not to be kept.
        kwargs: Keyword arguments.
        output: What it returned. Not to be kept.
        module: Name of the innermost module that runs, from the block, "" for the block itself.
        regions: Names of the regions that are open, the innermost last.
    """

    op: Any
    index: int
    nth: int
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: Any
    module: str = ""
    regions: tuple[str, ...] = ()


@dataclass
class Op:
    """
    One operator of a block, as it was recorded.

    Attributes:
        index: Its place in the block.
        name: Name of the overload, such as ``"aten.mm.default"``.
        nth: How often the block called this overload before.
        module: Name of the innermost module that ran.
        parents: Operators whose results it reads. Views are looked through: a reader of a
            view reads what the storage holds, so it has the last operator that wrote to it.
        nbytes: Bytes of new memory that its results take; 0 for views and what works in place.
        ms: Milliseconds that it takes.
        shapes: Shape of each tensor it returns.
        view: Whether all its results are views of its arguments. Such an operator is never
            saved, costs nothing, and is called again where its argument is there.
        owner: Where it works in place on memory that the block made, the operator that made
            it; else None.
        reshapes: Whether it changes sizes or strides of its argument, as ``t_()`` does.
        random: Whether it draws random numbers.
        effect: Whether it does more than return a result: a collective, or a change of memory
            from outside the block. It is never left out of a recompute unless it is saved.
        joint: Whether other ranks may have to call it too: a collective, what works on a DTensor,
            or an operator whose inside is not known.
        once: Whether it changes memory from outside that the block does not read afterwards, as
            a counter. It is never called again.
        factory: Whether it makes its result from no tensor at all; never saved.
        scalar: Whether it returns no tensor, as ``item()`` does; always saved, for 0 bytes.
        savable: Whether its result may be kept at all.
        packed: Whether autograd keeps its result, or a view of it, for the backward.
        packed_at: How many operators had run each time that autograd kept it.
        fused: Whether compiled code makes it within the kernel of what reads it, so that making
            it again takes no memory.
        why: Why it is not savable, or "".
    """

    index: int
    name: str
    nth: int = 0
    module: str = ""
    parents: tuple[int, ...] = ()
    nbytes: int = 0
    ms: float = 0.0
    shapes: tuple[tuple[int, ...], ...] = ()
    view: bool = False
    owner: int | None = None
    reshapes: bool = False
    random: bool = False
    effect: bool = False
    joint: bool = False
    once: bool = False
    factory: bool = False
    scalar: bool = False
    savable: bool = True
    packed: bool = False
    packed_at: tuple[int, ...] = ()
    fused: bool = False
    why: str = ""
    regions: tuple[str, ...] = field(default=())


def first_of(op: Op) -> int:
    """Return the operator that made the memory of a result."""
    return op.index if op.owner is None else op.owner
