"""A handle of an actor that was made without ctxcarry, whose calls carry nevertheless."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import wrapt

from ctxcarry.boundaries._ray_payload import payload
from ctxcarry.boundaries._ray_prepare import MARK, is_carried_method

if TYPE_CHECKING:
    from collections.abc import Callable

    from ctxcarry._policy import Policy

__all__ = ("CarryingHandle", "carrying_handle")


def carrying_handle(handle: Any, policy: Policy | None) -> Any:
    """Return `handle` so that calls of its methods carry."""
    if MARK in handle._ray_method_signatures:
        return handle
    if type(handle) is CarryingHandle:
        if policy is None:
            return handle
        handle = handle.__wrapped__
    return CarryingHandle(handle, policy)


class CarryingHandle(wrapt.ObjectProxy):  # type: ignore[misc]
    """A handle whose methods are called by a function that brings the contexts along."""

    def __init__(self, handle: Any, policy: Policy | None) -> None:
        super().__init__(handle)
        self._self_policy = policy

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.__wrapped__, name)
        if not is_carried_method(name) or name not in self.__wrapped__._ray_method_signatures:
            return found
        returns = self.__wrapped__._ray_method_num_returns.get(name)
        options = {} if returns in {None, 1} else {"num_returns": returns}
        return _Method(self.__wrapped__, name, self._self_policy, options)

    def __reduce_ex__(self, protocol: object) -> Any:
        return carrying_handle, (self.__wrapped__, self._self_policy)


class _Method:
    """One method, with options."""

    def __init__(
        self, handle: Any, name: str, policy: Policy | None, options: dict[str, Any]
    ) -> None:
        self._handle = handle
        self._name = name
        self._policy = policy
        self._options = options

    def options(self, **options: Any) -> _Method:
        """Return the method with these options, as of Ray."""
        return _Method(self._handle, self._name, self._policy, {**self._options, **options})

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """
        Call the method in the context of this moment.

        Raises:
            TypeError: If the arguments do not fit, or the method is a generator.
        """
        if self._handle._ray_method_is_generator.get(self._name):
            raise TypeError(_refused(self._name, "a generator"))
        inspect.Signature(self._handle._ray_method_signatures[self._name]).bind(*args, **kwargs)
        call = self._handle.__ray_call__
        if self._options:
            call = call.options(**self._options)
        return call.remote(_caller(self._name), payload(self._policy), *args, **kwargs)


def _refused(name: str, kind: str) -> str:
    return (
        f"{name} is {kind}, and its actor was made without ctxcarry: make it with "
        "ctxcarry.ray.remote, or ctxcarry.ray.wrap the class"
    )


def _caller(name: str) -> Callable[..., Any]:
    """Return a function that calls the method `name` of the actor it is given."""

    def call(actor: Any, contexts: Any, *args: Any, **kwargs: Any) -> Any:
        # In the worker, where this function comes by value.
        from ctxcarry import Snapshot  # noqa: PLC0415

        method = getattr(actor, name)
        if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
            raise TypeError(_refused(name, "async"))
        if contexts is None:
            return method(*args, **kwargs)
        with Snapshot.loads(contexts, trusted=True).active():
            return method(*args, **kwargs)

    return call
