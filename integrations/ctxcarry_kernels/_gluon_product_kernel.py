"""
The products of the gradient of the logits with the weight and with the hidden states, in Gluon.

Laid out as `ctxcarry_kernels._gluon_kernel` is: two warpgroups multiply, one warp loads.
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

from ctxcarry_kernels._gluon_kernel import place

__all__ = ("product",)


@gluon.jit
def _load(
    a,
    b,
    a_shared,
    b_shared,
    full,
    empty,
    M,
    N,
    K,
    TRANSPOSED: gl.constexpr,
    TILE_M: gl.constexpr,
    TILE_N: gl.constexpr,
    TILE_K: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
    PROGRAMS: gl.constexpr,
):
    HALF: gl.constexpr = TILE_M // 2
    tiles_m = gl.cdiv(M, TILE_M)
    tiles_n = gl.cdiv(N, TILE_N)
    step = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n, PROGRAMS):
        i, j = place(tile, tiles_m, tiles_n, GROUP)
        for k in range(gl.cdiv(K, TILE_K)):
            stage = step % STAGES
            ready = full.index(stage)
            mbarrier.wait(empty.index(stage), (step // STAGES) & 1 ^ 1)
            mbarrier.expect(ready, (TILE_M + TILE_N) * TILE_K * 2)
            for half in gl.static_range(2):
                row = i * TILE_M + half * HALF
                place_of_half = a_shared.index(stage * 2 + half)
                if TRANSPOSED:
                    tma.async_copy_global_to_shared(a, [k * TILE_K, row], ready, place_of_half)
                else:
                    tma.async_copy_global_to_shared(a, [row, k * TILE_K], ready, place_of_half)
            tma.async_copy_global_to_shared(
                b, [k * TILE_K, j * TILE_N], ready, b_shared.index(stage)
            )
            step += 1


@gluon.jit
def _finish(
    a_shared,
    b_shared,
    c_shared,
    full,
    empty,
    c,
    M,
    N,
    K,
    WHICH: gl.constexpr,
    TRANSPOSED: gl.constexpr,
    TILE_M: gl.constexpr,
    TILE_N: gl.constexpr,
    TILE_K: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
    PROGRAMS: gl.constexpr,
):
    ROWS: gl.constexpr = TILE_M // 2
    WIDTH: gl.constexpr = TILE_N // 2
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, TILE_N, 16]
    )
    half_layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, WIDTH, 16]
    )
    tiles_m = gl.cdiv(M, TILE_M)
    tiles_n = gl.cdiv(N, TILE_N)
    mine = c_shared.index(WHICH)
    step = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n, PROGRAMS):
        i, j = place(tile, tiles_m, tiles_n, GROUP)
        acc = gl.zeros((ROWS, TILE_N), gl.float32, layout)
        for k in range(gl.cdiv(K, TILE_K)):
            stage = step % STAGES
            mbarrier.wait(full.index(stage), (step // STAGES) & 1)
            a = a_shared.index(stage * 2 + WHICH)
            if TRANSPOSED:
                a = a.permute((1, 0))
            acc = warpgroup_mma(a, b_shared.index(stage), acc, use_acc=k > 0, is_async=True)
            acc = warpgroup_mma_wait(0, deps=(acc,))
            mbarrier.arrive(empty.index(stage), count=1)
            step += 1
        first = i * TILE_M + WHICH * ROWS
        left, right = gl.split(gl.permute(gl.reshape(acc.to(c.dtype), (ROWS, 2, WIDTH)), (0, 2, 1)))
        tma.store_wait(0)
        mine.store(gl.convert_layout(left, half_layout))
        fence_async_shared()
        tma.async_copy_shared_to_global(c, [first, j * TILE_N], mine)
        tma.store_wait(0)
        mine.store(gl.convert_layout(right, half_layout))
        fence_async_shared()
        tma.async_copy_shared_to_global(c, [first, j * TILE_N + WIDTH], mine)
    tma.store_wait(0)


@gluon.jit
def product(
    a,
    b,
    c,
    M,
    N,
    K,
    TRANSPOSED: gl.constexpr,
    TILE_M: gl.constexpr,
    TILE_N: gl.constexpr,
    TILE_K: gl.constexpr,
    STAGES: gl.constexpr,
    GROUP: gl.constexpr,
    PROGRAMS: gl.constexpr,
):
    """
    Leave ``a @ b``, or with `TRANSPOSED` ``a.T @ b``, in `c`.

    Args:
        a: Descriptor of [M, K], or of [K, M].
        b, c: Descriptors of [K, N] and [M, N].
    """
    HALF: gl.constexpr = TILE_M // 2
    if TRANSPOSED:
        a_shared = gl.allocate_shared_memory(a.dtype, [STAGES * 2, TILE_K, HALF], a.layout)
    else:
        a_shared = gl.allocate_shared_memory(a.dtype, [STAGES * 2, HALF, TILE_K], a.layout)
    b_shared = gl.allocate_shared_memory(b.dtype, [STAGES, TILE_K, TILE_N], b.layout)
    c_shared = gl.allocate_shared_memory(c.dtype, [2, HALF, TILE_N // 2], c.layout)
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
                a_shared, b_shared, c_shared, full, empty, c, M, N, K, 0, TRANSPOSED, TILE_M,
                TILE_N, TILE_K, STAGES, GROUP, PROGRAMS,
            )),
            (_finish, (
                a_shared, b_shared, c_shared, full, empty, c, M, N, K, 1, TRANSPOSED, TILE_M,
                TILE_N, TILE_K, STAGES, GROUP, PROGRAMS,
            )),
            (_load, (
                a, b, a_shared, b_shared, full, empty, M, N, K, TRANSPOSED, TILE_M, TILE_N,
                TILE_K, STAGES, GROUP, PROGRAMS,
            )),
        ],
        [4, 1],
        [232, 24],
    )
    # fmt: on
