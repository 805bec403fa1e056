"""The commands of ``ctxcarry``, as typer sees them."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from io import TextIOWrapper
from typing import Annotated

import typer
from rich.console import Console

import ctxcarry
from ctxcarry.diagnose.doctor import examine
from ctxcarry.diagnose.listing import list_carriers
from ctxcarry.diagnose.report import as_data, show_listing, show_report

__all__ = ("app",)

app = typer.Typer(
    name="ctxcarry",
    help="Carry ambient context to wherever work runs.",
    add_completion=False,
    no_args_is_help=True,
    # A traceback is for a bug report: the plain one can be searched and copied.
    pretty_exceptions_enable=False,
)

_Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - as typer calls it
    if wanted:
        typer.echo(f"ctxcarry {ctxcarry.__version__}")
        raise typer.Exit


_Version = Annotated[
    bool,
    typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
]


@app.callback()
def common(version: _Version = False) -> None:  # noqa: FBT002 - a flag of the command line
    """Carry ambient context to wherever work runs."""


@app.command()
def doctor(as_json: _Json = False) -> None:  # noqa: FBT002
    """Run every carrier over every boundary, plain and carried. Exits 1 if one fails."""
    # What a framework prints when it is imported must not get between ours.
    with redirect_stdout(sys.stderr):
        report = examine()
    if as_json:
        typer.echo(json.dumps(as_data(report), indent=2))
    else:
        show_report(report, _console())
    if not report.ok:
        raise typer.Exit(1)


@app.command()
def carriers(as_json: _Json = False) -> None:  # noqa: FBT002
    """List the contexts that can be carried, and which of them are here."""
    with redirect_stdout(sys.stderr):
        entries = list_carriers()
    if as_json:
        typer.echo(json.dumps({"carriers": [asdict(entry) for entry in entries]}, indent=2))
    else:
        show_listing(entries, _console())


def _console() -> Console:
    if isinstance(sys.stdout, TextIOWrapper):
        # An error text that the terminal cannot show must not end the report.
        sys.stdout.reconfigure(errors="replace")
    # No markup and no highlighting: names and error texts contain brackets and paths.
    return Console(highlight=False, markup=False, emoji=False)
