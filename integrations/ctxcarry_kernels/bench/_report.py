"""What was measured, as a table, as Markdown and as data."""

from __future__ import annotations

import platform
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import torch
from rich import box
from rich.table import Table as RichTable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from ctxcarry_kernels.bench._measure import Row, Table
    from ctxcarry_kernels.bench._tensor_parallel import Parallel

__all__ = ("as_data", "environment", "show_environment", "show_parallel", "show_table")

_NOTHING = "-"


def environment(device: str) -> dict[str, str]:
    """Return the card and the versions of what is measured with."""
    names = ("ctxcarry", "torch", "triton", "verl", "liger-kernel", "cut-cross-entropy")
    found = {"device": platform.machine(), "python": platform.python_version()}
    if device == "cuda":
        found["device"] = torch.cuda.get_device_name()
        found["cuda"] = str(torch.version.cuda)
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    found["torch"] = torch.__version__
    return found


def as_data(
    described: dict[str, str],
    tables: Sequence[Table],
    parallel: Sequence[Parallel],
    *,
    rounds: int,
    span: int,
) -> dict[str, Any]:
    """Return everything, for a JSON file."""
    return {
        "environment": described,
        "rounds": rounds,
        "span_ms": span,
        "sizes": [
            {
                **table.size._asdict(),
                "baseline": asdict(table.baseline),
                "rows": [asdict(row) for row in table.rows],
            }
            for table in tables
        ],
        "tensor_parallel": [{**asdict(each), "size": each.size._asdict()} for each in parallel],
    }


def show_environment(described: dict[str, str], console: Console) -> None:
    """Print the card and the versions in a line."""
    console.print(", ".join(f"{name} {value}" for name, value in described.items()))


def show_table(table: Table, console: Console, *, markdown: bool) -> None:
    """Print the rows of one size."""
    base = table.baseline
    show_rows = [
        [
            f"{base.name}: logits; 2 x logits + dX + dW",
            f"{base.logits_ms:.3f}",
            "1.000",
            f"{base.floor_ms:.3f}",
            "1.000",
            *[""] * 7,
        ],
        *(_cells(row) for row in table.rows),
    ]
    head = [
        "candidate",
        "fwd ms",
        "ratio",
        "fwd+bwd ms",
        "ratio",
        "half masked",
        "extra MiB",
        "held MiB",
        "logprob error",
        "entropy error",
        "dX error",
        "dW error",
    ]
    _show(str(table.size), head, show_rows, console, markdown=markdown)


def show_parallel(parallel: Parallel, console: Console, *, markdown: bool) -> None:
    """Print what the ranks measured, and whether they agree with one."""
    rows = [
        [
            row.name,
            _number(row.forward_ms, ".3f"),
            _number(row.forward_backward_ms, ".3f"),
            row.error or "",
        ]
        for row in parallel.rows
    ]
    title = f"{parallel.size}, words over {parallel.ranks} ranks ({parallel.backend})"
    _show(title, ["candidate", "fwd ms", "fwd+bwd ms", "note"], rows, console, markdown=markdown)
    checks = [
        [
            check.name,
            "yes" if check.ok else "NO",
            f"{check.logprob_difference:.1e}",
            f"{check.entropy_difference:.1e}",
            f"{check.dhidden_difference:.1e}",
            f"{check.dweight_difference:.1e}",
        ]
        for check in parallel.checks
    ]
    head = ["shards", "equal to one rank", "logprob", "entropy", "dX", "dW"]
    _show("Differences from one rank", head, checks, console, markdown=markdown)


def _cells(row: Row) -> list[str]:
    if row.error:
        return [row.name, row.error, *[""] * 10]
    return [
        row.name,
        _number(row.forward_ms, ".3f"),
        _number(row.forward_ratio, ".3f"),
        _number(row.forward_backward_ms, ".3f"),
        _number(row.forward_backward_ratio, ".3f"),
        _number(row.masked_backward_ratio, ".2f"),
        _number(row.extra_mib, ".0f"),
        _number(row.held_mib, ".0f"),
        _number(row.logprob_error, ".1e"),
        _number(row.entropy_error, ".1e"),
        _number(row.dhidden_error, ".2e"),
        _number(row.dweight_error, ".2e"),
    ]


def _number(value: float | None, how: str) -> str:
    return _NOTHING if value is None else format(value, how)


def _show(
    title: str,
    head: list[str],
    rows: list[list[str]],
    console: Console,
    *,
    markdown: bool,
) -> None:
    if markdown:
        line: Callable[[Sequence[str]], str] = lambda cells: f"| {' | '.join(cells)} |"  # noqa: E731
        safe = [[cell.replace("|", "\\|") for cell in row] for row in rows]
        lines = [f"{title}:", "", line(head), f"|{'---|' * len(head)}", *map(line, safe), ""]
        # As it is: a line of Markdown must not be broken to the width of the terminal.
        console.out("\n".join(lines), highlight=False)
        return
    errors = [row for row in rows if len(row) > 1 and not any(row[2:]) and len(head) > 4]  # noqa: PLR2004
    table = RichTable(title=title, box=box.SIMPLE, title_justify="left")
    for number, name in enumerate(head):
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    for row in rows:
        if row not in errors:
            table.add_row(*row)
    console.print(table)
    for name, why, *_ in errors:
        console.print(f"not measured: {name}: {why}")
