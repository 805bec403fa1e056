"""Kernels that pass over rows: the label's logit, the softmax statistics, and the gradient."""

from __future__ import annotations

import triton
import triton.language as tl

from ctxcarry_kernels._tile_kernel import softcapped

__all__ = ("coefficients", "combine", "from_e", "label_gradient", "label_logit")


@triton.jit
def label_logit(
    hidden_ptr,
    weight_ptr,
    bias_ptr,
    labels_ptr,
    x_ptr,
    V,
    H,
    first,
    scale,
    cap,
    BLOCK: tl.constexpr,
    BIAS: tl.constexpr,
    SOFTCAP: tl.constexpr,
):
    """
    Leave x of each token's label, -inf where the label is not one of these words.

    A kernel of its own: a branch for the label in the tile kernel costs more, and
    sums the products of the one logit that matters most less exactly.
    """
    row = tl.program_id(0).to(tl.int64)
    word = tl.load(labels_ptr + row).to(tl.int64) - first
    x = float("-inf")
    if (word >= 0) & (word < V):
        acc = tl.zeros([BLOCK], tl.float32)
        for start in range(0, H, BLOCK):
            at = start + tl.arange(0, BLOCK)
            h = tl.load(hidden_ptr + row * H + at, mask=at < H, other=0.0).to(tl.float32)
            w = tl.load(weight_ptr + word * H + at, mask=at < H, other=0.0).to(tl.float32)
            acc += h * w
        z = tl.sum(acc, 0)
        if BIAS:
            z += tl.load(bias_ptr + word).to(tl.float32)
        if SOFTCAP:
            z = softcapped(z, cap)
        x = z * scale
    tl.store(x_ptr + row, x)


# Not specialized: a kernel for one token might add up in another order than that for many.
@triton.jit(do_not_specialize=["N", "stride"])
def combine(
    max_ptr,
    sum_ptr,
    xsum_ptr,
    x_ptr,
    labels_ptr,
    packed_ptr,
    logp_ptr,
    entropy_ptr,
    lse_ptr,
    N,
    parts,
    stride,
    ignore,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    ENTROPY: tl.constexpr,
    FINISH: tl.constexpr,
):
    """
    Put the statistics of all parts of a row together.

    Args:
        max_ptr, sum_ptr, xsum_ptr: fp32 [parts, N], `stride` elements from part to part.
        x_ptr: fp32 [N]: x of the label.
        packed_ptr: fp32 [4, N]: maximum, sum, entropy sum and x, unless `FINISH`.
        logp_ptr, entropy_ptr, lse_ptr: fp32 [N], with `FINISH`; the last to the base 2.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < N
    top = tl.full([ROWS], -1e38, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    xtotal = tl.zeros([ROWS], tl.float32)
    for start in range(0, parts, BLOCK):
        part = start + tl.arange(0, BLOCK)
        mask = (part[:, None] < parts) & inside[None, :]
        at = part[:, None].to(tl.int64) * stride + rows[None, :]
        m = tl.load(max_ptr + at, mask=mask, other=-1e38)
        s = tl.load(sum_ptr + at, mask=mask, other=0.0)
        higher = tl.maximum(top, tl.max(m, 0))
        down = m - higher[None, :]
        factor = tl.exp2(down)
        before = top - higher
        factor_before = tl.exp2(before)
        if ENTROPY:
            q = tl.load(xsum_ptr + at, mask=mask, other=0.0)
            # 0 times a difference of -inf would be NaN.
            moved = tl.where(factor == 0, 0.0, (q + down * s) * factor)
            xtotal = tl.where(factor_before == 0, 0.0, (xtotal + before * total) * factor_before)
            xtotal += tl.sum(moved, 0)
        total = total * factor_before + tl.sum(s * factor, 0)
        top = higher
    x = tl.load(x_ptr + rows, mask=inside, other=0.0)
    if FINISH:
        total = tl.where(inside, total, 1.0)
        log_total = tl.log2(total)
        lse = top + log_total
        kept = tl.load(labels_ptr + rows, mask=inside, other=0) != ignore
        tl.store(lse_ptr + rows, lse, mask=inside)
        # What is certain has, by the last bit of x, more than all of the probability.
        logp = tl.minimum(x - lse, 0.0, propagate_nan=tl.PropagateNan.ALL) * 0.6931471805599453
        tl.store(logp_ptr + rows, tl.where(kept, logp, 0.0), mask=inside)
        if ENTROPY:
            entropy = (log_total - xtotal / total) * 0.6931471805599453
            entropy = tl.maximum(entropy, 0.0, propagate_nan=tl.PropagateNan.ALL)
            tl.store(entropy_ptr + rows, tl.where(kept, entropy, 0.0), mask=inside)
    else:
        tl.store(packed_ptr + rows, top, mask=inside)
        tl.store(packed_ptr + N + rows, total, mask=inside)
        tl.store(packed_ptr + 2 * N + rows, xtotal, mask=inside)
        tl.store(packed_ptr + 3 * N + rows, x, mask=inside)


@triton.jit
def coefficients(
    dlogp_ptr,
    dentropy_ptr,
    entropy_ptr,
    labels_ptr,
    a_ptr,
    b_ptr,
    N,
    ignore,
    inverse_temperature,
    BLOCK: tl.constexpr,
    ENTROPY: tl.constexpr,
):
    """Leave a and b of each row: the gradient of a logit is p * (a + b * log2 p)."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = rows < N
    kept = inside & (tl.load(labels_ptr + rows, mask=inside, other=ignore) != ignore)
    # Not loaded for a token that is ignored: whatever came from above, it has no gradient.
    g = tl.load(dlogp_ptr + rows, mask=kept, other=0.0)
    if ENTROPY:
        ge = tl.load(dentropy_ptr + rows, mask=kept, other=0.0)
        entropy = tl.load(entropy_ptr + rows, mask=kept, other=0.0)
        g += ge * entropy
        b = -ge * (0.6931471805599453 * inverse_temperature)
        tl.store(b_ptr + rows, b, mask=inside)
    tl.store(a_ptr + rows, -g * inverse_temperature, mask=inside)


@triton.jit
def label_gradient(
    d_ptr,
    labels_ptr,
    logp_ptr,
    entropy_ptr,
    dlogp_ptr,
    dentropy_ptr,
    x_ptr,
    N,
    first,
    V,
    stride,
    ignore,
    inverse_temperature,
    unscale,
    BLOCK: tl.constexpr,
    ENTROPY: tl.constexpr,
    SOFTCAP: tl.constexpr,
):
    """
    Overwrite the label's column of the gradient, from the logprob in fp32.

    Args:
        unscale: From x to a logit over the cap.
    """
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = rows < N
    label = tl.load(labels_ptr + rows, mask=inside, other=ignore)
    word = label.to(tl.int64) - first
    mine = inside & (label != ignore) & (word >= 0) & (word < V)
    g = tl.load(dlogp_ptr + rows, mask=mine, other=0.0)
    logp = tl.load(logp_ptr + rows, mask=mine, other=0.0)
    back = g
    if ENTROPY:
        ge = tl.load(dentropy_ptr + rows, mask=mine, other=0.0)
        entropy = tl.load(entropy_ptr + rows, mask=mine, other=0.0)
        back += ge * (logp + entropy)
    p = tl.exp2(logp * 1.4426950408889634)
    # Of a label that is ruled out: 0 times -inf.
    d = (g - tl.where(p == 0, 0.0, p * back)) * inverse_temperature
    if SOFTCAP:
        t = tl.load(x_ptr + rows, mask=mine, other=0.0) * unscale
        d *= 1.0 - t * t
    tl.store(d_ptr + rows.to(tl.int64) * stride + word, d.to(d_ptr.dtype.element_ty), mask=mine)


@triton.jit
def _log2(x, APPROXIMATE: tl.constexpr):
    # Triton's own is the accurate routine of libdevice: six times slower in `from_e`,
    # and E has 8 bits.
    if APPROXIMATE:
        return tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    return tl.log2(x)


@triton.jit
def from_e(
    e_ptr,
    d_ptr,
    max_ptr,
    lse_ptr,
    logp_ptr,
    entropy_ptr,
    dlogp_ptr,
    dentropy_ptr,
    labels_ptr,
    rows_ptr,
    first,
    V,
    e_stride,
    d_stride,
    max_stride,
    ignore,
    inverse_temperature,
    TILES: tl.constexpr,
    TILE_V: tl.constexpr,
    ENTROPY: tl.constexpr,
    SOME: tl.constexpr,
    APPROXIMATE: tl.constexpr,
):
    """
    Turn E into the gradient of the logits, one row and `TILES` tiles per program.

    Does for its row what `coefficients` and `label_gradient` do for recomputed tiles.

    Args:
        e_ptr: [tokens, V] with E; `d_ptr` [N, V] may be the same memory.
        max_ptr: fp32 [tiles, tokens]: the maximum that E is relative to.
        rows_ptr: int64 [N], with `SOME`: which tokens the N rows are.
        lse_ptr, logp_ptr, entropy_ptr, dlogp_ptr, dentropy_ptr: fp32 [N].
        labels_ptr: [N], of which `first` is the first that has a column.
    """
    row = tl.program_id(0).to(tl.int64)
    token = row
    if SOME:
        token = tl.load(rows_ptr + row)
    label = tl.load(labels_ptr + row).to(tl.int64)
    kept = label != ignore
    g = tl.load(dlogp_ptr + row, mask=kept, other=0.0)
    logp = tl.load(logp_ptr + row)
    a = -g * inverse_temperature
    back = g
    if ENTROPY:
        ge = tl.load(dentropy_ptr + row, mask=kept, other=0.0)
        entropy = tl.load(entropy_ptr + row)
        a -= ge * entropy * inverse_temperature
        b = -ge * (0.6931471805599453 * inverse_temperature)
        back += ge * (logp + entropy)
    tiles = tl.program_id(1) * TILES + tl.arange(0, TILES)
    columns = tiles[:, None] * TILE_V + tl.arange(0, TILE_V)[None, :]
    at = tiles.to(tl.int64) * max_stride + token
    top = tl.load(max_ptr + at, mask=tiles * TILE_V < V, other=0.0)
    # Finite where a bias of -inf bans a whole tile, NaN where the row is.
    shift = tl.maximum(top - tl.load(lse_ptr + row), -1e30, propagate_nan=tl.PropagateNan.ALL)
    mask = columns < V
    e = tl.load(e_ptr + token * e_stride + columns, mask=mask, other=0.0).to(tl.float32)
    d = e * tl.exp2(shift)[:, None]
    if ENTROPY:
        d *= a + b * (_log2(tl.maximum(e, 1.2e-38), APPROXIMATE) + shift[:, None])
    else:
        d *= a
    p = tl.exp2(logp * 1.4426950408889634)
    # From the logprob in fp32; of a label that is ruled out: 0 times -inf.
    of_label = (g - tl.where(p == 0, 0.0, p * back)) * inverse_temperature
    d = tl.where(kept & (columns == label - first), of_label, d)
    tl.store(d_ptr + row * d_stride + columns, d.to(d_ptr.dtype.element_ty), mask=mask)
