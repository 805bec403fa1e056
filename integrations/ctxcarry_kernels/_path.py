"""Which path serves a call: the Triton kernels where they run, plain torch elsewhere."""

from __future__ import annotations

import functools
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ctxcarry_kernels._gemm import has_fp32_output

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ("fused_for", "has_whole_rows", "why_never_fused", "why_not_fused")

_HOPPER = (9, 0)


def fused_for(hidden: Tensor, weight: Tensor) -> ModuleType | None:
    """Return the module of the Triton path, if it serves these."""
    return _fused() if why_not_fused(hidden, weight) is None else None


def why_not_fused(hidden: Tensor, weight: Tensor) -> str | None:
    """
    Return why the Triton kernels do not serve these tensors, or None where they do.

    Args:
        hidden: [N, H].
        weight: [V, H], of the same type and device.
    """
    reason = why_never_fused(hidden.device, hidden.dtype)
    if reason is not None:
        return reason
    if not has_whole_rows(hidden):
        size = hidden.shape[1]
        return f"rows of {size} elements, which are no multiple of 16 bytes, as TMA needs"
    if (hidden.data_ptr() | weight.data_ptr()) % 16:
        return "memory that does not begin at a multiple of 16 bytes, as TMA needs"
    return None


def why_never_fused(device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why the Triton kernels do not serve any tensors like these, or None."""
    return _lacking() or _unsuitable(device, dtype)


def has_whole_rows(hidden: Tensor) -> bool:
    """Say whether a row has a multiple of 16 bytes."""
    return hidden.shape[1] * hidden.element_size() % 16 == 0


@functools.cache
def _unsuitable(device: torch.device, dtype: torch.dtype) -> str | None:
    if _fused()._launch.INTERPRETED:
        wrong = device.type == "cuda" or dtype is torch.bfloat16
        return "Triton's interpreter is for the CPU, and wrong with bf16" if wrong else None
    if device.type != "cuda":
        return f"{device.type} tensors"
    if torch.cuda.get_device_capability(device) < _HOPPER:
        return "a device before Hopper, which has no TMA"
    if dtype is torch.float32:
        return "fp32, which tensor cores do not have"
    if not has_fp32_output("cuda"):
        return f"torch {torch.__version__} has no torch.mm(..., out_dtype=)"
    return None


@functools.cache
def _lacking() -> str | None:
    if find_spec("triton") is None:
        return "Triton is not installed"
    if find_spec("triton.tools.tensor_descriptor") is None:
        return f"Triton {import_module('triton').__version__} has no descriptors made on the host"
    return None


@functools.cache
def _fused() -> ModuleType:
    return import_module("ctxcarry_kernels._fused")
