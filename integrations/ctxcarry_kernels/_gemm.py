"""Products of matrices with a result in fp32, whatever this torch and device have for it."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

__all__ = ("add_product", "has_fp32_output", "product")


@functools.cache
def has_fp32_output(kind: str) -> bool:
    """Say whether ``torch.mm`` of half precision has an fp32 result on a kind of device."""
    if kind != "cuda":
        return False
    overloads: list[str] = torch.ops.aten.mm.overloads()  # type: ignore[no-untyped-call,unused-ignore]
    return "dtype_out" in overloads


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return ``a @ b`` in fp32, [M, K] by [K, N]."""
    if a.dtype is torch.float32:
        return a @ b
    if has_fp32_output(a.device.type):
        return torch.mm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()


def add_product(total: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
    """Return ``total + a @ b`` in fp32, in the memory of `total` if there is one."""
    if total is None:
        return product(a, b)
    if a.dtype is torch.float32:
        return total.addmm_(a, b)
    if has_fp32_output(a.device.type):
        return torch.addmm(total, a, b, out_dtype=torch.float32, out=total)
    return total.addmm_(a.float(), b.float())
