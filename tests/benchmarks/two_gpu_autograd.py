"""
Compare autograd's threads on and off on two GPUs of one process, and what carrying adds.

    python tests/benchmarks/two_gpu_autograd.py --markdown --json out.json

One backward pass goes over two devices: through checkpointed blocks, whose recompute is
Python, and through a chain of small native nodes, where launching is the work. It runs

- with autograd's threads on and nothing carried, as plain torch does it;
- with them on, ``ctxcarry.install("autograd")``, and every context set that can be;
- the same, leaving out function modes (which cost something for each operation that they
  see, and plain torch's recompute does not have them);
- with them switched off, the usual workaround, and nothing carried.

The contexts are set in all of them. All take short turns, in another order each round; the
figures are medians, and the ratios medians of those within a round. First it is checked that
recomputes find the mesh of their forward on both devices, and that all gradients agree; the
program ends with 1 if not. A goal that is missed is only told.

``--devices cuda:0 cuda:0`` tries it with one GPU, ``--device cpu`` with none.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from two_gpus.report import tables
from two_gpus.turns import run


def arguments() -> argparse.Namespace:
    """Return the arguments, with devices that are there."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0].strip())
    add = parser.add_argument
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--devices", nargs=2, type=torch.device, help="cuda:0 cuda:1 unless given")
    where.add_argument("--device", type=torch.device, help="one device, given twice: cpu")
    add("--blocks", type=int, default=24, help="checkpointed blocks on each device")
    add("--layers", type=int, default=4, help="linear layers of a block")
    add("--width", type=int, default=2048, help="of a linear layer")
    add("--tokens", type=int, default=2048, help="rows of the input on each device")
    add("--nodes", type=int, default=1500, help="matmul and tanh of the native chain")
    add("--native-width", type=int, default=64, help="of their matrices")
    add("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    add("--rounds", type=int, default=12, help="how often each has its turn")
    add("--warm", type=int, default=3, help="steps at the start of a turn that do not count")
    add("--passes", type=int, default=5, help="steps of a turn that count")
    add("--markdown", action="store_true", help="print tables as Markdown")
    add("--json", type=Path, help="write everything to a file")
    given = parser.parse_args()
    one = given.device and [given.device] * 2
    given.devices = given.devices or one or [torch.device("cuda", i) for i in range(2)]
    given.dtype = getattr(torch, given.dtype)
    there = torch.cuda.device_count()
    if any(d.type == "cuda" and (d.index or 0) >= there for d in given.devices):
        parser.error(
            f"this needs two CUDA devices, and there are {there}. With one: --devices cuda:0 "
            "cuda:0; without: --device cpu"
        )
    if given.json is not None and not given.json.resolve().parent.is_dir():
        parser.error(f"{given.json}: there is no such folder")
    return given


def main() -> None:
    """Check, measure, print tables, write a file."""
    given = arguments()
    data = run(given)
    print(tables(data, markdown=given.markdown))
    if given.json is not None:
        given.json.write_text(json.dumps(data, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
