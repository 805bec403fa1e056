"""Case 23 (triton#10002): context reaches neither spawned workers nor old ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ctxcarry

pytest.importorskip("torch")

MODULE = """
import contextvars

variable = contextvars.ContextVar("case_23", default="LOST")

def probe():
    import torch
    return variable.get(), torch.is_grad_enabled()
"""

PROGRAM = """
import multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor
import ctxcarry
from case_23_work import probe, variable

if __name__ == "__main__":
    import torch
    context = multiprocessing.get_context(sys.argv[1])
    plain = ProcessPoolExecutor(1, mp_context=context)
    carrying = ctxcarry.executor(1, kind="process", mp_context=context)
    with plain, carrying:
        for pool in (plain, carrying):
            pool.submit(int).result()  # the workers are there before anything is set
        variable.set("SET")
        with torch.no_grad():
            print("plain", *plain.submit(probe).result())
            print("executor", *carrying.submit(probe).result())
            print("wrap_executor", *ctxcarry.wrap_executor(plain).submit(probe).result())
            ctxcarry.install("process")
            print("install", *plain.submit(probe).result())
            ctxcarry.uninstall()
            print("plain", *plain.submit(probe).result())
"""
CURED = ["executor SET False", "wrap_executor SET False", "install SET False"]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_fault_and_cure(method, tmp_path):
    """A worker that was there before loses both in a plain pool, and has both where carried."""
    (tmp_path / "case_23_work.py").write_text(MODULE)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    path = os.pathsep.join([str(Path(ctxcarry.__file__).parents[1]), str(tmp_path)])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program), method],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ["plain LOST True", *CURED, "plain LOST True"] == done.stdout.splitlines()
