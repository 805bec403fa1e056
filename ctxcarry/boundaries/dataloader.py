"""``torch.utils.data.DataLoader``: its worker processes and its pin-memory thread."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from ctxcarry._capture import capture_with
from ctxcarry._default import registry
from ctxcarry._snapshot import Snapshot
from ctxcarry.boundaries._boundary import Boundary
from ctxcarry.boundaries._patch import Patch
from ctxcarry.boundaries.thread import start_under

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("boundary", "worker_init_fn")


class _WorkerInit:
    """A ``worker_init_fn`` that makes contexts current for as long as the worker lives."""

    def __init__(self, payload: bytes, inner: Callable[[int], object] | None) -> None:
        self._payload = payload
        self._inner = inner

    def __call__(self, worker_id: int) -> None:
        Snapshot.loads(self._payload, trusted=True).active().__enter__()
        if self._inner is not None:
            self._inner(worker_id)


def worker_init_fn(
    inner: Callable[[int], object] | None = None, *, not_portable: str | None = None
) -> Callable[[int], None]:
    """
    Return a ``worker_init_fn`` for a DataLoader whose workers run in the context of this moment.

    Args:
        inner: A ``worker_init_fn`` to call in that context.
        not_portable: What to do about a context that cannot travel; see
            `Snapshot.dumps`.

    Raises:
        NotPortableError: If a context cannot travel, and that is to raise.
    """
    return _WorkerInit(registry.capture().dumps(not_portable=not_portable), inner)


def _get_iterator(original: Callable[..., Any]) -> Callable[..., Any]:
    def _get_iterator(self: Any) -> Any:
        if not boundary.everything or self.num_workers == 0:
            return original(self)
        own = self.worker_init_fn
        self.worker_init_fn = worker_init_fn(own)
        try:
            return original(self)
        finally:
            self.worker_init_fn = own

    return _get_iterator


def _start(original: Callable[..., None]) -> Callable[..., None]:
    from torch.utils.data._utils.pin_memory import _pin_memory_loop  # noqa: PLC0415

    def start(self: threading.Thread) -> None:
        if boundary.everything and getattr(self, "_target", None) is _pin_memory_loop:
            return start_under(partial(original, self), self, capture_with(registry.plan()))
        return original(self)

    return start


def _patches() -> tuple[Patch, ...]:
    from torch.utils.data import DataLoader  # noqa: PLC0415 - only where it is installed

    return (
        Patch(DataLoader, "_get_iterator", _get_iterator),
        Patch(threading.Thread, "start", _start),
    )


boundary = Boundary(_patches, for_decorated=False)
