"""What was measured, as tables and as data."""

from __future__ import annotations

import platform
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .dispatch import Overhead
    from .equal import Equal
    from .steps import Steps

__all__ = ("as_data", "environment", "tables")

_ALLOWED = 1.05
# Memory that differs by less is the same.
_EQUAL = 0.003
_OURS = frozenset({"ours", "offload", "compiled"})


def environment(device: str) -> dict[str, str]:
    """Return the device and the versions of what is measured with."""
    found = {"device": platform.machine(), "threads": str(torch.get_num_threads())}
    if device == "cuda":
        found = {"device": torch.cuda.get_device_name(), "cuda": str(torch.version.cuda)}
    return {**found, "python": platform.python_version(), "torch": torch.__version__}


def as_data(
    described: dict[str, str],
    overheads: Sequence[Overhead],
    equals: Sequence[Equal],
    steps: Steps | None,
) -> dict[str, Any]:
    """Return everything, for a JSON file."""
    return {
        "environment": described,
        "dispatch": [asdict(each) for each in overheads],
        "equal": [asdict(each) for each in equals],
        "steps": None if steps is None else asdict(steps),
    }


def tables(data: dict[str, Any], *, markdown: bool) -> str:
    """Return what there is as text."""
    found = [", ".join(f"{name} {value}" for name, value in data["environment"].items())]
    if data["dispatch"]:
        head = ["program", "way", "operators", "forward, µs each", "step, µs each", "ratio"]
        rows = [
            [
                each["program"],
                each["name"],
                str(each["operators"]),
                f"{each['forward_us']:.1f}",
                f"{each['step_us']:.1f}",
                f"{each['ratio']:.3f}",
            ]
            for each in data["dispatch"]
            if each["name"] != "no checkpoint"
        ]
        title = "Added for each operator, and over torch's selective checkpoint"
        found.append(_table(title, head, rows, markdown=markdown))
    if data["equal"]:
        head = ["rule", "MiB", "extra ms", "ctxcarry, MiB", "extra ms", "ratio", "predicted"]
        rows = [
            [
                each["rule"],
                f"{each['kept_mib']:.2f}",
                f"{each['extra_ms']:.2f}",
                f"{each['ours_kept_mib']:.2f}",
                f"{each['ours_extra_ms']:.2f}",
                f"{each['ratio']:.3f}",
                _number(_over(each.get("ours_predicted_ms"), each.get("predicted_ms")), ".3f"),
            ]
            for each in data["equal"]
        ]
        title = f"Added to a step of each block at equal memory, {data['equal'][0]['size']}"
        found.append(_table(title, head, rows, markdown=markdown))
    if data["steps"] is not None:
        found += _steps(data["steps"], markdown=markdown)
    return "\n\n".join(found)


def _steps(steps: dict[str, Any], *, markdown: bool) -> list[str]:
    head = ["candidate", "ms", "ratio", "peak MiB", "held MiB", "of budget", "gradients off by"]
    measured = [row for row in steps["rows"] if not row["error"]]
    rows = [
        [
            row["name"],
            _number(row["ms"], ".2f"),
            _number(row["ratio"], ".3f"),
            _number(row["peak_mib"], ".0f"),
            _number(row["held_mib"], ".0f"),
            _number(row["of_budget"], ".3f"),
            _number(row["gradient_error"], ".1e"),
        ]
        for row in measured
    ]
    title = f"A step of {steps['size']}, {steps['dtype']}"
    found = [_table(title, head, rows, markdown=markdown)]
    found += [
        f"over its budget by more than 5%: {row['name']}, {row['of_budget']:.3f}"
        for row in measured
        if (row["of_budget"] or 0) > _ALLOWED
    ]
    found += _beside(measured, markdown=markdown)
    found += [f"not measured: {r['name']}: {r['error']}" for r in steps["rows"] if r["error"]]
    return found


def _beside(rows: list[dict[str, Any]], *, markdown: bool) -> list[str]:
    """Return what ours takes at no more memory than each of the others."""
    weighed = [row for row in rows if row["peak_mib"] and row["ms"]]
    lines = []
    for other in (row for row in weighed if row["series"] not in _OURS):
        fits = [
            row
            for row in weighed
            if row["series"] in _OURS and row["peak_mib"] <= other["peak_mib"] * (1 + _EQUAL)
        ]
        if fits:
            best = min(fits, key=lambda row: row["ms"])
            memory, time = best["peak_mib"] / other["peak_mib"], best["ms"] / other["ms"]
            lines.append([other["name"], best["name"], f"{memory:.3f}", f"{time:.3f}"])
    head = ["beside", "the fastest of ours that needs no more", "memory", "time"]
    return [_table("Ours over others", head, lines, markdown=markdown)] if lines else []


def _over(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None


def _number(value: float | None, how: str) -> str:
    return "-" if value is None else format(value, how)


def _table(title: str, head: list[str], rows: list[list[str]], *, markdown: bool) -> str:
    if markdown:
        lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
        return "\n".join([f"{title}:", "", lines[0], "|---" * len(head) + "|", *lines[1:]])
    widths = [max(map(len, column)) for column in zip(head, *rows)]
    lines = [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths))
        )
        for row in (head, *rows)
    ]
    return "\n".join([f"{title}:", *lines])
