"""
Measure what carrying adds to a backward pass.

    python tests/benchmarks/bench_autograd.py

Prints Markdown. Each figure is the median of rounds in which torch as it is and
torch with ``ctxcarry.install("autograd")`` take turns of nine passes, and of the
differences and ratios within a round. "On this thread" is a graph on the CPU; "on a thread of the
engine" is one on a CUDA device, or else on the thread that the engine goes on on past
60 passes within one another.
"""

from __future__ import annotations

import argparse
import gc
import platform
import statistics
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import spmd_types
import torch
import torch.distributed as dist
import triton
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

import ctxcarry
from ctxcarry.boundaries.recompute import capture_forward

if TYPE_CHECKING:
    from collections.abc import Callable

NODES = 500
# At 60 passes one within the other the engine goes on on another thread.
HOP = 60


class Same(torch.autograd.Function):
    """A node written in Python that does nothing."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Pass the tensor through."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        """Pass the gradient through."""
        return grad


class Within(torch.autograd.Function):
    """Start another pass within this one, `depth` times, then call a function."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, depth: int, fn: Callable[[], None]) -> torch.Tensor:
        """Pass the tensor through."""
        ctx.depth, ctx.fn = depth, fn
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Go one deeper, or call the function."""
        with torch.enable_grad():
            if ctx.depth:
                within(ctx.depth - 1, ctx.fn)
            else:
                ctx.fn()
        return grad, None, None


def within(depth: int, fn: Callable[[], None]) -> None:
    """Call `fn` within `depth` passes."""
    Within.apply(torch.ones(1, requires_grad=True), depth, fn).sum().backward()


def functions(x: torch.Tensor) -> torch.Tensor:
    """Return the end of a chain of nodes written in Python."""
    for _ in range(NODES):
        x = Same.apply(x)
    return x.sum()


def native(x: torch.Tensor) -> torch.Tensor:
    """Return the end of a chain of nodes written in C++."""
    for _ in range(NODES):
        x = x.view_as(x)
    return x.sum()


def timed(graph: Callable[[torch.Tensor], torch.Tensor], device: str) -> float:
    """Return µs per node of one backward pass over a fresh graph."""
    loss = graph(torch.ones(4, device=device, requires_grad=True))
    if device != "cpu":
        torch.cuda.synchronize()
    start = time.perf_counter()
    loss.backward()
    if device != "cpu":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / NODES * 1e6


def here(graph: Callable[[torch.Tensor], torch.Tensor]) -> float:
    """Time it on this thread."""
    return timed(graph, "cpu")


def elsewhere(graph: Callable[[torch.Tensor], torch.Tensor]) -> float:
    """Time it on a thread of the engine."""
    if torch.cuda.is_available():
        return timed(graph, "cuda")
    took: list[float] = []
    within(HOP, lambda: took.append(timed(graph, "cpu")))
    return took[0]


def compare(measure: Callable[[], float], rounds: int) -> tuple[list[float], list[float]]:
    """Return what `measure` returns without and with the boundary, by turns."""
    times: dict[bool, list[float]] = {False: [], True: []}
    gc.disable()
    for i in range(rounds):
        for on in (False, True) if i % 2 else (True, False):  # the first finds a colder cache
            if on:
                ctxcarry.install("autograd")
            for _ in range(20):  # after a patch the interpreter has much to look up anew
                measure()
            times[on].append(statistics.median(measure() for _ in range(9)))
            ctxcarry.uninstall("autograd")
        gc.collect()
    gc.enable()
    return times[False], times[True]


def row(name: str, plain: list[float], carried: list[float]) -> None:
    """Print a row of the table."""
    added = statistics.median(c - p for p, c in zip(plain, carried))
    ratio = statistics.median(c / p for p, c in zip(plain, carried))
    medians = f"{statistics.median(plain):.2f} | {statistics.median(carried):.2f}"
    print(f"| {name} | {medians} | {added:+.2f} | {ratio:.3f} |")


def blocks(count: int = 200) -> float:
    """Return µs per checkpointed block, forward and backward."""
    x = torch.ones(4, requires_grad=True)
    start = time.perf_counter()
    y = x
    for _ in range(count):
        y = checkpoint(torch.sin, y, use_reentrant=False, preserve_rng_state=False)
    y.sum().backward()
    return (time.perf_counter() - start) / count * 1e6


def of_recompute(rounds: int, count: int = 1000) -> tuple[float, float]:
    """Return µs of a capture for recompute, and of running nothing in that context."""
    captures, runs = [], []
    snapshot = capture_forward()
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(count):
            capture_forward()
        captures.append((time.perf_counter() - start) / count * 1e6)
        start = time.perf_counter()
        for _ in range(count):
            snapshot.run(nothing)
        runs.append((time.perf_counter() - start) / count * 1e6)
    return statistics.median(captures), statistics.median(runs)


def nothing() -> None:
    """Do nothing."""


def set_everything(scope: ExitStack) -> None:
    """Set ContextVars, an allocator and a mesh, as a training step does."""
    triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8))
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    scope.callback(dist.destroy_process_group)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    scope.enter_context(spmd_types.set_current_mesh(mesh))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0].strip())
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    print(f"Python {platform.python_version()}, torch {torch.__version__}, {device}")
    print("\n| µs per node or block | plain | carried | added | ratio |\n|---|---|---|---|---|")
    recompute: dict[str, tuple[float, float]] = {}
    for what, set_up in (("nothing set", lambda _: None), ("all set", set_everything)):
        with ExitStack() as scope:
            set_up(scope)
            for name, graph in (("custom functions", functions), ("native nodes", native)):
                for where, measure in (("this thread", here), ("the engine's", elsewhere)):
                    label = f"{name}, {where}, {what}"
                    row(label, *compare(lambda m=measure, g=graph: m(g), rounds))
            row(f"checkpointed block, {what}", *compare(blocks, rounds))
            recompute[what] = of_recompute(rounds)
    print("\n| µs for a recompute, full catalog | capture | restore and undo |\n|---|---|---|")
    for what, (capture, run) in recompute.items():
        print(f"| {what} | {capture:.2f} | {run:.2f} |")


if __name__ == "__main__":
    main()
