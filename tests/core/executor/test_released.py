"""What a task of the executor keeps alive, and until when."""

import gc
import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.thread import BrokenThreadPool
from contextvars import Context

import pytest
from executor_subjects import TIMEOUT, look, variable

from ctxcarry import Registry, ThreadLocalCarrier, executor

# Whether other pools are instrumented must make no difference to this one.
pytestmark = pytest.mark.usefixtures("instrumentation")


class Big:
    """Something that should not be kept."""


@pytest.fixture
def submit_big(local):
    """Return a function that submits from a context with big objects, and gives weak references."""

    def submit(pool, fn, /, *args, method="submit"):
        def inside():
            bigs = Big(), Big()
            variable.set(bigs[0])
            local.value = bigs[1]
            return [weakref.ref(big) for big in bigs], getattr(pool, method)(fn, *args)

        try:
            return Context().run(inside)
        finally:
            del local.value

    return submit


def raise_mine():
    """Fail as a task does."""
    raise ValueError("mine")


OPTIONS = [
    {},
    {"check_leaks": True},
    {"merge_back": True},
    {"bind_callbacks": True},
    {"initializer": int},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_released_when_cancelled_in_the_queue(options, make, submit_big, occupied, is_collected):
    """A cancelled task lets go at once, while it is still in the queue (trap 8)."""
    pool = make(**options)
    with occupied(pool):
        references, future = submit_big(pool, look)
        assert [False, False] == [r() is None for r in references]
        assert future.cancel()
        assert [True, True] == [is_collected(r) for r in references]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_released_by_shutdown(options, make, submit_big, occupied, is_collected):
    """`shutdown(cancel_futures=True)` lets go of what was queued."""
    pool = make(**options)
    with occupied(pool):
        references, future = submit_big(pool, look)
        pool.shutdown(wait=False, cancel_futures=True)
        assert [True, True] == [is_collected(r) for r in references]
        assert future.cancelled()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_released_after_the_run(options, make, submit_big, is_collected):
    """A future that is kept does not keep the context that its task ran in."""
    pool = make(**options)
    references, future = submit_big(pool, int)
    assert 0 == future.result(TIMEOUT)
    pool.submit(int).result(TIMEOUT)
    assert [True, True] == [is_collected(r) for r in references]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_released_after_a_failure(options, make, submit_big, is_collected):
    """An exception that is kept does not keep the context either (trap 8)."""
    pool = make(**options)
    references, future = submit_big(pool, raise_mine)
    error = future.exception(TIMEOUT)
    pool.submit(int).result(TIMEOUT)
    assert [True, True] == [is_collected(r) for r in references]
    assert ("mine", error) == (str(error), future.exception(0))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_released_when_the_future_is_dropped(options, make, submit_big, occupied, is_collected):
    """A task whose future nobody kept is run, and lets go."""
    pool, ran = make(**options), []
    with occupied(pool):
        references, _ = submit_big(pool, ran.append, 1)
        del _
        gc.collect()
    pool.submit(int).result(TIMEOUT)
    pool.submit(int).result(TIMEOUT)
    assert [1] == ran
    assert [True, True] == [is_collected(r) for r in references]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_released_after_a_timeout(options, make, submit_big, occupied, is_collected):
    """A TimeoutError that is kept does not keep the context once the task has run."""
    pool = make(**options)
    with occupied(pool):
        references, future = submit_big(pool, int)
        try:
            future.result(0)
        except Exception as error:
            kept = error
    pool.submit(int).result(TIMEOUT)
    assert [True, True] == [is_collected(r) for r in references]
    assert "Timeout" in type(kept).__name__


def test_released_by_map(make, submit_big, is_collected):
    """A `map` whose results are never asked for lets go when its tasks have run."""
    pool = make()
    references, results = submit_big(pool, int, range(3), method="map")
    pool.submit(int).result(TIMEOUT)
    assert [True, True] == [is_collected(r) for r in references]
    assert [0, 1, 2] == list(results)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_released_by_a_broken_pool(make, submit_big, is_collected, caplog):
    """A pool that its initializer broke lets go of what was queued."""
    started = threading.Event()

    def start():
        assert started.wait(TIMEOUT)
        raise ValueError("no")

    pool = make(initializer=start)
    references, future = submit_big(pool, int)
    started.set()
    assert isinstance(future.exception(TIMEOUT), BrokenThreadPool)
    for thread in pool._threads:
        thread.join(TIMEOUT)
    caplog.clear()
    assert [True, True] == [is_collected(r) for r in references]


def test_released_when_the_future_was_done_at_once(make, submit_big, is_collected, monkeypatch):
    """A future that is done before `submit` returns keeps nothing, though its task never ran."""

    def refuse(self, fn, /, *args, **kwargs):
        future = Future()
        future.cancel()
        return future

    pool = make()
    monkeypatch.setattr(ThreadPoolExecutor, "submit", refuse)
    references, future = submit_big(pool, int)
    assert future.cancelled()
    assert [True, True] == [is_collected(r) for r in references]


def test_arguments_are_released_after_the_run(make, is_collected):
    """A future that is kept does not keep the task's arguments, as in a plain pool."""
    pool, big = make(), Big()
    reference = weakref.ref(big)
    future = pool.submit(type, big)
    del big
    assert Big is future.result(TIMEOUT)
    pool.submit(int).result(TIMEOUT)
    assert is_collected(reference)
    assert future.done()


def test_arguments_are_released_after_a_failure(make, is_collected):
    """An exception does not keep arguments that the task itself has let go."""
    pool, big = make(), Big()
    reference = weakref.ref(big)

    def task(argument):
        del argument
        raise ValueError("mine")

    future = pool.submit(task, big)
    del big
    error = future.exception(TIMEOUT)
    pool.submit(int).result(TIMEOUT)
    assert is_collected(reference)
    assert "mine" == str(error)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_dropped_executor_lets_its_workers_exit(options, registry, is_collected):
    """An executor dropped without `shutdown` is collected, though its futures are kept."""
    pool = executor(2, registry=registry, **options)
    variable.set("near")
    future = pool.submit(look)
    assert "near" == future.result(TIMEOUT)
    threads = list(pool._threads)
    reference = weakref.ref(pool)
    del pool
    assert is_collected(reference)
    for thread in threads:
        thread.join(TIMEOUT)
    assert [False] * len(threads) == [thread.is_alive() for thread in threads]
    assert future.done()


def test_dropped_thread_local_is_collected(is_collected):
    """A registry, its carriers and their threading.local go with the last pool that uses them."""
    registry, local = Registry(), threading.local()
    registry.register(ThreadLocalCarrier(local, name="l"))
    references = [weakref.ref(registry), weakref.ref(local)]
    with executor(1, registry=registry) as pool:
        local.value = 1
        pool.submit(int).result(TIMEOUT)
    del registry, local, pool
    assert [True, True] == [is_collected(r) for r in references]
