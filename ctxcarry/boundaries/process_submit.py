"""`submit` and `map` of ``ProcessPoolExecutor``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ctxcarry.boundaries._boundary import Boundary
from ctxcarry.boundaries._patch import Patch
from ctxcarry.boundaries._shipped import for_shipping, submits_for_map

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("boundary",)


def _handing_over(original: Callable[..., Any]) -> Callable[..., Any]:
    def handing_over(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if not hasattr(self, "_carries") and not submits_for_map(fn):
            fn = for_shipping(boundary, fn)
        return original(self, fn, *args, **kwargs)

    return handing_over


def _patches() -> tuple[Patch, ...]:
    from concurrent.futures.process import ProcessPoolExecutor  # noqa: PLC0415

    return tuple(Patch(ProcessPoolExecutor, name, _handing_over) for name in ("submit", "map"))


boundary = Boundary(_patches)
