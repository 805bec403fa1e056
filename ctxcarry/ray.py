"""
Contexts over Ray: tasks, actors, their methods, and what these call in turn.

Ray runs a task in another process, and the methods of an actor with
``max_concurrency``, ``async def`` or concurrency groups on other threads than its
``__init__``. What is set where the call is made, or by ``__init__``, is not there.
"""

from __future__ import annotations

import inspect
from typing import Any, TypeVar, overload

import ray as _ray
import ray.actor
import ray.remote_function

from ctxcarry._policy import Policy, chosen
from ctxcarry.boundaries._ray_prepare import prepared
from ctxcarry.boundaries.ray_calls import boundary as _boundary
from ctxcarry.boundaries.ray_calls import lacking as _lacking
from ctxcarry.boundaries.ray_calls import twin as _twin
from ctxcarry.errors import CtxCarryError

__all__ = ("remote", "wrap")

T = TypeVar("T")


@overload
def remote(target: Any, /) -> Any: ...
@overload
def remote(**options: Any) -> Any: ...
def remote(*args: Any, **options: Any) -> Any:
    """
    Make a function or class remote, as ``ray.remote`` does, so that its calls carry.

    A task runs in the contexts of whoever calls it, as far as they can travel (see
    `ctxcarry.Snapshot.dumps`). So does a method of an actor, on any of its threads and
    at each step of a coroutine or generator; where the caller has nothing set, it has
    what ``__init__`` set.

    Args:
        *args: The function or class, when used without options.
        **options: As for ``ray.remote``.

    Returns:
        What ``ray.remote`` does: a remote function, an actor class, or a decorator.

    Raises:
        TypeError: If the target is neither a function nor a class.
        CtxCarryError: If this Ray lacks what carries a call.
    """
    _serve()
    if len(args) == 1 and not options:
        return _ray.remote(_prepared(args[0]))
    decorator = _ray.remote(*args, **options)
    return lambda target: decorator(_prepared(target))


def wrap(target: T, *, only: Any = None, exclude: Any = None) -> T:
    """
    Return a remote function, an actor class or a handle that exists already, made to carry.

    A handle of an actor that was made without ctxcarry has no base: its methods see
    what the caller has set, and nothing of ``__init__`` that their thread has not.

    Args:
        target: What ``ray.remote`` or the creation of an actor returned.
        only: Names of the contexts to carry.
        exclude: Names of contexts not to carry.

    Raises:
        TypeError: If it is something else.
        ValueError: If both `only` and `exclude` are given.
        CtxCarryError: If this Ray lacks what carries a call.
    """
    policy = chosen("ctxcarry.ray.wrap", only, exclude)
    return wrapped(target, policy)  # type: ignore[no-any-return]


def wrapped(target: Any, policy: Policy | None) -> Any:
    """Return `target` made to carry with `policy`."""
    _serve()
    if isinstance(target, (_ray.remote_function.RemoteFunction, _ray.actor.ActorClass)):
        return _twin(target, policy)
    if isinstance(target, _ray.actor.ActorHandle):
        from ctxcarry.boundaries.ray_handle import carrying_handle  # noqa: PLC0415 - seldom

        return carrying_handle(target, policy)
    msg = (
        "ctxcarry.ray.wrap takes a remote function, an actor class or an actor handle of Ray, "
        f"not {target!r} of type {type(target).__name__}; for a function or class of your own "
        "there is ctxcarry.ray.remote"
    )
    raise TypeError(msg)


def _prepared(target: Any) -> Any:
    if not (inspect.isfunction(target) or inspect.isclass(target)):
        return target  # for Ray to refuse
    return prepared(target)


def _serve() -> None:
    reason = _lacking()
    if reason is not None:
        msg = f"{reason}, so that calls cannot carry; ctxcarry knows Ray 2.40 and newer"
        raise CtxCarryError(msg)
    _boundary.serve()
