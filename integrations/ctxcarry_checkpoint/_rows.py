"""A linear program with whole numbers, put together row by row."""

from __future__ import annotations

import importlib
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ("Rows",)

_OPTIMAL = 0


class Rows:
    """Columns with costs, of which the sum is to be least, and rows that bound their sums."""

    def __init__(self) -> None:
        self._costs: list[float] = []
        self._most: list[float] = []
        self._whole: list[int] = []
        self._lower: list[float] = []
        self._upper: list[float] = []
        self._entries: list[tuple[int, int, float]] = []

    def column(self, cost: float, *, most: float = 1, whole: bool = False) -> int:
        """
        Add a column, and return its number.

        Args:
            cost: What each unit of it costs.
            most: Its largest value; the smallest is 0.
            whole: Whether its value has to be a whole number.
        """
        self._costs.append(cost)
        self._most.append(most)
        self._whole.append(int(whole))
        return len(self._costs) - 1

    def add(
        self,
        entries: Iterable[tuple[int, float]],
        *,
        least: float = -math.inf,
        most: float = math.inf,
    ) -> None:
        """Bound the sum of some columns, each with its factor."""
        row = len(self._lower)
        self._entries += [(row, column, factor) for column, factor in entries]
        self._lower.append(least)
        self._upper.append(most)

    def solve(
        self, scipy: Any, time_limit: float, *, gap: float = 1e-6
    ) -> tuple[bool, Sequence[float] | None]:
        """
        Return whether the best values were found, and the values, if there are any yet.

        Args:
            scipy: The module ``scipy.optimize``.
            time_limit: Seconds to look for them.
            gap: How much worse than the best, in parts of it, still passes for the best.
        """
        sparse = importlib.import_module("scipy.sparse")
        rows, columns, factors = zip(*self._entries)
        shape = len(self._lower), len(self._costs)
        matrix = sparse.csr_array((factors, (rows, columns)), shape=shape)
        found = scipy.milp(
            self._costs,
            integrality=self._whole,
            bounds=scipy.Bounds(0, self._most),
            constraints=scipy.LinearConstraint(matrix, self._lower, self._upper),
            options={"time_limit": time_limit, "mip_rel_gap": gap},
        )
        return found.status == _OPTIMAL, found.x
