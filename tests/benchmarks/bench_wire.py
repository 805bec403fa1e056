"""
Measure the wire format: bytes, and µs to dump and to load.

    PYTHONPATH=. python tests/benchmarks/bench_wire.py

Prints Markdown. "small" is a Triton allocator, a mesh, two process groups and
ten small ContextVars; "full" adds every other context of the catalog that can
travel and is installed. CPU time of one thread, median of the rounds. Loading is
measured as a process pool's worker does it (trusted), and also untrusted for
what then is left. With --profile, prints where the time of "small" goes.
"""

from __future__ import annotations

import argparse
import contextvars
import cProfile
import platform
import pstats
import statistics
import time
import warnings
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed._dist2
import triton
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

import ctxcarry
from ctxcarry import Snapshot, process_groups

if TYPE_CHECKING:
    from collections.abc import Callable

V0, V1, V2, V3, V4, V5, V6, V7, V8, V9 = (
    contextvars.ContextVar[str](f"bench.v{i}") for i in range(10)
)


def allocate(size: int, alignment: int, stream: int | None) -> Any:
    """Be an allocator with an import path."""
    return torch.empty(size, dtype=torch.int8)


def set_small(scope: ExitStack) -> Any:
    """Set an allocator, a mesh, two groups and ten variables; return the mesh."""
    for i, variable in enumerate((V0, V1, V2, V3, V4, V5, V6, V7, V8, V9)):
        variable.set(f"value {i}")
    triton.set_allocator(allocate)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    scope.callback(dist.destroy_process_group)
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
    scope.enter_context(mesh)
    groups = process_groups.use(tp=mesh.get_group("tp"), dp=mesh.get_group("dp"))
    scope.enter_context(groups)
    return mesh


def set_full(scope: ExitStack) -> None:
    """Set everything that can travel."""
    mesh = set_small(scope)
    with suppress(ImportError):
        from torchtitan.distributed import spmd_types as titan

        titan.set_spmd_meshes(dense_mesh=mesh, sparse_mesh=None)
        titan._MESH_TLS.mesh_stack = [mesh]
        scope.callback(titan._MESH_TLS.__dict__.clear)
    scope.enter_context(torch.distributed._dist2.process_group(mesh.get_group("tp")))
    scope.enter_context(torch.autocast("cpu", torch.bfloat16))
    scope.enter_context(torch.device("meta"))
    scope.enter_context(torch.inference_mode())
    scope.enter_context(torch.autograd.set_multithreading_enabled(False))


def median_us(fn: Callable[[], object], rounds: int, calls: int = 200) -> float:
    """Return the median over `rounds` of µs per call."""
    times = []
    for _ in range(rounds):
        start = time.thread_time()
        for _ in range(calls):
            fn()
        times.append((time.thread_time() - start) / calls * 1e6)
    return statistics.median(times)


def profile(fn: Callable[[], object], title: str) -> None:
    """Print the functions in which `fn` spends its time."""
    profiler = cProfile.Profile()
    with profiler:
        for _ in range(2_000):
            fn()
    print(f"\n{title}, 2,000 calls\n")
    pstats.Stats(profiler).sort_stats("tottime").print_stats(14)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0].strip())
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    versions = f"torch {torch.__version__}, Triton {triton.__version__}"
    print(f"Python {platform.python_version()}, {platform.machine()}, {versions}\n")
    print("| what | bytes | capture µs | dump µs | load µs | dump + load µs | load, untrusted µs |")
    print("|---|---|---|---|---|---|---|")
    warnings.simplefilter("ignore", ctxcarry.errors.CtxCarryWarning)
    for title, set_up in (("nothing", lambda _: None), ("small", set_small), ("full", set_full)):
        context = contextvars.copy_context()
        with ExitStack() as scope:
            context.run(set_up, scope)

            def measured(title: str = title) -> None:
                snapshot = ctxcarry.capture()
                data = snapshot.dumps(not_portable="skip")
                dump = median_us(lambda: snapshot.dumps(not_portable="skip"), options.rounds)
                load = median_us(lambda: Snapshot.loads(data, trusted=True), options.rounds)
                untrusted = median_us(lambda: Snapshot.loads(data), options.rounds)
                capture = median_us(ctxcarry.capture, options.rounds)
                print(
                    f"| {title} | {len(data)} | {capture:.1f} | {dump:.1f} | {load:.1f} "
                    f"| {dump + load:.1f} | {untrusted:.1f} |"
                )
                if options.profile and title == "small":
                    profile(lambda: snapshot.dumps(not_portable="skip"), "dump")
                    profile(lambda: Snapshot.loads(data, trusted=True), "load")

            context.run(measured)
            context.run(scope.pop_all().close)


if __name__ == "__main__":
    main()
