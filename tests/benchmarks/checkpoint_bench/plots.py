"""What was measured, as a picture of time against memory."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ("check_plot", "plot")

_KINDS = (".svg", ".png", ".pdf")
# Colour, marker, and whether the points are joined.
_SERIES = {
    "ours": ("ctxcarry", "#3f51b5", "o", True),
    "offload": ("ctxcarry, offload", "#3f51b5", "^", False),
    "compiled": ("ctxcarry, compiled blocks", "#00838f", "o", True),
    "none": ("no checkpointing", "#212121", "s", False),
    "full": ("full checkpointing", "#757575", "s", False),
    "titan": ("TorchTitan's rule", "#e65100", "D", False),
    "compile": ("torch.compile, memory budget", "#2e7d32", "v", True),
}


def check_plot(path: Path) -> None:
    """
    Make sure that a plot can be made, before anything is measured.

    Raises:
        ValueError: If matplotlib is not installed, or the file is of another kind.
    """
    if path.suffix not in _KINDS:
        msg = f"{path}: a plot is one of {', '.join(_KINDS)}"
        raise ValueError(msg)
    try:
        import_module("matplotlib")
    except ModuleNotFoundError as error:
        msg = f"a plot needs matplotlib ({error}). Install it: pip install 'ctxcarry[checkpoint]'"
        raise ValueError(msg) from None


def plot(data: dict[str, Any], path: Path) -> None:
    """
    Draw the time of a step against memory, or what recompute adds at equal memory.

    Args:
        data: What was measured.
        path: Of the file; its suffix says of which kind it is.

    Raises:
        ValueError: If no memory is in the data.
    """
    steps = data["steps"] or {"rows": []}
    measured = [row for row in steps["rows"] if row["ms"] is not None and row["peak_mib"]]
    if not measured and not data["equal"]:
        msg = "there is nothing to draw: memory is known on CUDA, or with --part equal"
        raise ValueError(msg)
    matplotlib: Any = import_module("matplotlib")
    matplotlib.use("Agg")
    # Text stays text: it can be searched, and the file does not depend on fonts here.
    matplotlib.rcParams["svg.fonttype"] = "none"
    pyplot: Any = import_module("matplotlib.pyplot")
    figure, axis = pyplot.subplots(figsize=(8, 5), layout="constrained")
    if measured:
        _steps(axis, measured)
        axis.set_title(f"{steps['size']}, {data['environment']['device']}", loc="left")
    else:
        _equal(axis, data["equal"])
        axis.set_title(f"{data['equal'][0]['size']}, CPU", loc="left")
    axis.margins(x=0.08, y=0.12)
    axis.grid(alpha=0.3)
    axis.legend()
    figure.savefig(path)
    pyplot.close(figure)


def _steps(axis: Any, rows: list[dict[str, Any]]) -> None:
    for series, (label, colour, marker, joined) in _SERIES.items():
        points = sorted((r["peak_mib"] / 1024, r["ms"]) for r in rows if r["series"] == series)
        if points:
            style = "-" if joined else "none"
            axis.plot(*zip(*points), color=colour, marker=marker, linestyle=style, label=label)
    axis.set_xlabel("peak of memory beyond parameters, gradients and input, GiB")
    axis.set_ylabel("forward + backward, ms")


def _equal(axis: Any, rows: list[dict[str, Any]]) -> None:
    groups = {
        "plain knapsack": [r for r in rows if r["rule"] == "knapsack"],
        "TorchTitan's rule": [r for r in rows if r["rule"] == "TorchTitan's rule"],
        "full checkpointing": [r for r in rows if r["rule"] == "full"],
    }
    styles = dict(zip(groups, (("#757575", "s"), ("#e65100", "D"), ("#212121", "s"))))
    for label, members in groups.items():
        colour, marker = styles[label]
        points = [(row["kept_mib"], row["extra_ms"]) for row in members]
        axis.plot(*zip(*points), color=colour, marker=marker, linestyle="--", label=label)
    ours = sorted((row["ours_kept_mib"], row["ours_extra_ms"]) for row in rows)
    axis.plot(*zip(*ours), color="#3f51b5", marker="o", label="ctxcarry")
    axis.set_xlabel("kept of each block, MiB")
    axis.set_ylabel("added to a step of each block, ms")
