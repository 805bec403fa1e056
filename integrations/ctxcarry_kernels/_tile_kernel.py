"""
The persistent GEMM that makes one tile of logits at a time, and what it leaves of a tile.

All logarithms are to the base 2, which is what the hardware has: `x` is a logit over the
temperature, times log2(e). A tile is 128 tokens by 256 words (`ctxcarry_kernels._plan`).
Written for Triton without warp specialization, which 3.6 miscompiles where row indices
are made before the loop over the hidden dimension.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ("DLOGITS", "STATISTICS", "STATISTICS_AND_E", "logits_tiles", "softcapped")

STATISTICS = tl.constexpr(0)
"""Leave the maximum, the sum and the entropy sum of each row of the tile."""
STATISTICS_AND_E = tl.constexpr(1)
"""And the tile itself as E = 2^(x - maximum of the row), at most 1."""
DLOGITS = tl.constexpr(2)
"""Leave the gradient of the logits, but for the column of the label."""


@triton.jit
def softcapped(z, cap):
    """Return ``cap * tanh(z / cap)``."""
    # Through exp2 of a negative number: it cannot overflow.
    u = tl.exp2(tl.abs(z) * (-2.8853900817779268 / cap))
    t = cap * ((1.0 - u) / (1.0 + u))
    return tl.where(z < 0, -t, t)


@triton.jit
def logits_tiles(
    hidden,
    weight,
    out,
    bias_ptr,
    max_ptr,
    sum_ptr,
    xsum_ptr,
    lse_ptr,
    a_ptr,
    b_ptr,
    N,
    V,
    H,
    scale,
    cap,
    TILE_N: tl.constexpr,
    TILE_V: tl.constexpr,
    TILE_H: tl.constexpr,
    GROUP: tl.constexpr,
    PROGRAMS: tl.constexpr,
    LEAVE: tl.constexpr,
    RAGGED: tl.constexpr,
    ENTROPY: tl.constexpr,
    BIAS: tl.constexpr,
    SOFTCAP: tl.constexpr,
):
    """
    Make each tile of ``hidden @ weight.T`` and leave what `LEAVE` says of it.

    Args:
        hidden, weight: Descriptors of [N, H] and [V, H], zero outside.
        out: Descriptor of [N, V]: where E or the gradient goes, clipped outside.
        max_ptr, sum_ptr, xsum_ptr: fp32 [tiles of words, N]: per row of a tile the
            maximum m of x, the sum of 2^(x - m), and that of (x - m) * 2^(x - m).
        lse_ptr, a_ptr, b_ptr: fp32 [N]: the gradient is p * (a + b * log2 p).
        scale: log2(e) over the temperature.
    """
    tiles_n = tl.cdiv(N, TILE_N)
    tiles_v = tl.cdiv(V, TILE_V)
    for tile in tl.range(tl.program_id(0), tiles_n * tiles_v, PROGRAMS):
        # Tiles that run at one time share rows of both operands in the cache.
        per_group = GROUP * tiles_v
        group = tile // per_group
        height = min(tiles_n - group * GROUP, GROUP)
        i = group * GROUP + (tile % per_group) % height
        j = (tile % per_group) // height
        acc = tl.zeros((TILE_N, TILE_V), tl.float32)
        for k in range(tl.cdiv(H, TILE_H)):
            h = hidden.load([i * TILE_N, k * TILE_H])
            w = weight.load([j * TILE_V, k * TILE_H])
            acc = tl.dot(h, w.T, acc)
        rows = i * TILE_N + tl.arange(0, TILE_N)
        inside = rows < N
        if BIAS:
            columns = j * TILE_V + tl.arange(0, TILE_V)
            bias = tl.load(bias_ptr + columns, mask=columns < V, other=0.0).to(tl.float32)
            acc += bias[None, :]
        if SOFTCAP:
            acc = softcapped(acc, cap)
        if LEAVE == DLOGITS:
            # Loading these before the loop would spill.
            lse = tl.load(lse_ptr + rows, mask=inside, other=0.0)
            a = tl.load(a_ptr + rows, mask=inside, other=0.0)
            logp = acc * scale - lse[:, None]
            p = tl.exp2(logp)
            if ENTROPY:
                b = tl.load(b_ptr + rows, mask=inside, other=0.0)
                d = p * (a[:, None] + b[:, None] * logp)
            else:
                d = p * a[:, None]
            if BIAS:  # of -inf, say: its logarithm is that, too
                d = tl.where(p == 0, 0.0, d)
            if SOFTCAP:
                d *= 1.0 - (acc / cap) * (acc / cap)
            out.store([i * TILE_N, j * TILE_V], d.to(out.dtype))
        else:
            if RAGGED:
                columns = j * TILE_V + tl.arange(0, TILE_V)
                acc = tl.where(columns[None, :] < V, acc, -1e30)
            # Where a bias of -inf bans each word of a tile, above what is not of the tile:
            # a fused product and difference of -1e30 with itself need not be 0.
            top = tl.maximum(tl.max(acc, 1) * scale, -1e20)
            x = acc * scale - top[:, None]
            e = tl.exp2(x)
            at = j.to(tl.int64) * N + rows
            tl.store(max_ptr + at, top, mask=inside)
            tl.store(sum_ptr + at, tl.sum(e, 1), mask=inside)
            if ENTROPY:
                xe = x * e
                if BIAS:
                    xe = tl.where(e == 0, 0.0, xe)
                tl.store(xsum_ptr + at, tl.sum(xe, 1), mask=inside)
            if LEAVE == STATISTICS_AND_E:
                out.store([i * TILE_N, j * TILE_V], e.to(out.dtype))
