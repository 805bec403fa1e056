"""Launch the Gluon kernel, where this Triton and device have what it needs."""

from __future__ import annotations

import functools
import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ctxcarry_kernels._device import programs
from ctxcarry_kernels._plan import TILE_N, TILE_V

if TYPE_CHECKING:
    from ctxcarry_kernels._launch import Statistics
    from ctxcarry_kernels._settings import Settings

__all__ = ("available", "product", "serves", "tiles")

# Gluon changes from version to version: those that the kernel was run with.
_VERSIONS = ("3.6.",)
_HOPPER = 9
_TILE_H, _STAGES, _GROUP = 128, 2, 16


def serves(bias: Tensor | None, s: Settings) -> bool:
    """Say whether the Gluon kernel does this call; ``CTXCARRY_GLUON=0`` has it do none."""
    return bias is None and s.softcap == 0 and available()


@functools.cache
def available() -> bool:
    """Say whether the kernels in Gluon run here."""
    if os.environ.get("CTXCARRY_GLUON") == "0" or not torch.cuda.is_available():
        return False
    if not import_module("triton").__version__.startswith(_VERSIONS):
        return False
    return torch.cuda.get_device_capability()[0] == _HOPPER


@functools.cache
def _kernel(file: str, name: str) -> Any:
    return getattr(import_module(f"ctxcarry_kernels.{file}"), name)


@functools.cache
def _layout() -> Any:
    language = import_module("triton.experimental.gluon.language")
    return language.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)


@functools.cache
def _descriptor_class() -> Any:
    return import_module("triton.experimental.gluon.nvidia.hopper").TensorDescriptor


def _descriptor(matrix: Tensor, block: tuple[int, int]) -> Any:
    return _descriptor_class()(
        matrix, list(matrix.shape), list(matrix.stride()), list(block), _layout()
    )


def tiles(
    hidden: Tensor,
    weight: Tensor,
    s: Settings,
    out: Tensor,
    *,
    statistics: Statistics | None = None,
    rows: tuple[Tensor, Tensor, Tensor] | None = None,
    entropy: bool,
) -> None:
    """
    Fill in the statistics and E of the first words, or the gradient of the logits.

    Args:
        hidden: [N, H].
        weight: [V, H].
        s: The numbers of the call.
        out: [N, words]: E of the first words, or the gradient of all.
        statistics: What to fill in, or None for the gradient.
        rows: lse, a and b of each row, for the gradient.
        entropy: Whether the entropy is asked for, or has a gradient.
    """
    n, h = hidden.shape
    v = weight.shape[0]
    count = programs(n, v, hidden.device)
    nothing = hidden
    top, sums, xsums = statistics or (nothing, nothing, nothing)
    lse, a, b = rows or (nothing, nothing, nothing)
    _kernel("_gluon_kernel", "logits_tiles")[(count,)](
        _descriptor(hidden, (TILE_N, _TILE_H)),
        _descriptor(weight, (TILE_V, _TILE_H)),
        _descriptor(out, (TILE_N // 2, TILE_V // 2)),
        top,
        sums,
        xsums,
        lse,
        a,
        b,
        n,
        v,
        h,
        out.shape[1],
        s.scale,
        TILE_N=TILE_N,
        TILE_V=TILE_V,
        TILE_H=_TILE_H,
        STAGES=_STAGES,
        GROUP=_GROUP,
        PROGRAMS=count,
        GRADIENT=statistics is None,
        RAGGED=v % TILE_V != 0,
        ENTROPY=entropy,
        num_warps=4,
    )


def product(a: Tensor, b: Tensor, out: Tensor, *, transposed: bool) -> None:
    """Leave ``a @ b``, or ``a.T @ b`` if `transposed`, in `out`; all have rows in memory."""
    (k, n), m = b.shape, out.shape[0]
    count = programs(m, n, a.device)
    half = TILE_N // 2
    _kernel("_gluon_product_kernel", "product")[(count,)](
        _descriptor(a, (_TILE_H, half) if transposed else (half, _TILE_H)),
        _descriptor(b, (_TILE_H, TILE_V)),
        _descriptor(out, (half, TILE_V // 2)),
        m,
        n,
        k,
        TRANSPOSED=transposed,
        TILE_M=TILE_N,
        TILE_N=TILE_V,
        TILE_K=_TILE_H,
        STAGES=_STAGES,
        GROUP=_GROUP,
        PROGRAMS=count,
        num_warps=4,
    )
