"""`@carry_context`: mark a callable so that boundaries hand it over with a snapshot."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeVar, overload

from ctxcarry._policy import Policy, chosen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    F = TypeVar("F", bound=Callable[..., Any])

__all__ = ("carry_context",)


@overload
def carry_context(target: F, /) -> F: ...
@overload
def carry_context(
    *, only: str | Iterable[str] | None = None, exclude: str | Iterable[str] | None = None
) -> Callable[[F], F]: ...
def carry_context(
    target: Any = None,
    /,
    *,
    only: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] | None = None,
) -> Any:
    """
    Carry the context of whoever hands the work over.

    On a function or method, the snapshot is taken when it is handed to a
    boundary (``ThreadPoolExecutor.submit`` and ``map``); a plain call just
    calls, and ``fn.bind()`` binds it to the context of this moment. On a
    coroutine, generator or async generator function, it is taken at the call
    and is active at each step. On a class, the context is noted after
    ``__init__`` and stands in, around each method, for what the caller has not
    set.

    Args:
        target: What is decorated.
        only: Names of the contexts to carry.
        exclude: Names of contexts not to carry.

    Raises:
        TypeError: If `target` cannot be called.
        ValueError: If both `only` and `exclude` are given.
    """
    policy = chosen("carry_context", only, exclude)
    if target is None:
        return lambda decorated: _decorated(decorated, policy)
    return _decorated(target, policy)


def _decorated(target: Any, policy: Policy | None) -> Any:
    from ctxcarry._default import registry  # noqa: PLC0415

    registry.plan(policy)  # an unknown name is an error here, not at each hand-over
    if isinstance(target, type):
        return _decorated_class(target, policy)
    if _is_of_ray(target):
        from ctxcarry.ray import wrapped  # noqa: PLC0415 - needs Ray

        return wrapped(target, policy)
    if isinstance(target, staticmethod):
        return staticmethod(_decorated(target.__func__, policy))
    if not isinstance(target, classmethod) and not callable(target):
        msg = f"@carry_context decorates a function, method or class, not {target!r}"
        raise TypeError(msg)
    # Imported here: wrapt takes longer to import than all of ctxcarry.
    from ctxcarry._proxy import CarriedClassMethod, CarriedFunction, carried  # noqa: PLC0415
    from ctxcarry.boundaries._install import serve_decorated  # noqa: PLC0415

    if isinstance(target, CarriedFunction):
        return target if policy is None else carried(target.__wrapped__, policy)
    serve_decorated()
    if isinstance(target, classmethod):
        return CarriedClassMethod(target.__func__, policy)
    return carried(target, policy)


def _decorated_class(cls: type, policy: Policy | None) -> type:
    from ctxcarry._decorate_function import (  # noqa: PLC0415
        carry_function,
        is_autograd_function,
    )

    if is_autograd_function(cls):
        return carry_function(cls, policy)
    from ctxcarry._decorate_class import carry_class  # noqa: PLC0415

    return carry_class(cls, policy)


def _is_of_ray(target: Any) -> bool:
    """Say whether `target` is what ``ray.remote`` returns."""
    functions, actors = sys.modules.get("ray.remote_function"), sys.modules.get("ray.actor")
    if functions is None or actors is None:
        return False
    return isinstance(target, (functions.RemoteFunction, actors.ActorClass))
