"""Bind: tie a callable to a snapshot, for boundaries that the library does not know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ctxcarry._step import made_by

if TYPE_CHECKING:
    from collections.abc import Callable

    from ctxcarry._snapshot import Snapshot

__all__ = ("Bound", "Carried", "bound")


class Bound:
    """A callable that runs under a snapshot each time it is called."""

    __slots__ = ("__weakref__", "__wrapped__", "_snapshot")

    def __init__(self, snapshot: Snapshot, fn: Callable[..., Any]) -> None:
        self._snapshot = snapshot
        self.__wrapped__ = fn

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._snapshot.run(self.__wrapped__, *args, **kwargs)
        except BaseException:
            del self  # the traceback keeps this frame
            raise

    def __getattribute__(self, name: str) -> Any:
        # These three are found on the class, where they are about the class.
        if name in {"__doc__", "__module__", "__name__"}:
            return getattr(object.__getattribute__(self, "__wrapped__"), name)
        return object.__getattribute__(self, name)

    def __getattr__(self, name: str) -> Any:
        # Copying and pickling look for attributes before __init__ has run.
        if name.startswith("__") and name not in {"__qualname__", "__defaults__"}:
            raise AttributeError(name)
        return getattr(self.__wrapped__, name)

    def __reduce__(self) -> tuple[type[Bound], tuple[Snapshot, Callable[..., Any]]]:
        return type(self), (self._snapshot, self.__wrapped__)

    def __repr__(self) -> str:
        return f"<{self.__wrapped__!r} bound to {self._snapshot!r}>"


class Carried(Bound):
    """A callable to which a boundary has bound all that it carries, so that no other need."""

    __slots__ = ()


def bound(snapshot: Snapshot, fn: Callable[..., Any]) -> Any:
    """Return `fn` bound to `snapshot`, still recognised as the kind of function that it is."""
    if made_by(fn):
        # A proxy, so that inspect.iscoroutinefunction and its like still say so.
        from ctxcarry._proxy import BoundFunction  # noqa: PLC0415 - needs wrapt

        return BoundFunction(snapshot, fn)
    if not callable(fn):
        msg = f"only a callable can be bound to a snapshot, not {fn!r} of type {type(fn).__name__}"
        raise TypeError(msg)
    return Bound(snapshot, fn)
