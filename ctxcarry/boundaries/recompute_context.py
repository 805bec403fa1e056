"""The two context managers of a checkpoint's ``context_fn``, the second of them carried."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from torch.utils._python_dispatch import TorchDispatchMode

from ctxcarry.boundaries.recompute import capture_forward, is_traced

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType

    from ctxcarry._snapshot import Snapshot

    Pair = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]

__all__ = ("RecomputeContext", "carried_pair")


def carried_pair(inner: Callable[[], Pair] | None) -> Pair:
    """Return the contexts for forward and recompute, from `inner` or with nothing of their own."""
    if is_traced():
        # Here both must be dispatch modes, and there is no recompute to carry into.
        return (_pass(), _pass()) if inner is None else inner()
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


class _PassThrough(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The dispatch mode that changes nothing."""

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return func(*args, **(kwargs or {}))


_pass: Callable[[], Any] = _PassThrough
