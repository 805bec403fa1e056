"""What differs between a forward and its recompute, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ctxcarry_checkpoint._results import brief, told
from ctxcarry_checkpoint._steps import as_tuple
from ctxcarry_checkpoint._where import calling_lines
from ctxcarry_checkpoint.errors import CheckpointMutationError, RecomputeMismatchError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ctxcarry_checkpoint._recompute import Record

__all__ = (
    "check_constants",
    "check_result",
    "check_values",
    "check_versions",
    "fewer",
    "more",
    "other_operator",
)

_FIX = (
    "The block must do the same in the backward as in the forward: let it depend on its "
    "arguments, and on contexts that are carried (ctxcarry.register), not on what changes "
    "between them."
)


def other_operator(record: Record, index: int, func: Any) -> RecomputeMismatchError:
    """Return the error for an operator that is not the one of the forward."""
    if index < len(record.noted):
        text = f"the forward called {_operator(record, index)}, the recompute {func}"
    else:
        text = f"the forward had ended, the recompute called {func}"
    return _error(record, index, text)


def check_constants(
    record: Record, index: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """
    Compare arguments that are no tensors.

    Raises:
        RecomputeMismatchError: If they differ.
    """
    places, _ = record.places[index]
    positional = as_tuple(places, record.constants.get(index))
    given = tuple(args[place] for place in places if place < len(args))
    named = record.named.get(index)
    now = kwargs if named is not None else None
    if (given != positional and repr(given) != repr(positional)) or now != named:
        before, after = _arguments(positional, named), _arguments(given, now)
        text = f"{_operator(record, index)} had the arguments {before} in the forward"
        raise _error(record, index, f"{text}, and {after} in the recompute")


def check_result(record: Record, index: int, output: Any) -> None:
    """
    Compare shape and type of a result, and its layout where that was noted.

    Raises:
        RecomputeMismatchError: If they differ.
    """
    noted, now = _brief_of(record.noted[index]), brief(output)
    if noted == now:
        return
    text = f"{_operator(record, index)} returned {told(noted)} in the forward"
    raise _error(record, index, f"{text}, and {told(now)} in the recompute")


def check_versions(record: Record, index: int, args: tuple[Any, ...]) -> None:
    """
    See whether arguments from outside were changed since.

    Raises:
        CheckpointMutationError: If one was.
    """
    places, versions = record.versions[index]
    for place, version in zip(places, versions):
        if place < len(args) and args[place]._version != version:
            where = record.where[index] if index < len(record.where) else ()
            at = f" at {where[0]}" if where else ""
            msg = (
                f"{_operator(record, index)}{at} reads a tensor from outside of the checkpointed "
                f"block, {told(brief(args[place]))}, that was changed in place between forward "
                "and backward: the recompute would start from other values. Change a copy of it, "
                "or change it after the backward."
            )
            raise CheckpointMutationError(msg)


def check_values(record: Record, index: int, found: Sequence[torch.Tensor | None]) -> None:
    """
    Compare the bits of a result.

    Raises:
        RecomputeMismatchError: If they differ.
    """
    for noted, now in zip(record.values[index], found):
        if noted is not None and now is not None and bool(noted != now):
            text = f"{_operator(record, index)} returned other values than in the forward"
            raise _error(record, index, text)


def fewer(record: Record, index: int, missing: int) -> RecomputeMismatchError:
    """Return the error for a recompute that has ended before all was made."""
    text = f"it ended after {index} of {len(record.noted)} operators, without "
    return _error(record, index, f"{text}{missing} tensors that autograd kept in the forward")


def more(record: Record, index: int, packs: int) -> RecomputeMismatchError:
    """Return the error for a recompute in which autograd keeps more."""
    text = f"autograd keeps more tensors than the {packs} of the forward"
    return _error(record, index, text)


def _error(record: Record, index: int, text: str) -> RecomputeMismatchError:
    total = len(record.noted)
    lines = [f"the recompute differs from the forward at operator {index} of {total}: {text}."]
    if index < len(record.where) and record.where[index]:
        lines.append("The forward called it at:")
        lines += [f"  {line}" for line in record.where[index]]
    here = calling_lines()
    if here:
        lines.append("The recompute is at:")
        lines += [f"  {line}" for line in here]
    lines.append(_FIX)
    return RecomputeMismatchError("\n".join(lines))


def _operator(record: Record, index: int) -> str:
    module = record.ops[index].module if index < len(record.ops) else ""
    return f"{record.funcs[index]}" + (f" in module {module!r}" if module else "")


def _arguments(positional: tuple[Any, ...], named: Mapping[str, Any] | None) -> str:
    parts = [repr(each) for each in positional]
    parts += [f"{name}={value!r}" for name, value in (named or {}).items()]
    return f"({', '.join(parts)})"


def _brief_of(noted: Any) -> Any:
    """Return shape and type out of a layout."""
    if isinstance(noted, tuple) and noted and isinstance(noted[0], torch.Size):
        return noted[:2]
    if isinstance(noted, list):
        return tuple(_brief_of(part) for part in noted[1:])
    if isinstance(noted, tuple):
        return tuple(_brief_of(part) for part in noted)
    return None
