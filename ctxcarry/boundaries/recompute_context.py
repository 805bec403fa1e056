"""The two context managers of a checkpoint's ``context_fn``, the second of them carried."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from ctxcarry.boundaries.recompute import capture_forward, is_traced

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import TracebackType

    from ctxcarry._snapshot import Snapshot

    Pair = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]

__all__ = ("RecomputeContext", "carried_pair")


def carried_pair(inner: Callable[[], Pair] | None) -> Pair:
    """Return the contexts for forward and recompute, from `inner` or with nothing of their own."""
    if is_traced():
        # Here both must be dispatch modes, and there is no recompute to carry into.
        return recompute_all() if inner is None else inner()
    forward, recompute = (nullcontext(), nullcontext()) if inner is None else inner()
    return forward, RecomputeContext(capture_forward(), recompute)


class RecomputeContext:
    """
    A snapshot, and the context manager of somebody else within it.

    Entered once for each recompute: a second backward through a retained graph enters
    it again, and two threads may have entered it at once.
    """

    __slots__ = ("_active", "_inner")

    def __init__(self, snapshot: Snapshot, inner: AbstractContextManager[Any]) -> None:
        self._active = snapshot.active()
        self._inner = inner

    def __enter__(self) -> Any:
        self._active.__enter__()
        try:
            return self._inner.__enter__()
        except BaseException as error:
            self._active.__exit__(type(error), error, error.__traceback__)
            raise

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        try:
            suppressed = self._inner.__exit__(exc_type, exc, traceback)
        except BaseException as error:
            self._active.__exit__(type(error), error, error.__traceback__)
            raise
        if suppressed:
            exc_type = exc = traceback = None
        self._active.__exit__(exc_type, exc, traceback)
        return suppressed


def recompute_all() -> Pair:
    """Return what torch itself traces a checkpoint with that has no ``context_fn``."""
    make: Callable[[Any], Pair] = create_selective_checkpoint_contexts
    return make(_recompute)


def _recompute(*_: Any, **__: Any) -> CheckpointPolicy:
    return CheckpointPolicy.PREFER_RECOMPUTE
