"""A plan: what each block of a model keeps, what that costs, and why."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ctxcarry_checkpoint._budget import BudgetError, budget_bytes
from ctxcarry_checkpoint._progress import quiet
from ctxcarry_checkpoint._whole import (
    Kind,
    Share,
    allot,
    kinds_of,
    peak_of,
    range_of,
    refined,
    tradeoffs,
)
from ctxcarry_checkpoint._why import why

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from ctxcarry_checkpoint._evaluate import Choice, Transfer
    from ctxcarry_checkpoint._ops import Action
    from ctxcarry_checkpoint._progress import Tell
    from ctxcarry_checkpoint._whole import Block

__all__ = ("Group", "Plan", "make_plan")

_SECONDS = 10.0


@dataclass(frozen=True)
class Group:
    """
    Blocks that run the same operators and get the same choice.

    Attributes:
        names: Their names, in the order of the model.
        kind: What they run, and the choices there were.
        choice: What was chosen.
    """

    names: tuple[str, ...]
    kind: Kind
    choice: Choice

    @property
    def label(self) -> str:
        """Return one name for all of them, such as ``"layers.0 … layers.31 (32)"``."""
        if len(self.names) == 1:
            return self.names[0]
        return f"{self.names[0]} … {self.names[-1]} ({len(self.names)})"

    @property
    def calls(self) -> int:
        """Return how often they are called, all together, before their backward."""
        return len(self.names) * self.kind.calls

    @property
    def share(self) -> Share:
        """Return the group without its names."""
        return Share(self.kind, self.choice, len(self.names))


@dataclass(frozen=True, repr=False)
class Plan:
    """
    What each block of a model keeps.

    Attributes:
        groups: The blocks, those with the same choice together.
        budget: Bytes that the peak may have.
        roofline: Name of the device that the times are of.
        pareto: Peaks in bytes, and the milliseconds that each costs, that a budget decides
            among.
        offset: Bytes that a measured peak had more than the predicted one.
        measured: Whether the times were measured there, and not estimated.
    """

    groups: tuple[Group, ...]
    budget: int
    roofline: str = ""
    pareto: tuple[tuple[int, float], ...] = ()
    offset: int = 0
    measured: bool = False

    def __repr__(self) -> str:
        return (
            f"Plan({len(self.blocks)} blocks, budget={self.budget}, peak={self.peak}, "
            f"ms={self.ms:.3g})"
        )

    @property
    def blocks(self) -> tuple[str, ...]:
        """Return the names of all blocks."""
        return tuple(name for group in self.groups for name in group.names)

    @property
    def peak(self) -> int:
        """Return the bytes at the peak: what is kept, and what the worst block recomputes."""
        return peak_of([group.share for group in self.groups]) + self.offset

    @property
    def kept_bytes(self) -> int:
        """Return the bytes that all blocks keep on the device, with what is held anyway."""
        return sum(len(group.names) * group.kind.kept_bytes(group.choice) for group in self.groups)

    @property
    def offloaded_bytes(self) -> int:
        """Return the bytes that all blocks keep in the memory of the CPU."""
        return sum(group.calls * group.choice.offloaded for group in self.groups)

    @property
    def unchecked_bytes(self) -> int:
        """Return the bytes that are kept where nothing is checkpointed."""
        return sum(group.calls * group.kind.unchecked_bytes for group in self.groups)

    @property
    def full_bytes(self) -> int:
        """Return the bytes at the peak where all is recomputed."""
        return peak_of(self._full()) + self.offset

    @property
    def full_ms(self) -> float:
        """Return the milliseconds of recompute where all is recomputed."""
        return sum(share.count * share.kind.calls * share.choice.ms for share in self._full())

    @property
    def ms(self) -> float:
        """Return the milliseconds of recompute in all blocks."""
        return sum(group.calls * group.choice.ms for group in self.groups)

    @property
    def cost(self) -> float:
        """Return the milliseconds that the plan adds to a step."""
        return sum(group.calls * group.choice.cost for group in self.groups)

    @property
    def forward_ms(self) -> float:
        """Return the milliseconds of the forward of all blocks."""
        return sum(group.calls * group.kind.forward_ms for group in self.groups)

    @property
    def exact(self) -> bool:
        """Return whether each block has the best choice for its bytes."""
        return all(group.choice.exact for group in self.groups)

    def group(self, block: str) -> Group:
        """
        Return the group that a block is in.

        Raises:
            KeyError: The plan has no such block.
        """
        for group in self.groups:
            if block in group.names:
                return group
        msg = f"the plan has no block {block!r}. It has {', '.join(self.blocks)}"
        raise KeyError(msg)

    def actions(self, block: str) -> dict[tuple[str, int], Action]:
        """Return what a block keeps: by the name of the operator, and how often it ran before."""
        group = self.group(block)
        chosen = ((group.kind.ops[at], action) for at, action in group.choice.actions.items())
        return {(op.name, op.nth): action for op, action in chosen}

    def why(self, block: str, index: int) -> str:
        """
        Return why an operator of a block is kept, runs again, or does not.

        Args:
            block: The name of the block.
            index: The place of the operator in it.

        Raises:
            IndexError: The block has fewer operators.
        """
        group = self.group(block)
        if not 0 <= index < len(group.kind.ops):
            msg = f"{block} has operators 0 to {len(group.kind.ops) - 1}, so none at {index}"
            raise IndexError(msg)
        return why(group.kind.program, group.choice, index)

    def adjusted(self, measured_bytes: int, *, time_limit: float = _SECONDS) -> Plan:
        """
        Return a plan that keeps the budget, given what this one took.

        Args:
            measured_bytes: The peak that was measured with this plan.
            time_limit: Seconds to look for the best.

        Raises:
            BudgetError: Nothing fits with so much more than was predicted.
        """
        kinds = self._kinds()
        offset = measured_bytes - self.peak + self.offset
        least, most = range_of(kinds)
        if self.budget - offset < least:
            raise BudgetError(self.budget, least + offset, most + offset)
        groups = _grouped(kinds, allot(kinds, self.budget - offset, time_limit=time_limit))
        moved = tuple((nbytes + offset - self.offset, ms) for nbytes, ms in self.pareto)
        return replace(self, groups=groups, pareto=moved, offset=offset)

    def report(self, console: Any = None) -> None:
        """
        Print what each block keeps, and what is worth the most.

        Args:
            console: A ``rich.console.Console``, or None for one on the standard output.
        """
        from ctxcarry_checkpoint._report import report  # noqa: PLC0415 - needs an extra

        report(self, console)

    def plot(self, path: str | Path) -> None:
        """
        Draw what each budget would cost.

        Args:
            path: A file with the ending .svg, .png or .pdf.
        """
        from ctxcarry_checkpoint._plot import plot  # noqa: PLC0415 - needs an extra

        plot(self, path)

    def to_json(self) -> str:
        """Return the plan as text, from which `from_json` makes it again."""
        from ctxcarry_checkpoint._plan_text import written  # noqa: PLC0415 - it needs this file

        return written(self)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """
        Return a plan that was written as text.

        Raises:
            ValueError: It is no plan, or one of another version.
        """
        from ctxcarry_checkpoint._plan_text import read  # noqa: PLC0415 - it needs this file

        return read(text)

    def _kinds(self) -> list[Kind]:
        return [group.kind for group in _one_of_each_kind(self.groups)]

    def _full(self) -> list[Share]:
        return [Share(kind, kind.program.choice({}), len(kind.names)) for kind in self._kinds()]


def make_plan(
    blocks: Iterable[Block],
    budget: object,
    *,
    roofline: str = "",
    offload_ms: Transfer | None = None,
    measured: bool = False,
    points: int = 12,
    time_limit: float = _SECONDS,
    tell: Tell = quiet,
) -> Plan:
    """
    Return what each block is to keep.

    Args:
        blocks: The blocks of a model, in its order.
        budget: What the peak may have: see `ctxcarry_checkpoint._budget.budget_bytes`.
        roofline: Name of the device that the times are of.
        offload_ms: Milliseconds that offloading so many bytes adds, or None without offloading.
        measured: Whether the times were measured there.
        points: How many choices to look for in each kind of block.
        time_limit: Seconds for each choice.
        tell: Called with what is done, and how much of it.

    Raises:
        BudgetError: Nothing fits.
        ValueError: The budget is none.
    """
    kinds = kinds_of(blocks, points=points, offload_ms=offload_ms, time_limit=time_limit, tell=tell)
    whole = sum(len(kind.names) * kind.calls * kind.unchecked_bytes for kind in kinds)
    whole += max((kind.gradients for kind in kinds), default=0)
    limit = budget_bytes(budget, whole)
    if limit >= whole:
        # Where nothing is recomputed, results pass by just as they do without a checkpoint.
        limit = max(limit, range_of(kinds)[1])
    shares = allot(kinds, limit, time_limit=time_limit)
    shares = refined(shares, limit, offload_ms=offload_ms, time_limit=time_limit)
    plan = Plan(_grouped(kinds, shares), limit, roofline, measured=measured)
    points_of = [*tradeoffs(kinds, tell=tell), (plan.peak, plan.cost)]
    return replace(plan, pareto=_undominated(points_of))


def _grouped(kinds: Sequence[Kind], shares: Iterable[Share]) -> tuple[Group, ...]:
    """Give the shares their names: the block that recomputes most is to come first."""
    left = {id(kind): list(kind.names) for kind in kinds}
    found = []
    # By the time of its backward the blocks after it have let go of what they kept.
    for share in sorted(shares, key=lambda share: -share.kind.working(share.choice)):
        names = left[id(share.kind)]
        found.append(Group(tuple(names[: share.count]), share.kind, share.choice))
        del names[: share.count]
    place = {id(kind): at for at, kind in enumerate(kinds)}
    return tuple(sorted(found, key=lambda group: place[id(group.kind)]))


def _undominated(points: Iterable[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    found: list[tuple[int, float]] = []
    for point in sorted(points):
        if not found or point[1] < found[-1][1]:
            found.append(point)
    return tuple(found)


def _one_of_each_kind(groups: Iterable[Group]) -> list[Group]:
    return list({id(group.kind): group for group in groups}.values())
