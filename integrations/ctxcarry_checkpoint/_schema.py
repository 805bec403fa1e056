"""What the schema of an operator says."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = (
    "draws_random",
    "has_statistics",
    "is_collective",
    "leaves_unset",
    "may_be_random",
    "returns_first",
    "without_statistics",
    "written",
)

_COLLECTIVES = frozenset({"_c10d_functional", "_c10d_functional_autograd", "c10d", "symm_mem"})
_UNSET = frozenset(
    {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
)
_NORMS = frozenset(
    {
        "_batch_norm_with_update",
        "_native_batch_norm_legit",
        "cudnn_batch_norm",
        "miopen_batch_norm",
        "native_batch_norm",
    }
)
_STATISTICS = (3, 4)
_PROBABILITIES = frozenset({"dropout_p", "p"})


@functools.cache
def is_collective(func: Any) -> bool:
    """Say whether all ranks of a group have to call it."""
    return getattr(func, "namespace", None) in _COLLECTIVES


@functools.cache
def leaves_unset(func: Any) -> bool:
    """Say whether a call returns memory that nobody has written to."""
    return getattr(func, "namespace", None) == "aten" and func._opname in _UNSET


@functools.cache
def has_statistics(func: Any) -> bool:
    """Say whether a call changes two of its arguments, though its schema does not say so."""
    return getattr(func, "namespace", None) == "aten" and func._opname in _NORMS


def without_statistics(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments of a norm with copies of its running mean and variance."""
    return tuple(
        given.clone() if place in _STATISTICS and isinstance(given, torch.Tensor) else given
        for place, given in enumerate(args)
    )


@functools.cache
def may_be_random(func: Any) -> bool:
    """Say whether some arguments make it draw random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())


def draws_random(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Say whether a call draws random numbers: not with a dropout of 0, or out of training."""
    if not may_be_random(func):
        return False
    given = _by_name(func, args, kwargs)
    if any(given.get(name, None) == 0 for name in _PROBABILITIES):
        return False
    return given.get("train", True) is not False


def written(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the tensors among the arguments that a call writes to."""
    names = _written_names(func)
    if not names:
        return []
    given = _by_name(func, args, kwargs)
    found: list[Any] = []
    for name in names:
        value = given.get(name)
        found += value if isinstance(value, (list, tuple)) else [value]
    return found


@functools.cache
def returns_first(func: Any) -> bool:
    """Say whether a call works in place on its first argument, and returns just that."""
    schema = getattr(func, "_schema", None)
    if schema is None or len(schema.returns) != 1 or not schema.arguments:
        return False
    first, back = schema.arguments[0].alias_info, schema.returns[0].alias_info
    if first is None or back is None or not (first.is_write and back.is_write):
        return False
    return len(_written_names(func)) == 1 and first.before_set == back.before_set


@functools.cache
def _written_names(func: Any) -> tuple[str, ...]:
    schema = getattr(func, "_schema", None)
    if schema is None or not schema.is_mutable:
        return ()
    return tuple(a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write)


@functools.cache
def _argument_names(func: Any) -> tuple[tuple[str, Any], ...]:
    schema = getattr(func, "_schema", None)
    if schema is None:
        return ()
    return tuple((a.name, a.default_value) for a in schema.arguments)


def _by_name(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    names = _argument_names(func)
    given = {name: default for name, default in names if default is not None}
    given.update(zip((name for name, _ in names), args))
    given.update(kwargs)
    return given
