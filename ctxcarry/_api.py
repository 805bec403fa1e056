"""The functions of the package that work on the default registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ctxcarry._default import registry
from ctxcarry._policy import REMAINING, Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import ParamSpec, TypeVar

    from ctxcarry._carrier import Carrier
    from ctxcarry._snapshot import Snapshot

    P = ParamSpec("P")
    T = TypeVar("T")
    C = TypeVar("C", bound=Carrier)

__all__ = ("bind", "capture", "carriers", "policy", "register", "suppress", "unregister")


def capture(
    *, only: str | Iterable[str] | None = None, exclude: str | Iterable[str] | None = None
) -> Snapshot:
    """
    Take a snapshot of all carried contexts on this thread now.

    Args:
        only: Names to carry; everything else is left unchanged where the
            snapshot is used.
        exclude: Names not to carry.

    Returns:
        The snapshot, within the policies in force here.

    Raises:
        UnknownCarrierError: If a name is unknown.
        CarrierError: If a carrier cannot capture; nothing else happened.
        ValueError: If both arguments are given.
    """
    return registry.capture(only=only, exclude=exclude)


def bind(fn: Callable[P, T]) -> Callable[P, T]:
    """
    Bind `fn` to the context of this moment, for boundaries that ctxcarry does not know.

    Args:
        fn: A callable, a coroutine function or a generator function.

    Returns:
        A callable that runs `fn` under a snapshot taken now, on any thread and
        as often as it is called; `fn` itself when there is nothing to carry.

    Raises:
        CarrierError: If a carrier cannot capture.
    """
    return registry.capture().wrap(fn)


def register(carrier: C, *, after: Iterable[str] = ()) -> C:
    """
    Carry one more context from now on.

    Args:
        carrier: A `ContextVarCarrier`, `ThreadLocalCarrier`, `ValueCarrier` or
            any object as `Carrier` describes it.
        after: Names of carriers that are applied before this one.

    Returns:
        The carrier.

    Raises:
        TypeError: If `carrier` lacks a method or a name.
        DuplicateCarrierError: If the name is taken.
        ValueError: If `after` makes a circle.
    """
    return registry.register(carrier, after=after)


def unregister(name: str) -> None:
    """
    Stop carrying the context `name`. Snapshots already taken keep it.

    Raises:
        UnknownCarrierError: If no carrier has this name.
    """
    registry.unregister(name)


def carriers() -> tuple[Carrier, ...]:
    """Return the carriers of the default registry in the order in which they are applied."""
    return registry.carriers()


def policy(
    *,
    propagate: str | Iterable[str] = (),
    clear: str | Iterable[str] = (),
    unchanged: str | Iterable[str] = (),
) -> Policy:
    """
    Say what happens to each context where work handed over from here on runs.

    Use the result in a ``with`` statement (it nests, and the innermost policy
    that names a context decides) or pass it to `ctxcarry.executor`. What no
    policy names is propagated.

    Args:
        propagate: Names whose captured value is applied.
        clear: Names that are unset there.
        unchanged: Names that are neither captured nor applied.

    Each takes one name or several; ``"*"`` means the remaining ones.

    Raises:
        ValueError: If two of the arguments name the same context.
        UnknownCarrierError: On the next hand-over, if a name is unknown.
    """
    return Policy(propagate, clear, unchanged)


def suppress(*names: str) -> Policy:
    """
    Do not carry these contexts for work handed over from here on.

    Args:
        *names: Names of contexts; all unless given.

    Returns:
        A context manager, nestable and re-enterable.
    """
    return Policy(unchanged=names or REMAINING)
