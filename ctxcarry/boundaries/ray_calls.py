"""
Calls through Ray: tasks, the creation of actors, their methods.

What is called must have been prepared for it (`ctxcarry.ray.remote` does so, and
`install` for whatever is made remote from then on), and these patches add the hidden
argument to such calls only.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import ray
import ray.actor
import ray.remote_function
from ray._private import client_mode_hook

from ctxcarry._proxy import CarriedFunction
from ctxcarry.boundaries._boundary import Boundary
from ctxcarry.boundaries._install import serve_decorated
from ctxcarry.boundaries._patch import Patch
from ctxcarry.boundaries._ray_payload import HIDDEN, payload
from ctxcarry.boundaries._ray_prepare import (
    MARK,
    is_carried_method,
    is_prepared,
    policy_for,
    prepared,
)
from ctxcarry.boundaries.ray_session import with_setup_hook

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("boundary", "twin")

_TWIN = "_ctxcarry_twin"
_in_client_mode: Callable[[], bool] = client_mode_hook.client_mode_should_convert
# Where Ray checks arguments: it has moved between its packages.
_signature: Any = getattr(ray.actor, "signature", None)


def twin(target: Any, policy: Any = None) -> Any:
    """Return a remote function or actor class like `target` whose calls carry."""
    if policy is None and _TWIN in vars(target):
        return vars(target)[_TWIN]
    source, chosen = _source_of(target), policy
    if isinstance(source, CarriedFunction):
        chosen = source._self_policy if policy is None else policy
        source = source.__wrapped__
    if is_prepared(source) and chosen is None:
        return target
    carried, options = prepared(source, chosen), dict(target._default_options)
    if isinstance(target, ray.remote_function.RemoteFunction):
        made = ray.remote_function.RemoteFunction(ray.Language.PYTHON, carried, None, options)
    else:
        make: Any = ray.actor._make_actor
        made = make(carried, options)
    if policy is None:
        # Once: each remote function of its own is sent to the workers anew.
        setattr(target, _TWIN, made)
    return made


def _source_of(target: Any) -> Any:
    if isinstance(target, ray.remote_function.RemoteFunction):
        return target._function
    return target.__ray_metadata__.modified_class.__ray_actor_class__


def _making(original: Callable[..., Any]) -> Callable[..., Any]:
    def _make_remote(function_or_class: Any, options: Any) -> Any:
        policy = None
        if isinstance(function_or_class, CarriedFunction):
            policy = function_or_class._self_policy
            function_or_class = function_or_class.__wrapped__
        elif not (boundary.everything or hasattr(function_or_class, "__ctxcarry_class__")):
            return original(function_or_class, options)
        if callable(function_or_class):
            function_or_class = prepared(function_or_class, policy)
        return original(function_or_class, options)

    return _make_remote


def _calling_task(original: Callable[..., Any]) -> Callable[..., Any]:
    def _remote(self: Any, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        if not is_prepared(self._function):
            # From a `ray.remote(...)` before our patches a decorated function comes as it is.
            wanted = boundary.everything or isinstance(self._function, CarriedFunction)
            if not (wanted and _is_python(self)):
                return original(self, args, kwargs, *rest, **options)
            self = twin(self)
        if not _in_client_mode():  # the server would check it like any other
            contexts = payload(policy_for(self._function))
            if contexts is not None:
                kwargs = {**(kwargs or {}), HIDDEN: contexts}
        return original(self, args, kwargs, *rest, **options)

    return _remote


def _is_python(remote: Any) -> bool:
    return not remote._is_cross_language and not _in_client_mode()


def _creating_actor(original: Callable[..., Any]) -> Callable[..., Any]:
    def _remote(self: Any, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        meta = self.__ray_metadata__
        cls = meta.modified_class
        python = not meta.is_cross_language and not _in_client_mode()
        wanted = boundary.everything or hasattr(cls, "__ctxcarry_class__")
        if wanted and not is_prepared(cls) and python:
            self = twin(self)
            cls = self.__ray_metadata__.modified_class
        # Where the user's class has no __init__, Ray's own takes no arguments.
        if is_prepared(cls) and inspect.isfunction(cls.__ray_actor_class__.__init__):
            kwargs = _added(kwargs, policy_for(cls))
        return original(self, args, kwargs, **options)

    return _remote


def _calling_method(original: Callable[..., Any]) -> Callable[..., Any]:
    def _actor_method_call(
        self: Any, method_name: str, args: Any = None, kwargs: Any = None, **options: Any
    ) -> Any:
        carries = self._ray_method_signatures.get(MARK)
        if carries is not None and is_carried_method(method_name) and not _in_client_mode():
            contexts = payload(carries[0].default)
            if contexts is not None:
                kwargs = {**(kwargs or {}), HIDDEN: contexts}
        return original(self, method_name, args=args, kwargs=kwargs, **options)

    return _actor_method_call


def _added(kwargs: Any, policy: Any) -> Any:
    """Return `kwargs` with the hidden argument."""
    if _in_client_mode():  # the server would check it like any other
        return kwargs
    contexts = payload(policy)
    return kwargs if contexts is None else {**(kwargs or {}), HIDDEN: contexts}


def _validating(original: Callable[..., Any]) -> Callable[..., Any]:
    def validate_args(signature_parameters: Any, args: Any, kwargs: Any) -> None:
        if HIDDEN in kwargs:
            kwargs = kwargs.copy()
            del kwargs[HIDDEN]
        original(signature_parameters, args, kwargs)

    return validate_args


def _initialising(original: Callable[..., Any]) -> Callable[..., Any]:
    def init(*args: Any, **kwargs: Any) -> Any:
        if boundary.everything:
            kwargs["runtime_env"] = with_setup_hook(kwargs.get("runtime_env"))
        return original(*args, **kwargs)

    return init


def lacking() -> str | None:
    """Return why this Ray's calls cannot be reached, or None."""
    needed = (
        (ray._private.worker, "_make_remote"),
        (ray.remote_function.RemoteFunction, "_remote"),
        (ray.actor.ActorClass, "_remote"),
        (ray.actor.ActorHandle, "_actor_method_call"),
        (_signature, "validate_args"),
    )
    missing = [name for owner, name in needed if not hasattr(owner, name)]
    return f"Ray {ray.__version__} has no {', '.join(missing)}" if missing else None


def _patches() -> tuple[Patch, ...]:
    return (
        Patch(ray._private.worker, "_make_remote", _making),
        Patch(ray.remote_function.RemoteFunction, "_remote", _calling_task),
        Patch(ray.actor.ActorClass, "_remote", _creating_actor),
        Patch(ray.actor.ActorHandle, "_actor_method_call", _calling_method),
        Patch(_signature, "validate_args", _validating),
        Patch(ray, "init", _initialising),
    )


class _RayBoundary(Boundary):
    """Ray, which anything prepared needs even where nothing is installed."""

    def serve(self) -> None:
        """Have calls of what is prepared carry, whatever is installed."""
        if not (self.decorated or self.everything):
            serve_decorated()
            self.use(decorated=True, everything=False)


boundary = _RayBoundary(_patches, lacking=lacking)
