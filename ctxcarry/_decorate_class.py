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

if TYPE_CHECKING:
    from collections.abc import Callable

    from ctxcarry._policy import Policy
    from ctxcarry._snapshot import Snapshot

__all__ = ("carry_class",)

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
_MARK = "_ctxcarry_method"


class _Bases:
    """
    The base of each living instance.

    Not an attribute: the instance must pickle and compare as it would. Not a
    WeakKeyDictionary either: it would need a hash.
    """

    def __init__(self) -> None:
        self._of: dict[int, tuple[weakref.ref[Any], Snapshot]] = {}

    def __setitem__(self, instance: object, base: Snapshot) -> None:
        key = id(instance)
        try:
            reference = weakref.ref(instance, lambda _: self._of.pop(key, None))
        except TypeError:
            msg = (
                f"{type(instance).__name__} has __slots__ without '__weakref__', which "
                "@carry_context needs to note an instance's context: add '__weakref__' to them"
            )
            raise TypeError(msg) from None
        self._of[key] = reference, base

    def get(self, instance: object) -> Snapshot | None:
        reference, base = self._of.get(id(instance), (None, None))
        return base if reference is not None and reference() is instance else None


_bases = _Bases()


def carry_class(cls: type, policy: Policy | None) -> type:
    """Wrap the ``__init__`` and the methods of `cls`, and of classes derived from it."""
    _wrap_own_methods(cls, policy)
    for base in cls.__mro__[1:]:
        _wrap_inherited(cls, base, policy)
    _follow_subclasses(cls, policy)
    return cls


def _wrap_own_methods(cls: type, policy: Policy | None) -> None:
    for name, value in list(vars(cls).items()):
        if name == "__init__":
            setattr(cls, name, _noting_base(value, policy))
        elif _is_method(name, value):
            setattr(cls, name, _over_base(value, policy))
    if "__init__" not in vars(cls):
        inherited: Callable[..., None] = cls.__init__  # type: ignore[misc]

        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            inherited(self, *args, **kwargs)

        cls.__init__ = _noting_base(wraps(inherited)(__init__), policy)  # type: ignore[misc]


def _wrap_inherited(cls: type, base: type, policy: Policy | None) -> None:
    for name, method in vars(base).items():
        reached: Any = getattr(cls, name, None)
        if reached is method and _is_method(name, method):
            setattr(cls, name, _over_base(reached, policy))


def _is_method(name: str, value: object) -> bool:
    if type(value) is not FunctionType or hasattr(value, _MARK):
        return False
    return name in _WRAPPED_DUNDERS or not (name.startswith("__") and name.endswith("__"))


def _noting_base(init: Callable[..., None], policy: Policy | None) -> Callable[..., None]:
    @wraps(init)
    def __init__(self: Any, /, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        init(self, *args, **kwargs)
        # After the outermost __init__ of a chain this is what all of them set.
        _bases[self] = capture_with(registry.plan(policy))

    return __init__


def _over_base(method: Callable[..., Any], policy: Policy | None) -> Callable[..., Any]:
    if made_by(method):
        from ctxcarry._proxy import SteppedMethod  # noqa: PLC0415 - needs wrapt

        return SteppedMethod(method, policy, _bases.get)

    @wraps(method)
    def over_base(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        base = _bases.get(self)
        if base is None:  # called from within __init__
            return method(self, *args, **kwargs)
        return call_over(base, method, (self, *args), kwargs)

    setattr(over_base, _MARK, True)
    return over_base


def _follow_subclasses(cls: type, policy: Policy | None) -> None:
    own = vars(cls).get("__init_subclass__")

    def __init_subclass__(subclass: type, **kwargs: Any) -> None:  # noqa: N807
        if own is None:
            super(cls, subclass).__init_subclass__(**kwargs)
        else:
            own.__get__(None, subclass)(**kwargs)
        _wrap_own_methods(subclass, policy)

    cls.__init_subclass__ = classmethod(__init_subclass__)  # type: ignore[assignment,arg-type]
