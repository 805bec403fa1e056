"""What decides about results, and how several of them are put together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ctxcarry_checkpoint._ops import Action

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ctxcarry_checkpoint._ops import Call

__all__ = ("Decider", "First", "Others", "Policy", "Ran")


class Ran(Protocol):
    """What an operator that ran tells: `Op` has it."""

    @property
    def name(self) -> str:
        """Name of the overload, such as ``"aten.mm.default"``."""

    @property
    def module(self) -> str:
        """Name of the innermost module that ran."""

    @property
    def regions(self) -> tuple[str, ...]:
        """Names of the regions that were open."""


class Decider(Protocol):
    """A policy within one forward, with what it counts there."""

    def decide(self, call: Call) -> Action | None:
        """Return what becomes of the result, or None for no opinion."""


class Policy:
    """
    What decides which results of a block are kept.

    It never changes, so many blocks and threads share one. One that counts has a decider
    for each forward. A subclass has either `decide`, or `start` where it counts.
    """

    @property
    def static(self) -> bool:
        """Whether the same operators, modules and regions get the same decisions."""
        return True

    @property
    def by_shape(self) -> bool:
        """Whether sizes decide as well, so that others of them are to be asked about."""
        return False

    @property
    def needs_modules(self) -> bool:
        """Whether it reads the name of the module that runs."""
        return False

    def start(self) -> Decider:
        """Return what decides within one forward."""
        return self

    def decide(self, call: Call) -> Action | None:
        """
        Return what becomes of the result of a call.

        Args:
            call: The call, with its arguments and what it returned.

        Returns:
            The action, or None for no opinion.

        Raises:
            TypeError: If the policy counts within a forward.
        """
        del call
        msg = f"{self!r} decides within a forward only: call .start().decide(call)"
        raise TypeError(msg)

    def unmatched(self, ops: Iterable[Ran]) -> list[str]:
        """
        Say which rules matched none of the operators that ran.

        Args:
            ops: The operators of a block.

        Returns:
            A message for each such rule, with what is closest to it.
        """
        del ops
        return []

    def __or__(self, other: Policy) -> First:
        if not isinstance(other, Policy):
            return NotImplemented
        return First(self, other)


class First(Policy):
    """
    Several policies, of which the first with an opinion decides.

    Those behind it are not asked, so they do not count that call.

    Args:
        policies: The policies, in their order.
    """

    def __init__(self, *policies: Policy) -> None:
        flat: list[Policy] = []
        for policy in policies:
            flat += policy._policies if type(policy) is First else [policy]
        self._policies: tuple[Policy, ...] = tuple(flat)

    @property
    def static(self) -> bool:
        """Whether all of them are."""
        return all(policy.static for policy in self._policies)

    @property
    def by_shape(self) -> bool:
        """Whether any of them is."""
        return any(policy.by_shape for policy in self._policies)

    @property
    def needs_modules(self) -> bool:
        """Whether any of them does."""
        return any(policy.needs_modules for policy in self._policies)

    def start(self) -> Decider:
        """Return what asks a decider of each."""
        return _FirstDecider(tuple(policy.start() for policy in self._policies))

    def unmatched(self, ops: Iterable[Ran]) -> list[str]:
        """Return the messages of all of them."""
        ran = list(ops)
        return [message for policy in self._policies for message in policy.unmatched(ran)]

    def __repr__(self) -> str:
        return " | ".join(map(repr, self._policies)) or "first()"


class _FirstDecider:
    __slots__ = ("_deciders",)

    def __init__(self, deciders: tuple[Decider, ...]) -> None:
        self._deciders = deciders

    def decide(self, call: Call) -> Action | None:
        for decider in self._deciders:
            action = decider.decide(call)
            if action is not None:
                return action
        return None


class Others(Policy):
    """
    The same action for everything.

    Args:
        action: The action.
    """

    def __init__(self, action: Action) -> None:
        if not isinstance(action, Action):
            msg = f"an action is one of {', '.join(map(str, Action))}; given {action!r}"
            raise TypeError(msg)
        self._action = action

    def decide(self, call: Call) -> Action:
        """Return the action."""
        del call
        return self._action

    def __repr__(self) -> str:
        return f"others({self._action.name})"
