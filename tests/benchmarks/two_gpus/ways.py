"""How a pass is run, and what is set meanwhile."""

from __future__ import annotations

import contextvars
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

import ctxcarry
from ctxcarry import process_groups
from ctxcarry.boundaries.recompute import capture_forward

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ("CARRIED", "OFF", "PLAIN", "WAYS", "Way", "set_everything")

MODES = ("torch.function_modes", "torch.default_device")


class Way(NamedTuple):
    """How a pass is run."""

    name: str
    threads: bool = True
    carried: bool = False
    left_out: tuple[str, ...] = ()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Run forward and backward this way."""
        with ExitStack() as scope:
            if self.carried:
                ctxcarry.install("autograd")
                scope.callback(ctxcarry.uninstall, "autograd")
            if self.left_out:
                scope.enter_context(ctxcarry.suppress(*self.left_out))
            scope.enter_context(torch.autograd.set_multithreading_enabled(self.threads))
            yield


PLAIN = Way("threads on, nothing carried")
CARRIED = Way("threads on, all carried", carried=True)
NO_MODES = Way("threads on, all but modes", carried=True, left_out=MODES)
OFF = Way("threads off, nothing carried", threads=False)
WAYS = (PLAIN, CARRIED, NO_MODES, OFF)


class Same(TorchFunctionMode):
    """A function mode that changes nothing."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function."""
        return func(*args, **kwargs or {})


def set_everything(scope: ExitStack, mesh: Any, device: torch.device) -> list[str]:
    """Set every context that can be carried to a recompute; return the names of those."""
    for i in range(3):
        contextvars.ContextVar[int](f"two_gpu_autograd.{i}").set(i)
    with suppress(ImportError, AttributeError):
        import_module("triton").set_allocator(allocate)
        import_module("triton.runtime._allocation").set_profile_allocator(allocate)
    group = mesh.get_group("tp")
    scope.enter_context(mesh)
    scope.enter_context(process_groups.use(tp=group, dp=mesh.get_group("dp")))
    with suppress(ImportError):
        scope.enter_context(import_module("torch.distributed._dist2").process_group(group))
    with suppress(ImportError):
        scope.enter_context(import_module("spmd_types").set_current_mesh(mesh))
    with suppress(ImportError):
        import_module("torchtitan.distributed.utils").set_spmd_backend("spmd_types")
        titan = import_module("torchtitan.distributed.spmd_types")
        scope.enter_context(titan.set_current_spmd_mesh(mesh))
    scope.enter_context(device)
    scope.enter_context(Same())
    lines = capture_forward().explain().splitlines()
    return [line.split(":")[0].strip() for line in lines if ": captured" in line]


def allocate(size: int, alignment: int, stream: int | None) -> torch.Tensor:
    """Allocate scratch memory for a kernel of Triton."""
    return torch.empty(size, device="cuda", dtype=torch.int8)
