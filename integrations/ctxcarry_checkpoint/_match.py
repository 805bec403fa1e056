"""Which operators and modules a rule means."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = (
    "WRAPPERS",
    "Names",
    "closest",
    "is_operator",
    "matches_path",
    "name_of",
    "names_of",
    "packet_of",
    "path_of",
)

WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Parts of a module's name that wrappers of torch add to it."""

_SHOWN = 3


@dataclass(frozen=True)
class Names:
    """
    The operators that a rule means, by name, so that those registered later count too.

    Attributes:
        exact: Names of overloads and of higher-order operators.
        packets: Names of operators of which all overloads count.
        globs: Patterns that names of overloads or of packets match.
    """

    exact: frozenset[str] = frozenset()
    packets: frozenset[str] = frozenset()
    globs: tuple[str, ...] = ()

    def __contains__(self, name: object) -> bool:
        assert isinstance(name, str)
        return (
            name in self.exact
            or packet_of(name) in self.packets
            or any(_globbed(glob, name) for glob in self.globs)
        )

    def __bool__(self) -> bool:
        return bool(self.exact or self.packets or self.globs)


def is_operator(given: object) -> bool:
    """Say whether it is an operator of torch's, whatever its kind."""
    return isinstance(given, (OpOverload, OpOverloadPacket, HigherOrderOperator))


@lru_cache(maxsize=8192)
def name_of(op: Any) -> str:
    """Return the name by which an overload or a higher-order operator goes."""
    return str(op)


def packet_of(name: str) -> str:
    """Return the name of an overload without its last part; "" for a higher-order operator."""
    return name.rpartition(".")[0]


def names_of(what: Iterable[Any]) -> Names:
    """
    Return what operators, their names and patterns of names stand for.

    Args:
        what: Overloads, packets, higher-order operators, and names such as ``"aten.mm"``,
            ``"aten.mm.default"`` and ``"aten._scaled_dot_product_*"``.

    Raises:
        TypeError: If one is something else.
        ValueError: If a name or a pattern is that of no operator.
    """
    exact: set[str] = set()
    packets: set[str] = set()
    globs: list[str] = []
    for each in what:
        if isinstance(each, OpOverloadPacket):
            packets.add(str(each))
        elif is_operator(each):
            exact.add(name_of(each))
        elif isinstance(each, str):
            name = _plain(each)
            kind = _kind(name)
            if kind is None:
                raise ValueError(_unknown(each, name))
            if kind == "glob":
                globs.append(name)
            else:
                (packets if kind == "packet" else exact).add(name)
        else:
            raise TypeError(_no_operator(each))
    return Names(frozenset(exact), frozenset(packets), tuple(globs))


def closest(name: str, names: Iterable[str], alike: float = 0.6) -> list[str]:
    """
    Return the few names that are most like one: with the same last part, or like in spelling.

    Args:
        name: The name that is looked for.
        names: Those there are.
        alike: How much alike they have to be: 0 for not at all, 1 for the same.
    """
    matcher = SequenceMatcher(b=name)
    last = name.rpartition(".")[2]
    rated = []
    for each in dict.fromkeys(names):
        matcher.set_seq1(each)
        if each.rpartition(".")[2] == last:
            rated.append((2.0 + matcher.ratio(), each))
        elif matcher.real_quick_ratio() >= alike and matcher.quick_ratio() >= alike:
            rated.append((matcher.ratio(), each))
    rated.sort(key=lambda pair: -pair[0])
    return [each for ratio, each in rated[:_SHOWN] if ratio >= alike]


def path_of(name: str) -> tuple[str, ...]:
    """Return the parts of a module's name, without those that wrappers add."""
    return tuple(part for part in name.split(".") if part and part not in WRAPPERS)


@lru_cache(maxsize=8192)
def matches_path(pattern: tuple[str, ...], path: tuple[str, ...]) -> bool:
    """
    Say whether the parts of a module's name match those of a pattern.

    Args:
        pattern: Parts with ``*`` and ``?`` within them; ``**`` stands for any number of parts.
        path: Parts of a name.
    """
    if not pattern:
        return not path
    if pattern[0] == "**":
        return any(matches_path(pattern[1:], path[i:]) for i in range(len(path) + 1))
    return bool(path) and fnmatchcase(path[0], pattern[0]) and matches_path(pattern[1:], path[1:])


@lru_cache(maxsize=8192)
def _globbed(glob: str, name: str) -> bool:
    return fnmatchcase(name, glob) or fnmatchcase(packet_of(name), glob)


def _plain(name: str) -> str:
    """Return a name as operators print theirs, from how else people and schemas write it."""
    plain = name.replace("::", ".").removeprefix("torch.ops.")
    return plain.removeprefix("higher_order.")


def _overloads() -> list[str]:
    """Return the names of all overloads and higher-order operators there are."""
    found = []
    for schema in torch._C._dispatch_get_all_op_names():
        name = schema.replace("::", ".")
        found.append(name if "." in schema.partition("::")[2] else f"{name}.default")
    found += getattr(torch._ops, "_higher_order_ops", {})
    return found


def _kind(name: str) -> str | None:
    names = _overloads()
    if any(sign in name for sign in "*?["):
        return "glob" if any(_globbed(name, each) for each in names) else None
    if name in names:
        return "exact"
    return "packet" if any(packet_of(each) == name for each in names) else None


def _unknown(given: str, name: str) -> str:
    names = _overloads()
    packets = [packet_of(each) or each for each in names]
    if packet_of(name) in packets and "." in packet_of(name):
        of_packet = [each for each in names if packet_of(each) == packet_of(name)]
        return f"there is no operator {given!r}; there are {', '.join(sorted(of_packet))}"
    meant = name if name.count(".") < 2 else packet_of(name)  # noqa: PLR2004  (aten.mm.default)
    like = closest(meant.replace("*", ""), packets)
    hint = f"; closest: {', '.join(like)}" if like else ""
    return (
        f"there is no operator {given!r}{hint}. One that a library registers is there once "
        "the library is imported"
    )


def _no_operator(given: object) -> str:
    name = given if isinstance(given, type) else getattr(given, "__name__", None)
    label = getattr(name, "__name__", name)
    packets = [packet_of(each) for each in _overloads()]
    like = closest(f"aten.{label}", packets) if label and label != "<lambda>" else []
    hint = f"; closest: {', '.join(f'torch.ops.{each}' for each in like)}" if like else ""
    return (
        "an operator is a torch.ops.aten.mm.default, a torch.ops.aten.mm, a higher-order "
        f'operator or a name such as "aten.mm"; given {given!r} of type '
        f"{type(given).__name__}{hint}"
    )
