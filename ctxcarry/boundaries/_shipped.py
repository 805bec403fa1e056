"""Work on its way to another process, with its contexts as bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ctxcarry._bind import Bound
from ctxcarry._snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("Shipped", "shipped")


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
        return Snapshot.loads(self.payload, trusted=True).run(self.__wrapped__, *args, **kwargs)

    def __reduce__(self) -> tuple[type[Shipped], tuple[bytes, Callable[..., Any]]]:
        return Shipped, (self.payload, self.__wrapped__)

    def __repr__(self) -> str:
        return f"<{self.__wrapped__!r} with {len(self.payload)} bytes of context>"


def shipped(
    snapshot: Snapshot, fn: Callable[..., Any], not_portable: str | None = None
) -> Callable[..., Any]:
    """Return `fn` so that it takes `snapshot` along to another process."""
    if type(fn) is Shipped:
        return fn
    if type(fn) is Bound:
        snapshot, fn = fn._snapshot, fn.__wrapped__
    return Shipped(snapshot.dumps(not_portable=not_portable), fn)
