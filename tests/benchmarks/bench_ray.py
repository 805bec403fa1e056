"""
Measure what carrying adds to a call through Ray.

    PYTHONPATH=. python tests/benchmarks/bench_ray.py

Prints Markdown. Each figure is the median of rounds in which ``ray.remote`` and
``ctxcarry.ray.remote`` take turns, and of the differences and ratios within a round.
A call is a ``remote`` and the ``ray.get`` of its result, one after the other. "Small"
is a Triton allocator, a mesh, two process groups and ten small ContextVars; the
workers have made the same groups. The last table is of many tasks at once under
contexts that go through the object store.
"""

from __future__ import annotations

import argparse
import contextvars
import os
import platform
import statistics
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import bench_wire
import ray
import torch

import ctxcarry
import ctxcarry.ray

if TYPE_CHECKING:
    from collections.abc import Callable

LARGE = 100_000


def make_groups() -> None:
    """Make, in a worker, the groups that the driver has."""
    contextvars.Context().run(bench_wire.set_small, ExitStack().__enter__())


def nothing(data: bytes | None = None) -> None:
    """Do nothing."""


def found() -> tuple[object, ...]:
    """Return some of what arrived."""
    from triton.runtime import _allocation

    allocator = type(_allocation._allocator.get()).__name__
    return allocator, bench_wire.V9.get(None), ctxcarry.process_groups.roles()


class Actor:
    """An actor that does nothing."""

    def nothing(self, data: bytes | None = None) -> None:
        """Do nothing."""

    def found(self) -> tuple[object, ...]:
        """Return some of what arrived."""
        return found()


class WithBytes:
    """A remote function or method, called with as many bytes as the contexts take."""

    def __init__(self, remote: Any, size: int) -> None:
        self._remote = remote
        self._data = os.urandom(size)

    def remote(self) -> Any:
        """Call it."""
        return self._remote.remote(data=self._data)


def timed(remote: Any, calls: int) -> float:
    """Return µs per call."""
    start = time.perf_counter()
    for _ in range(calls):
        ray.get(remote.remote())
    return (time.perf_counter() - start) / calls * 1e6


def row(name: str, plain: Any, carried: Any, options: argparse.Namespace) -> None:
    """Let both take turns, and print a row of the table."""
    times: dict[Any, list[float]] = {plain: [], carried: []}
    for remote in times:
        timed(remote, options.calls)
    for i in range(options.rounds):
        for remote in (carried, plain) if i % 2 else (plain, carried):
            times[remote].append(timed(remote, options.calls))
    pairs = list(zip(times[plain], times[carried]))
    medians = " | ".join(f"{statistics.median(times[remote]):.0f}" for remote in times)
    added = statistics.median(c - p for p, c in pairs)
    ratio = statistics.median(c / p for p, c in pairs)
    print(f"| {name} | {medians} | {added:+.0f} | {ratio:.3f} |", flush=True)


def latency(options: argparse.Namespace) -> None:
    """Print the table of calls one after the other."""
    task = ray.remote(nothing), ctxcarry.ray.remote(nothing)
    actors = [remote(Actor).remote() for remote in (ray.remote, ctxcarry.ray.remote)]
    methods = [actor.nothing for actor in actors]
    print("| µs per call | plain | carried | added | ratio |\n|---|---|---|---|---|")
    sizes = {}
    for what, set_up in (("nothing set", lambda _: None), ("small", bench_wire.set_small)):
        context = contextvars.copy_context()
        with ExitStack() as scope:
            context.run(set_up, scope)
            context.run(row, f"task, {what}", *task, options)
            context.run(row, f"actor method, {what}", *methods, options)
            size = sizes[what] = len(context.run(ctxcarry.capture).dumps())
            if what == "small":
                for name, (plain, carried) in (("task", task), ("actor method", methods)):
                    label = f"{name}, small, plain with {size} bytes"
                    context.run(row, label, WithBytes(plain, size), carried, options)
            arrived = context.run(ctxcarry.ray.remote(found).remote), actors[1].found
            arrived = [arrived[0], context.run(arrived[1].remote)]
            there = ("function", "value 9", ("tp", "dp"))
            if what == "small" and ray.get(arrived) != [there, there]:
                msg = f"not all arrived: {ray.get(arrived)}"
                raise RuntimeError(msg)
            context.run(scope.pop_all().close)
    print("\n| contexts | bytes of a call |\n|---|---|")
    for what, size in sizes.items():
        print(f"| {what} | {0 if what == 'nothing set' else size} |")


def counted(make: Callable[[], object]) -> tuple[object, int]:
    """Return what `make` returns, and how often it wrote to the object store."""
    original, writes = ray.put, 0

    def put(*args: Any, **kwargs: Any) -> Any:
        nonlocal writes
        writes += 1
        return original(*args, **kwargs)

    ray.put = put
    try:
        return make(), writes
    finally:
        ray.put = original


def at_once(options: argparse.Namespace) -> None:
    """Print the table of many tasks at once under large contexts."""
    print(f"\n| {options.tasks:,} tasks at once | s | writes to the object store |\n|---|---|---|")
    bench_wire.V0.set("x" * LARGE)
    size = len(ctxcarry.capture().dumps())

    def run(remote: Any, tasks: int = options.tasks) -> float:
        start = time.perf_counter()
        ray.get([remote.remote() for _ in range(tasks)])
        return time.perf_counter() - start

    remotes = {
        "plain": ray.remote(nothing),
        f"carried, {size:,} bytes": ctxcarry.ray.remote(nothing),
    }
    run(remotes["plain"], 200)  # the workers are there
    for name, remote in remotes.items():
        taken, writes = counted(lambda r=remote: run(r))
        print(f"| {name} | {taken:.2f} | {writes} |", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0].strip())
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--tasks", type=int, default=10_000)
    options = parser.parse_args()
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        object_store_memory=200 << 20,
        runtime_env={
            "worker_process_setup_hook": make_groups,
            # The hook runs before Ray adds the driver's path.
            "env_vars": {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        },
    )
    versions = f"torch {torch.__version__}, Ray {ray.__version__}, {os.cpu_count()} CPUs"
    print(f"Python {platform.python_version()}, {platform.machine()}, {versions}\n")
    latency(options)
    at_once(options)
    ray.shutdown()


if __name__ == "__main__":
    main()
