"""What `contextvars` itself does not offer: remove a variable, replay a Context in place."""

from __future__ import annotations

from contextvars import Context, ContextVar, Token, copy_context
from typing import TYPE_CHECKING, Any

from ctxcarry._carrier import MISSING, Marker
from ctxcarry._policy import ambient_policy as _policy

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

__all__ = ("HERE", "InPlace", "default_of", "filled", "laid_over", "overlaid", "value_here")

HERE = Marker("HERE")
"""In an edit: the value that is current where the Context is entered."""


def default_of(variable: ContextVar[Any]) -> object:
    """Return the default of `variable`, or `MISSING` when it has none."""
    try:
        return Context().run(variable.get)
    except LookupError:
        return MISSING


def value_here(variable: ContextVar[Any]) -> object:
    """Return what `variable` is set to in the current Context; its default does not count."""
    return variable.get(MISSING)


def overlaid(context: Context, edits: Iterable[tuple[ContextVar[Any], object]]) -> Context:
    """
    Return a Context like `context` but for `edits`.

    Args:
        context: Not changed. It may be entered elsewhere at this moment.
        edits: Pairs of a variable and its value; `MISSING` unsets the variable
            and `HERE` takes the value that is current on this thread.
    """
    values = [(var, value_here(var) if value is HERE else value) for var, value in edits]
    removed = {var for var, value in values if value is MISSING and var in context}
    if removed:
        # Only a Token can unset a variable, and only its own; so build a
        # Context that never had it.
        result = Context()
        kept = [(var, value) for var, value in context.items() if var not in removed]
        result.run(_set_all, kept)
    else:
        result = context.copy()
    result.run(_set_all, [(var, value) for var, value in values if value is not MISSING])
    return result


def laid_over(context: Context, edits: Collection[tuple[ContextVar[Any], object]]) -> Context:
    """Return ``overlaid(context, edits)``, which may be `context` itself: it is changed."""
    for _, value in edits:
        if value is MISSING or value is HERE:
            return overlaid(context, edits)
    context.run(_set_all, edits)
    return context


def filled(context: Context, base: Mapping[ContextVar[Any], Any]) -> Context:
    """
    Return a copy of `context` with the variables of `base` that `context` does not set.

    But not the policy in force: that was about the work that set up `base`.
    """
    result = context.copy()
    missing = [(v, value) for v, value in base.items() if v not in context and v is not _policy]
    result.run(_set_all, missing)
    return result


def _set_all(values: Iterable[tuple[ContextVar[Any], Any]]) -> None:
    for variable, value in values:
        variable.set(value)


class InPlace:
    """
    Changes to variables of the current Context that can be taken back.

    ``Context.run`` needs a callable; a ``with`` block has none, so its variables
    are set one by one.
    """

    __slots__ = ("tokens",)

    def __init__(self) -> None:
        self.tokens: list[tuple[ContextVar[Any], Token[Any]]] = []

    def set(self, variable: ContextVar[Any], value: object) -> None:
        """Set `variable` unless it is set to that very value already."""
        if variable.get(MISSING) is not value:
            self.tokens.append((variable, variable.set(value)))

    def unset(self, variable: ContextVar[Any]) -> bool:
        """
        Bring `variable` to its default.

        Returns:
            False if it is set and has no default: then nothing can unset it here.
        """
        if variable not in copy_context():
            return True
        default = default_of(variable)
        if default is MISSING:
            return False
        self.set(variable, default)
        return True

    def replay(self, context: Context, skip: frozenset[ContextVar[Any]]) -> None:
        """
        Make the variables what they are in `context`, apart from those in `skip`.

        A variable that is set here, not in `context`, and without a default
        keeps its value: see `unset`.
        """
        for variable, value in context.items():
            if variable not in skip:
                self.set(variable, value)
        self.clear(skip.union(context))

    def clear(self, skip: frozenset[ContextVar[Any]]) -> None:
        """Bring every variable that is set here to its default, apart from those in `skip`."""
        for variable in copy_context():
            if variable not in skip:
                self.unset(variable)

    def take_back(self) -> list[str]:
        """
        Undo every change, the last one first.

        Returns:
            The variables that could not be reset, each with the reason: they
            were set in another Context.
        """
        failures: list[str] = []
        while self.tokens:
            variable, token = self.tokens.pop()
            try:
                variable.reset(token)
            except (ValueError, RuntimeError) as error:
                failures.append(f"{variable.name} ({error})")
        return failures
