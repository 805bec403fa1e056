"""Choose for all blocks of a model together, so that the peak of memory stays in a budget."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from ctxcarry_checkpoint._budget import BudgetError
from ctxcarry_checkpoint._kinds import Block, Kind, Share, kinds_of, peak_of
from ctxcarry_checkpoint._progress import quiet
from ctxcarry_checkpoint._rows import Rows
from ctxcarry_checkpoint._solver import optimizer, solve

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ctxcarry_checkpoint._evaluate import Choice, Transfer
    from ctxcarry_checkpoint._progress import Tell

__all__ = (
    "Block",
    "Kind",
    "Share",
    "allot",
    "kinds_of",
    "peak_of",
    "range_of",
    "refined",
    "tradeoffs",
)

_LEVELS = 48
_SECONDS = 10.0


def range_of(kinds: Sequence[Kind]) -> tuple[int, int]:
    """Return the smallest budget that is possible, and the largest that is of use."""
    least = min(
        (peak_of(shares) for level in _levels(kinds) if (shares := _smallest(kinds, level))),
        default=0,
    )
    return least, peak_of([Share(kind, kind.front[-1], len(kind.names)) for kind in kinds])


def allot(kinds: Sequence[Kind], budget: int, *, time_limit: float = _SECONDS) -> list[Share]:
    """
    Return what each block gets.

    Args:
        kinds: The blocks of a model.
        budget: Bytes at the peak.
        time_limit: Seconds after which the best so far is taken.

    Raises:
        BudgetError: Nothing fits.
    """
    least, most = range_of(kinds)
    if budget < least:
        raise BudgetError(budget, least, most)
    if budget >= most:
        return [Share(kind, kind.front[-1], len(kind.names)) for kind in kinds]
    found = [_greedy(kinds, budget)]
    scipy = optimizer()
    if scipy is not None:
        limit = budget
        for _ in range(2):
            shares = _Knapsack(kinds, limit).solve(scipy, time_limit)
            over = peak_of(shares) - budget if shares else 0
            if over <= 0:
                found += [shares] if shares else []
                break
            # The optimizer works with fractions; whole blocks may take a little more.
            limit -= over
    return min(found, key=_cost)


def refined(
    shares: Sequence[Share],
    budget: int,
    *,
    offload_ms: Transfer | None = None,
    time_limit: float = _SECONDS,
) -> list[Share]:
    """
    Return better choices where a budget has some bytes left, as it has between two points.

    Args:
        shares: What each block gets so far.
        budget: Bytes at the peak.
        offload_ms: Milliseconds that offloading so many bytes adds, or None without offloading.
        time_limit: Seconds for each choice.
    """
    found = list(shares)
    for place in sorted(range(len(found)), key=lambda place: -found[place].count):
        share = found[place]
        spare = (budget - peak_of(found)) // (share.count * share.kind.calls)
        if spare <= 0 or share.choice.cost <= share.kind.front[-1].cost:
            continue
        choice = solve(
            share.kind.ops,
            share.choice.nbytes + spare,
            held=share.kind.held,
            offload_ms=offload_ms,
            time_limit=time_limit,
        )
        better = [*found[:place], Share(share.kind, choice, share.count), *found[place + 1 :]]
        if choice.cost < share.choice.cost and peak_of(better) <= budget:
            found = better
    return found


def tradeoffs(
    kinds: Sequence[Kind], points: int = 24, *, time_limit: float = 1.0, tell: Tell = quiet
) -> list[tuple[int, float]]:
    """Return the peaks and milliseconds among which a budget of the model decides."""
    least, most = range_of(kinds)
    budgets = {least + (most - least) * at // (points - 1) for at in range(points)}
    found = []
    for number, budget in enumerate(sorted(budgets), 1):
        shares = allot(kinds, budget, time_limit=time_limit)
        found.append((peak_of(shares), _cost(shares)))
        tell("what other budgets cost", number, len(budgets))
    return found


class _Knapsack:
    """
    One choice for each block as a linear program with whole numbers.

    The working set of the worst block is one of some levels, each of which stands for all
    between it and the one below.
    """

    def __init__(self, kinds: Sequence[Kind], budget: int) -> None:
        self._rows = Rows()
        self._columns: list[tuple[Kind, Choice, int]] = []
        levels = _levels(kinds)
        unit = max(budget / 1e6, 1.0)
        ms = sum(len(kind.names) * kind.calls * kind.front[0].cost for kind in kinds) or 1.0
        # A level is open if a block may work at it, and those below are then open too.
        opens = [self._rows.column(0, whole=True) for _ in levels]
        for lower, upper in pairwise(opens):
            self._rows.add([(upper, 1), (lower, -1)], most=0)
        steps = [upper - lower for lower, upper in zip([0, *levels], levels)]
        bytes_of = [(column, step / unit) for column, step in zip(opens, steps)]
        for kind in kinds:
            count = len(kind.names)
            columns = []
            for choice, working in zip(kind.front, kind.workings):
                cost = kind.calls * choice.cost / ms
                column = self._rows.column(cost, most=count, whole=True)
                columns.append(column)
                self._columns.append((kind, choice, column))
                bytes_of.append((column, kind.kept_bytes(choice) / unit))
                level = next(at for at, level in enumerate(levels) if working <= level)
                self._rows.add([(column, 1), (opens[level], -count)], most=0)
            self._rows.add([(column, 1) for column in columns], least=count, most=count)
        self._rows.add(bytes_of, most=budget / unit)

    def solve(self, scipy: object, time_limit: float) -> list[Share]:
        """Return what each block gets, nothing at all if that was not found in time."""
        _, values = self._rows.solve(scipy, time_limit, gap=5e-4)
        if values is None:
            return []
        counts = [(kind, choice, round(values[column])) for kind, choice, column in self._columns]
        return [Share(kind, choice, count) for kind, choice, count in counts if count]


def _greedy(kinds: Sequence[Kind], budget: int) -> list[Share]:
    """Return a choice that fits: for each level, the upgrades that spare most for their bytes."""
    found = []
    for level in _levels(kinds):
        shares = _smallest(kinds, level)
        if shares and peak_of(shares) <= budget:
            kept = sum(share.count * share.kind.kept_bytes(share.choice) for share in shares)
            found.append(_upgraded(kinds, level, budget - level - kept))
    return min(found, key=_cost)


def _upgraded(kinds: Sequence[Kind], level: int, room: int) -> list[Share]:
    hulls = [_hull(kind, level) for kind in kinds]
    counts = [[len(kind.names), *[0] * len(hull)] for kind, hull in zip(kinds, hulls)]
    steps = []
    for which, hull in enumerate(hulls):
        for at, (left, right) in enumerate(pairwise(hull)):
            nbytes = kinds[which].calls * (right.nbytes - left.nbytes)
            steps.append((-_slope(left, right), which, at, nbytes))
    for _, which, at, nbytes in sorted(steps):
        moved = min(counts[which][at], room // nbytes)
        counts[which][at] -= moved
        counts[which][at + 1] += moved
        room -= moved * nbytes
    return [
        Share(kind, choice, count)
        for kind, hull, of_kind in zip(kinds, hulls, counts)
        for choice, count in zip(hull, of_kind)
        if count
    ]


def _hull(kind: Kind, level: int) -> list[Choice]:
    """Return the choices each of which spares less for a byte than the one before."""
    hull: list[Choice] = []
    for choice, working in zip(kind.front, kind.workings):
        if working > level:
            continue
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-2], choice):
            hull.pop()
        hull.append(choice)
    return hull


def _slope(left: Choice, right: Choice) -> float:
    return (left.cost - right.cost) / (right.nbytes - left.nbytes)


def _smallest(kinds: Sequence[Kind], level: int) -> list[Share]:
    """Return the choice with the fewest bytes at a level, nothing if a kind has none there."""
    found = []
    for kind in kinds:
        fitting = (c for c, working in zip(kind.front, kind.workings) if working <= level)
        choice = next(fitting, None)
        if choice is None:
            return []
        found.append(Share(kind, choice, len(kind.names)))
    return found


def _levels(kinds: Sequence[Kind]) -> list[int]:
    """Return the working sets that are told apart, the smallest first."""
    found = sorted({working for kind in kinds for working in kind.workings})
    step = -(-len(found) // _LEVELS)
    # The largest is always one of them.
    return found[::-1][::step][::-1] if found else []


def _cost(shares: Iterable[Share]) -> float:
    return sum(share.count * share.kind.calls * share.choice.cost for share in shares)
