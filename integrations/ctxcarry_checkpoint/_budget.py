"""A budget of memory: what a user writes, in bytes, and what is said if it is too small."""

from __future__ import annotations

import re

__all__ = ("BudgetError", "budget_bytes", "check_budget", "readable")

_UNITS: dict[str, int] = {
    "": 1,
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", 1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)},
}
_WRITTEN = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]*)?|\.[0-9]+)\s*([a-z]*)\s*", re.IGNORECASE)
_FORMS = 'Give bytes as an int, text such as "4GiB" or "512 MiB", or a ratio such as 0.5'


class BudgetError(ValueError):
    """
    No choice fits the budget.

    It is a ValueError, since the budget is an argument with a wrong value.

    Attributes:
        budget: Bytes that were asked for.
        smallest: Bytes of the choice that takes the least.
        largest: Bytes beyond which more does not save any time.
    """

    def __init__(self, budget: int, smallest: int, largest: int) -> None:
        super().__init__(budget, smallest, largest)
        self.budget, self.smallest, self.largest = budget, smallest, largest

    def __str__(self) -> str:
        return (
            f"a budget of {_both(self.budget)} is too small: recomputing all that can be made "
            f"again takes {_both(self.smallest)}, and nothing is recomputed from "
            f"{_both(self.largest)} on. Give a budget between them, or more and smaller blocks"
        )


def check_budget(budget: object) -> None:
    """
    Raise if something is not a budget.

    Args:
        budget: What a user gave.

    Raises:
        ValueError: It is neither bytes, nor text with a unit, nor a ratio.
    """
    budget_bytes(budget, 0)


def budget_bytes(budget: object, whole: int) -> int:
    """
    Return a budget in bytes.

    Args:
        budget: Bytes as an int, text such as ``"4GiB"``, ``"1.5 GB"`` or ``"50%"``, or a
            float from 0 to 1, the part of `whole`.
        whole: Bytes that are kept where nothing is checkpointed.

    Raises:
        ValueError: It is none of these.
    """
    if isinstance(budget, float):
        return _part(budget, whole)
    if isinstance(budget, int) and not isinstance(budget, bool):
        if budget < 0:
            msg = f"a budget of {budget} bytes is negative. {_FORMS}"
            raise ValueError(msg)
        return budget
    if not isinstance(budget, str):
        msg = f"{budget!r} is no budget. {_FORMS}"
        raise ValueError(msg)  # noqa: TRY004 - one error for all that is no budget
    if budget.strip().endswith("%"):
        return _part(_number(budget.strip()[:-1], "", budget) / 100, whole)
    found = _WRITTEN.fullmatch(budget)
    if found is None:
        msg = f"{budget!r} is no budget. {_FORMS}"
        raise ValueError(msg)
    return int(_number(found[1], found[2], budget))


def readable(nbytes: float) -> str:
    """Return a number of bytes as people read it, such as ``"1.5 GiB"``."""
    size, sign = abs(float(nbytes)), "-" if nbytes < 0 else ""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1023.95:  # noqa: PLR2004 - from here on it would be written as 1024.0
            return f"{sign}{size:.0f} {unit}" if unit == "B" else f"{sign}{_short(size)} {unit}"
        size /= 1024
    return f"{sign}{_short(size)} TiB"


def _part(ratio: float, whole: int) -> int:
    if not 0 <= ratio <= 1:
        msg = f"a budget of {ratio} is no ratio from 0 to 1, and bytes are whole. {_FORMS}"
        raise ValueError(msg)
    return int(ratio * whole)


def _number(digits: str, unit: str, budget: str) -> float:
    factor = _UNITS.get(unit.lower())
    if factor is None:
        known = "B, KB, KiB, MB, MiB, GB, GiB, TB, TiB"
        msg = f"{budget!r} is no budget: there is no unit {unit!r}. Units are {known}"
        raise ValueError(msg)
    try:
        return float(digits) * factor
    except ValueError as error:
        msg = f"{budget!r} is no budget. {_FORMS}"
        raise ValueError(msg) from error


def _short(size: float) -> str:
    return f"{size:.1f}".removesuffix(".0") if size < 100 else f"{size:.0f}"  # noqa: PLR2004


def _both(nbytes: int) -> str:
    return f"{readable(nbytes)} ({nbytes} bytes)"
