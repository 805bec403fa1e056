"""
Measure selective checkpoints: what they add for each operator, and time against memory.

    python tests/benchmarks/bench_checkpoint.py --json out.json --markdown --plot out.svg

On a CUDA device it runs steps of four blocks in the shape of Llama-8B's (``--part steps``); on
the CPU it measures what is added for each operator (``dispatch``), and what is added to a step
where others keep as many bytes (``equal``). All take short turns, in another order each round.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from checkpoint_bench import dispatch, equal, model, plots, report, steps

PARTS = ("dispatch", "equal", "steps")


def main() -> None:
    """
    Measure, print tables, write files.

    Raises:
        SystemExit: 2 if the arguments are wrong, 1 if something of ours failed.
    """
    parser = _parser()
    given = parser.parse_args()
    if given.plot is not None:
        try:
            plots.check_plot(given.plot)
        except ValueError as error:
            parser.error(str(error))
    for path in filter(None, (given.json, given.plot)):
        if not path.resolve().parent.is_dir():
            parser.error(f"{path}: there is no such folder")
    data = (
        _measured(given)
        if given.from_json is None
        else json.loads(given.from_json.read_text("utf-8"))
    )
    print(report.tables(data, markdown=given.markdown))
    if given.json is not None:
        given.json.write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    if given.plot is not None:
        try:
            plots.plot(data, given.plot)
        except ValueError as error:
            parser.error(str(error))
    rows = data["steps"]["rows"] if data["steps"] is not None else []
    if any(row["error"] and row["series"] in {"ours", "offload", "compiled"} for row in rows):
        raise SystemExit(1)


def _measured(given: argparse.Namespace) -> dict[str, Any]:
    device = "cuda" if torch.cuda.is_available() and not given.tiny else "cpu"
    if device == "cpu":
        torch.set_num_threads(given.threads)
    parts = given.part or (("steps",) if device == "cuda" else ("dispatch", "equal"))
    turns = {"rounds": given.rounds, "span": given.span}
    overheads = dispatch.measure_dispatch(**turns) if "dispatch" in parts else []
    equals = equal.measure_equal(tiny=given.tiny, **turns) if "equal" in parts else []
    found = None
    if "steps" in parts:
        size = model.TINY if given.tiny else model.LLAMA_8B if device == "cuda" else model.SMALL
        if given.layers is not None:
            size = size._replace(layers=given.layers)
        found = steps.measure_steps(
            size,
            device,
            budgets=given.compile if given.with_compile else (),
            compile_seconds=given.compile_seconds,
            **turns,
        )
    described = report.environment(device)
    sys.stderr.write(f"measured with {described}\n")
    return report.as_data(described, overheads, equals, found)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0].strip())
    add = parser.add_argument
    add("--part", action="append", choices=PARTS, help="what to measure; repeatable")
    add("--tiny", action="store_true", help="small models on the CPU, to see that it runs")
    add("--layers", type=int, help="how many blocks a step has")
    add("--rounds", type=int, default=10, help="how often each has its turn")
    add("--span", type=int, default=100, help="milliseconds of each turn")
    add("--threads", type=int, default=1, help="threads of torch, on the CPU")
    add(
        "--compile",
        type=float,
        nargs="+",
        default=(1.0, 0.5, 0.2),
        help="memory budgets of torch.compile",
    )
    add("--no-compile", dest="with_compile", action="store_false", help="leave torch.compile out")
    add("--compile-seconds", type=float, default=120, help="after them nothing more is compiled")
    add("--json", type=Path, help="write everything to a file")
    add("--from-json", type=Path, help="measure nothing: show what is in a file")
    add("--markdown", action="store_true", help="print tables as Markdown")
    add("--plot", type=Path, help="draw time against memory: .svg, .png or .pdf")
    return parser


if __name__ == "__main__":
    main()
