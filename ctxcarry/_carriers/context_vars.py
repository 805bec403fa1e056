"""Carriers of ContextVars: all of them, or chosen ones."""

from __future__ import annotations

from contextvars import Context, ContextVar, copy_context
from functools import partial
from operator import is_
from typing import TYPE_CHECKING, Any

from ctxcarry._carrier import MISSING, CarrierBase, shorten
from ctxcarry._constant import is_constant
from ctxcarry._contexts import InPlace, value_here
from ctxcarry._plan import CONTEXTVARS
from ctxcarry.errors import CarrierError, LeakError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("ContextVarCarrier", "ContextVarsCarrier", "VariablesCarrier")


class ContextVarsCarrier(CarrierBase):
    """
    Every ContextVar at once, as ``contextvars.copy_context`` sees them.

    `Snapshot.run` and `Snapshot.wrap` do not call these methods: they enter a
    copy of the Context, which costs the same for one variable as for 500.
    """

    name = CONTEXTVARS

    def capture(self) -> object:
        """Return a copy of the current Context, or `MISSING` when nothing is set in it."""
        return copy_context() if len(copy_context()) else MISSING

    def apply(self, state: object) -> object:
        """Set the variables one by one; see `Snapshot.active` for what that cannot unset."""
        variables = InPlace()
        variables.replay(state if isinstance(state, Context) else Context(), frozenset())
        return variables

    def undo(self, token: object) -> None:
        """Reset the variables that `apply` set."""
        assert isinstance(token, InPlace)
        failures = token.take_back()
        if failures:
            msg = f"set in one Context and taken back in another: {', '.join(failures)}"
            raise LeakError(msg)

    def describe(self, state: object) -> str:
        """Return the names of the variables."""
        if not isinstance(state, Context):
            return "not set"
        return shorten(sorted(variable.name for variable in state))


class VariablesCarrier(CarrierBase):
    """
    Chosen ContextVars, carried together under one name.

    With ``contextvars`` in force they travel for free; without it, `Snapshot.run`
    enters a Context in which they, and only they, are as captured.

    Args:
        name: Name of the carrier.
        variables: Called at each capture, since a registry may grow.
    """

    def __init__(self, name: str, variables: Callable[[], tuple[ContextVar[Any], ...]]) -> None:
        self.name = name
        self.variables = variables

    pickles = True

    def state_of(self, values: dict[ContextVar[Any], object]) -> object:
        """Return the state in which the variables have `values`, `MISSING` among them."""
        return {v: value for v, value in values.items() if value is not MISSING} or MISSING

    def values_of(self, state: Any) -> dict[ContextVar[Any], object]:
        """Return the values of the variables in `state`."""
        return {v: state.get(v, MISSING) for v in self.variables()}

    def dump(self, state: Any) -> object:
        """Return the values by the names of the variables."""
        return {variable.name: value for variable, value in state.items()}

    def load(self, payload: Any) -> object:
        """Return the state for values by name; names that are not known here are left out."""
        return {v: payload[v.name] for v in self.variables() if v.name in payload}

    def capture(self) -> object:
        """Return the values by variable, or `MISSING` when none is set."""
        here = copy_context()
        values = {v: here[v] for v in self.variables() if v in here}
        return values or MISSING

    def apply(self, state: object) -> object:
        """
        Make the variables as in `state`, in place.

        Raises:
            CarrierError: If one is set here, not in `state`, and has no default.
        """
        values = state if isinstance(state, dict) else {}
        changes = InPlace()
        try:
            for variable in self.variables():
                if variable in values:
                    changes.set(variable, values[variable])
                elif not changes.unset(variable):
                    reason = (
                        f"{variable.name!r} has no default, so that only snapshot.run(fn) and "
                        "snapshot.wrap(fn) can unset it"
                    )
                    raise CarrierError(self.name, "apply", reason)
        except BaseException:
            changes.take_back()
            raise
        return changes

    def undo(self, token: object) -> None:
        """Reset the variables that `apply` set."""
        assert isinstance(token, InPlace)
        failures = token.take_back()
        if failures:
            msg = f"set in one Context and taken back in another: {', '.join(failures)}"
            raise LeakError(msg)


class ContextVarCarrier(VariablesCarrier):
    """
    Carry one ContextVar under a name of its own.

    Useful to exclude or clear it by policy, to carry it where ``contextvars``
    is suppressed, and to see it in `Snapshot.explain`.

    Args:
        variable: The variable.
        name: Name of the carrier; the variable's own unless given.

    Raises:
        TypeError: If `variable` is not a ContextVar.
    """

    def __init__(self, variable: ContextVar[Any], name: str | None = None) -> None:
        if not isinstance(variable, ContextVar):
            msg = (
                f"ContextVarCarrier carries a contextvars.ContextVar, not {variable!r} of type "
                f"{type(variable).__name__}; use ThreadLocalCarrier for a field of a "
                "threading.local and ValueCarrier for a pair of functions"
            )
            raise TypeError(msg)
        super().__init__(variable.name if name is None else name, lambda: (variable,))
        self.variable = variable

    def capture(self) -> object:
        """Return the value, or `MISSING` when it is not set (a default does not count)."""
        return value_here(self.variable)

    def apply(self, state: object) -> object:
        """
        Set the variable, or bring it to its default for `MISSING`.

        Raises:
            CarrierError: For `MISSING` when it is set here and has no default.
                `Snapshot.run` and `Snapshot.wrap` can unset it all the same.
        """
        return super().apply(MISSING if state is MISSING else {self.variable: state})

    def state_of(self, values: dict[ContextVar[Any], object]) -> object:
        """Return the value of the one variable."""
        return values[self.variable]

    def values_of(self, state: Any) -> dict[ContextVar[Any], object]:
        """Return the one value by the one variable."""
        return {self.variable: state}

    def dump(self, state: Any) -> object:
        """Return the value."""
        return state

    def load(self, payload: Any) -> object:
        """Return the value."""
        return payload

    def dumps_alike(self, state: object) -> Callable[[object], bool] | None:
        """Say whether it is the same value, if nobody can change that."""
        if type(self).dump is not ContextVarCarrier.dump or not is_constant(state):
            return None
        return partial(is_, state)

    def loads_again(self, payload: object, state: object) -> Callable[[], object] | None:
        """Return the value, if nobody can change it."""
        if type(self).load is not ContextVarCarrier.load or not is_constant(payload):
            return None
        return lambda: state
