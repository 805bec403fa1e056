"""Probes of torch's stacks of modes: what an operation returns under a mode that changes it."""

# ruff: noqa: PLC0415 - torch is imported only when it is probed

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ctxcarry.diagnose.probes._probe import Probe

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ("dispatch_modes", "function_modes")


@contextmanager
def function_modes() -> Iterator[Probe]:
    """Probe a ``TorchFunctionMode``."""
    import torch
    from torch.overrides import TorchFunctionMode

    class Doubling(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            return result * 2 if func is torch.Tensor.neg else result

    yield Probe(Doubling, lambda: torch.ones((), device="cpu").neg().item())


@contextmanager
def dispatch_modes() -> Iterator[Probe]:
    """Probe a ``TorchDispatchMode``."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Doubling(TorchDispatchMode):  # type: ignore[no-untyped-call]  # of torch
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            return result * 2 if func is torch.ops.aten.neg.default else result

    yield Probe(Doubling, lambda: torch.ones((), device="cpu").neg().item())
