"""``tests/benchmarks/bench_checkpoint.py``, run as its users run it, small and on the CPU."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

pytest.importorskip("torch")
pytest.importorskip("scipy")
pytest.importorskip("matplotlib")

ROOT = Path(__file__).resolve().parents[2]


def run(*args):
    """Run the benchmark in a new process without a GPU."""
    paths = [str(ROOT), str(ROOT / "integrations"), os.environ.get("PYTHONPATH")]
    env = os.environ | {
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONIOENCODING": "utf-8",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    return subprocess.run(
        [sys.executable, str(ROOT / "tests" / "benchmarks" / "bench_checkpoint.py"), *args],
        capture_output=True,
        check=False,
        encoding="utf-8",
        env=env,
        timeout=300,
    )


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Return what a small run of all parts printed, its data and its folder."""
    folder = tmp_path_factory.mktemp("bench")
    parts = [word for part in ("dispatch", "equal", "steps") for word in ("--part", part)]
    quick = ("--tiny", "--rounds", "1", "--span", "1", "--compile", "0.5")
    outcome = run(*quick, *parts, "--json", str(folder / "out.json"))
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    return outcome.stdout, json.loads((folder / "out.json").read_text("utf-8")), folder


def test_all_ways_to_run_a_step_have_the_same_gradients(measured):
    """Each row ran, and its gradients are those without checkpoints."""
    rows = measured[1]["steps"]["rows"]
    assert {row["series"] for row in rows} == {
        "none", "full", "titan", "ours", "offload", "compile", "compiled"
    }  # fmt: skip
    assert [row["error"] for row in rows] == [""] * len(rows)
    assert max(row["gradient_error"] for row in rows) < 1e-5


def test_five_budgets_of_ours_are_measured(measured):
    """There are five without and two with offload, each with a time."""
    rows = measured[1]["steps"]["rows"]
    assert sum(row["series"] == "ours" for row in rows) == 5
    assert sum(row["series"] == "offload" for row in rows) == 2
    assert all(math.isfinite(row["ms"]) and row["ms"] > 0 for row in rows)


def test_equal_memory_is_equal(measured):
    """Neither side keeps more than the budget, and TorchTitan's rule keeps all of its own."""
    rows = measured[1]["equal"]
    for row in rows:
        assert row["kept_mib"] <= row["budget_mib"]
        assert row["ours_kept_mib"] <= row["budget_mib"]
    titan = next(row for row in rows if row["rule"] == "TorchTitan's rule")
    assert titan["kept_mib"] == titan["budget_mib"] > 0


def test_ours_beside_others_at_no_more_memory():
    """The fastest of ours that fits is taken, whatever it is, and none where none fits."""
    sys.path.insert(0, str(ROOT / "tests" / "benchmarks"))
    from checkpoint_bench.report import tables

    rows = [
        {"name": name, "series": series, "peak_mib": peak, "ms": ms, "error": ""}
        for name, series, peak, ms in (
            ("other", "compile", 1000, 10.0),
            ("small", "full", 500, 20.0),
            ("eager", "ours", 900, 12.0),
            ("compiled", "compiled", 990, 9.0),
            ("large", "compiled", 1100, 8.0),
        )
    ]
    for row in rows:
        row.update(ratio=1.0, held_mib=1.0, of_budget=None, gradient_error=0.0)
    data = {"environment": {}, "dispatch": [], "equal": []}
    found = tables(data | {"steps": {"size": "", "dtype": "", "rows": rows}}, markdown=True)
    assert "| other | compiled | 0.990 | 0.900 |" in found
    assert "| small |" not in found.partition("Ours over others")[2]


def test_dispatch_counts_the_operators(measured):
    """The chain has the operators that it is made of, and torch's own ratio is 1."""
    rows = [row for row in measured[1]["dispatch"] if row["program"] == "a chain of 200"]
    assert {row["operators"] for row in rows} == {200}
    assert next(row["ratio"] for row in rows if row["name"] == "torch, selective") == 1


def test_draws_and_prints_what_a_file_holds(measured):
    """With --from-json nothing is measured; the picture is an SVG with a point for each rule."""
    _, data, folder = measured
    outcome = run(
        "--from-json", str(folder / "out.json"), "--markdown", "--plot", str(folder / "out.svg")
    )
    assert outcome.returncode == 0, outcome.stderr
    lines = [line for line in outcome.stdout.splitlines() if line.startswith("| ")]
    heads = 3
    shown = [row for row in data["dispatch"] if row["name"] != "no checkpoint"]
    assert len(lines) == heads + len(shown) + len(data["equal"]) + len(data["steps"]["rows"])
    root = ET.parse(folder / "out.svg").getroot()  # noqa: S314 - our own file
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "TorchTitan's rule" in "".join(root.itertext())


def test_refuses_a_picture_of_another_kind(tmp_path):
    """A file that cannot be drawn is refused before anything is measured."""
    outcome = run("--tiny", "--plot", str(tmp_path / "out.bmp"))
    assert outcome.returncode == 2
    assert "a plot is one of .svg, .png, .pdf" in outcome.stderr
