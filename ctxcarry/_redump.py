"""
Dump the contexts of this thread once more, in less time where nothing has changed.

A program makes a thousand calls under the same contexts. For each thread and plan the
last bytes are kept with what tells whether they would be the same again: the same
variables with the same values, which nobody can change, and states for which their
carriers answer (see `ctxcarry._carrier.CarrierBase`). Where that cannot be told
nothing is kept, and no object of the user's is kept alive.
"""

from __future__ import annotations

import sys
import threading
from contextvars import copy_context
from itertools import compress
from operator import is_
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from ctxcarry._activate import capture_error
from ctxcarry._capture import read_edits
from ctxcarry._carrier import MISSING, CarrierBase
from ctxcarry._carriers.context_vars import ContextVarCarrier
from ctxcarry._constant import is_constant
from ctxcarry._plan import variables_of
from ctxcarry._policy import ambient_policy
from ctxcarry._portable import entries_of, portable_address
from ctxcarry._snapshot import Snapshot
from ctxcarry._wire import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextvars import ContextVar

    from ctxcarry._carrier import Carrier
    from ctxcarry._plan import Plan

    Alike = Callable[[Any], bool]
    Variables = tuple[ContextVar[Any], ...]

__all__ = ("dumped",)

_PLANS_KEPT = 8
_LARGEST = 64 * 1024  # bytes


class _Last(NamedTuple):
    """
    What tells whether the contexts are dumped as the last time.

    Attributes:
        modules: How many there were: one that has come since may hold a variable.
        variables: Those that were set.
        valued: Which of them count here, by their `values`.
        idle: Which states were not set; `unset` has them.
        alike: For each of the others its index, and what says whether it is dumped alike.
        owned: The same for variables with a carrier of their own.
        several: Carriers that find their variables anew each time, none of them set.
    """

    modules: int
    variables: Variables
    valued: tuple[bool, ...]
    values: tuple[object, ...]
    idle: tuple[bool, ...]
    unset: tuple[object, ...]
    alike: tuple[tuple[int, Alike], ...]
    owned: tuple[tuple[ContextVar[Any], Alike], ...]
    several: tuple[tuple[Carrier, Variables], ...]

    def holds(self, context: Mapping[Any, Any], states: tuple[object, ...]) -> bool:
        """Say whether `context` and `states` are dumped as these were."""
        modules, variables, valued, values, idle, unset, alike, owned, several = self
        if (
            len(sys.modules) != modules
            or not all(map(is_, compress(states, idle), unset))
            or tuple(context) != variables
        ):
            return False
        if variables and not all(map(is_, compress(context.values(), valued), values)):
            return False
        for index, is_alike in alike:
            if not is_alike(states[index]):
                return False
        for variable, is_alike in owned:
            if not is_alike(context[variable]):
                return False
        return not several or all(variables_of(carrier) == were for carrier, were in several)


_NEVER: tuple[bytes, _Last | None] = b"", None
_NO_VARIABLES: Mapping[Any, Any] = MappingProxyType({})


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.plans: dict[Plan, tuple[bytes, _Last | None]] = {}


_of_thread = _OfThread()


def dumped(plan: Plan) -> bytes:
    """Return what ``capture_with(plan).dumps()`` does."""
    kept = _of_thread.plans
    data, last = kept.get(plan, _NEVER)
    context = copy_context() if plan.copies_context else None
    try:  # read_states, without a frame of its own
        states = plan.read()
    except Exception as cause:
        raise capture_error(plan, cause) from cause
    shared: tuple[object, ...] = ()
    for carrier in plan.process_wide:
        shared += (carrier.capture(),)
    variables = _NO_VARIABLES if context is None else context
    if last is not None and last.holds(variables, states + shared):
        return data
    edits = read_edits(plan) if plan.edits else ()
    entries = entries_of(Snapshot(plan, context, states, edits), shared)
    former, data = data, encode(entries)
    # What changes with each call is not worth looking at.
    if former == data and not edits and len(data) <= _LARGEST:
        last = _noted(plan, variables, states + shared, entries)
    else:
        last = None
    if len(kept) >= _PLANS_KEPT:
        kept.clear()
    kept[plan] = data, last
    return data


def _noted(
    plan: Plan,
    context: Mapping[Any, Any],
    states: tuple[object, ...],
    entries: dict[str, list[Any]],
) -> _Last | None:
    """Return what tells whether all this is dumped as `entries` again; None if nothing does."""
    carriers = (*(step.carrier for step in plan.steps), *plan.process_wide)
    alike: list[tuple[int, Alike]] = []
    for index, (carrier, state) in enumerate(zip(carriers, states)):
        if not _is_idle(carrier, state):
            same = _alike(carrier, state, entries)
            if same is None:
                return None
            alike.append((index, same))
    idle = tuple(map(_is_idle, carriers, states))
    owned: list[tuple[ContextVar[Any], Alike]] = []
    several: list[tuple[Carrier, Variables]] = []
    own = {ambient_policy}
    for carrier in plan.absorbed:
        variables = variables_of(carrier)
        own.update(variables)
        if not isinstance(carrier, ContextVarCarrier):
            several.append((carrier, variables))
        for variable in filter(context.__contains__, variables):
            same = _alike_value(carrier, variable, context[variable], entries)
            if same is None:
                return None
            owned.append((variable, same))
    valued = tuple(v not in own and portable_address(v) is not None for v in context)
    values = tuple(compress(context.values(), valued))
    if not all(map(is_constant, values)):
        return None
    unset = tuple(compress(states, idle))
    return _Last(
        len(sys.modules),
        tuple(context),
        valued,
        values,
        idle,
        unset,
        tuple(alike),
        tuple(owned),
        tuple(several),
    )


def _is_idle(carrier: Carrier, state: object) -> bool:
    return state is MISSING or state is getattr(carrier, "default", MISSING)


def _alike_value(
    carrier: Any, variable: ContextVar[Any], value: object, entries: dict[str, list[Any]]
) -> Alike | None:
    if carrier.state_of({variable: value}) is MISSING:
        return lambda other: carrier.state_of({variable: other}) is MISSING
    return _alike(carrier, value, entries)


def _alike(carrier: Carrier, state: object, entries: dict[str, list[Any]]) -> Alike | None:
    if not isinstance(carrier, CarrierBase):
        return None
    # One that could not be dumped is to be complained of each time.
    return carrier.dumps_alike(state) if carrier.name in entries else None
