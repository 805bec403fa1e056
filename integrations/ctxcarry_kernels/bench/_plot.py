"""What was measured, as a picture."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ctxcarry_kernels.bench._measure import Row, Table

__all__ = ("check_plot", "plot")

_OURS, _OTHERS = "#3f51b5", "#9e9e9e"


_KINDS = (".svg", ".png", ".pdf")


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
        msg = f"a plot needs matplotlib ({error}). Install it with: pip install 'ctxcarry[bench]'"
        raise ValueError(msg) from None


def plot(tables: Sequence[Table], path: Path) -> None:
    """
    Draw time against cuBLAS as bars, and against memory, a row for each size.

    Args:
        tables: What was measured.
        path: Of the file; its suffix says of which kind it is.
    """
    matplotlib: Any = import_module("matplotlib")
    matplotlib.use("Agg")
    # Text stays text: it can be searched, and the file does not depend on fonts here.
    matplotlib.rcParams["svg.fonttype"] = "none"
    pyplot: Any = import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplots(
        len(tables), 2, figsize=(12, 3.6 * len(tables)), squeeze=False, layout="constrained"
    )
    for table, (left, right) in zip(tables, axes):
        rows = [row for row in table.rows if row.forward_backward_ratio is not None]
        _bars(left, rows, table)
        _points(right, rows)
    figure.savefig(path)
    pyplot.close(figure)


def _bars(axis: Any, rows: Sequence[Row], table: Table) -> None:
    names = [f"{row.name} ({number})" for number, row in enumerate(rows, 1)]
    ratios = [row.forward_backward_ratio or 0.0 for row in rows]
    bars = axis.barh(names, ratios, color=[_colour(row) for row in rows])
    axis.axvline(1.0, color="black", linewidth=0.8)
    behind = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
    axis.bar_label(bars, fmt="%.2f", padding=3, bbox=behind)
    axis.invert_yaxis()
    axis.margins(x=0.12)
    axis.set_title(str(table.size), loc="left")
    axis.set_xlabel(f"forward + backward over four products of {table.baseline.name}")


def _points(axis: Any, rows: Sequence[Row]) -> None:
    known = [(number, row) for number, row in enumerate(rows, 1) if row.extra_mib is not None]
    if not known:
        axis.set_axis_off()
        return
    for number, row in known:
        at = row.extra_mib, row.forward_backward_ratio
        axis.scatter(*at, color=_colour(row))
        axis.annotate(str(number), at, xytext=(4, 4), textcoords="offset points")
    # Some have next to nothing, some gigabytes.
    axis.set_xscale("symlog", linthresh=100)
    axis.axhline(1.0, color="black", linewidth=0.8)
    axis.margins(x=0.1, y=0.15)
    axis.set_xlabel("extra memory, MiB")
    axis.set_ylabel("forward + backward, ratio")


def _colour(row: Row) -> str:
    return _OURS if row.ours else _OTHERS
