"""Case 35 (ray#34327, ray#49360, verl#4676, verl#6950): which actors lose what `__init__` set."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ctxcarry

pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("ray")

pytestmark = pytest.mark.ray

MODULE = """
import threading
import torch, triton
from triton.runtime import _allocation

class Base:
    def __init__(self):
        # A lambda could not travel, but it does not have to: it stays in the actor.
        triton.set_allocator(lambda size, align, stream: torch.empty(size, dtype=torch.int8))
        torch.set_grad_enabled(False)

    def seen(self):
        allocator = type(_allocation._allocator.get()).__name__
        return allocator != "NullAllocator", torch.is_grad_enabled()

    def method(self):
        return self.seen()

class Async(Base):
    async def method(self):
        return self.seen()
"""

PROGRAM = """
import json
import ray
import ctxcarry.ray
from case_35_work import Async, Base

def ask(way, remote):
    kinds = {
        "one thread": remote(Base),
        "max_concurrency": remote(Base).options(max_concurrency=2),
        "async": remote(Async),
    }
    for kind, actor in kinds.items():
        made = actor.remote()
        print(json.dumps([f"{way}, {kind}", *ray.get(made.method.remote())]))

ray.init(
    num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
    object_store_memory=80 << 20,
)
ask("plain", ray.remote)
ask("remote", ctxcarry.ray.remote)
ask("wrap", lambda cls: ctxcarry.ray.wrap(ray.remote(cls)))
ctxcarry.install("ray")
ask("install", ray.remote)
ray.shutdown()
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Run the program; give, by way and kind, whether there is an allocator and grad is on."""
    directory = tmp_path_factory.mktemp("case_35")
    (directory / "case_35_work.py").write_text(MODULE)
    program = directory / "program.py"
    program.write_text(PROGRAM)
    path = os.pathsep.join([str(Path(ctxcarry.__file__).parents[1]), str(directory)])
    done = subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, "RAY_ADDRESS": "local", "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=300,
    )
    return {name: tuple(seen) for name, *seen in map(json.loads, done.stdout.splitlines())}


def test_fault(told):
    """An actor of one thread keeps both; one of more threads, and an async one, do not."""
    assert (True, False) == told["plain, one thread"]
    assert (False, True) == told["plain, max_concurrency"]
    assert told["plain, async"][0] is False


@pytest.mark.parametrize("kind", ["one thread", "max_concurrency", "async"])
@pytest.mark.parametrize("way", ["remote", "wrap", "install"])
def test_cure(told, way, kind):
    """Each kind of actor has what its `__init__` set."""
    assert (True, False) == told[f"{way}, {kind}"]
