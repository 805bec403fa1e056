"""`@carry_context` on a class: what ``__init__`` set is there in every method, on any thread."""

from __future__ import annotations

import weakref
from functools import wraps
from types import FunctionType
from typing import TYPE_CHECKING, Any

from ctxcarry._capture import capture_with
from ctxcarry._default import registry
from ctxcarry._fill import call_over
from ctxcarry._step import made_by
from ctxcarry.boundaries._install import serve_decorated

if TYPE_CHECKING:
    from collections.abc import Callable

    from ctxcarry._policy import Policy
    from ctxcarry._snapshot import Snapshot

__all__ = ("METHOD_MARK", "base_of", "carry_class", "note_base")

_WRAPPED_DUNDERS = frozenset(
    (
        "__call__",
        "__enter__",
        "__exit__",
        "__aenter__",
        "__aexit__",
        "__iter__",
        "__next__",
        "__aiter__",
        "__anext__",
    )
)
METHOD_MARK = "_ctxcarry_method"


# The base of each living instance, by id, with what removes it. Not an attribute:
# the instance must pickle, copy and compare as it would. Not a WeakKeyDictionary
# either: it would need a hash. (An instance that its own base refers to stays.)
_bases: dict[int, tuple[weakref.ref[Any], Snapshot]] = {}


def base_of(instance: object) -> Snapshot | None:
    """Return the context that was noted for `instance`, if any."""
    found = _bases.get(id(instance))
    return found[1] if found is not None and found[0]() is instance else None


def note_base(instance: object, base: Snapshot) -> None:
    """Note `base` for as long as `instance` lives."""
    key = id(instance)
    try:
        reference = weakref.ref(instance, lambda _: _bases.pop(key, None))
    except TypeError:
        msg = (
            f"{type(instance).__name__} has __slots__ without '__weakref__', which @carry_context "
            "needs to note an instance's context: add '__weakref__' to them"
        )
        raise TypeError(msg) from None
    _bases[key] = reference, base


def carry_class(cls: type, policy: Policy | None) -> type:
    """Wrap the ``__init__`` and the methods of `cls`, and of classes derived from it."""
    signature = None if "__init__" in vars(cls) else _signature(cls)
    try:
        _wrap_own_methods(cls, policy)
    except TypeError as error:
        msg = f"@carry_context cannot decorate {cls!r}, whose methods cannot be replaced"
        raise TypeError(msg) from error
    if signature is not None:
        cls.__signature__ = signature  # type: ignore[attr-defined]
    for base in cls.__mro__[1:]:
        _wrap_inherited(cls, base, policy)
    cls.__ctxcarry_class__ = policy  # type: ignore[attr-defined]
    _follow_subclasses(cls, policy)
    # Ray is to see that calls of the methods carry, wherever the class is made remote.
    serve_decorated()
    return cls


def _signature(cls: type) -> object:
    import inspect  # noqa: PLC0415 - takes longer to import than all of ctxcarry

    try:
        return inspect.signature(cls)
    except (TypeError, ValueError):  # written in C, without one
        return None


def _wrap_own_methods(cls: type, policy: Policy | None) -> None:
    for name, value in list(vars(cls).items()):
        if name == "__init__":
            setattr(cls, name, _noting_base(value, policy))
        elif _is_method(name, value):
            setattr(cls, name, _over_base(value, policy))
        elif hasattr(value, "_self_policy") and _is_method(name, value.__wrapped__):
            # Decorated itself: still to be seen as such by boundaries.
            method = _over_base(value.__wrapped__, policy)
            setattr(cls, name, type(value)(method, value._self_policy))
    if "__init__" not in vars(cls):
        owner: Any = cls
        has_new = vars(object)["__new__"] is not getattr(cls, "__new__", None)

        def __init__(self: Any, /, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            inherited: Any = super(owner, self).__init__
            if has_new and getattr(inherited, "__objclass__", None) is object:
                inherited()  # the arguments were for __new__
            else:
                inherited(*args, **kwargs)

        found: Any = owner.__init__
        wrapped: Any = wraps(found)(__init__)
        if type(found) is not FunctionType:
            del wrapped.__wrapped__  # Ray sets attributes of it
        cls.__init__ = _noting_base(wrapped, policy)  # type: ignore[misc]


def _wrap_inherited(cls: type, base: type, policy: Policy | None) -> None:
    for name, method in vars(base).items():
        reached: Any = getattr(cls, name, None)
        if reached is method and _is_method(name, method):
            setattr(cls, name, _over_base(_next_in_line(cls, name, reached), policy))


def _next_in_line(cls: type, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that calls the one after `cls`: in a diamond, not always `method`."""
    owner: Any = cls
    if made_by(method):
        return method

    @wraps(method)
    def inherited(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return getattr(super(owner, self), name)(*args, **kwargs)

    return inherited


def _is_method(name: str, value: object) -> bool:
    if type(value) is not FunctionType or hasattr(value, METHOD_MARK):
        return False
    return name in _WRAPPED_DUNDERS or not (name.startswith("__") and name.endswith("__"))


def _noting_base(init: Callable[..., None], policy: Policy | None) -> Callable[..., None]:
    @wraps(init)
    def __init__(self: Any, /, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        init(self, *args, **kwargs)
        # After the outermost __init__ of a chain this is what all of them set.
        note_base(self, capture_with(registry.plan(policy)))

    return __init__


def _over_base(method: Callable[..., Any], policy: Policy | None) -> Callable[..., Any]:
    if made_by(method):
        from ctxcarry._proxy import SteppedMethod  # noqa: PLC0415 - needs wrapt

        return SteppedMethod(method, policy, base_of)

    @wraps(method)
    def over_base(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        base = base_of(self)
        if base is None:  # called from within __init__
            return method(self, *args, **kwargs)
        try:
            return call_over(base, method, (self, *args), kwargs)
        except BaseException:
            del base, self, args, kwargs  # the traceback keeps this frame
            raise

    setattr(over_base, METHOD_MARK, True)
    return over_base


def _follow_subclasses(cls: type, policy: Policy | None) -> None:
    owner: Any = cls
    own = vars(cls).get("__init_subclass__")

    def __init_subclass__(subclass: type, **kwargs: Any) -> None:  # noqa: N807
        if own is None:
            super(owner, subclass).__init_subclass__(**kwargs)
        else:
            own.__get__(None, subclass)(**kwargs)
        # What is prepared for Ray notes the base itself, once its caller's contexts are off.
        if not hasattr(subclass, "__ctxcarry_carries__"):
            _wrap_own_methods(subclass, policy)

    cls.__init_subclass__ = classmethod(__init_subclass__)  # type: ignore[assignment,arg-type]
