"""Choose what to keep of a block, so that the backward recomputes for the shortest time."""

from __future__ import annotations

import functools
import importlib
import math
import warnings
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ctxcarry_checkpoint._budget import BudgetError
from ctxcarry_checkpoint._evaluate import Choice, Program
from ctxcarry_checkpoint._greedy import fit, greedy, trim
from ctxcarry_checkpoint._ops import Action
from ctxcarry_checkpoint._rows import Rows

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from ctxcarry_checkpoint._evaluate import Node, Transfer
    from ctxcarry_checkpoint._ops import Op

__all__ = ("everything", "front", "solve")

_SECONDS = 10.0
_TRIES = 3
_BYTES_WEIGHT = 1e-7
"""Of two choices that take as long the smaller is better, but no longer one ever is."""


def solve(
    ops: Sequence[Op],
    budget: int,
    *,
    held: Collection[int] = (),
    offload_ms: Transfer | None = None,
    time_limit: float = _SECONDS,
) -> Choice:
    """
    Return what to keep of a block.

    Args:
        ops: Its operators.
        budget: Bytes that it may keep on the device.
        held: Operators whose results somebody holds anyway, so that keeping them takes nothing.
        offload_ms: Milliseconds that offloading so many bytes adds, or None without offloading.
        time_limit: Seconds after which the best choice so far is taken.

    Returns:
        The best choice, or a good one where scipy is missing or the time is over: see
        `Choice.exact`.

    Raises:
        BudgetError: The budget is negative.
    """
    program = Program(ops, held)
    if budget < 0:
        raise BudgetError(budget, 0, everything(ops, held).nbytes)
    return _solve(program, budget, offload_ms, time_limit)


def everything(
    ops: Sequence[Op], held: Collection[int] = (), *, time_limit: float = _SECONDS
) -> Choice:
    """Return the choice that recomputes the least, with as few bytes as that takes."""
    program = Program(ops, held)
    return _solve(program, _bytes(program), None, time_limit)


def front(
    ops: Sequence[Op],
    points: int = 12,
    *,
    held: Collection[int] = (),
    offload_ms: Transfer | None = None,
    time_limit: float = _SECONDS,
) -> list[Choice]:
    """
    Return the choices among which a budget decides, from the fewest bytes to the most.

    Each takes less time than those before it. Budgets are tried where two neighbours are
    farthest apart.

    Args:
        ops: The operators of a block.
        points: How many choices to look for; there may be fewer.
        held: Operators whose results somebody holds anyway, so that keeping them takes nothing.
        offload_ms: Milliseconds that offloading so many bytes adds, or None without offloading.
        time_limit: Seconds for each.
    """
    program = Program(ops, held)
    budgets = 0, _bytes(program)
    found = [_solve(program, budget, offload_ms, time_limit) for budget in budgets]
    # Bytes up to which the choice at each place is known to be the best.
    known = {found[0].nbytes: 0}
    for _ in range(_TRIES * points):
        gaps = [
            ((right.nbytes - known[left.nbytes]) * (left.cost - right.cost), left, right)
            for left, right in pairwise(found)
            if right.nbytes - known[left.nbytes] > 1
        ]
        area, left, right = max(gaps, key=lambda gap: gap[0], default=(0, found[0], found[0]))
        if area <= 0 or len(found) >= points:
            break
        budget = (known[left.nbytes] + right.nbytes) // 2
        middle = _solve(program, budget, offload_ms, time_limit)
        if middle.nbytes <= left.nbytes:
            known[left.nbytes] = budget
            continue
        known[middle.nbytes] = budget
        found = sorted([*found, middle], key=lambda choice: choice.nbytes)
    return undominated(found)


def undominated(choices: Iterable[Choice]) -> list[Choice]:
    """Return the choices that are better than each with fewer bytes, these first."""
    found: list[Choice] = []
    for choice in sorted(choices, key=lambda choice: (choice.nbytes, choice.cost)):
        if not found or choice.cost < found[-1].cost:
            found.append(choice)
    return found


def _bytes(program: Program) -> int:
    return sum(node.nbytes for node in program.nodes.values())


def _solve(program: Program, budget: int, transfer: Transfer | None, time_limit: float) -> Choice:
    scipy = optimizer()
    exact, kept = False, None
    if scipy is not None:
        exact, kept = _Milp(program, budget, transfer).solve(scipy, time_limit)
    if kept is not None:
        # The optimizer works with fractions, so what it says is checked in whole bytes.
        over = program.evaluate(kept).nbytes - budget
        if over > 0:
            exact = False
            kept = _Milp(program, budget - over, transfer).solve(scipy, time_limit)[1] or kept
        kept = trim(program, fit(program, kept, budget))
        if exact:
            return program.choice(kept, transfer, exact=True)
    choices = [program.choice(greedy(program, budget, transfer), transfer)]
    if kept is not None:
        choices.append(program.choice(kept, transfer))
    return min(choices, key=lambda choice: choice.cost)


@functools.cache
def optimizer() -> Any:
    """Return ``scipy.optimize``, or None and a warning, once, where it is missing."""
    try:
        return importlib.import_module("scipy.optimize")
    except ImportError:
        warnings.warn(
            "scipy is missing, so that what to keep is chosen one by one, which may recompute "
            'more than it has to. Install it with: pip install "ctxcarry[checkpoint]"',
            RuntimeWarning,
            stacklevel=2,
        )
        return None


class _Milp:
    """
    The choice as a mixed-integer linear program.

    Each node has a binary "saved" and a binary "rerun". Some have an "offloaded", and an
    "advanced": it is kept, and called again for its random numbers.
    """

    def __init__(self, program: Program, budget: int, transfer: Transfer | None) -> None:
        self._program = program
        self._rows = Rows()
        self._nodes = _relevant(program)
        self._saved: dict[int, int] = {}
        self._rerun: dict[int, int] = {}
        self._moved: dict[int, int] = {}
        self._advanced: dict[int, int] = {}
        self._add_columns(transfer)
        for node in self._nodes.values():
            self._constrain(node)
        self._draw_in_order()
        sizes = {self._saved[first]: node.nbytes for first, node in self._nodes.items()}
        unit = math.gcd(*sizes.values()) or 1
        self._rows.add(
            ((column, nbytes // unit) for column, nbytes in sizes.items()), most=budget // unit
        )

    def solve(self, scipy: Any, time_limit: float) -> tuple[bool, dict[int, Action] | None]:
        """Return whether the choice is the best, and the choice, or None if there is none yet."""
        if not self._nodes:
            return True, {}
        done, values = self._rows.solve(scipy, time_limit)
        if values is None:
            return False, None
        kept = {first: Action.SAVE for first, at in self._saved.items() if values[at] > 0.5}  # noqa: PLR2004
        moved = {first: Action.OFFLOAD for first, at in self._moved.items() if values[at] > 0.5}  # noqa: PLR2004
        return done, {**kept, **moved}

    def _add_columns(self, transfer: Transfer | None) -> None:
        # In parts of the whole, so that the tolerances of the optimizer mean the same for all.
        ms = sum(node.ms for node in self._nodes.values()) or 1.0
        nbytes = sum(node.nbytes for node in self._nodes.values()) or 1
        for first, node in self._nodes.items():
            cost = _BYTES_WEIGHT * node.nbytes / nbytes
            self._saved[first] = self._rows.column(cost, most=int(node.savable), whole=True)
            self._rerun[first] = self._rows.column(node.ms / ms, whole=True)
            if node.savable and transfer is not None and node.nbytes:
                cost = transfer(node.nbytes) / ms
                self._moved[first] = self._rows.column(cost, whole=True)
            if node.savable and node.advance:
                self._advanced[first] = self._rows.column(node.advance_ms / ms, whole=True)

    def _kept(self, first: int, sign: int = 1) -> list[tuple[int, int]]:
        columns = [self._saved[first], self._moved.get(first)]
        return [(column, sign) for column in columns if column is not None]

    def _constrain(self, node: Node) -> None:
        first, rows = node.first, self._rows
        if first in self._moved:
            rows.add(self._kept(first), most=1)
        if node.packed or node.effect:
            rows.add([*self._kept(first), (self._rerun[first], 1)], least=1)
        runs = {False: self._rerun[first]}
        if first in self._advanced:
            runs[True] = self._advanced[first]
            rows.add([(self._advanced[first], 1), *self._kept(first, -1)], most=0)
        for advance, run in runs.items():
            for parent, last in node.parents(advance=advance).items():
                rows.add([(run, 1), (self._rerun[parent], -1), *self._kept(parent, -1)], most=0)
                if not last:
                    rows.add([(run, 1), *self._kept(parent)], most=1)

    def _draw_in_order(self) -> None:
        draws = [first for first in self._program.draws if first in self._nodes]
        for before, after in pairwise(draws):
            if before != after:
                self._rows.add([*self._runs(after, 1), *self._runs(before, -1)], most=0)

    def _runs(self, first: int, sign: int) -> list[tuple[int, int]]:
        columns = [self._rerun[first], self._advanced.get(first)]
        return [(column, sign) for column in columns if column is not None]


def _relevant(program: Program) -> dict[int, Node]:
    """Return the nodes that a recompute could ever call."""
    nothing = program.evaluate({})
    found = {first for first, node in program.nodes.items() if first in nothing.reruns}
    return {first: program.nodes[first] for first in sorted(found)}
