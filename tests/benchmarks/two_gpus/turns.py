"""Checks, then each way in short turns."""

from __future__ import annotations

import gc
import random
import statistics
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from .checks import check_gradients, check_recompute
from .report import ON_CPU, ON_ONE, environment, goals, rows
from .ways import WAYS, set_everything
from .work import checkpointed, native, on_gpus, step, two_gpus

if TYPE_CHECKING:
    import argparse

    from .report import Times
    from .work import Graph

__all__ = ("run",)


def run(given: argparse.Namespace) -> dict[str, Any]:
    """
    Check, then measure; return all of it.

    Raises:
        SystemExit: 1 if what is carried does not arrive, or gradients differ.
    """
    torch.manual_seed(0)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    with ExitStack() as scope:
        scope.callback(dist.destroy_process_group)
        told, wrong = check_recompute(mesh, given.devices)
        graphs = [checkpointed(given), native(given)]
        names = set_everything(scope, mesh, given.devices[0])
        for graph in graphs:
            wrong += check_gradients(graph, given.devices)
        if wrong:
            sys.stderr.write("\n".join(["FAILED:", *wrong, f"seen: {told}", ""]))
            raise SystemExit(1)
        times = [measure(graph, given) for graph in graphs]
    return {
        "environment": environment(given.devices),
        "dtype": str(given.dtype),
        "carried": names,
        "recompute": told,
        "results": [row for graph, took in zip(graphs, times) for row in rows(graph, took)],
        "goals": goals(*times, given.devices),
        "note": "" if two_gpus(given.devices) else ON_ONE if on_gpus(given.devices) else ON_CPU,
    }


def measure(graph: Graph, given: argparse.Namespace) -> Times:
    """Return the median milliseconds of forward and backward, each way, in each round."""
    times: Times = {way: [] for way in WAYS}
    order = list(WAYS)
    shuffled = random.Random(0)  # noqa: S311 - an order
    gc.collect()
    gc.disable()
    for number in range(1, given.rounds + 1):
        sys.stderr.write(f"{graph.name}: round {number} of {given.rounds}\n")
        shuffled.shuffle(order)
        for way in order:
            with way.entered():
                for _ in range(given.warm):  # after a patch the interpreter has much to look up
                    step(graph, given.devices)
                took = [step(graph, given.devices) for _ in range(given.passes)]
            times[way].append(tuple(map(statistics.median, zip(*took))))  # type: ignore[arg-type]
        gc.collect()
    gc.enable()
    return times
