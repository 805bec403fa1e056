"""``joblib.Parallel``: each call runs in the context of the thread that calls ``Parallel``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ctxcarry._bind import Carried
from ctxcarry._capture import capture_with
from ctxcarry._default import registry
from ctxcarry.boundaries._boundary import Boundary
from ctxcarry.boundaries._patch import Patch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ctxcarry._snapshot import Snapshot

__all__ = ("boundary",)


def _call(original: Callable[..., Any]) -> Callable[..., Any]:
    def __call__(self: Any, iterable: Iterable[Any]) -> Any:  # noqa: N807
        # Batches are dispatched by other threads later on (scikit-learn#25363).
        snapshot = capture_with(registry.plan()) if boundary.everything else None
        return original(self, _bound_calls(iterable, snapshot))

    return __call__


def _bound_calls(iterable: Iterable[Any], snapshot: Snapshot | None) -> Iterator[Any]:
    for fn, args, kwargs in iterable:
        if snapshot is not None and not snapshot._plan.empty and type(fn) is not Carried:
            yield Carried(snapshot, fn), args, kwargs
        else:
            yield boundary.bound(fn), args, kwargs


def _patches() -> tuple[Patch, ...]:
    import joblib  # noqa: PLC0415 - only where it is installed

    return (Patch(joblib.Parallel, "__call__", _call),)


boundary = Boundary(_patches)
