"""What a mode looks at for each operator, side by side, so that it looks once."""

from __future__ import annotations

import enum
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ctxcarry_checkpoint._private import direct

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from typing import TypeAlias

    Take: TypeAlias = Callable[[tuple[Any, ...]], Any] | None
    ForwardStep: TypeAlias = tuple[Any, Callable[..., Any], int, Take]
    AgainStep: TypeAlias = "tuple[Any, Callable[..., Any], Take, Role, int]"

__all__ = (
    "NAMED",
    "VALUES",
    "VERSIONS",
    "Role",
    "Unknown",
    "again_steps",
    "as_tuple",
    "forward_steps",
    "taking",
)


class Role(enum.IntEnum):
    """
    What a recompute does with an operator.

    Attributes:
        RUN: Call it.
        KEPT: Return what the forward kept.
        ADVANCE: Call it for its random numbers, and return what the forward kept.
        PASS: It works in place on what the forward kept, or on what is left out: return that.
        DEAD: Leave it out.
        APART: Call it with copies of the statistics that it would update once more.
    """

    RUN = 0
    KEPT = 1
    ADVANCE = 2
    PASS = 3
    DEAD = 4
    APART = 5


NAMED, VERSIONS, VALUES = 1, 2, 4
"""What a recompute compares besides: keyword arguments, versions of arguments, values."""


class Unknown:
    """The steps of a forward that follows none."""

    def __getitem__(self, index: int) -> ForwardStep:
        return _END


def taking(places: tuple[int, ...]) -> Take:
    """Return what takes the arguments in some places: a value, or a tuple of several."""
    return itemgetter(*places) if places else None


def as_tuple(places: tuple[int, ...], taken: Any) -> tuple[Any, ...]:
    """Return what was taken from some places as a tuple in any case."""
    if not places:
        return ()
    return (taken,) if len(places) == 1 else taken


def forward_steps(
    funcs: Iterable[Any], notes: Iterable[int], places: Iterable[tuple[int, ...]]
) -> list[ForwardStep]:
    """
    Return what a forward looks at that follows another one.

    Args:
        funcs: The operators.
        notes: What is to be noted of each.
        places: Where the arguments of each are no tensors.

    Returns:
        For each operator: itself, what calls it, the note, and what takes its arguments. The
        last is none at all, so that nobody has to ask for the end.
    """
    steps: list[ForwardStep] = [
        (func, direct(func), note, taking(at)) for func, note, at in zip(funcs, notes, places)
    ]
    return [*steps, _END]


def again_steps(
    funcs: Sequence[Any],
    places: Iterable[tuple[int, ...]],
    roles: Iterable[Role],
    *,
    named: Collection[int],
    versions: Collection[int],
    values: Collection[int] = (),
) -> list[AgainStep]:
    """
    Return what a recompute looks at.

    Args:
        funcs: The operators.
        places: Where the arguments of each are no tensors.
        roles: What becomes of each.
        named: Those whose keyword arguments are to be the same.
        versions: Those with arguments that must not have been written to.
        values: Those whose values are to be the same.

    Returns:
        For each operator: itself, what calls it, what takes its arguments, its role, and what
        else to compare. The last is none at all.
    """
    steps: list[AgainStep] = []
    for index, (func, at, role) in enumerate(zip(funcs, places, roles)):
        checks = NAMED * (index in named)
        if not role:
            checks |= VERSIONS * (index in versions) | VALUES * (index in values)
        steps.append((func, direct(func), taking(at), role, checks))
    steps.append((None, _nothing, None, Role.RUN, 0))
    return steps


def _nothing(*_args: Any, **_kwargs: Any) -> Any:
    raise AssertionError


_END: ForwardStep = (None, _nothing, 0, None)
