"""Proxies made with wrapt, for what must still look like the function it stands for."""

from __future__ import annotations

import sys
from types import MethodType
from typing import TYPE_CHECKING, Any, SupportsIndex

import wrapt

from ctxcarry._capture import capture_with
from ctxcarry._default import registry
from ctxcarry._step import made_by

if TYPE_CHECKING:
    from collections.abc import Callable

    from ctxcarry._policy import Policy
    from ctxcarry._snapshot import Snapshot

__all__ = (
    "BoundFunction",
    "CarriedClassMethod",
    "CarriedFunction",
    "SteppedFunction",
    "SteppedMethod",
    "carried",
)


class BoundFunction(wrapt.CallableObjectProxy):
    """A coroutine or generator function that runs under one snapshot."""

    def __init__(self, snapshot: Snapshot, fn: Callable[..., Any]) -> None:
        super().__init__(fn)
        self._self_snapshot = snapshot

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._self_snapshot.run(self.__wrapped__, *args, **kwargs)


class CarriedFunction(wrapt.CallableObjectProxy):
    """A function that boundaries hand over with a snapshot; a plain call just calls it."""

    def __init__(self, fn: Callable[..., Any], policy: Policy | None) -> None:
        super().__init__(fn)
        self._self_policy = policy

    def bind(self) -> Callable[..., Any]:
        """Return the function bound to a snapshot taken now."""
        fn: Callable[..., Any] = self._self_capture().wrap(self.__wrapped__)
        return fn

    def _self_capture(self) -> Snapshot:
        return capture_with(registry.plan(self._self_policy))

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        get = getattr(self.__wrapped__, "__get__", None)
        if get is None:  # a builtin or a callable object
            return self
        bound = get(instance, owner)
        return self if bound is self.__wrapped__ else type(self)(bound, self._self_policy)

    def __copy__(self) -> CarriedFunction:
        return self  # as functions do

    def __deepcopy__(self, memo: object) -> CarriedFunction:
        return self

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        instance = getattr(self.__wrapped__, "__self__", None)
        if instance is not None:
            return getattr, (instance, self.__wrapped__.__name__)
        return _reduced(self, self.__wrapped__, self._self_policy)


class SteppedFunction(CarriedFunction):
    """A coroutine or generator function: captured at the call, active at each step."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._self_capture().run(self.__wrapped__, *args, **kwargs)


class SteppedMethod(wrapt.CallableObjectProxy):
    """A coroutine or generator method of a class under `ctxcarry.carry_context`."""

    def __init__(
        self,
        method: Callable[..., Any],
        policy: Policy | None,
        base_of: Callable[[object], Snapshot | None],
    ) -> None:
        super().__init__(method)
        self._self_policy = policy
        self._self_base_of = base_of

    def __call__(self, instance: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call the method on `instance`; its steps see the caller's contexts, then the base's."""
        snapshot = capture_with(registry.plan(self._self_policy))
        base = self._self_base_of(instance)
        if base is not None:
            snapshot = snapshot.over(base)
        return snapshot.run(self.__wrapped__, instance, *args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __copy__(self) -> SteppedMethod:
        return self

    def __deepcopy__(self, memo: object) -> SteppedMethod:
        return self

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return _reduced(self, self.__wrapped__, self._self_policy, self._self_base_of)


class CarriedClassMethod(classmethod):  # type: ignore[type-arg]
    """A class method that boundaries hand over with a snapshot."""

    def __init__(self, fn: Callable[..., Any], policy: Policy | None) -> None:
        super().__init__(fn)
        self._policy = policy

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        # Since Python 3.13 a classmethod binds what it holds, whatever that is.
        bound = MethodType(self.__func__, type(instance) if owner is None else owner)
        return carried(bound, self._policy)


def carried(fn: Callable[..., Any], policy: Policy | None) -> CarriedFunction:
    """Return `fn` as `ctxcarry.carry_context` decorates it."""
    return (SteppedFunction if made_by(fn) else CarriedFunction)(fn, policy)


def _reduced(proxy: Any, fn: Callable[..., Any], *rest: Any) -> Any:
    """Pickle by name, as functions are, where that name leads to the proxy; else by value."""
    found: Any = sys.modules.get(fn.__module__)
    for name in fn.__qualname__.split("."):
        found = getattr(found, name, None)
    return fn.__qualname__ if found is proxy else (type(proxy), (fn, *rest))
