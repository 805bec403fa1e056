"""Policies: which contexts a snapshot propagates, clears or leaves unchanged."""

from __future__ import annotations

from contextvars import ContextVar
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Final

from ctxcarry._undo import leak

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

__all__ = (
    "CLEAR",
    "PROPAGATE",
    "REMAINING",
    "UNCHANGED_BY_POLICY",
    "Policy",
    "ambient_policy",
    "checked",
    "chosen",
    "policy_of",
)

PROPAGATE: Final = "propagate"
CLEAR: Final = "clear"
UNCHANGED_BY_POLICY: Final = "unchanged"
REMAINING: Final = "*"

_Names = "str | Iterable[str]"


class Policy:
    """
    Say, for work handed over from here on, what happens to each context.

    Use it as a context manager (re-enterable and nestable; the innermost that
    names a context decides) or pass it to `ctxcarry.executor`.

    Args:
        propagate: Names whose captured value is applied where the work runs.
        clear: Names that are unset where the work runs.
        unchanged: Names that are neither captured nor applied: the work sees
            what is set where it runs.

    Each takes one name or several; ``"*"`` means the remaining ones. A name
    that no policy mentions is propagated.

    Raises:
        ValueError: If two of the arguments name the same context.
    """

    __slots__ = ("_actions", "_hash", "_key")

    def __init__(
        self,
        propagate: _Names = (),  # type: ignore[valid-type]
        clear: _Names = (),  # type: ignore[valid-type]
        unchanged: _Names = (),  # type: ignore[valid-type]
    ) -> None:
        actions: dict[str, str] = {}
        for action, names in (
            (PROPAGATE, propagate),
            (CLEAR, clear),
            (UNCHANGED_BY_POLICY, unchanged),
        ):
            for name in _listed(action, names):
                if actions.setdefault(name, action) != action:
                    what = "the remaining contexts" if name == REMAINING else repr(name)
                    msg = (
                        f"a policy cannot both {actions[name]} and {action} {what}: "
                        "name each context in one of propagate=, clear= and unchanged= only"
                    )
                    raise ValueError(msg)
        self._set(actions)

    def _set(self, actions: dict[str, str]) -> None:
        self._actions = actions
        self._key = tuple(sorted(actions.items()))
        # Kept, since a plan is looked up by it for each hand-over.
        self._hash = hash(self._key)

    @property
    def names(self) -> frozenset[str]:
        """The names that this policy mentions, without ``"*"``."""
        return frozenset(self._actions) - {REMAINING}

    def action(self, name: str) -> str:
        """Return ``"propagate"``, ``"clear"`` or ``"unchanged"`` for the context `name`."""
        return self._actions.get(name) or self._actions.get(REMAINING, PROPAGATE)

    def within(self, outer: Policy | None) -> Policy:
        """Return this policy where it says something, and `outer` elsewhere."""
        if outer is None:
            return self
        merged = Policy()
        if REMAINING in self._actions:  # says something about every name
            merged._set(dict(self._actions))
        else:
            merged._set({**outer._actions, **self._actions})
        return merged

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Policy) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        by_action: dict[str, list[str]] = {}
        for name, action in self._key:
            by_action.setdefault(action, []).append(name)
        inner = ", ".join(f"{action}={names!r}" for action, names in by_action.items())
        return f"policy({inner})"

    def __enter__(self) -> Policy:  # noqa: PYI034 - not meant to be derived from
        outer = ambient_policy.get()
        merged = self.within(outer.policy if outer is not None else None)
        ambient_policy.set(_Scope(merged, self, outer))
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # The scope is a linked list and not a Token: a Token cannot be reset in
        # a copied Context, where a generator or a task may leave the block.
        scope = ambient_policy.get()
        if scope is None or scope.entered is not self:
            msg = (
                f"{self!r} is not the innermost policy here, so it cannot be left: it was entered "
                "in another thread or task, or left out of order. Enter and leave it in one place, "
                "with a `with` statement."
            )
            leak(msg, exc)
            return
        ambient_policy.set(scope.outer)


class _Scope:
    """One entered policy: what is in force, what was entered, and what it covers."""

    __slots__ = ("entered", "outer", "policy")

    def __init__(self, policy: Policy, entered: Policy, outer: _Scope | None) -> None:
        self.policy = policy
        self.entered = entered
        self.outer = outer


ambient_policy: ContextVar[_Scope | None] = ContextVar("ctxcarry.policy", default=None)


def checked(policy: object) -> Policy | None:
    """
    Return `policy`, which is one or None.

    Raises:
        TypeError: If it is something else.
    """
    if policy is None or isinstance(policy, Policy):
        return policy
    msg = f"policy= takes what ctxcarry.policy(...) returns, not {policy!r}"
    raise TypeError(msg)


def chosen(caller: str, only: _Names | None, exclude: _Names | None) -> Policy | None:  # type: ignore[valid-type]
    """
    Return the policy for the arguments ``only=`` and ``exclude=``, or None for neither.

    Raises:
        ValueError: If both are given.
    """
    if only is not None and exclude is not None:
        msg = f"{caller} takes only= or exclude=, not both: only= names all that is carried"
        raise ValueError(msg)
    if only is not None:
        return Policy(propagate=only, unchanged=REMAINING)
    return None if exclude is None else Policy(unchanged=exclude)


def policy_of(fn: object) -> Policy | None:
    """Return the policy that ``@carry_context(only=..., exclude=...)`` gave `fn`, if any."""
    while type(fn) is partial:
        fn = fn.func
    if type(fn) is MethodType:
        fn = fn.__func__
    policy: Policy | None = getattr(fn, "_self_policy", None)
    return policy


def _listed(argument: str, names: str | Iterable[str]) -> tuple[str, ...]:
    listed = (names,) if isinstance(names, str) else tuple(names)
    for name in listed:
        if not isinstance(name, str):
            msg = (
                f"{argument}= takes names of carriers such as 'torch.grad_mode', "
                f"not {name!r} of type {type(name).__name__}"
            )
            raise TypeError(msg)
    return listed
