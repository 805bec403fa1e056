"""
The same tiles in Gluon: two warpgroups multiply and finish, a third of one warp loads.

Where `ctxcarry_kernels._tile_kernel` has E or the gradient to store, its warps wait for
one another; here a warpgroup stores its half of a tile while the other still multiplies.
For Hopper and Triton 3.6, whose Gluon this is; without a bias or a cap.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

__all__ = ("logits_tiles", "place")


@gluon.jit
def place(tile, tiles_n, tiles_v, GROUP: gl.constexpr):
    """Return row and column of a tile: tiles that run at one time share operands in the cache."""
    per_group = GROUP * tiles_v
    group = tile // per_group
    height = min(tiles_n - group * GROUP, GROUP)
    return group * GROUP + (tile % per_group) % height, (tile % per_group) // height


@gluon.jit
def _load(
    hidden,
    weight,
    h_shared,
    w_shared,
    full,
    empty,
    N,
    V,
    H,
    TILE_N: gl.constexpr,
    TILE_V: gl.constexpr,
    TILE_H: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
    PROGRAMS: gl.constexpr,
):
    tiles_n = gl.cdiv(N, TILE_N)
    tiles_v = gl.cdiv(V, TILE_V)
    step = 0
    for tile in range(gl.program_id(0), tiles_n * tiles_v, PROGRAMS):
        i, j = place(tile, tiles_n, tiles_v, GROUP)
        for k in range(gl.cdiv(H, TILE_H)):
            stage = step % STAGES
            mbarrier.wait(empty.index(stage), (step // STAGES) & 1 ^ 1)
            mbarrier.expect(full.index(stage), (TILE_N + TILE_V) * TILE_H * 2)
            tma.async_copy_global_to_shared(
                hidden, [i * TILE_N, k * TILE_H], full.index(stage), h_shared.index(stage)
            )
            tma.async_copy_global_to_shared(
                weight, [j * TILE_V, k * TILE_H], full.index(stage), w_shared.index(stage)
            )
            step += 1


@gluon.jit
def _finish(
    h_shared,
    w_shared,
    out_shared,
    full,
    empty,
    out,
    max_ptr,
    sum_ptr,
    xsum_ptr,
    lse_ptr,
    a_ptr,
    b_ptr,
    N,
    V,
    H,
    kept,
    scale,
    HALF: gl.constexpr,
    TILE_N: gl.constexpr,
    TILE_V: gl.constexpr,
    TILE_H: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
    PROGRAMS: gl.constexpr,
    GRADIENT: gl.constexpr,
    RAGGED: gl.constexpr,
    ENTROPY: gl.constexpr,
):
    ROWS: gl.constexpr = TILE_N // 2
    WIDTH: gl.constexpr = TILE_V // 2
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, TILE_V, 16]
    )
    half_layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, WIDTH, 16]
    )
    tiles_n = gl.cdiv(N, TILE_N)
    tiles_v = gl.cdiv(V, TILE_V)
    mine = out_shared.index(HALF)
    step = 0
    for tile in range(gl.program_id(0), tiles_n * tiles_v, PROGRAMS):
        i, j = place(tile, tiles_n, tiles_v, GROUP)
        first = i * TILE_N + HALF * ROWS
        rows = first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, layout))
        inside = rows < N
        acc = gl.zeros((ROWS, TILE_V), gl.float32, layout)
        for k in range(gl.cdiv(H, TILE_H)):
            stage = step % STAGES
            mbarrier.wait(full.index(stage), (step // STAGES) & 1)
            h = h_shared.index(stage).slice(HALF * ROWS, ROWS, dim=0)
            w = w_shared.index(stage).permute((1, 0))
            acc = warpgroup_mma(h, w, acc, use_acc=k > 0, is_async=True)
            acc = warpgroup_mma_wait(0, deps=(acc,))
            mbarrier.arrive(empty.index(stage), count=1)
            step += 1
        if GRADIENT:
            # Loading these before the loop would spill.
            lse = gl.load(lse_ptr + rows, mask=inside, other=0.0)
            a = gl.load(a_ptr + rows, mask=inside, other=0.0)
            logp = acc * scale - gl.expand_dims(lse, 1)
            acc = gl.exp2(logp)
            if ENTROPY:
                b = gl.load(b_ptr + rows, mask=inside, other=0.0)
                acc = acc * (gl.expand_dims(a, 1) + gl.expand_dims(b, 1) * logp)
            else:
                acc = acc * gl.expand_dims(a, 1)
        else:
            if RAGGED:
                # Not `and`: the first is known when this is compiled, the second is not.
                if j * TILE_V + TILE_V > V:
                    columns = j * TILE_V + gl.arange(0, TILE_V, layout=gl.SliceLayout(0, layout))
                    acc = gl.where(gl.expand_dims(columns, 0) < V, acc, -1e30)
            top = gl.max(acc, 1) * scale
            x = acc * scale - gl.expand_dims(top, 1)
            acc = gl.exp2(x)
            at = j.to(gl.int64) * N + rows
            gl.store(max_ptr + at, top, mask=inside)
            gl.store(sum_ptr + at, gl.sum(acc, 1), mask=inside)
            if ENTROPY:
                gl.store(xsum_ptr + at, gl.sum(x * acc, 1), mask=inside)
        if j * TILE_V < kept:
            # In two halves: the whole would not fit beside two stages of operands.
            left, right = gl.split(
                gl.permute(gl.reshape(acc.to(out.dtype), (ROWS, 2, WIDTH)), (0, 2, 1))
            )
            tma.store_wait(0)
            mine.store(gl.convert_layout(left, half_layout))
            fence_async_shared()
            tma.async_copy_shared_to_global(out, [first, j * TILE_V], mine)
            tma.store_wait(0)
            mine.store(gl.convert_layout(right, half_layout))
            fence_async_shared()
            tma.async_copy_shared_to_global(out, [first, j * TILE_V + WIDTH], mine)
    tma.store_wait(0)


@gluon.jit
def logits_tiles(
    hidden,
    weight,
    out,
    max_ptr,
    sum_ptr,
    xsum_ptr,
    lse_ptr,
    a_ptr,
    b_ptr,
    N,
    V,
    H,
    kept,
    scale,
    TILE_N: gl.constexpr,
    TILE_V: gl.constexpr,
    TILE_H: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
    PROGRAMS: gl.constexpr,
    GRADIENT: gl.constexpr,
    RAGGED: gl.constexpr,
    ENTROPY: gl.constexpr,
):
    """
    Leave statistics and E, or with `GRADIENT` the gradient of the logits, of each tile.

    `out` has the first `kept` words; the rest is as in `ctxcarry_kernels._tile_kernel`.
    """
    h_shared = gl.allocate_shared_memory(hidden.dtype, [STAGES, TILE_N, TILE_H], hidden.layout)
    w_shared = gl.allocate_shared_memory(weight.dtype, [STAGES, TILE_V, TILE_H], weight.layout)
    out_shared = gl.allocate_shared_memory(out.dtype, [2, TILE_N // 2, TILE_V // 2], out.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    fence_async_shared()
    # Written out: a sum of tuples would not keep what is constant so.
    # fmt: off
    gl.warp_specialize(
        [
            (_finish, (
                h_shared, w_shared, out_shared, full, empty, out, max_ptr, sum_ptr,
                xsum_ptr, lse_ptr, a_ptr, b_ptr, N, V, H, kept, scale, 0, TILE_N, TILE_V,
                TILE_H, STAGES, GROUP, PROGRAMS, GRADIENT, RAGGED, ENTROPY,
            )),
            (_finish, (
                h_shared, w_shared, out_shared, full, empty, out, max_ptr, sum_ptr,
                xsum_ptr, lse_ptr, a_ptr, b_ptr, N, V, H, kept, scale, 1, TILE_N, TILE_V,
                TILE_H, STAGES, GROUP, PROGRAMS, GRADIENT, RAGGED, ENTROPY,
            )),
            (_load, (
                hidden, weight, h_shared, w_shared, full, empty, N, V, H, TILE_N, TILE_V,
                TILE_H, STAGES, GROUP, PROGRAMS,
            )),
        ],
        [4, 1],
        [232, 24],
    )
    # fmt: on
