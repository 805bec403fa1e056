"""
Measure what carrying adds to a task in a pool, beside others that do less.

    python tests/benchmarks/bench_executor.py

Prints Markdown. CPU time of the whole process per task that does nothing, one
worker, blocks of each variant in turn, so that a slow moment of the machine
meets all of them; medians of the blocks, and of the ratios to the plain block of
the same round. "one at a time" waits for each result before the next submit,
"queued" submits a block and then waits.
"""

from __future__ import annotations

import argparse
import contextvars
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import ctxcarry

if TYPE_CHECKING:
    from collections.abc import Callable

VARIABLES = [contextvars.ContextVar[int](f"bench.v{i}") for i in range(512)]


def no_op() -> None:
    """Do nothing."""


class CopyContext(ThreadPoolExecutor):
    """The least that carries ContextVars, and nothing else."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Submit in a copy of the current context."""
        return super().submit(contextvars.copy_context().run, fn, *args, **kwargs)


class Extras(ThreadPoolExecutor):
    """contextvars-extras, whose bind loses arguments: a no-op has none."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Submit the bound function."""
        from contextvars_extras.context_management import bind_to_snapshot_context

        return super().submit(bind_to_snapshot_context(fn), *args, **kwargs)


def one_at_a_time(pool: Executor, tasks: int) -> float:
    """Return µs of CPU time per task when each result is awaited."""
    start = time.process_time()
    for _ in range(tasks):
        pool.submit(no_op).result()
    return (time.process_time() - start) / tasks * 1e6


def queued(pool: Executor, tasks: int) -> float:
    """Return µs of CPU time per task when a block is submitted at once."""
    start = time.process_time()
    for future in [pool.submit(no_op) for _ in range(tasks)]:
        future.result()
    return (time.process_time() - start) / tasks * 1e6


def opentelemetry_pool() -> ThreadPoolExecutor:
    """Return a pool class instance whose submit OpenTelemetry has instrumented."""
    from opentelemetry import context
    from wrapt import FunctionWrapper

    # As ThreadingInstrumentor wraps ThreadPoolExecutor.submit, but on one class only.
    def submit(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        fn, *rest = args
        current = context.get_current()

        def attached(*args: Any, **kwargs: Any) -> Any:
            token = context.attach(current)
            try:
                return fn(*args, **kwargs)
            finally:
                context.detach(token)

        return wrapped(attached, *rest, **kwargs)

    class Instrumented(ThreadPoolExecutor):
        pass

    Instrumented.submit = FunctionWrapper(ThreadPoolExecutor.submit, submit)  # type: ignore[method-assign]
    return Instrumented(1)


def set_everything(scope: ExitStack) -> None:
    """Set what the four carriers carry: ContextVars, allocator, mesh, grad mode."""
    import spmd_types
    import torch
    import torch.distributed as dist
    import triton
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    for variable in VARIABLES[:8]:
        variable.set(1)
    triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8))
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    scope.callback(dist.destroy_process_group)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    scope.enter_context(spmd_types.set_current_mesh(mesh))
    scope.enter_context(torch.no_grad())


def table(title: str, pools: dict[str, Executor], measure: Any, rounds: int, tasks: int) -> None:
    """Print one table of medians and ratios to the first of `pools`."""
    times: dict[str, list[float]] = {name: [] for name in pools}
    for _ in range(rounds):
        for name, pool in pools.items():
            times[name].append(measure(pool, tasks))
    plain = next(iter(times.values()))
    print(f"\n{title}\n\n| variant | µs per task | ratio to plain |\n|---|---|---|")
    for name, values in times.items():
        ratio = statistics.median(v / p for v, p in zip(values, plain))
        print(f"| {name} | {statistics.median(values):.2f} | {ratio:.3f} |")


FOUR = ("contextvars", "triton.allocator", "spmd_types.state", "torch.grad_mode")


def registry_of(names: tuple[str, ...]) -> ctxcarry.Registry:
    """Return a registry with these carriers only."""
    registry = ctxcarry.Registry()
    for name in names:
        carrier = ctxcarry.registry.get(name)
        if carrier is not None:
            registry.register(carrier)
    return registry


def pools() -> dict[str, Executor]:
    """Return one pool of one worker for each variant."""
    four = registry_of(FOUR)
    return {
        "plain `ThreadPoolExecutor`": ThreadPoolExecutor(1),
        "`copy_context().run`": CopyContext(1),
        "OpenTelemetry threading (one context)": opentelemetry_pool(),
        "contextvars-extras bind": Extras(1),
        "ctxcarry, nothing to carry": ctxcarry.executor(1, registry=ctxcarry.Registry()),
        "ctxcarry, contextvars + allocator + mesh + grad mode": ctxcarry.executor(1, registry=four),
        "ctxcarry, the full catalog": ctxcarry.executor(1),
    }


def capture_table() -> None:
    """Print how long `capture` takes with more and more ContextVars set."""
    print("\nCapture, by ContextVars set\n\n| variables | ns per capture |\n|---|---|")
    plan = ctxcarry.registry.plan()
    from ctxcarry._capture import capture_with

    for count in (0, 8, 64, 512):
        context = contextvars.Context()
        for variable in VARIABLES[:count]:
            context.run(variable.set, 1)

        def measured() -> float:
            start = time.process_time()
            for _ in range(20_000):
                capture_with(plan)
            return (time.process_time() - start) / 20_000 * 1e9

        print(f"| {count} | {statistics.median(context.run(measured) for _ in range(9)):.0f} |")


def import_table() -> None:
    """Print what `import ctxcarry` adds to what it builds on, in a cold interpreter."""
    base = "import concurrent.futures, threading, contextvars"

    with tempfile.TemporaryDirectory() as cache:
        # With bytecode, wherever that is kept, and whether or not it is switched off here.
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache, "PYTHONDONTWRITEBYTECODE": ""}

        def cold(code: str) -> float:
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True, env=environment)
            return (time.perf_counter() - start) * 1e3

        _print_import(base, cold)


def _print_import(base: str, cold: Callable[[str], float]) -> None:

    cold(f"{base}, ctxcarry")  # writes the bytecode
    pairs = [(cold(base), cold(f"{base}, ctxcarry")) for _ in range(25)]
    added = statistics.median(ours - theirs for theirs, ours in pairs)
    print(f"\n`import ctxcarry` adds {added:.1f} ms to `{base}` (median of 25 pairs of processes)")


def main() -> None:
    """Print every table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0].strip())
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--tasks", type=int, default=500)
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, {platform.machine()}")
    import_table()
    for title, set_up in (("nothing set", lambda _: None), ("all set", set_everything)):
        with ExitStack() as scope:
            set_up(scope)
            import torch
            import triton

            names = ", ".join(carrier.name for carrier in ctxcarry.carriers())
            print(f"\n## {title} (torch {torch.__version__}, Triton {triton.__version__}; {names})")
            for how in (one_at_a_time, queued):
                variants = pools()
                table(how.__name__.replace("_", " "), variants, how, options.rounds, options.tasks)
                for pool in variants.values():
                    pool.shutdown()
    capture_table()


if __name__ == "__main__":
    main()
