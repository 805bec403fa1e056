"""Launch the Triton kernels: descriptors, sizes, and the device they need to be current."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import Tensor
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from ctxcarry_kernels import _gluon, _row_kernels, _tile_kernel
from ctxcarry_kernels._device import programs
from ctxcarry_kernels._plan import TILE_N, TILE_V, tiles

if TYPE_CHECKING:
    from ctxcarry_kernels._settings import Settings

__all__ = (
    "INTERPRETED",
    "Statistics",
    "combine",
    "from_e",
    "gradient_coefficients",
    "gradient_tiles",
    "label_gradient",
    "label_x",
    "product",
    "statistics_tiles",
)

INTERPRETED: Final = not isinstance(_tile_kernel.logits_tiles, JITFunction)
"""Whether Triton runs kernels on the CPU, for tests: ``TRITON_INTERPRET=1``."""

_TILE_H: Final = 64
_GROUP: Final = 16
_ROWS: Final = 256
_WARPS, _STAGES = 8, 3
# From so many multiplications on Gluon's product is the faster one, below it torch's.
_LARGE: Final = 1e12
# Said outright: Triton 3.9 warns that what it does by default will change, and 3.10 has changed.
_ALWAYS: Final = {"enable_fp_fusion": True}


class Statistics(NamedTuple):
    """fp32 [tiles of words, tokens] each: see `ctxcarry_kernels._tile_kernel.logits_tiles`."""

    top: Tensor
    total: Tensor
    xtotal: Tensor

    @classmethod
    def empty(cls, words: int, rows: int, device: torch.device) -> Statistics:
        """Return memory for the statistics of all tiles."""
        size = (tiles(words), rows)
        return cls(*(torch.empty(size, device=device, dtype=torch.float32) for _ in range(3)))


def _descriptor(matrix: Tensor, block: tuple[int, int]) -> TensorDescriptor:
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), list(block))


def _launch_tiles(
    leave: Any,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    s: Settings,
    *,
    out: Tensor | None = None,
    statistics: Statistics | None = None,
    rows: tuple[Tensor, Tensor, Tensor] | None = None,
    entropy: bool,
) -> None:
    n, h = hidden.shape
    v = weight.shape[0]
    count = programs(n, v, hidden.device)
    # What a variant of the kernel does not touch must still be something.
    nothing = hidden
    top, sums, xsums = statistics or (nothing, nothing, nothing)
    lse, a, b = rows or (nothing, nothing, nothing)
    _tile_kernel.logits_tiles[(count,)](
        _descriptor(hidden, (TILE_N, _TILE_H)),
        _descriptor(weight, (TILE_V, _TILE_H)),
        _descriptor(hidden if out is None else out, (TILE_N, TILE_V)),
        nothing if bias is None else bias,
        top,
        sums,
        xsums,
        lse,
        a,
        b,
        n,
        v,
        h,
        s.scale,
        s.softcap,
        TILE_N=TILE_N,
        TILE_V=TILE_V,
        TILE_H=_TILE_H,
        GROUP=_GROUP,
        PROGRAMS=count,
        LEAVE=leave.value,
        RAGGED=v % TILE_V != 0,
        ENTROPY=entropy,
        BIAS=bias is not None,
        SOFTCAP=s.softcap > 0,
        num_warps=_WARPS,
        num_stages=_STAGES,
        **_ALWAYS,
    )


def _by_gluon(bias: Tensor | None, s: Settings) -> bool:
    return not INTERPRETED and _gluon.serves(bias, s)


def statistics_tiles(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    s: Settings,
    statistics: Statistics,
    e: Tensor,
) -> None:
    """Fill in the statistics of each tile, and E [N, kept] of the first words."""
    kept = e.shape[1]
    if kept and _by_gluon(bias, s):
        _gluon.tiles(hidden, weight, s, e, statistics=statistics, entropy=s.entropy)
        return
    if kept:
        _launch_tiles(
            _tile_kernel.STATISTICS_AND_E,
            hidden,
            weight[:kept],
            None if bias is None else bias[:kept],
            s,
            out=e,
            statistics=statistics,
            entropy=s.entropy,
        )
    if kept < weight.shape[0]:
        _launch_tiles(
            _tile_kernel.STATISTICS,
            hidden,
            weight[kept:],
            None if bias is None else bias[kept:],
            s,
            statistics=Statistics(*(part[kept // TILE_V :] for part in statistics)),
            entropy=s.entropy,
        )


def gradient_tiles(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    s: Settings,
    out: Tensor,
    rows: tuple[Tensor, Tensor, Tensor],
    *,
    entropy: bool,
) -> None:
    """Make the logits again, and leave their gradient in `out` [N, V]."""
    if _by_gluon(bias, s):
        _gluon.tiles(hidden, weight, s, out, rows=rows, entropy=entropy)
        return
    _launch_tiles(
        _tile_kernel.DLOGITS, hidden, weight, bias, s, out=out, rows=rows, entropy=entropy
    )


def label_x(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, s: Settings
) -> Tensor:
    """Return x of the label of each token, fp32 [N], -inf where it is not on this rank."""
    n, h = hidden.shape
    x = torch.empty(n, device=hidden.device, dtype=torch.float32)
    _row_kernels.label_logit[(n,)](
        hidden,
        weight,
        weight if bias is None else bias,
        labels,
        x,
        weight.shape[0],
        h,
        s.first,
        s.scale,
        s.softcap,
        BLOCK=1024,
        BIAS=bias is not None,
        SOFTCAP=s.softcap > 0,
        **_ALWAYS,
    )
    return x


def combine(
    parts: Statistics, x: Tensor, labels: Tensor, s: Settings, *, finish: bool
) -> tuple[Tensor, ...]:
    """
    Put the parts of each row together.

    Returns:
        Logprob, entropy and the logarithm (to the base 2) of the sum, fp32 [N] each;
        or, unless `finish`, one fp32 [4, N]: maximum, sum, entropy sum and x.
    """
    count, n = parts.top.shape
    packed = x.new_empty((0, n) if finish else (4, n))
    # Separate: an operator's results may not share memory.
    logp, entropy, lse = (torch.empty_like(x) if finish else x for _ in range(3))
    rows = 32 if n >= 4096 else 16  # noqa: PLR2004 - fewer rows would leave processors idle
    _row_kernels.combine[(-(-n // rows),)](
        parts.top,
        parts.total,
        parts.xtotal,
        x,
        labels,
        packed if packed.numel() else x,
        logp,
        entropy,
        lse,
        n,
        count,
        parts.top.stride(0),
        s.ignore,
        ROWS=rows,
        BLOCK=64,
        ENTROPY=s.entropy,
        FINISH=finish,
        **_ALWAYS,
    )
    return (logp, entropy, lse) if finish else (packed,)


def gradient_coefficients(
    dlogp: Tensor, dentropy: Tensor | None, entropy: Tensor, labels: Tensor, s: Settings
) -> tuple[Tensor, Tensor]:
    """Return a and b of each row, fp32 [N]: the gradient of a logit is p * (a + b * log2 p)."""
    n = dlogp.shape[0]
    a, b = torch.empty((2, n), device=dlogp.device, dtype=torch.float32).unbind(0)
    _row_kernels.coefficients[(-(-n // _ROWS),)](
        dlogp,
        dlogp if dentropy is None else dentropy,
        entropy,
        labels,
        a,
        b,
        n,
        s.ignore,
        1.0 / s.temperature,
        BLOCK=_ROWS,
        ENTROPY=dentropy is not None,
        **_ALWAYS,
    )
    return a, b


def label_gradient(
    out: Tensor,
    first: int,
    labels: Tensor,
    results: tuple[Tensor, Tensor, Tensor],
    dlogp: Tensor,
    dentropy: Tensor | None,
    s: Settings,
) -> None:
    """
    Put the gradient of each label's logit into `out` [N, V], whose words begin with `first`.

    `results` are logprob, entropy and x of the label, fp32 [N] each.
    """
    logp, entropy, x = results
    n, v = out.shape
    _row_kernels.label_gradient[(-(-n // _ROWS),)](
        out,
        labels,
        logp,
        entropy,
        dlogp,
        dlogp if dentropy is None else dentropy,
        x,
        n,
        first,
        v,
        out.stride(0),
        s.ignore,
        1.0 / s.temperature,
        1.0 / (s.scale * s.softcap) if s.softcap else 0.0,
        BLOCK=_ROWS,
        ENTROPY=dentropy is not None,
        SOFTCAP=s.softcap > 0,
        **_ALWAYS,
    )


def product(a: Tensor, b: Tensor, out: Tensor, *, transposed: bool = False) -> Tensor:
    """Return ``a @ b``, or ``a.T @ b`` if `transposed`, in `out` and of its type."""
    large = out.numel() * (a.shape[0] if transposed else a.shape[1]) > _LARGE
    if large and not INTERPRETED and a.is_cuda and _gluon.available():
        _gluon.product(a, b, out, transposed=transposed)
        return out
    return torch.mm(a.t() if transposed else a, b, out=out)


def from_e(
    e: Tensor,
    top: Tensor,
    out: Tensor,
    first: int,
    labels: Tensor,
    results: tuple[Tensor, Tensor, Tensor],
    dlogp: Tensor,
    dentropy: Tensor | None,
    rows: Tensor | None,
    s: Settings,
) -> None:
    """
    Turn E into the gradient of the logits, `out`, which may be the same memory.

    E is relative to `top`, fp32 [tiles, tokens]. `results` are logprob, entropy and lse of
    each row of `out`; `rows` says which token each row is, or is None for all.
    """
    logp, entropy, lse = results
    n, v = out.shape
    count = 16
    _row_kernels.from_e[(n, -(-tiles(v) // count))](
        e,
        out,
        top,
        lse,
        logp,
        entropy,
        dlogp,
        dlogp if dentropy is None else dentropy,
        labels,
        labels if rows is None else rows,
        first,
        v,
        e.stride(0),
        out.stride(0),
        top.stride(0),
        s.ignore,
        1.0 / s.temperature,
        TILES=count,
        TILE_V=TILE_V,
        ENTROPY=dentropy is not None,
        SOME=rows is not None,
        APPROXIMATE=not INTERPRETED,
        num_warps=4,
        **_ALWAYS,
    )
