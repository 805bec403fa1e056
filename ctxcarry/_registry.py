"""Register: the ordered set of carriers, and the plans made from it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ctxcarry._capture import capture_with
from ctxcarry._carrier import Carrier
from ctxcarry._plan import CONTEXTVARS, Plan
from ctxcarry._policy import PROPAGATE, REMAINING, Policy, ambient_policy, chosen
from ctxcarry.errors import CarrierError, DuplicateCarrierError, UnknownCarrierError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeVar

    from ctxcarry._snapshot import Snapshot

    C = TypeVar("C", bound=Carrier)

__all__ = ("Registry",)

_PROPAGATE_ALL = Policy()
_PLANS_KEPT = 64


class Registry:
    """
    An ordered set of carriers.

    `ctxcarry.registry` is the default one, which the boundaries use unless they
    are given another. Safe to use from several threads.

    Args:
        known: Names that policies may mention although no carrier has them yet,
            such as those of frameworks that are not imported.
    """

    def __init__(self, *, known: Iterable[str] = ()) -> None:
        self._lock = threading.RLock()
        self._carriers: dict[str, Carrier] = {}
        self._after: dict[str, tuple[str, ...]] = {}
        self._known = frozenset(known)
        self._unavailable: dict[str, str] = {}
        self._plans: dict[tuple[Policy | None, bool, bool], Plan] = {}
        self._far_plans: dict[tuple[frozenset[str], frozenset[str], bool], Plan] = {}
        self._default = self._of_threads = Plan((), _PROPAGATE_ALL)

    def __reduce__(self) -> tuple[Callable[[], Registry], tuple[()]]:
        from ctxcarry import _default  # noqa: PLC0415 - which imports this

        if self is not _default.registry:
            msg = (
                "a registry of your own stays in its process: make it there too, and register "
                "its carriers"
            )
            raise TypeError(msg)
        return _default.default_registry, ()

    def register(self, carrier: C, *, after: Iterable[str] = ()) -> C:
        """
        Add `carrier`; snapshots taken from now on include it.

        Args:
            carrier: An object as `Carrier` describes it.
            after: Names of carriers that are applied before this one. They need
                not be registered yet.

        Returns:
            The carrier.

        Raises:
            TypeError: If `carrier` lacks a method or a name.
            DuplicateCarrierError: If the name is taken.
            ValueError: If `after` makes a circle.
        """
        if isinstance(carrier, type) or not isinstance(carrier, Carrier):
            needed = [n for n in ("name", "capture", "apply", "undo") if not hasattr(carrier, n)]
            lack = f"it lacks {', '.join(needed)}" if needed else "pass an instance, not the class"
            msg = f"{carrier!r} is no carrier (name, capture(), apply(state), undo(token)): {lack}"
            raise TypeError(msg)
        if not isinstance(carrier.name, str) or not carrier.name or carrier.name == REMAINING:
            msg = f"a carrier's name is a non-empty string other than '*', not {carrier.name!r}"
            raise TypeError(msg)
        if isinstance(after, str):
            after = (after,)
        with self._lock:
            taken = self._carriers.get(carrier.name)
            if taken is not None:
                msg = (
                    f"the name {carrier.name!r} is taken by {taken!r}, so {carrier!r} was not "
                    "registered. Give it another name, or unregister the first with "
                    f"ctxcarry.unregister({carrier.name!r})"
                )
                raise DuplicateCarrierError(msg)
            carriers: dict[str, Carrier] = {**self._carriers, carrier.name: carrier}
            self._replace(carriers, {**self._after, carrier.name: tuple(after)})
            self._unavailable.pop(carrier.name, None)
        return carrier

    def unregister(self, name: str) -> None:
        """
        Remove the carrier called `name`. Snapshots already taken keep it.

        Raises:
            UnknownCarrierError: If there is none.
        """
        with self._lock:
            if name not in self._carriers:
                raise UnknownCarrierError.of(name, list(self._carriers))
            carriers = {n: c for n, c in self._carriers.items() if n != name}
            self._replace(carriers, {n: a for n, a in self._after.items() if n != name})

    def carriers(self) -> tuple[Carrier, ...]:
        """Return the carriers in the order in which they are applied."""
        return tuple(self._carriers.values())

    def capture(
        self, *, only: str | Iterable[str] | None = None, exclude: str | Iterable[str] | None = None
    ) -> Snapshot:
        """
        Take a snapshot of this thread now.

        Args:
            only: Names to carry; everything else is left unchanged where the
                snapshot is used.
            exclude: Names not to carry.

        Raises:
            UnknownCarrierError: If a name is unknown.
            CarrierError: If a carrier cannot capture; nothing else happened.
        """
        return capture_with(self.plan(chosen("capture()", only, exclude)))

    def plan(
        self,
        policy: Policy | None = None,
        *,
        variables: bool = True,
        everywhere: bool = False,
    ) -> Plan:
        """
        Return the plan for `policy` within the policies entered here.

        Args:
            policy: What to propagate, clear or leave unchanged.
            variables: Whether ContextVars are dealt with. Not where asyncio does.
            everywhere: Whether contexts that all threads share are dealt with. Not
                where work goes to another thread, which sees them anyway.

        Raises:
            UnknownCarrierError: If the policy names a carrier that is unknown.
            CarrierError: If it asks to propagate one that cannot be carried here.
        """
        scope = ambient_policy.get()
        if scope is None:
            if policy is None and not everywhere:
                return self._default if variables else self._of_threads
        else:
            policy = scope.policy if policy is None else policy.within(scope.policy)
        plan = self._plans.get((policy, variables, everywhere))
        return plan if plan is not None else self._make_plan(policy, variables, everywhere)

    def get(self, name: str) -> Carrier | None:
        """Return the carrier called `name`, or None."""
        return self._carriers.get(name)

    def far_plan(
        self, propagate: frozenset[str], clear: frozenset[str], *, in_context: bool
    ) -> Plan:
        """Return the plan for a snapshot that came from another process with these names."""
        key = propagate, clear, in_context
        plan = self._far_plans.get(key)
        if plan is None:
            carriers = [c for n, c in self._carriers.items() if n in propagate or n in clear]
            policy = Policy(propagate=propagate, clear=clear, unchanged=REMAINING)
            plan = Plan(carriers, policy, everywhere=True)
            plan.in_context = plan.in_context or in_context
            plan.empty = plan.empty and not in_context
            if len(self._far_plans) >= _PLANS_KEPT:
                self._far_plans.clear()
            self._far_plans[key] = plan
        return plan

    def unavailable(self) -> dict[str, str]:
        """Return the known contexts that cannot be carried here, each with the reason."""
        return dict(self._unavailable)

    def mark_unavailable(self, name: str, reason: str) -> None:
        """Note that the context `name` exists here but cannot be carried, and why."""
        with self._lock:
            self._unavailable[name] = reason

    def _make_plan(
        self,
        given: Policy | None,
        variables: bool,  # noqa: FBT001
        everywhere: bool,  # noqa: FBT001
    ) -> Plan:
        policy = _PROPAGATE_ALL if given is None else given
        with self._lock:
            for name in sorted(policy.names):
                if policy.action(name) == PROPAGATE and name in self._unavailable:
                    raise CarrierError(name, "capture", self._unavailable[name])
                if name not in self._carriers and name not in self._known:
                    raise UnknownCarrierError.of(name, sorted({*self._carriers, *self._known}))
            carriers = self._carriers.values() if variables else self._without_variables()
            plan = Plan(carriers, policy, everywhere=everywhere)
            if len(self._plans) >= _PLANS_KEPT:
                self._plans.clear()
            self._plans[given, variables, everywhere] = plan
        return plan

    def _replace(self, carriers: dict[str, Carrier], after: dict[str, tuple[str, ...]]) -> None:
        self._carriers = _ordered(carriers, after)
        self._after = after
        self._plans = {}
        self._far_plans = {}
        self._default = Plan(self._carriers.values(), _PROPAGATE_ALL)
        self._of_threads = Plan(self._without_variables(), _PROPAGATE_ALL)

    def _without_variables(self) -> list[Carrier]:
        return [
            c
            for c in self._carriers.values()
            if c.name != CONTEXTVARS and not hasattr(c, "variables")
        ]


def _ordered(carriers: dict[str, Carrier], after: dict[str, tuple[str, ...]]) -> dict[str, Carrier]:
    """Return `carriers` so that each comes after those it asks for, else as registered."""
    ordered: dict[str, Carrier] = {}
    on_the_way: list[str] = []

    def place(name: str) -> None:
        if name in ordered or name not in carriers:
            return
        if name in on_the_way:
            circle = " → ".join([*on_the_way[on_the_way.index(name) :], name])
            msg = f"these carriers ask to be applied after one another: {circle}"
            raise ValueError(msg)
        on_the_way.append(name)
        for earlier in after.get(name, ()):
            place(earlier)
        on_the_way.pop()
        ordered[name] = carriers[name]

    for name in carriers:
        place(name)
    return ordered
