"""Case 27 (mlflow#24456, pytorch#186659): one Context cannot be entered by two workers."""

from __future__ import annotations

import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import ctxcarry

TIMEOUT = 30
TENANT = contextvars.ContextVar("tenant", default="lost")


@pytest.fixture
def meet():
    """Give work that waits for its twin and returns the variable, or that it waited in vain."""
    barrier = threading.Barrier(2)

    def work():
        try:
            barrier.wait(TIMEOUT)
        except threading.BrokenBarrierError:
            return "alone"
        return TENANT.get()

    work.barrier = barrier
    return work


def test_fault(meet):
    """The second worker to enter a Context that is entered already gets a RuntimeError."""
    context, entered, go = contextvars.copy_context(), threading.Event(), threading.Event()

    def hold():
        entered.set()
        go.wait(TIMEOUT)

    with ThreadPoolExecutor(2) as pool:
        pool.submit(context.run, hold)
        assert entered.wait(TIMEOUT)
        error = pool.submit(context.run, TENANT.get).exception()
        go.set()
    assert "already entered" in str(error)


WAYS = {
    "run": lambda fn: (ctxcarry.capture().run, fn),
    "wrap": lambda fn: (ctxcarry.capture().wrap(fn),),
    "bind": lambda fn: (ctxcarry.bind(fn),),
}


@pytest.mark.parametrize("way", WAYS)
def test_cure(way, meet):
    """One snapshot is entered by two workers at once, and both have the variable."""
    TENANT.set("mine")
    call = WAYS[way](meet)
    TENANT.set("later")
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(*call) for _ in range(2)]
        assert ["mine", "mine"] == [future.result() for future in futures]


def test_cure_of_a_block(meet):
    """One snapshot is active in blocks of two workers at once, and within itself."""
    TENANT.set("mine")
    snapshot = ctxcarry.capture()
    TENANT.set("later")

    def work():
        with snapshot.active(), snapshot.active():
            return meet()

    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(work) for _ in range(2)]
        assert ["mine", "mine"] == [future.result() for future in futures]


def test_cure_of_map(meet):
    """The items of one map call run at once, each in the context of the call."""
    TENANT.set("mine")
    with ctxcarry.executor(2) as pool:
        assert ["mine", "mine"] == list(pool.map(lambda _: meet(), range(2)))
