"""Communication hooks of ``DistributedDataParallel``, which C++ calls within a backward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.nn.parallel import DistributedDataParallel

from ctxcarry.boundaries._autograd_tls import lacking
from ctxcarry.boundaries._boundary import Boundary
from ctxcarry.boundaries._patch import Patch
from ctxcarry.boundaries._under import under_backward

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("boundary",)


def _registering(original: Callable[..., Any]) -> Callable[..., Any]:
    def register_comm_hook(self: Any, state: object, hook: Any) -> Any:
        return original(self, state, under_backward(hook) if boundary.everything else hook)

    return register_comm_hook


def _patches() -> tuple[Patch, ...]:
    return (Patch(DistributedDataParallel, "register_comm_hook", _registering),)


boundary = Boundary(_patches, for_decorated=False, lacking=lacking)
