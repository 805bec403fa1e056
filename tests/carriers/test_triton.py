"""Triton's allocators, in the Triton of this environment."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, ContextVar

import pytest

import ctxcarry

triton = pytest.importorskip("triton")
allocation = pytest.importorskip("triton.runtime._allocation")

NAME, PROFILE = "triton.allocator", "triton.profile_allocator"
LOST = "RuntimeError: Kernel requires a runtime memory allocation, but no allocator was set"


class Buffers:
    """An allocator, as a user or a library gives one to Triton."""

    def __init__(self, name):
        self.name = name

    def __call__(self, size, alignment, stream):
        return self.name, size


def launch():
    """Ask for scratch memory in the way in which Triton's launcher does for a kernel."""
    try:
        return allocation._allocator.get()(64, 16, None)
    except RuntimeError as error:
        return f"RuntimeError: {error}"


def test_allocator_is_lost_in_a_plain_pool(worker):
    """Without ctxcarry the launcher finds no allocator in the worker (triton#7685)."""
    triton.set_allocator(Buffers("user"))
    assert ("user", 64) == launch()
    assert worker.submit(launch).result().startswith(LOST)


def test_allocator_is_carried(carrying):
    """The launcher finds the submitter's allocator in the worker, and none in the task after."""
    before = carrying.submit(launch)
    triton.set_allocator(Buffers("user"))
    carried = carrying.submit(launch)
    assert before.result().startswith(LOST)
    assert ("user", 64) == carried.result()


def test_allocator_is_that_of_the_moment_of_the_hand_over(carrying, gate):
    """Each task has the allocator that was set when it was submitted."""
    names = ["a", "b", "c"]
    futures = []
    for name in names:
        triton.set_allocator(Buffers(name))
        futures.append(carrying.submit(launch))
    gate.set()
    assert [(name, 64) for name in names] == [future.result() for future in futures]


@pytest.mark.parametrize("way", ["run", "active"])
def test_workers_own_allocator_is_back_afterwards(way, worker):
    """The allocator that a worker had is its allocator again once the work is done."""
    triton.set_allocator(Buffers("user"))
    snapshot = ctxcarry.capture()

    def work():
        triton.set_allocator(Buffers("worker"))
        if way == "run":
            inside = snapshot.run(launch)
        else:
            with snapshot.active():
                inside = launch()
        return inside, launch()

    assert (("user", 64), ("worker", 64)) == worker.submit(Context().run, work).result()


@pytest.mark.parametrize("way", ["run", "active"])
def test_librarys_set_allocator_does_not_clobber_the_users(way, worker):
    """A library that sets an allocator within the work replaces nobody's beyond it."""
    triton.set_allocator(Buffers("user"))
    snapshot = ctxcarry.capture()

    def library():
        triton.set_allocator(Buffers("library"))
        return launch()

    def work():
        if way == "run":
            inside = snapshot.run(library)
        else:
            with snapshot.active():
                inside = library()
        return inside, launch(), snapshot.run(launch)

    inside, after, again = worker.submit(Context().run, work).result()
    assert ("library", 64) == inside
    assert after.startswith(LOST)
    assert ("user", 64) == again
    assert ("user", 64) == launch()


def test_library_in_one_task_does_not_reach_the_next(carrying):
    """The allocator that a library sets in one task is not there in the next."""
    triton.set_allocator(Buffers("user"))
    carrying.submit(triton.set_allocator, Buffers("library")).result()
    assert ("user", 64) == carrying.submit(launch).result()
    assert ("user", 64) == launch()


@pytest.mark.parametrize("way", ["executor", "install", "carry_context", "wrap_executor"])
def test_allocator_set_by_an_initializer_is_the_base(way):
    """Workers that an initializer gave an allocator keep it for a submitter that has none."""

    def start():
        triton.set_allocator(Buffers("worker"))

    work = ctxcarry.carry_context(launch) if way == "carry_context" else launch
    if way == "executor":
        pool = ctxcarry.executor(1, initializer=start)
    else:
        pool = ThreadPoolExecutor(1, initializer=start)
    if way == "wrap_executor":
        pool = ctxcarry.wrap_executor(pool)
    with pool:
        if way == "install":
            ctxcarry.install("executor")
        try:
            unset = pool.submit(work).result()
            triton.set_allocator(Buffers("user"))
            own = pool.submit(work).result()
        finally:
            ctxcarry.uninstall("executor")
    assert (("worker", 64), ("user", 64)) == (unset, own)


def test_suppressed_allocator_is_not_carried(carrying):
    """Under suppress the worker has the allocator that is its own, here none."""
    triton.set_allocator(Buffers("user"))
    with ctxcarry.suppress(NAME):
        suppressed = carrying.submit(launch).result()
    assert suppressed.startswith(LOST)
    assert ("user", 64) == carrying.submit(launch).result()


def test_suppressed_allocator_is_the_workers_own(worker):
    """Under suppress the work sees the allocator of the thread where it runs."""
    triton.set_allocator(Buffers("user"))
    with ctxcarry.suppress(NAME):
        bound = ctxcarry.bind(launch)

    def work():
        triton.set_allocator(Buffers("worker"))
        return bound()

    assert ("worker", 64) == worker.submit(Context().run, work).result()


def test_cleared_allocator_is_none(worker):
    """A cleared allocator is unset in the work, whatever both threads have set."""
    triton.set_allocator(Buffers("user"))
    with ctxcarry.policy(clear=NAME):
        bound = ctxcarry.bind(launch)

    def work():
        triton.set_allocator(Buffers("worker"))
        return bound(), launch()

    inside, after = worker.submit(Context().run, work).result()
    assert inside.startswith(LOST)
    assert ("worker", 64) == after


@pytest.mark.parametrize("way", ["run", "active"])
def test_only_the_allocator_is_carried(way, worker):
    """capture(only=) carries the allocator without the other ContextVars."""
    tenant = ContextVar("tenant", default="none")
    tenant.set("submitter")
    triton.set_allocator(Buffers("user"))
    snapshot = ctxcarry.capture(only=NAME)

    def seen():
        return launch(), tenant.get()

    def work():
        tenant.set("worker")
        if way == "run":
            return snapshot.run(seen), seen()[1]
        with snapshot.active():
            inside = seen()
        return inside, seen()[1]

    assert ((("user", 64), "worker"), "worker") == worker.submit(Context().run, work).result()


def test_allocator_is_carried_where_contextvars_are_suppressed(carrying):
    """The allocator has a name of its own, so it travels although `contextvars` does not."""
    triton.set_allocator(Buffers("user"))
    with ctxcarry.suppress("contextvars"):
        assert ("user", 64) == carrying.submit(launch).result()


def test_explain_names_the_allocator():
    """Explain tells which allocator was captured, and that none was."""
    assert "triton.allocator: not set" in ctxcarry.capture().explain()
    triton.set_allocator(Buffers("user"))
    assert "triton.allocator: captured: <" in ctxcarry.capture().explain()
    assert "Buffers" in ctxcarry.capture().explain()


@pytest.fixture
def _no_profile_allocator():
    yield
    allocation.set_profile_allocator(None)


def profile():
    """Return what the launcher would ask for memory to profile in."""
    return allocation._profile_allocator.get()


@pytest.mark.usefixtures("_no_profile_allocator")
def test_profile_allocator_is_process_wide(carrying, worker):
    """This Triton has one profile allocator for all threads, which a task sees and may set."""
    buffers = Buffers("profile")
    allocation.set_profile_allocator(buffers)
    assert (buffers, buffers) == (
        worker.submit(profile).result(),
        carrying.submit(profile).result(),
    )
    carrying.submit(allocation.set_profile_allocator, Buffers("task")).result()
    assert "task" == profile().name
    carrier = {c.name: c for c in ctxcarry.carriers()}[PROFILE]
    assert carrier.process_wide


@pytest.mark.usefixtures("_no_profile_allocator")
def test_profile_allocator_is_not_put_back_by_a_task_that_was_handed_over_earlier(carrying, gate):
    """A task does not bring an older profile allocator back for the whole process."""
    allocation.set_profile_allocator(Buffers("old"))
    task = carrying.submit(profile)
    allocation.set_profile_allocator(Buffers("new"))
    gate.set()
    assert ("new", "new") == (task.result().name, profile().name)
