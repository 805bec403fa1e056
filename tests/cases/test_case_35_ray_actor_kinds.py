"""Case 35 (ray#34327, ray#49360, verl#4676, verl#6950): which actors lose what `__init__` set."""

from __future__ import annotations

import pytest

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
    actors = [actor.remote() for actor in kinds.values()]
    for kind, seen in zip(kinds, ray.get([actor.method.remote() for actor in actors])):
        print(json.dumps([f"{way}, {kind}", *seen]))

ray.init(log_to_driver=False, logging_level="ERROR")
ask("plain", ray.remote)
ask("remote", ctxcarry.ray.remote)
ask("wrap", lambda cls: ctxcarry.ray.wrap(ray.remote(cls)))
ctxcarry.install("ray")
ask("install", ray.remote)
ray.shutdown()
"""


@pytest.fixture(scope="module")
def told(told_by):
    """Run the program; give, by way and kind, whether there is an allocator and grad is on."""
    return {name: tuple(seen) for name, *seen in told_by("case_35", MODULE, PROGRAM)}


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
