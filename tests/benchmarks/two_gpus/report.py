"""What was measured, as tables and as data."""

from __future__ import annotations

import statistics
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from platform import machine, python_version
from typing import TYPE_CHECKING, Any

import torch

import ctxcarry

from .ways import CARRIED, OFF, PLAIN
from .work import on_gpus, two_gpus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .ways import Way
    from .work import Graph

    Times = dict[Way, list[tuple[float, float]]]  # forward and backward, in each round

__all__ = ("ON_CPU", "ON_ONE", "environment", "goals", "rows", "tables")

MOST_ADDED = 1.03
LEAST_GAINED = 1.2
ON_CPU = "on the CPU nothing runs on autograd's device threads: its ratios say nothing about them"
ON_ONE = "one thread serves a device that is given twice: threads off cannot be compared"


def rows(graph: Graph, times: Times) -> list[dict[str, Any]]:
    """Return a row for each way."""
    return [
        {
            "graph": graph.name,
            "way": way.name,
            "forward_ms": statistics.median(forward for forward, _ in took),
            "backward_ms": statistics.median(backward for _, backward in took),
            "ratio": ratio(times, way, PLAIN),
            "rounds": took,
        }
        for way, took in times.items()
    ]


def ratio(times: Times, way: Way, other: Way) -> float:
    """Return how much longer the backward takes one way than the other."""
    return statistics.median(a[1] / b[1] for a, b in zip(times[way], times[other]))


def goals(blocks: Times, chain: Times, devices: Sequence[torch.device]) -> list[dict[str, Any]]:
    """Return ratios, and whether their goals are reached; None where that says little."""
    found = [
        ("blocks: carried / plain", ratio(blocks, CARRIED, PLAIN), "at most", MOST_ADDED),
        ("blocks: threads off / carried", ratio(blocks, OFF, CARRIED), "at least", LEAST_GAINED),
        ("native: carried / plain", ratio(chain, CARRIED, PLAIN), "at most", MOST_ADDED),
        ("native: threads off / carried", ratio(chain, OFF, CARRIED), "at least", 0.0),
    ]
    return [
        {
            "ratio": name,
            "value": value,
            "goal": f"{bound} {limit}" if limit else "none",
            "reached": (value <= limit if bound == "at most" else value >= limit)
            if limit and (two_gpus(devices) or (bound == "at most" and on_gpus(devices)))
            else None,
        }
        for name, value, bound, limit in found
    ]


def environment(devices: Sequence[torch.device]) -> dict[str, str]:
    """Return the devices and the versions of what is measured with."""
    found = {
        f"device {i}": f"{d} {torch.cuda.get_device_name(d) if d.type == 'cuda' else machine()}"
        for i, d in enumerate(devices)
    }
    found |= {"python": python_version(), "ctxcarry": ctxcarry.__version__}
    found |= {"torch": torch.__version__, "cuda": str(torch.version.cuda)}
    for name in ("triton", "spmd_types", "torchtitan"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def tables(data: dict[str, Any], *, markdown: bool) -> str:
    """Return what `run` returned as text."""
    times = [
        [
            each["graph"],
            each["way"],
            *(f"{each[key]:.3f}" for key in ("forward_ms", "backward_ms", "ratio")),
        ]
        for each in data["results"]
    ]
    judged = {True: "reached", False: "MISSED", None: "not judged"}
    aims = [
        [each["ratio"], f"{each['value']:.3f}", each["goal"], judged[each["reached"]]]
        for each in data["goals"]
    ]
    seen = [list(each.values()) for each in data["recompute"]]
    return "\n\n".join(
        [
            ", ".join(f"{name} {value}" for name, value in data["environment"].items()),
            table(
                ["device", "way", "set around forward", "recompute sees", "thread"], seen, markdown
            ),
            f"set and carried, in {data['dtype']}: {', '.join(data['carried'])}",
            table(["graph", "way", "forward, ms", "backward, ms", "of plain"], times, markdown),
            table(["ratio of backwards", "is", "goal", ""], aims, markdown),
            data["note"],
        ]
    ).rstrip()


def table(head: list[str], lines: list[list[str]], markdown: bool) -> str:  # noqa: FBT001
    """Return it with columns of equal width, or as Markdown."""
    if markdown:
        made = [head, ["---"] * len(head), *lines]
        return "\n".join(f"| {' | '.join(line)} |" for line in made)
    widths = [max(map(len, column)) for column in zip(head, *lines)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip()
        for line in (head, *lines)
    )
