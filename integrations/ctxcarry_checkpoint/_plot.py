"""A plan as a picture: memory against recompute."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ctxcarry_checkpoint._plan import Plan

__all__ = ("plot",)

_ENDINGS = (".svg", ".png", ".pdf")


def plot(plan: Plan, path: str | Path) -> None:
    """
    Draw what each budget would cost, and where a plan lies.

    Args:
        plan: The plan.
        path: A file with the ending .svg, .png or .pdf.

    Raises:
        ImportError: matplotlib is missing.
        ValueError: The file has another ending.
    """
    path = Path(path)
    if path.suffix.lower() not in _ENDINGS:
        msg = f"{path.name} is not a picture that can be drawn. Endings are {', '.join(_ENDINGS)}"
        raise ValueError(msg)
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - optional
    except ImportError as error:
        msg = 'a plot needs matplotlib. Install it with: pip install "ctxcarry[checkpoint]"'
        raise ImportError(msg) from error

    largest = max([plan.unchecked_bytes, plan.peak, *(nbytes for nbytes, _ in plan.pareto)])
    unit, name = (2**30, "GiB") if largest >= 2**30 else (2**20, "MiB")
    # Not by pyplot, which would look for a window.
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(
        [nbytes / unit for nbytes, _ in plan.pareto],
        [ms for _, ms in plan.pareto],
        marker=".",
        color="tab:blue",
        label="best for each budget",
    )
    marks = (
        ("full checkpointing", plan.full_bytes, plan.full_ms, "s", "tab:gray"),
        ("no checkpointing", plan.unchecked_bytes + plan.offset, 0.0, "D", "tab:green"),
        ("this plan", plan.peak, plan.cost, "*", "tab:red"),
    )
    for label, nbytes, ms, marker, color in marks:
        axes.scatter([nbytes / unit], [ms], marker=marker, color=color, s=90, zorder=3, label=label)
    axes.axvline(plan.budget / unit, color="tab:red", linestyle=":", label="budget")
    axes.set_xlabel(f"peak of kept and recomputed results ({name})")
    axes.set_ylabel("milliseconds added to a step")
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.savefig(path)
