"""Dump and load: a snapshot as entries of the wire format, and back in another process."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from ctxcarry._addresses import address_of_variable, found_at
from ctxcarry._carrier import MISSING
from ctxcarry._catalog import import_framework_of
from ctxcarry._contexts import HERE
from ctxcarry._plan import CONTEXTVARS, variables_of
from ctxcarry._policy import CLEAR, PROPAGATE, ambient_policy
from ctxcarry._snapshot import Snapshot
from ctxcarry._states import is_set
from ctxcarry._wire import (
    CLEARED,
    checked_choice,
    complain,
    decode,
    encode,
    is_entry,
    is_plain,
    packed,
    unpacked,
)
from ctxcarry.errors import (
    CarrierError,
    ContextMismatchError,
    CtxCarryError,
    NotPortableError,
    UnknownCarrierError,
    WireError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ctxcarry._carrier import Carrier
    from ctxcarry._registry import Registry

__all__ = ("ORIGIN", "dumps", "entries_of", "loads", "portable_address")

ORIGIN = "in another process"
# What of these modules is set means something to their own process only.
_NOT_PORTABLE = ("ctxcarry.", "ray.")


def dumps(snapshot: Snapshot, not_portable: str | None = None) -> bytes:
    """Return `snapshot` in the wire format; see `Snapshot.dumps`."""
    checked_choice(not_portable)
    shared = [carrier.capture() for carrier in snapshot._plan.process_wide]
    return encode(entries_of(snapshot, shared, not_portable))


def entries_of(
    snapshot: Snapshot, shared: Sequence[object], not_portable: str | None = None
) -> dict[str, list[Any]]:
    """
    Return the entries for `snapshot`.

    Args:
        snapshot: The snapshot.
        shared: The states of what all threads share, as the plan lists it.
        not_portable: As for `Snapshot.dumps`.
    """
    entries: dict[str, list[Any]] = {}
    for carrier, action, state in _states(snapshot, shared):
        if action == CLEAR:
            entries[carrier.name] = CLEARED
        elif is_set(carrier, state):
            entry = _dumped(carrier, state, not_portable)
            if entry is not None:
                entries[carrier.name] = entry
    if snapshot._plan.contexts == CLEAR:
        entries[CONTEXTVARS] = CLEARED
    else:
        plain, pickled = _dumped_variables(snapshot, not_portable)
        if plain or pickled:
            entries[CONTEXTVARS] = ["v", [plain, pickled]]
    return entries


def loads(data: bytes, *, trusted: bool, strict: bool, registry: Registry) -> Snapshot:
    """Return the snapshot in `data`; see `Snapshot.loads`."""
    entries = decode(data)
    problems: list[CtxCarryError] = []
    states: dict[str, object] = {}
    edits: list[tuple[ContextVar[Any], object]] = []
    for name, entry in entries.items():
        if name == CONTEXTVARS and entry != CLEARED:
            edits += _loaded_variables(entry, problems, trusted=trusted)
            continue
        try:
            carrier = _carrier(name, registry, trusted=trusted)
            states[name] = _loaded(carrier, entry, trusted=trusted)
        except ContextMismatchError:
            raise
        except CtxCarryError as error:
            problems.append(error)
    if problems and strict:
        msg = f"the snapshot cannot be loaded in full: {'; '.join(map(str, problems))}"
        raise WireError(msg) from problems[0]
    for problem in problems:
        complain("warn", f"{problem} (the rest of the snapshot is carried)", WireError)
    return _assembled(registry, states, edits)


def portable_address(variable: ContextVar[Any]) -> str | None:
    """Return the name by which another process finds `variable`, if it is to have it."""
    address = address_of_variable(variable)
    return None if address is None or address.startswith(_NOT_PORTABLE) else address


def _states(snapshot: Snapshot, shared: Sequence[object]) -> Iterator[tuple[Carrier, str, object]]:
    """Yield each carrier that has a state or is cleared, but for ``contextvars``."""
    plan = snapshot._plan
    for step, state in zip(plan.steps, snapshot._states):
        action = plan.actions[step.name]
        if action == CLEAR or is_set(step.carrier, state):
            yield step.carrier, action, state
    for carrier, state in zip(plan.process_wide, shared):
        yield carrier, plan.actions[carrier.name], state
    for carrier in (*plan.absorbed, *(c for c, _ in plan.edits)):
        action = plan.actions[carrier.name]
        if action in {PROPAGATE, CLEAR}:
            values = {v: snapshot._value_of(v) for v in variables_of(carrier)}
            yield carrier, action, carrier.state_of(values)  # type: ignore[attr-defined]


def _dumped(carrier: Carrier, state: object, not_portable: str | None) -> list[Any] | None:
    how = not_portable or str(getattr(carrier, "not_portable", "warn"))
    try:
        value = _dump(carrier, state)
        return packed(value) if getattr(carrier, "pickles", False) else ["v", value]
    except NotPortableError as problem:
        message = (
            f"{carrier.name!r} cannot travel to another process: {problem}. Leave it out with "
            f"ctxcarry.suppress({carrier.name!r}), or set it there"
        )
        complain(how, message, NotPortableError)
        return None


def _dump(carrier: Carrier, state: object) -> object:
    dump = getattr(carrier, "dump", None)
    if dump is None:
        msg = f"its carrier {carrier!r} has no dump(state) and load(payload)"
        raise NotPortableError(msg)
    try:
        return dump(state)
    except NotPortableError:
        raise
    except Exception as cause:
        raise CarrierError(carrier.name, "dump", f"{type(cause).__name__}: {cause}") from cause


def _dumped_variables(
    snapshot: Snapshot, not_portable: str | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """
    Return the ContextVars that can travel, by address: plain values, and pickled ones.

    Libraries keep variables where no other process can find them, with values
    that mean nothing there: those are left out without a word. A variable with
    a carrier of its own is that carrier's to dump.
    """
    plan = snapshot._plan
    own = {v for c in (*plan.absorbed, *(c for c, _ in plan.edits)) for v in variables_of(c)}
    # Not by its address, which may be that of another module that holds it too.
    own.add(ambient_policy)
    plain: dict[str, Any] = {}
    pickled: dict[str, str] = {}
    for variable, value in {**(snapshot._context or {}), **dict(snapshot._edits)}.items():
        if variable in own or value is HERE or value is MISSING:
            continue
        address = portable_address(variable)
        if address is None:
            continue
        if is_plain(value):
            plain[address] = value
            continue
        try:
            pickled[address] = packed(value)[1]
        except NotPortableError as problem:
            if not_portable == "raise":
                msg = f"the ContextVar {address!r} cannot travel to another process: {problem}"
                raise NotPortableError(msg) from problem
    return plain, pickled


def _carrier(name: str, registry: Registry, *, trusted: bool) -> Carrier:
    carrier = registry.get(name)
    if carrier is None and trusted and import_framework_of(name):
        # It was installed, and not imported yet.
        carrier = registry.get(name)
    if carrier is None:
        raise UnknownCarrierError.of(name, [carrier.name for carrier in registry.carriers()])
    return carrier


def _loaded(carrier: Carrier, entry: list[Any], *, trusted: bool) -> object:
    if entry == CLEARED:
        return CLEARED
    if entry[0] == "p" and not getattr(carrier, "pickles", False):
        msg = f"{carrier.name!r} does not take pickled states, and got one"
        raise WireError(msg)
    try:
        value = unpacked(entry, trusted=trusted)
        load = getattr(carrier, "load", None)
        if load is None:
            msg = f"its carrier {carrier!r} has no load(payload)"
            raise NotPortableError(msg)
        # A name in untrusted bytes must not choose what is imported and called.
        return load(value) if trusted or not getattr(carrier, "imports", False) else _refuse()
    except (NotPortableError, WireError) as problem:
        msg = f"{carrier.name!r} is left as it is here: {problem}"
        raise type(problem)(msg) from problem
    except ContextMismatchError:
        raise
    except Exception as cause:
        raise CarrierError(carrier.name, "load", f"{type(cause).__name__}: {cause}") from cause


def _refuse() -> object:
    msg = "it names something to import: pass trusted=True if you know the sender"
    raise NotPortableError(msg)


def _loaded_variables(
    entry: list[Any], problems: list[CtxCarryError], *, trusted: bool
) -> list[tuple[ContextVar[Any], object]]:
    try:
        plain, pickled = entry[1]
        values = [*plain.items(), *((a, ["p", data]) for a, data in pickled.items())]
    except (AttributeError, TypeError, ValueError):
        problems.append(WireError(f"{CONTEXTVARS!r} is not two maps of addresses to values"))
        return []
    first_pickled = len(plain)
    edits: list[tuple[ContextVar[Any], object]] = []
    for index, (address, value) in enumerate(values):
        try:
            variable = found_at(address, imports=trusted)
            if type(variable) is not ContextVar:
                msg = "there is none of that name in this process"
                raise WireError(msg)
            given = value if index < first_pickled else _unpickled(value, trusted=trusted)
            edits.append((variable, given))
        except CtxCarryError as problem:
            problems.append(WireError(f"the ContextVar {address!r} is left as it is: {problem}"))
    return edits


def _unpickled(entry: list[Any], *, trusted: bool) -> object:
    if not is_entry(entry):
        msg = f"{entry!r} is not an entry"
        raise WireError(msg)
    return unpacked(entry, trusted=trusted)


def _assembled(
    registry: Registry, states: dict[str, object], edits: list[tuple[ContextVar[Any], object]]
) -> Snapshot:
    """Make a snapshot that applies `states` and `edits`, and leaves everything else alone."""
    for name in list(states):
        carrier = registry.get(name)
        if carrier is not None and hasattr(carrier, "variables"):
            state = states.pop(name)
            cleared = dict.fromkeys(variables_of(carrier), MISSING)
            values = cleared if state is CLEARED else carrier.values_of(state)  # type: ignore[attr-defined]
            edits = [*edits, *values.items()]
    plan = registry.far_plan(
        frozenset(name for name, state in states.items() if state is not CLEARED),
        frozenset(name for name, state in states.items() if state is CLEARED),
        in_context=bool(edits),
    )
    in_order = tuple(
        getattr(step.carrier, "default", MISSING)
        if states[step.name] is CLEARED
        else states[step.name]
        for step in plan.steps
    )
    return Snapshot(plan, None, in_order, tuple(edits), ORIGIN)
