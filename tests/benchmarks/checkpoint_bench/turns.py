"""How long something takes on one thread of the CPU, whatever else runs on the machine."""

from __future__ import annotations

import ctypes
import gc
import random
import statistics
import sys
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    Key = TypeVar("Key")

__all__ = ("keep_memory", "processor_ms")

# Of mallopt: above which size memory is mapped for itself, and how much of the heap stays.
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
_GIB = 1 << 30


def keep_memory() -> None:
    """
    Have memory that was freed given out again, where the C library can be told so.

    By itself it returns large pieces to the system and has them filled with zeros anew, which
    takes longer than many an operator, and sometimes happens and sometimes not. A GPU's
    allocator keeps them too.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _GIB)
        mallopt(_TRIM_THRESHOLD, _GIB)


def processor_ms(
    runs: dict[Key, Callable[[], object]], what: str, *, rounds: int, span: int
) -> dict[Key, list[float]]:
    """
    Return how many milliseconds of the processor a call of each takes, in each round.

    All have short turns, in another order each round. Garbage is collected between rounds, so
    that nobody pays for another's.

    Args:
        runs: What to time.
        what: What to call it on the way.
        rounds: How often each has its turn.
        span: For about how many milliseconds a turn repeats a call.
    """
    calls = {}
    for key, run in runs.items():
        run()
        calls[key] = max(1, round(span / max(_once(run), 1e-3)))
    times: dict[Key, list[float]] = {key: [] for key in runs}
    order = list(runs)
    shuffled = random.Random(0)  # noqa: S311 - an order
    gc.disable()
    for number in range(1, rounds + 1):
        sys.stderr.write(f"{what}: round {number} of {rounds}\n")
        shuffled.shuffle(order)
        for key in order:
            runs[key]()
            times[key].append(statistics.median(_once(runs[key]) for _ in range(calls[key])))
        gc.collect()
    gc.enable()
    return times


def _once(run: Callable[[], object]) -> float:
    before = time.process_time()
    run()
    return (time.process_time() - before) * 1000
