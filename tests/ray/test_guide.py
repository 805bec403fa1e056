"""The programs of the guide to Ray run, and print what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ctxcarry

pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("ray")

pytestmark = pytest.mark.ray

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = re.compile(r"```py\n# (\w+\.py)\n(.*?)```\n+```text\n(.*?)```", re.DOTALL)
PROGRAMS = PROGRAM.findall((ROOT / "docs" / "guides" / "ray.md").read_text("utf-8"))


def test_all_are_found():
    """The page has three programs."""
    assert ["lost.py", "carried.py", "explicit.py"] == [name for name, _, _ in PROGRAMS]


@pytest.mark.parametrize(("name", "source", "shown"), PROGRAMS, ids=[name for name, *_ in PROGRAMS])
def test_prints_what_the_page_shows(tmp_path, ray_address, name, source, shown):
    """Each is a whole program, which finds Ray by itself."""
    program = tmp_path / name
    program.write_text(source)
    done = subprocess.run(
        [sys.executable, str(program)],
        env={
            **os.environ,
            "RAY_ADDRESS": ray_address,
            "PYTHONPATH": str(Path(ctxcarry.__file__).parents[1]),
        },
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=300,
    )
    assert shown == done.stdout
