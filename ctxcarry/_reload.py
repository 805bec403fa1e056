"""
Load the same bytes once more, in less time.

A worker gets the same contexts with a thousand calls. What bytes that have come twice
were loaded as is kept, with what tells whether it still is: the same carriers, each
ContextVar where its address says, and states for which their carriers answer (see
`ctxcarry._carrier.CarrierBase`). Where a task could change a value in place for the
next one nothing is kept, and no object of the user's is kept alive.
"""

from __future__ import annotations

from functools import partial
from operator import is_
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ctxcarry._addresses import place_of
from ctxcarry._carrier import GONE, MISSING, CarrierBase
from ctxcarry._carriers.context_vars import ContextVarCarrier
from ctxcarry._constant import is_constant
from ctxcarry._default import registry
from ctxcarry._plan import CONTEXTVARS
from ctxcarry._portable import ORIGIN
from ctxcarry._snapshot import Snapshot
from ctxcarry._wire import CLEARED, decode

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import ContextVar

    from ctxcarry._carrier import Carrier
    from ctxcarry._plan import Plan

    Edit = tuple[ContextVar[Any], object]

__all__ = ("loaded",)

_KEPT = 32
_LARGEST = 64 * 1024  # bytes


class _Known(NamedTuple):
    """
    How the bytes are loaded again.

    Attributes:
        carriers: Those of the registry.
        places: Of each module its namespace, and names with the variables that are there.
        edits: These variables with their values.
        states: For each step of the plan what returns its state.
        owned: Variables with a carrier of their own, with what returns their value.
    """

    plan: Plan
    carriers: dict[str, Carrier]
    places: tuple[tuple[dict[str, Any], tuple[str, ...], tuple[object, ...]], ...]
    edits: tuple[Edit, ...]
    states: tuple[Callable[[], object], ...]
    owned: tuple[tuple[ContextVar[Any], Callable[[], object]], ...]

    def load(self) -> Snapshot | None:
        """Return the snapshot, or None if the bytes are to be loaded anew."""
        if self.carriers is not registry._carriers:
            return None
        for namespace, names, variables in self.places:
            if not all(map(is_, map(namespace.get, names), variables)):
                return None
        states, edits = [], list(self.edits)
        for load in self.states:
            state = load()
            if state is GONE:
                return None
            states.append(state)
        for variable, load in self.owned:
            state = load()
            if state is GONE:
                return None
            edits.append((variable, state))
        return Snapshot(self.plan, None, tuple(states), tuple(edits), ORIGIN)


# By the bytes: None for what has come once, False for what is to be loaded anew each time.
_seen: dict[bytes, _Known | Literal[False] | None] = {}


def loaded(data: bytes) -> Snapshot:
    """Return what ``Snapshot.loads(data, trusted=True)`` does."""
    known = _seen.get(data)
    if known:
        snapshot = known.load()
        if snapshot is not None:
            return snapshot
        _seen.pop(data, None)
    carriers = registry._carriers
    snapshot = Snapshot.loads(data, trusted=True)
    if known is not False and len(data) <= _LARGEST:
        # What comes once only is not worth looking at.
        noted: _Known | Literal[False] | None = None
        if data in _seen:
            noted = _noted(data, snapshot, carriers) or False
        if len(_seen) >= _KEPT:
            _seen.clear()
        _seen[data] = noted
    return snapshot


def _noted(data: bytes, snapshot: Snapshot, carriers: dict[str, Carrier]) -> _Known | None:
    """Return how to load `data` again, which `snapshot` is of, or None if that is unsure."""
    entries = decode(data)
    found = dict(snapshot._edits)
    states: list[Callable[[], object]] = []
    for step, state in zip(snapshot._plan.steps, snapshot._states):
        again = _again(step.carrier, entries.pop(step.name), state)
        if again is None:
            return None
        states.append(again)
    addresses: list[str] = []
    owned: list[tuple[ContextVar[Any], Callable[[], object]]] = []
    for name, entry in entries.items():
        if entry == CLEARED:
            return None
        if name == CONTEXTVARS:
            addresses += [address for values in entry[1] for address in values]
            continue
        # One that could not be loaded is to be complained of each time.
        carrier = carriers.get(name)
        if not isinstance(carrier, ContextVarCarrier) or carrier.variable not in found:
            return None
        again = _again(carrier, entry, found[carrier.variable])
        if again is None:
            return None
        owned.append((carrier.variable, again))
    edits = snapshot._edits[: len(addresses)]
    places = [place for address in addresses if (place := place_of(address))]
    sure = (
        len(places) == len(addresses)
        and len(addresses) + len(owned) == len(snapshot._edits)
        and all(is_constant(value) for _, value in edits)
    )
    if not sure:
        return None
    return _Known(
        snapshot._plan,
        carriers,
        _by_namespace(places, [variable for variable, _ in edits]),
        edits,
        tuple(states),
        tuple(owned),
    )


def _by_namespace(
    places: list[tuple[dict[str, Any], str]], variables: list[ContextVar[Any]]
) -> tuple[tuple[dict[str, Any], tuple[str, ...], tuple[object, ...]], ...]:
    found: dict[int, tuple[dict[str, Any], dict[str, ContextVar[Any]]]] = {}
    for (namespace, name), variable in zip(places, variables):
        found.setdefault(id(namespace), (namespace, {}))[1][name] = variable
    return tuple((space, tuple(names), tuple(names.values())) for space, names in found.values())


def _again(carrier: Carrier, entry: list[Any], state: object) -> Callable[[], object] | None:
    if entry == CLEARED:
        return partial(getattr, carrier, "default", MISSING)
    if entry[0] != "v" or not isinstance(carrier, CarrierBase):
        return None
    return carrier.loads_again(entry[1], state)
