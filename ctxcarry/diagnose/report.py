"""Render a report or a listing: for a terminal with rich, or as plain data for JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from ctxcarry.diagnose.listing import PRESENT
from ctxcarry.diagnose.matrix import NO_PROBE, PROBED, PROCESS_WIDE, UNCROSSED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import Console

    from ctxcarry.diagnose.boundaries import Boundary
    from ctxcarry.diagnose.doctor import Report
    from ctxcarry.diagnose.listing import Entry
    from ctxcarry.diagnose.matrix import Cell, Matrix, Row

__all__ = ("as_data", "show_listing", "show_report")

_MARKS = {"lost": "✗", "failed": "✗", "kept": "✓", "ok": "✓", None: "?", "to": "→"}
_ASCII_MARKS = {"lost": "x", "failed": "x", "kept": "v", "ok": "v", None: "?", "to": ">"}


def as_data(report: Report) -> dict[str, Any]:
    """Return `report` as JSON has it. Keys are added in later versions, not renamed."""
    matrix = report.matrix
    return {
        "ok": report.ok,
        "boundaries": [
            {"name": b.name, "plain": b.plain_code, "carried": b.carried_code}
            for b in matrix.boundaries
        ],
        "carriers": [
            {
                "name": row.carrier,
                "kind": row.kind,
                "reason": row.reason,
                "cells": {boundary: asdict(cell) for boundary, cell in row.cells.items()},
            }
            for row in matrix.rows
        ],
        "faults": report.faults,
        "versions": report.versions,
        "absent": [asdict(each) for each in report.absent],
        "unavailable": report.unavailable,
        "installed": list(report.installed),
    }


def show_report(report: Report, console: Console) -> None:
    """Print `report` within the width of `console`."""
    marks = _marks(console)
    for table in _tables(report.matrix, console):
        console.print(table)
        console.print()
    lost, arrives = marks["lost"], marks["ok"]
    console.print(f"{lost} lost, {arrives} arrives; left: the plain way, right: carried")
    console.print(_ways(report.matrix.boundaries))
    console.print()
    for line in (*_notes(report), *_versions(report)):
        console.print(line)
    console.print()
    for line in _verdict(report):
        console.print(line)


def show_listing(entries: Sequence[Entry], console: Console) -> None:
    """Print the catalog within the width of `console`."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for title in ("name", "context", "status"):
        table.add_column(title, overflow="fold")
    for entry in entries:
        # Docstrings quote code with backticks, which a table of prose does not need.
        what = entry.what.replace("`", "") or f"of {entry.where}"
        style = "green" if entry.status == PRESENT else "yellow"
        table.add_row(Text(entry.name), Text(what), Text(entry.status, style))
    console.print(table)
    lacking = _by_reason({entry.name: entry.reason for entry in entries if entry.reason})
    if lacking:
        console.print()
    for reason, names in lacking.items():
        console.print(Text(f"{', '.join(names)}: {reason}", "yellow"))


def _marks(console: Console) -> dict[str | None, str]:
    return _ASCII_MARKS if console.options.ascii_only else _MARKS


def _tables(matrix: Matrix, console: Console) -> Iterator[Table]:
    """Yield the matrix in as many tables, one below the other, as the width asks for."""
    marks = _marks(console)
    # Room for the longest name of the catalog and two boundaries, whatever the others are called.
    names = min(max(len(row.carrier) for row in matrix.rows), max(console.width - 24, 16))
    shown = [row for row in matrix.rows if row.kind != PROCESS_WIDE]
    widths = {b.name: _width(b, shown) for b in matrix.boundaries}
    for boundaries in _fitting(matrix.boundaries, console.width - names - 1, widths):
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column("carrier", width=names, overflow="fold")
        for boundary in boundaries:
            table.add_column(_header(boundary.name), min_width=widths[boundary.name])
        for row in shown:
            cells = [
                _mark(row.cells[b.name], marks) if row.kind == PROBED else Text(NO_PROBE, "dim")
                for b in boundaries
            ]
            table.add_row(Text(row.carrier), *cells)
        yield table


def _width(boundary: Boundary, rows: Iterable[Row]) -> int:
    """Return how wide the column of `boundary` is."""
    widest = max(map(len, _header(boundary.name).split("\n")))
    for row in rows:
        cell = row.cells.get(boundary.name)
        text = NO_PROBE if cell is None else cell.carried if cell.carried in UNCROSSED else "x > v"
        widest = max(widest, len(text))
    return widest


def _fitting(
    boundaries: Iterable[Boundary], width: int, widths: dict[str, int]
) -> list[list[Boundary]]:
    """Divide `boundaries` into groups whose columns fit into `width`."""
    groups: list[list[Boundary]] = [[]]
    left = width
    for boundary in boundaries:
        needed = 2 + widths[boundary.name]
        if needed > left and groups[-1]:
            groups.append([])
            left = width
        groups[-1].append(boundary)
        left -= needed
    return groups


def _header(name: str) -> str:
    return name.replace("_", "_\n").replace(".", ".\n")


def _mark(cell: Cell, marks: dict[str | None, str]) -> Text:
    if cell.carried in UNCROSSED:
        return Text(cell.carried, "dim")
    carried = marks["ok"] if cell.ok else marks["failed"]
    return Text(f"{marks[cell.plain]} {marks['to']} {carried}", "green" if cell.ok else "bold red")


def _ways(boundaries: Sequence[Boundary]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for boundary in boundaries:
        ways = boundary.plain_code, boundary.carried_code
        table.add_row(Text(f"  {boundary.name}"), *map(Text, ways))
    return table


def _notes(report: Report) -> Iterator[Text]:
    """Yield a line for each context that the matrix does not show, and why."""
    for row in report.matrix.rows:
        if row.kind == PROCESS_WIDE:
            yield Text(f"{row.carrier}: process-wide: every thread sees it")
    yield from _uncrossed(report.matrix)
    lacking = {row.carrier: row.reason for row in report.matrix.rows if row.reason}
    for reason, names in _by_reason(lacking).items():
        yield Text(f"{', '.join(names)}: {reason}", "dim")
    if any(row.kind == NO_PROBE and row.reason is None for row in report.matrix.rows):
        yield Text(f"{NO_PROBE}: doctor does not know how to set this context", "dim")
    for reason, names in _by_reason(report.unavailable).items():
        yield Text(f"{', '.join(names)}: unavailable: {reason}", "yellow")
    for each in report.absent:
        fix = f"; {each.fix}" if each.fix else ""
        text = f"{each.framework} {each.reason}: its contexts are not shown{fix}"
        yield Text(text, "yellow")


def _uncrossed(matrix: Matrix) -> Iterator[Text]:
    """Yield a line for each reason why contexts do not cross, with the boundaries it is about."""
    told: dict[tuple[str, str], list[str]] = {}
    for boundary in matrix.boundaries:
        cells = {row.carrier: row.cells.get(boundary.name) for row in matrix.rows}
        reasons = {name: cell.reason for name, cell in cells.items() if cell and cell.reason}
        for reason, names in _by_reason(reasons).items():
            kind = next(c.carried for c in cells.values() if c and c.reason == reason)
            told.setdefault((", ".join(names), f"{kind}: {reason}"), []).append(boundary.name)
    for (names_, why), boundaries in told.items():
        yield Text(f"{names_} over {', '.join(boundaries)}: {why}", "dim")


def _by_reason(reasons: dict[str, str]) -> dict[str, list[str]]:
    """Return the names that share a reason, by the reason."""
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(reason, []).append(name)
    return names


def _versions(report: Report) -> Iterator[Text]:
    found = [f"{name} {version}" for name, version in report.versions.items() if version]
    yield Text(f"versions: {', '.join(found)}")
    yield Text(f"patched: {', '.join(report.installed) or 'nothing (see ctxcarry.install)'}")


def _verdict(report: Report) -> Iterator[Text]:
    """Yield a line for each failure, with the boundaries that share it, and the sum."""
    failures: dict[tuple[str, str], list[str]] = {}
    cells = [(row, b, cell) for row in report.matrix.rows for b, cell in row.cells.items()]
    for row, boundary, cell in cells:
        if cell.error is not None:
            failures.setdefault((row.carrier, cell.error), []).append(boundary)
    for (carrier, error), boundaries in failures.items():
        yield Text(f"{carrier} over {', '.join(boundaries)}: {error}", "red")
    shown = {carrier for carrier, _ in failures}
    faults = {name: error for name, error in report.faults.items() if name not in shown}
    for error in faults.values():
        yield Text(error, "red")
    if report.ok:
        crossed = sum(cell.carried not in UNCROSSED for _, _, cell in cells)
        yield Text(f"{crossed} cells: every context arrives, and nothing stays behind", "green")
        return
    failed = sum(not cell.ok for _, _, cell in cells)
    names = ", ".join(sorted({*shown, *faults}))
    yield Text(f"{failed} of {len(cells)} cells failed; at fault: {names}", "bold red")
