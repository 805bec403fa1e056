"""How long something takes, on a GPU or on the CPU."""

from __future__ import annotations

import gc
import random
import statistics
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ("by_turns", "free", "milliseconds_together")

_Key = TypeVar("_Key")


def by_turns(
    runs: dict[_Key, Callable[[], object]],
    device: str,
    *,
    rounds: int,
    span: int,
    say: Callable[[int], object],
) -> tuple[dict[_Key, list[float]], dict[_Key, Exception]]:
    """
    Return how many milliseconds a call of each takes, and why some did not run.

    A card at its limit of power is as fast as it is cool. So all have short turns one after
    the other, in another order each round, and on a GPU without a pause in a round.

    Args:
        runs: What to time.
        device: "cuda" or "cpu".
        rounds: How often each has its turn.
        span: For about how many milliseconds a turn repeats a call.
        say: Called with the number of each round, from 1.

    Returns:
        The median of each turn, and what was raised.
    """
    failed: dict[_Key, Exception] = {}
    calls = dict.fromkeys(runs, 1)

    def left() -> list[_Key]:
        return [key for key in runs if key not in failed]

    for key in left():
        with _noted(key, failed):
            runs[key]()
            once = (_turn_on_gpu if device == "cuda" else _turn_on_cpu)(runs[key], 1)()
            calls[key] = max(1, round(span / once))
    times: dict[_Key, list[float]] = {key: [] for key in runs}
    shuffled = random.Random(0)  # noqa: S311 - an order
    for number in range(1, rounds + 1):
        say(number)
        order = left()
        shuffled.shuffle(order)
        turns = {}
        for key in order:
            with _noted(key, failed):
                # Not timed: its caches, and the clock of the card, are those of the one before.
                runs[key]()
                turn = _turn_on_gpu if device == "cuda" else _turn_on_cpu
                turns[key] = turn(runs[key], calls[key])
        for key, ended in turns.items():
            times[key].append(ended())
    return times, failed


@contextmanager
def _noted(key: _Key, failed: dict[_Key, Exception]) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever a foreign kernel raises
        failed[key] = error


def _turn_on_gpu(run: Callable[[], object], calls: int) -> Callable[[], float]:
    """Launch the calls, and return what waits for them and tells their median."""
    pairs = [_launch(run) for _ in range(calls)]

    def ended() -> float:
        torch.cuda.synchronize()
        return statistics.median(float(start.elapsed_time(end)) for start, end in pairs)

    return ended


def _turn_on_cpu(run: Callable[[], object], calls: int) -> Callable[[], float]:
    took = statistics.median(_on_cpu(run) for _ in range(calls))
    return lambda: took


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


def _launch(run: Callable[[], object]) -> tuple[Any, Any]:
    event: Any = torch.cuda.Event
    start, end = event(enable_timing=True), event(enable_timing=True)
    # Overwrites what the cache holds, and has launches queue up behind it.
    torch.empty(256 << 20, device="cuda", dtype=torch.int8).zero_()
    start.record()
    run()
    end.record()
    return start, end


def _on_gpu(run: Callable[[], object]) -> float:
    return _turn_on_gpu(run, 1)()


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
