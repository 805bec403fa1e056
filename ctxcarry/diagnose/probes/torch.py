"""Probes of torch: what an operation does under each setting of the thread."""

# ruff: noqa: PLC0415 - torch is imported only when it is probed

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from ctxcarry.diagnose.probes._probe import Probe

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = (
    "autocast",
    "default_device",
    "grad_mode",
    "inference_mode",
    "multithreading",
    "saved_tensors_hooks",
)


@contextmanager
def grad_mode() -> Iterator[Probe]:
    """Probe whether autograd records an operation."""
    import torch

    def read() -> object:
        return torch.ones((), device="cpu", requires_grad=True).neg().requires_grad

    yield Probe(torch.no_grad, read)


@contextmanager
def inference_mode() -> Iterator[Probe]:
    """Probe whether a new tensor is an inference tensor."""
    import torch

    yield Probe(torch.inference_mode, lambda: torch.ones((), device="cpu").is_inference())


@contextmanager
def autocast() -> Iterator[Probe]:
    """Probe the dtype in which two float32 matrices are multiplied."""
    import torch

    def read() -> object:
        one = torch.ones(1, 1, dtype=torch.float32, device="cpu")
        return (one @ one).dtype

    yield Probe(lambda: torch.autocast("cpu", dtype=torch.bfloat16), read)


@contextmanager
def default_device() -> Iterator[Probe]:
    """Probe the device of a new tensor."""
    import torch

    yield Probe(lambda: torch.device("meta"), lambda: torch.empty(()).device.type)


@contextmanager
def saved_tensors_hooks() -> Iterator[Probe]:
    """Probe whether a tensor that autograd saves is packed."""
    import torch

    packed: list[None] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(None)
        return tensor

    def read() -> object:
        before = len(packed)
        torch.ones((), device="cpu", requires_grad=True).exp()
        return len(packed) > before

    yield Probe(lambda: torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), read)


@contextmanager
def multithreading() -> Iterator[Probe]:
    """Probe whether autograd may use its threads."""
    import torch

    switch = torch.autograd.set_multithreading_enabled
    # There is no public getter, and no operation tells.
    yield Probe(lambda: switch(False), torch._C._is_multithreading_enabled)
