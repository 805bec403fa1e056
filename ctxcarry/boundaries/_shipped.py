"""Work on its way to another process, with its contexts as bytes."""

from __future__ import annotations

from contextvars import Context
from typing import TYPE_CHECKING, Any

from ctxcarry._activate import apply_all
from ctxcarry._bind import Carried
from ctxcarry._default import registry
from ctxcarry._policy import REMAINING, Policy
from ctxcarry._snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from ctxcarry.boundaries._boundary import Boundary

__all__ = ("Shipped", "for_shipping", "shipped", "start_worker", "submits_for_map")


class Shipped:
    """
    A picklable call under contexts that were dumped where it was handed over.

    Dumped at once and not when the pool pickles the call: an error reaches the
    one who submits, and nothing keeps the snapshot.
    """

    __slots__ = ("__wrapped__", "payload")

    def __init__(self, payload: bytes, fn: Callable[..., Any]) -> None:
        self.payload = payload
        self.__wrapped__ = fn

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the function under the contexts, as far as this process has them."""
        snapshot = Snapshot.loads(self.payload, trusted=True)
        if _worker.base is None:
            return snapshot.run(self.__wrapped__, *args, **kwargs)
        return _worker.base.copy().run(snapshot.run, self.__wrapped__, *args, **kwargs)

    def __reduce__(self) -> tuple[type[Shipped], tuple[bytes, Callable[..., Any]]]:
        return Shipped, (self.payload, self.__wrapped__)

    def __repr__(self) -> str:
        return f"<{self.__wrapped__!r} with {len(self.payload)} bytes of context>"


class _Worker:
    """What a worker process of ours keeps: the ContextVars that its initializer set."""

    base: Context | None = None


_worker = _Worker()


def start_worker(initializer: Callable[..., object] | None, initargs: tuple[Any, ...]) -> None:
    """
    Start a worker process with nothing set but by the user's initializer.

    A forked process begins as the thread that happened to submit first.
    """
    unset = registry.plan(Policy(clear=REMAINING))
    _worker.tokens = apply_all(unset, unset.read())  # type: ignore[attr-defined]
    context = Context()
    if initializer is not None:
        context.run(initializer, *initargs)
    _worker.base = context


def shipped(
    snapshot: Snapshot, fn: Callable[..., Any], not_portable: str | None = None
) -> Callable[..., Any]:
    """Return `fn` so that it takes `snapshot` along to another process."""
    if type(fn) is Shipped:
        return fn
    if type(fn) is Carried:
        snapshot, fn = fn._snapshot, fn.__wrapped__
    return Shipped(snapshot.dumps(not_portable=not_portable), fn)


def for_shipping(boundary: Boundary, fn: Any) -> Any:
    """Return `fn` with the contexts to hand it over with at `boundary`, or as it is."""
    if type(fn) is Carried:
        return shipped(fn._snapshot, fn)
    snapshot = None if type(fn) is Shipped else boundary.snapshot_for(fn)
    return fn if snapshot is None else shipped(snapshot, fn)


def submits_for_map(fn: Any) -> bool:
    """Say whether `fn` is what ``ProcessPoolExecutor.map`` makes of a function of ours."""
    return getattr(getattr(fn, "func", None), "__module__", None) == "concurrent.futures.process"
