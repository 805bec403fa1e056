"""Values that nobody can change, and references to what may go away."""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING
from weakref import ref

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from typing import Any

__all__ = ("is_constant", "these")

_CONSTANT = frozenset({str, bytes, bool, int, float, complex, type(None)})


def is_constant(value: object) -> bool:
    """Say whether `value`, and all that it holds, stays as it is for good."""
    if type(value) in _CONSTANT:
        return True
    return type(value) in {tuple, frozenset} and all(map(is_constant, value))  # type: ignore[call-overload]


_referent = ref.__call__


def these(objects: Iterable[Any]) -> Callable[[Collection[Any]], bool]:
    """Return what says whether others are these very objects, and keeps none of them alive."""
    references = tuple(map(ref, objects))
    count = len(references)

    def are_these(others: Collection[Any]) -> bool:
        return len(others) == count and all(map(is_, map(_referent, references), others))

    return are_these
