"""How long something takes, on a GPU or on the CPU."""

from __future__ import annotations

import gc
import statistics
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("free", "milliseconds", "milliseconds_together")

_WARMUP = 100
_WARM_SECONDS = 0.5


def milliseconds(run: Callable[[], object], device: str, span: int) -> float:
    """
    Return the median time of a call.

    Args:
        run: What to time.
        device: "cuda" or "cpu".
        span: For about how many milliseconds to repeat it.
    """
    if device == "cuda":
        from triton.testing import do_bench  # noqa: PLC0415 - not there without a GPU

        _warm()
        timed: Any = do_bench(run, warmup=_WARMUP, rep=span, return_mode="median")
        return float(timed)
    from torch.utils.benchmark import Timer  # noqa: PLC0415 - slow to import

    timer = Timer("run()", globals={"run": run}, num_threads=torch.get_num_threads())
    return float(timer.blocked_autorange(min_run_time=span / 1000).median * 1000)


def _warm() -> None:
    """
    Multiply for half a second, so that no call is timed on a card that has cooled down.

    Large products run at the limit of its power: just after a pause the same one is faster
    by some percent, which would favour what is timed first.
    """
    matrix = torch.randn((8192, 8192), device="cuda", dtype=torch.bfloat16)
    product = torch.empty_like(matrix)
    end = time.monotonic() + _WARM_SECONDS
    while time.monotonic() < end:
        for _ in range(10):
            torch.mm(matrix, matrix, out=product)
        torch.cuda.synchronize()


def milliseconds_together(run: Callable[[], object], device: str, calls: int) -> float:
    """Return the median time of a fixed number of calls, which all ranks make together."""
    once = _on_gpu if device == "cuda" else _on_cpu
    run()
    times = []
    for _ in range(calls):
        dist.barrier()
        times.append(once(run))
    slowest = torch.tensor(statistics.median(times), device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest)


def _on_gpu(run: Callable[[], object]) -> float:
    event: Any = torch.cuda.Event
    start, end = event(enable_timing=True), event(enable_timing=True)
    # Overwrites what the cache holds, and has launches queue up behind it.
    torch.empty(256 << 20, device="cuda", dtype=torch.int8).zero_()
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end))


def _on_cpu(run: Callable[[], object]) -> float:
    before = time.perf_counter()
    run()
    return (time.perf_counter() - before) * 1000


def free(device: str) -> None:
    """Give memory back to the device, so that one candidate does not use another's."""
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
