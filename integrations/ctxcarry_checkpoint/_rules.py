"""Rules: what a policy says about some operators, by name, module, region and size."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING

from ctxcarry_checkpoint._match import Names, closest, matches_path, name_of, packet_of, path_of
from ctxcarry_checkpoint._policy import Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ctxcarry_checkpoint._ops import Action, Call
    from ctxcarry_checkpoint._policy import Decider, Ran

__all__ = ("EveryKth", "Rule", "When", "patterns")

_SHOWN = 3
# Names of operators are short: "mm" and "addmm" have 0.57 of their letters in common.
_ALIKE = 0.5


def patterns(given: str | Sequence[str] | None, option: str) -> tuple[str, ...]:
    """
    Return the patterns that an option has, none for None.

    Raises:
        TypeError: If it is neither text nor several of them.
        ValueError: If there are none in it.
    """
    if given is None:
        return ()
    several = tuple(given) if isinstance(given, (list, tuple, set, frozenset)) else (given,)
    for each in several:
        if not isinstance(each, str):
            msg = f"{option} is a pattern or a list of them; given {each!r}"
            raise TypeError(msg)
    if not several:
        msg = f"{option} has no pattern; leave it out for all {option}"
        raise ValueError(msg)
    return several


@dataclass(frozen=True, repr=False, eq=False)
class Rule(Policy):
    """
    An action for some operators.

    Attributes:
        label: How it was written, for messages.
        action: What becomes of their results.
        names: The operators; none stands for all.
        modules: Patterns of the modules that they run in, or within; none stands for all.
        regions: Patterns of the regions that are open; none stands for all.
        optional: Whether it is as good if it matches nothing.
    """

    label: str
    action: Action
    names: Names = field(default_factory=Names)
    modules: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    optional: bool = False

    @property
    def needs_modules(self) -> bool:
        """Whether it has patterns of modules."""
        return bool(self.modules)

    def decide(self, call: Call) -> Action | None:
        """Return the action if the call is meant."""
        meant = self._names(name_of(call.op)) and self._place(call.module, call.regions)
        return self.action if meant else None

    def unmatched(self, ops: Iterable[Ran]) -> list[str]:
        """Return what ran instead, if nothing was meant."""
        ran = list(ops)
        named = [op for op in ran if self._names(op.name)]
        if self.optional or any(self._place(op.module, op.regions) for op in named):
            return []
        text = f"{self.label} matched none of the {len(ran)} operators"
        if not named:
            return [text + self._like([op.name for op in ran])]
        if self.names:
            text += f"; {len(named)} {'has' if len(named) == 1 else 'have'} the name"
        if self.modules and not any(self._module(op.module) for op in named):
            text += f"; modules that ran: {_listed([op.module for op in named], self.modules)}"
        elif self.regions:
            opened = [region for op in named for region in op.regions]
            text += f"; regions that were open: {_listed(opened, self.regions)}"
        return [text]

    def _names(self, name: str) -> bool:
        return not self.names or name in self.names

    def _place(self, module: str, regions: tuple[str, ...]) -> bool:
        return self._module(module) and self._region(regions)

    def _module(self, module: str) -> bool:
        return not self.modules or any(_within(each, module) for each in self.modules)

    def _region(self, regions: tuple[str, ...]) -> bool:
        return not self.regions or any(
            fnmatchcase(name, each) for name in regions for each in self.regions
        )

    def _like(self, ran: list[str]) -> str:
        if not ran:
            return ""
        packets = {packet_of(name) or name for name in self.names.exact} | self.names.packets
        wanted = sorted({_last(name) for name in packets | set(self.names.globs)})
        stems = _closest(wanted, map(_stem, ran), _ALIKE)
        like = list(dict.fromkeys(name for name in ran if _stem(name) in stems))
        return f"; closest: {_counted(like, ran)}" if like else f"; most often ran {_most(ran)}"

    def __repr__(self) -> str:
        return self.label


@dataclass(frozen=True, repr=False, eq=False)
class When(Policy):
    """
    A rule, for those calls only that pass a test.

    Attributes:
        rule: The rule.
        test: What a call has to pass.
        sizes: Whether the test reads sizes.
    """

    rule: Rule
    test: Callable[[Call], bool]
    sizes: bool = False

    @property
    def by_shape(self) -> bool:
        """Whether the test reads sizes."""
        return self.sizes

    @property
    def needs_modules(self) -> bool:
        """Whether the rule does."""
        return self.rule.needs_modules

    def decide(self, call: Call) -> Action | None:
        """Return the action if the call is meant and passes."""
        action = self.rule.decide(call)
        return None if action is None or not self.test(call) else action

    def unmatched(self, ops: Iterable[Ran]) -> list[str]:
        """Return the message of the rule, whatever the test says."""
        return self.rule.unmatched(ops)

    def __repr__(self) -> str:
        return self.rule.label


@dataclass(frozen=True, repr=False, eq=False)
class EveryKth(Policy):
    """
    A rule, for every k-th of its calls in a forward.

    Attributes:
        rule: The rule.
        every: k.
        first: How many of the calls are left out before the first one.
    """

    rule: Rule
    every: int
    first: int

    @property
    def needs_modules(self) -> bool:
        """Whether the rule does."""
        return self.rule.needs_modules

    def start(self) -> Decider:
        """Return what counts from zero."""
        return _EveryKthDecider(self)

    def unmatched(self, ops: Iterable[Ran]) -> list[str]:
        """Return the message of the rule."""
        return self.rule.unmatched(ops)

    def __repr__(self) -> str:
        return self.rule.label


class _EveryKthDecider:
    __slots__ = ("_policy", "_seen")

    def __init__(self, policy: EveryKth) -> None:
        self._policy = policy
        self._seen = 0

    def decide(self, call: Call) -> Action | None:
        action = self._policy.rule.decide(call)
        if action is None:
            return None
        past = self._seen - self._policy.first
        self._seen += 1
        return action if past >= 0 and past % self._policy.every == 0 else None


@lru_cache(maxsize=8192)
def _within(pattern: str, module: str) -> bool:
    """Say whether a module has the name, or is in one that does; "" is the block alone."""
    parts = path_of(pattern)
    return matches_path((*parts, "**") if parts else (), path_of(module))


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _stem(name: str) -> str:
    """Return what an operator is called, without the names of its library and overload."""
    return _last(packet_of(name) or name)


def _closest(wanted: Iterable[str], names: Iterable[str], alike: float = 0.6) -> list[str]:
    ran = list(names)
    bare = [name.replace("*", "") for name in wanted]
    found = dict.fromkeys(each for name in bare if name for each in closest(name, ran, alike))
    return list(found)[:_SHOWN]


def _counted(names: Iterable[str], ran: Iterable[str]) -> str:
    times = Counter(ran)
    return ", ".join(
        f"{name} ({times[name]} time{'' if times[name] == 1 else 's'})" for name in names
    )


def _most(ran: list[str]) -> str:
    return _counted([name for name, _ in Counter(ran).most_common(_SHOWN)], ran)


def _listed(names: list[str], wanted: Iterable[str]) -> str:
    """Return the names that are most like the wanted ones, or else the first ones."""
    distinct = list(dict.fromkeys(names))
    like = _closest(wanted, distinct) or distinct[:_SHOWN]
    more = len(distinct) - len(like)
    return (", ".join(map(repr, like)) or "none") + (f" and {more} more" if more else "")
