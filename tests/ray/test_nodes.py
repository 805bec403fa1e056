"""Two nodes: contexts travel from one to the other and back, small ones and large ones."""

import json
import os
import subprocess
import sys
from pathlib import Path

import ray_work as work

HERE = Path(__file__).parent


def test_two_nodes():
    """A call to another node carries, and so does the one that it makes back to the first."""
    path = os.pathsep.join((str(HERE), str(HERE.parents[1])))
    done = subprocess.run(
        [sys.executable, str(HERE / "ray_nodes.py")],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert 0 == done.returncode, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    # What it calls on the way has the base of its actor.
    assert ["base", ["base", work.UNSET[1]], 100_000, 100_000, False, True] == found
