"""
Make a function or class ready for Ray: it takes the hidden argument and keeps it from the user.

What is made here is pickled by value. So each function imports what it needs where
it runs or is unpickled, and refers to nothing of this module.
"""

from __future__ import annotations

import inspect
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from ctxcarry._decorate_class import METHOD_MARK

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("MARK", "is_carried_method", "is_prepared", "policy_for", "prepared")

MARK: Final = "__ctxcarry_carries__"
_POLICY: Final = "__ctxcarry_policy__"
_ORIGINAL: Final = "__ctxcarry_original__"


def is_prepared(target: object) -> bool:
    """Say whether `target`, a function or class, takes the hidden argument."""
    return hasattr(target, MARK)


def policy_for(target: object) -> Any:
    """Return the policy with which `target` was prepared."""
    return getattr(target, _POLICY, None)


def is_carried_method(name: str) -> bool:
    """Say whether a prepared class takes the hidden argument in its method `name`."""
    return not name.startswith("__") or name in {"__init__", "__call__"}


def prepared(target: Any, policy: Any = None) -> Any:
    """Return `target` so that calls of it through Ray carry."""
    if is_prepared(target):
        if policy is None:
            return target
        target = getattr(target, _ORIGINAL)
    if inspect.isclass(target):
        policy = getattr(target, "__ctxcarry_class__", None) if policy is None else policy
        return _prepared_class(target, policy)
    carried = _carrying(target, "run_task")
    setattr(carried, MARK, True)
    setattr(carried, _POLICY, policy)
    setattr(carried, _ORIGINAL, target)
    return carried


def _prepared_class(cls: Any, policy: Any) -> Any:
    """Return a class derived from `cls`, with each method wrapped."""
    members: dict[str, Any] = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        MARK: _carries_with(policy),
        _POLICY: policy,
        _ORIGINAL: cls,
    }
    for name in dir(cls):
        if name == "__init__" or not is_carried_method(name):
            continue
        found = inspect.getattr_static(cls, name)
        if isinstance(found, staticmethod):
            members[name] = staticmethod(_carrying(found.__func__, "run_task"))
        elif isinstance(found, classmethod):
            members[name] = classmethod(_carrying(found.__func__, "run_task"))
        elif inspect.isfunction(found):
            members[name] = _carrying(found, "run_method")
    if inspect.isfunction(cls.__init__):
        members["__init__"] = _carrying(cls.__init__, "run_init")
    return type(cls)(cls.__name__, (cls,), members)


def _carries_with(policy: Any) -> Callable[..., bool]:
    """Return a method that says that calls of this actor's methods may have a hidden argument."""

    # Its signature goes with each handle, and with it the policy.
    def carries(self: Any, policy: Any = policy) -> bool:  # noqa: ARG001 - a method
        return True

    return carries


def _carrying(fn: Callable[..., Any], runner: str) -> Any:
    """Return a function of the kind of `fn` that has the `runner` of the worker call it."""
    stepped = "run_stepped_method" if runner == "run_method" else runner

    def run(args: Any, kwargs: Any) -> Any:
        from ctxcarry.boundaries import ray_worker  # noqa: PLC0415

        return getattr(ray_worker, stepped)(fn, args, kwargs)

    carried: Callable[..., Any]
    if inspect.iscoroutinefunction(fn):

        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            return await run(args, kwargs)

        carried = coroutine
    elif inspect.isasyncgenfunction(fn):

        async def async_generator(*args: Any, **kwargs: Any) -> Any:
            async for item in run(args, kwargs):
                yield item

        carried = async_generator
    elif inspect.isgeneratorfunction(fn):

        def generator(*args: Any, **kwargs: Any) -> Any:
            return (yield from run(args, kwargs))

        carried = generator
    else:
        from ctxcarry.boundaries import ray_worker  # noqa: PLC0415 - which imports this

        # By reference, and so imported where this function is unpickled.
        call = getattr(ray_worker, runner)

        def function(*args: Any, **kwargs: Any) -> Any:
            return call(fn, args, kwargs)

        carried = function
    wrapped = wraps(fn)(carried)
    # A class under `carry_context` wraps the methods of those derived from it, but not these.
    setattr(wrapped, METHOD_MARK, True)
    return wrapped
