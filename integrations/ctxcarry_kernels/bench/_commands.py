"""The command line, as typer sees it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import torch
import typer
from rich.console import Console

from ctxcarry_kernels._path import why_not_fused
from ctxcarry_kernels.bench._candidates import DEFAULT_BUDGETS, check_budget, load_peers, ours
from ctxcarry_kernels.bench._inputs import DEFAULT_SIZES, Size
from ctxcarry_kernels.bench._measure import measure
from ctxcarry_kernels.bench._plot import check_plot, plot
from ctxcarry_kernels.bench._report import (
    as_data,
    environment,
    show_environment,
    show_parallel,
    show_table,
)
from ctxcarry_kernels.bench._tensor_parallel import measure_parallel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ctxcarry_kernels.bench._measure import Table
    from ctxcarry_kernels.bench._tensor_parallel import Parallel

__all__ = ("app",)

_Given = TypeVar("_Given")
_Made = TypeVar("_Made")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_SIZES = "; ".join(",".join(map(str, size)) for size in DEFAULT_SIZES)
_BUDGETS = "; ".join(DEFAULT_BUDGETS)

# Made here and not in the signature: typer reads its text again, which not every Python can.
_SizeOption = Annotated[
    list[str] | None,
    typer.Option(metavar="N,H,V", help=f"Tokens, hidden size, words; repeatable. [{_SIZES}]"),
]
_BudgetOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="BYTES",
        help='memory_budget of ours: bytes such as 0 or 2.3GiB, "default", or "all" for all '
        f"that can be kept; repeatable. [{_BUDGETS}]",
    ),
]
_Peers = Annotated[bool, typer.Option(help="Measure other kernels, too.")]
_Rounds = Annotated[int, typer.Option(min=1, help="How often each has its turn.")]
_Span = Annotated[int, typer.Option(min=1, help="Milliseconds for each figure and turn.")]
_Json = Annotated[Path | None, typer.Option("--json", help="Write everything to a JSON file.")]
_Plot = Annotated[
    Path | None, typer.Option("--plot", help="Draw ratios and memory: .svg, .png or .pdf.")
]
_Markdown = Annotated[bool, typer.Option("--markdown", help="Print tables as Markdown.")]
_Ranks = Annotated[
    int | None,
    typer.Option(min=2, help="Divide the words over so many ranks, and measure only that."),
]


@app.command()
def bench(
    size: _SizeOption = None,
    budget: _BudgetOption = None,
    peers: _Peers = True,  # noqa: FBT002 - flags of the command line
    rounds: _Rounds = 10,
    span: _Span = 100,
    json_file: _Json = None,
    plot_file: _Plot = None,
    markdown: _Markdown = False,  # noqa: FBT002
    tensor_parallel: _Ranks = None,
) -> None:
    """
    Measure linear_cross_entropy beside cuBLAS and other kernels, by turns.

    On a GPU the default takes some minutes. Without one, give a small --size.
    """
    _check_files(json_file, plot_file, parallel=tensor_parallel is not None)
    sizes = [_checked(Size.parse, text) for text in size or ()]
    budgets = budget or DEFAULT_BUDGETS
    for text in budgets:
        _checked(check_budget, text)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not sizes:
        message = "there is no CUDA device: give a small --size, such as 64,64,512"
        raise typer.BadParameter(message)
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 200
    described = environment(device)
    show_environment(described, console)
    tables: list[Table] = []
    parallel: list[Parallel] = []
    if tensor_parallel is None:
        why = why_not_fused(*_like_inputs(device))
        console.print("path: " + ("Triton kernels" if why is None else f"plain torch: {why}"))
        others = load_peers() if peers else []
        for each in sizes or DEFAULT_SIZES:
            candidates = [*ours(each, budgets), *others]
            tables.append(measure(each, candidates, device, rounds=rounds, span=span, say=_say))
            show_table(tables[-1], console, markdown=markdown)
    else:
        for each in sizes or DEFAULT_SIZES[:1]:
            parallel.append(measure_parallel(each, tensor_parallel, peers=peers, rounds=rounds))
            show_parallel(parallel[-1], console, markdown=markdown)
    if json_file is not None:
        data = as_data(described, tables, parallel, rounds=rounds, span=span)
        json_file.write_text(json.dumps(data, indent=2) + "\n", "utf-8")
    if plot_file is not None:
        plot(tables, plot_file)
    if _failed(tables, parallel):
        raise typer.Exit(1)


def _check_files(json_file: Path | None, plot_file: Path | None, *, parallel: bool) -> None:
    """Refuse, before anything is measured, a file that cannot be written afterwards."""
    for path in filter(None, (json_file, plot_file)):
        if not path.resolve().parent.is_dir():
            message = f"{path}: there is no such folder"
            raise typer.BadParameter(message)
    if plot_file is None:
        return
    if parallel:
        message = "--plot draws what one GPU measures; leave --tensor-parallel out"
        raise typer.BadParameter(message)
    _checked(check_plot, plot_file)


def _checked(check: Callable[[_Given], _Made], given: _Given) -> _Made:
    try:
        return check(given)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _say(what: str) -> None:
    sys.stderr.write(f"{what}\n")


def _like_inputs(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    one = torch.empty((8, 64), device=device, dtype=torch.bfloat16)
    return one, one


def _failed(tables: Sequence[Table], parallel: Sequence[Parallel]) -> bool:
    wrong = any(row.ours and row.error for table in tables for row in table.rows)
    return wrong or any(
        any(row.ours and row.error for row in each.rows)
        or not all(check.ok for check in each.checks)
        for each in parallel
    )
