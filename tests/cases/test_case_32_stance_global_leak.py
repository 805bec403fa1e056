"""
Case 32 (pytorch#196637): a compile stance set in one thread changes what all others do.

Not ours: the stance is one for the process, so that there is no context of a
thread to carry. Pinned, and carrying does not change it.
"""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("torch")

import torch

import ctxcarry

TIMEOUT = 60


@pytest.fixture(autouse=True)
def _nothing_compiled():
    """Begin and end without compiled functions."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled():
    """Return a compiled function and the list of its compiled runs."""
    runs = []

    def backend(graph, example):
        def run(*args):
            runs.append(1)
            return graph.forward(*args)

        return run

    fn = torch.compile(lambda x: x + 1, backend=backend)
    fn(torch.ones(2))
    runs.clear()
    return fn, runs


@pytest.mark.parametrize("make", [threading.Thread, ctxcarry.Thread])
def test_stance_of_another_thread_is_ours(make):
    """While another thread forces eager, a function runs eagerly here too, and then as compiled."""
    fn, runs = compiled()
    inside, done = threading.Event(), threading.Event()

    def work():
        with torch.compiler.set_stance("force_eager"):
            inside.set()
            done.wait(TIMEOUT)

    thread = make(target=work)
    thread.start()
    assert inside.wait(TIMEOUT)
    fn(torch.ones(2))
    during = len(runs)
    done.set()
    thread.join(TIMEOUT)
    fn(torch.ones(2))
    assert (0, 1) == (during, len(runs))


def test_carrying_does_not_change_it(way):
    """Work handed over under a stance has it in any way, since the whole process has."""
    fn, runs = compiled()
    with torch.compiler.set_stance("force_eager"):
        way(fn, torch.ones(2))
        during = len(runs)
    way(fn, torch.ones(2))
    assert (0, 1) == (during, len(runs))
