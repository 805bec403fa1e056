"""What doctor prints."""

import io
import json
import re
from dataclasses import replace

import pytest

pytest.importorskip("torch")
pytest.importorskip("rich")

from rich.console import Console

from ctxcarry.diagnose.boundaries import BOUNDARIES
from ctxcarry.diagnose.doctor import examine
from ctxcarry.diagnose.environment import Absent
from ctxcarry.diagnose.matrix import Cell, Matrix, Row
from ctxcarry.diagnose.report import as_data, show_report


@pytest.fixture(scope="module")
def report():
    """Return what doctor finds here."""
    return examine()


def printed(report, width=80, encoding="utf-8"):
    """Return `report` as it is printed on a terminal of this width."""
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    show_report(report, Console(file=file, width=width, highlight=False, markup=False))
    file.flush()
    return raw.getvalue().decode(encoding)


def with_cell(report, cell):
    """Return `report` with one row of one cell."""
    matrix = Matrix(BOUNDARIES[:1], (Row("app.state", "probed", {"executor": cell}),), {})
    return replace(report, matrix=matrix)


def test_lost_and_carried_are_marked(report):
    """A context that is lost plainly and arrives carried shows as such."""
    lines = [line for line in printed(report).splitlines() if line.startswith("torch.device_mesh")]
    assert sum(line.count("✗ → ✓") for line in lines) == len(report.matrix.boundaries)


def test_context_that_stays_in_its_process_is_explained(report):
    """What cannot travel shows as neutral, with the reason below, and no failure."""
    cell = Cell(None, "not portable", None, None, "it is a function of this process")
    text = printed(with_cell(report, cell))
    assert "app.state over executor: not portable: it is a function of this process" in text
    assert "0 cells: every context arrives" in text
    assert re.search(r"^app.state +not portable *$", text, re.MULTILINE)


@pytest.mark.parametrize("width", [60, 80])
def test_report_fits_the_width(report, width):
    """No line is longer than the terminal is wide, and no code is cut off at 80 columns."""
    text = printed(report, width)
    assert max(map(len, text.splitlines())) <= width
    assert width < 80 or "…" not in text


def test_failure_is_marked_and_explained(report):
    """A failed cell shows two crosses, its error, and the sum names the carrier."""
    text = printed(with_cell(report, Cell("lost", "failed", "clean", "the work saw [0]")))
    assert "✗ → ✗" in text
    assert "app.state over executor: the work saw [0]" in text
    assert "1 of 1 cells failed; at fault: app.state" in text


def test_fault_is_explained_once(report):
    """A carrier that failed in others' cells is named, unless its own cells tell it already."""
    faults = {"their.carrier": "their.carrier failed to capture", "app.state": "said in the cell"}
    failing = with_cell(report, Cell("lost", "failed", None, "the cell"))
    text = printed(replace(failing, faults=faults))
    assert "their.carrier failed to capture" in text
    assert "said in the cell" not in text
    assert "at fault: app.state, their.carrier" in text


def test_what_is_not_shown_is_explained(report):
    """Absent frameworks and unavailable contexts have a line each, with the fix or the reason."""
    absent = (Absent("triton", "is not installed", "pip install 'ctxcarry[triton]'"),)
    text = printed(
        replace(report, absent=absent, unavailable={"a.b": "too old", "a.c": "too old"}), width=200
    )
    expected = "triton is not installed: its contexts are not shown; pip install 'ctxcarry[triton]'"
    assert expected in text.splitlines()
    assert "a.b, a.c: unavailable: too old" in text.splitlines()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_many_boundaries_fit_the_width(report, width):
    """More boundaries than fit side by side are shown in several tables."""
    names = [f"some_boundary_{n}" for n in range(12)]
    cells = dict.fromkeys(names, Cell("lost", "ok", "clean"))
    boundaries = tuple(replace(BOUNDARIES[0], name=name) for name in names)
    rows = tuple(replace(row, cells=cells) for row in report.matrix.rows)
    text = printed(replace(report, matrix=Matrix(boundaries, rows, {})), width)
    assert max(map(len, text.splitlines())) <= width
    lines = [line for line in text.splitlines() if line.startswith("torch.grad_mode")]
    assert len(names) == sum(line.count("✗ → ✓") for line in lines)


def test_terminal_without_unicode(report):
    """Marks fall back to ASCII where the terminal has nothing else."""
    assert "x > v" in printed(report, encoding="ascii")


def test_data_has_stable_keys(report):
    """JSON has these keys, whatever is installed, and survives a round trip."""
    data = as_data(report)
    assert set(data) == {
        "ok",
        "boundaries",
        "carriers",
        "faults",
        "versions",
        "absent",
        "unavailable",
        "installed",
    }
    cell = data["carriers"][0]["cells"]["executor"]
    assert {"plain", "carried", "after", "error", "reason"} == set(cell)
    assert data == json.loads(json.dumps(data))
