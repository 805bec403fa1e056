"""The same table by Triton's interpreter, which runs the kernels on the CPU."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import table

pytest.importorskip("triton.tools.tensor_descriptor", reason="Triton has no host descriptors")
pytest.importorskip("numpy", reason="Triton's interpreter computes with NumPy")

HERE = Path(__file__).parent
FILES = ("budget", "extremes", "gradients", "labels", "operators", "options", "values")


@pytest.mark.skipif(table.INTERPRETED, reason="this process interprets already")
def test_table():
    """Each row holds for the kernels, too; Triton may be in this process, so in another."""
    # numpy tells of infinities in kernels, where they are meant to be.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short"]
    command += ["-W", "ignore::RuntimeWarning", *(f"{HERE}/test_{name}.py" for name in FILES)]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command,
        env=environment,
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    last = done.stdout.strip().splitlines()[-1]
    # That the kernels serve each of them is asserted in there, by `Problem.call`.
    counts = dict(re.findall(r"(\d+) (passed|skipped|failed|errors?)", last))
    assert list(counts.values()) == ["passed"], last
    assert int(next(iter(counts))) > 300, last
