"""Kernels that torch does not see: what they read is there, and what they write is noticed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

PROGRAM = Path(__file__).parent / "_hidden_kernels.py"
BLOCKS = [
    "reads_what_is_dead",
    "reads_a_result_that_is_kept",
    "writes_to_what_is_kept",
    "writes_after_it_was_read",
    "in_place",
    "fills_room",
    "turns_around_what_is_kept",
    "with_the_interpreter_seen",
]
POLICIES = ["nothing", "exp", "products", "rooms", "everything", "offload"]


@pytest.fixture(scope="module")
def told():
    """Return what the program says of each block and policy."""
    root = Path(__file__).parents[2]
    path = os.pathsep.join(map(str, (root, root / "integrations")))
    # On a GPU these are kernels: the interpreter would copy to the CPU and back, which is seen.
    interpret = {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, str(PROGRAM)],
        env={**os.environ, **interpret, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=300,
    )
    lines = [line.split("|") for line in done.stdout.splitlines()]
    return {(block, policy): rest for block, policy, rest in lines}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("block", BLOCKS)
def test_gradients(told, block, policy):
    """In the first step, which is recorded, and in those that follow it."""
    assert told[block, policy] == "OK"
