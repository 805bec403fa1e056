"""
Measure what the full catalog costs when nothing is set, and a million tasks' memory.

    PYTHONPATH=. python tests/benchmarks/bench_catalog.py
    PYTHONPATH=. python tests/benchmarks/bench_catalog.py --million

Prints Markdown. The full catalog beside the four carriers of `bench_executor.py`
(ContextVars, allocator, spmd_types, grad mode), with nothing set: capture, run and
undo on a thread of its own, and a task one at a time through a pool of one worker;
µs of CPU time, blocks of each in turn, medians of the blocks and of their
differences within a round. --million submits that many tasks that do nothing and
prints the resident memory after every 100,000.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import ctxcarry

if TYPE_CHECKING:
    from collections.abc import Callable

for _name in (
    "torch.distributed.device_mesh",
    "torch.distributed._dist2",
    "triton",
    "spmd_types",
    "torchtitan.distributed.spmd_types",
    "ctxcarry.process_groups",
):
    with suppress(ImportError):
        import_module(_name)

FOUR = ("contextvars", "triton.allocator", "spmd_types.state", "torch.grad_mode")


def no_op() -> None:
    """Do nothing."""


def four() -> ctxcarry.Registry:
    """Return a registry of the four carriers."""
    registry = ctxcarry.Registry()
    for carrier in ctxcarry.carriers():
        if carrier.name in FOUR:
            registry.register(carrier)
    return registry


def through(pool: ThreadPoolExecutor) -> Callable[[int], float]:
    """Return what measures µs of CPU time per task, each awaited before the next."""

    def measure(tasks: int) -> float:
        start = time.process_time()
        for _ in range(tasks):
            pool.submit(no_op).result()
        return (time.process_time() - start) / tasks * 1e6

    return measure


def directly(registry: ctxcarry.Registry) -> Callable[[int], float]:
    """Return what measures µs per capture and run on a thread of its own."""

    def measure(tasks: int) -> float:
        took = []

        def body() -> None:
            start = time.thread_time()
            for _ in range(tasks):
                registry.capture().run(no_op)
            took.append((time.thread_time() - start) / tasks * 1e6)

        thread = threading.Thread(target=body)
        thread.start()
        thread.join()
        return took[0]

    return measure


def table(title: str, variants: dict[str, Callable[[int], float]], rounds: int, tasks: int) -> None:
    """Print the medians, and the differences to the first variant."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, measure in variants.items():
            times[name].append(measure(tasks))
    first = next(iter(times.values()))
    print(f"\n{title}\n\n| registry | µs per task | µs over the first |\n|---|---|---|")
    for name, values in times.items():
        over = statistics.median(v - f for v, f in zip(values, first))
        print(f"| {name} | {statistics.median(values):.2f} | {over:+.2f} |")


def resident_mb() -> float:
    """Return the resident memory of this process in MB (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def million(tasks: int, step: int) -> None:
    """Print the resident memory while `tasks` tasks go through a carrying pool."""
    print("\n| tasks | resident MB | objects |\n|---|---|---|")
    with ctxcarry.executor(2) as pool, torch.no_grad():
        for done in range(0, tasks + 1, step):
            gc.collect()
            print(f"| {done:,} | {resident_mb():.1f} | {len(gc.get_objects()):,} |", flush=True)
            for _ in range(step // 1_000 if done < tasks else 0):
                for future in [pool.submit(no_op) for _ in range(1_000)]:
                    future.result()


def main() -> None:
    """Print the tables, or the memory."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0].strip())
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--tasks", type=int, default=1_000)
    parser.add_argument("--million", action="store_true")
    options = parser.parse_args()
    names = ", ".join(carrier.name for carrier in ctxcarry.carriers())
    print(f"Python {platform.python_version()}, {platform.machine()}, torch {torch.__version__}")
    print(f"\nFull catalog: {names}")
    if options.million:
        million(1_000_000, 100_000)
        return
    registries = {"four carriers": four(), "full catalog": ctxcarry.registry}
    runs = {"no carriers": directly(ctxcarry.Registry())}
    runs |= {name: directly(registry) for name, registry in registries.items()}
    table("capture, run, undo on a thread", runs, options.rounds, options.tasks)
    pools = {"plain pool": ThreadPoolExecutor(1)}
    pools |= {name: ctxcarry.executor(1, registry=r) for name, r in registries.items()}
    measured = {name: through(pool) for name, pool in pools.items()}
    table("one at a time through a pool", measured, options.rounds, options.tasks)
    for pool in pools.values():
        pool.shutdown()


if __name__ == "__main__":
    main()
