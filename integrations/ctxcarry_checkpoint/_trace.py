"""What is known of a block from an earlier forward, so that the next is followed cheaply."""

from __future__ import annotations

import enum
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch

from ctxcarry_checkpoint._liveness import live
from ctxcarry_checkpoint._ops import Action, first_of
from ctxcarry_checkpoint._schema import has_statistics, is_collective, may_be_random
from ctxcarry_checkpoint._steps import Role, again_steps, forward_steps

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ctxcarry_checkpoint._ops import Op
    from ctxcarry_checkpoint._record import Pack

__all__ = ("Note", "Site", "Trace", "constants", "has_tensors")


class Note(enum.IntFlag):
    """
    What the forward has to note of an operator besides shape and type of its result.

    Attributes:
        CONSTANTS: Positional arguments that are no tensors.
        OUTSIDE: How often arguments from outside were written to.
        KEEP: The result is kept.
        LAYOUT: Strides and device, for a placeholder.
        RANDOM: Whether it draws random numbers is to be looked at each time.
        NAMED: Keyword arguments that are no tensors.
    """

    CONSTANTS = 1
    OUTSIDE = 2
    KEEP = 4
    LAYOUT = 8
    RANDOM = 16
    NAMED = 32


class Trace:
    """
    A forward that was recorded, with what became of its results.

    Args:
        ops: Its operators.
        funcs: Their overloads.
        packs: What autograd kept.
        constants: Of each operator, which positional arguments are no tensors, and whether
            its keyword arguments are.
        actions: What the policy said, by operator.
        where: The lines that called each.
        returned: Those whose results the block returns: they stay in any case, and others may
            write to them, so that they are not copied to the CPU meanwhile.
        outside: Of operators: which arguments come from outside and must not change.
    """

    def __init__(
        self,
        ops: Sequence[Op],
        funcs: Sequence[Any],
        packs: Sequence[Pack],
        constants: Sequence[tuple[tuple[int, ...], bool]],
        actions: Mapping[int, Action],
        where: Sequence[tuple[str, ...]],
        returned: frozenset[int],
        outside: Mapping[int, tuple[int, ...]],
    ) -> None:
        self.ops = list(ops)
        self.funcs = list(funcs)
        self.constants = list(constants)
        self.where = list(where)
        self.outside = dict(outside)
        self.asked = dict(actions)
        found = live(ops, [index for index, action in actions.items() if action])
        self.reruns = found.reruns
        self.returned = returned
        self.actions = {
            index: Action.SAVE
            if index in returned or is_collective(self.funcs[index])
            else actions.get(index, Action.SAVE)
            for index in found.saved
        }
        # What autograd holds itself, and no operator of the recompute reads, is not kept twice:
        # autograd lets go of it as soon as it has been used.
        read = {first_of(self.ops[p]) for index in found.reruns for p in self.ops[index].parents}
        self.unread = {
            index
            for index, action in self.actions.items()
            if action is Action.SAVE and index not in read
        }
        self.roles = [self._role(op) for op in self.ops]
        self.notes = [self._note(op) for op in self.ops]
        saved = {index for index, action in self.actions.items() if action is Action.SAVE}
        self.packs = [(pack.at, pack.owners <= saved, bool(pack.owners)) for pack in packs]
        """Of each pack: after how many operators, whether it stays, whether the block made it."""
        self.skips = any(role in {Role.DEAD, Role.PASS} for role in self.roles)
        places = [at for at, _ in self.constants]
        self.steps = forward_steps(self.funcs, self.notes, places)
        """Of each operator, what a forward looks at that follows this one."""
        self.again = again_steps(
            self.funcs,
            places,
            self.roles,
            named={index for index, (_, named) in enumerate(self.constants) if named},
            versions=self.outside,
        )
        """Of each operator, what a recompute looks at that leaves out what is not needed."""
        self.groups = {op.owner for op in self.ops if op.owner in self.actions} - self.unread
        """Those that are kept and written to in place afterwards."""

    def _role(self, op: Op) -> Role:
        first = first_of(op)
        if op.scalar:
            return Role.KEPT
        if op.view:
            there = all(self._is_there(first_of(self.ops[parent])) for parent in op.parents)
            return Role.RUN if there else Role.DEAD
        if op.once:
            return Role.PASS
        again = op.index in self.reruns
        if again and has_statistics(self.funcs[op.index]):
            return Role.APART
        if first not in self.actions or first in self.unread:
            role = Role.RUN if again else Role.DEAD
        else:
            role = Role.ADVANCE if again else Role.KEPT
        if op.owner is None or role is Role.RUN:
            return role
        # What works in place on memory that is left out, or is kept in its last state; but it is
        # kept with the sizes that it was made with.
        return Role.RUN if op.reshapes else Role.PASS

    def _is_there(self, first: int) -> bool:
        if first in self.unread:
            return first in self.reruns
        return first in self.actions or first in self.reruns or self.ops[first].scalar

    def _note(self, op: Op) -> int:
        note = Note(0)
        positions, in_kwargs = self.constants[op.index]
        if positions:
            note |= Note.CONSTANTS
        if in_kwargs:
            note |= Note.NAMED
        if op.scalar or (op.index in self.actions and op.index not in self.unread):
            note |= Note.KEEP
        if self.roles[op.index] is Role.DEAD:
            note |= Note.LAYOUT
        if op.index in self.outside:
            note |= Note.OUTSIDE
        if may_be_random(self.funcs[op.index]):
            note |= Note.RANDOM
        # As a plain number: it is looked at for each operator, and a flag answers slowly.
        return int(note)

    def starts_like(self, other: Trace, ops: int, packs: int) -> bool:
        """Say whether both go alike up to an operator, what became of results included."""
        return (
            self.funcs[:ops] == other.funcs[:ops]
            and self.notes[:ops] == other.notes[:ops]
            and self.packs[:packs] == other.packs[:packs]
            and self._kept_before(ops) == other._kept_before(ops)
        )

    def _kept_before(self, ops: int) -> dict[int, Action]:
        return {index: action for index, action in self.actions.items() if index < ops}


class Site:
    """
    A block and a policy, with the forwards that were recorded of it.

    One whose operators change from call to call has several, the last ones that were new.
    """

    MOST = 8
    RECORDINGS = 64
    """After so many a block that is another one each time is not recorded any more."""

    def __init__(self) -> None:
        self.traces: list[Trace] = []
        self.record_next = True
        self.warned = False
        self._recordings = 0
        self._lock = Lock()

    def begin(self) -> Trace | None:
        """Return what the next forward is to follow, or None if it is to be recorded."""
        if self.record_next or not self.traces:
            return None
        return self.traces[0]

    def add(self, trace: Trace) -> None:
        """Keep a forward that was recorded; it is tried first from now on."""
        with self._lock:
            self.traces = [trace, *self.traces][: self.MOST]
            self.record_next = False
            self._recordings += 1

    def lost(self) -> None:
        """Have the next forward recorded, since this one was like none before."""
        if self._recordings < self.RECORDINGS:
            self.record_next = True

    def other(self, trace: Trace, func: Any, ops: int, packs: int) -> Trace | None:
        """Return another one that goes like `trace` so far, and on with `func`."""
        for found in self.traces:
            if found is trace or ops >= len(found.funcs) or found.funcs[ops] is not func:
                continue
            if found.starts_like(trace, ops, packs):
                return found
        return None


def constants(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[int, ...], bool]:
    """Return which positional arguments are no tensors, and whether keyword arguments are."""
    positions = tuple(i for i, given in enumerate(args) if _is_constant(given))
    return positions, bool(kwargs) and all(_is_constant(given) for given in kwargs.values())


def _is_constant(given: Any) -> bool:
    # Objects of C++, as process groups are, cannot be compared.
    return not isinstance(given, torch.ScriptObject) and not has_tensors(given)


def has_tensors(given: Any) -> bool:
    """Say whether it is a tensor or memory of one, or a list with one."""
    if isinstance(given, (torch.Tensor, torch.UntypedStorage, torch.TypedStorage)):
        return True
    return isinstance(given, (list, tuple)) and any(has_tensors(each) for each in given)
