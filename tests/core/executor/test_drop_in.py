"""The executor is a drop-in for that of the standard library."""

import asyncio
import inspect
import sys
import threading
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, as_completed, wait

import pytest
from executor_subjects import TIMEOUT, look, variable

from ctxcarry import executor

# Whether other pools are instrumented must make no difference to this one.
pytestmark = pytest.mark.usefixtures("instrumentation")


def test_is_a_thread_pool_executor(make):
    """The pool is a ThreadPoolExecutor, so that it can be given to whoever asks for one."""
    assert isinstance(make(), ThreadPoolExecutor)


def test_default_registry_is_used(default_local):
    """Without `registry` the pool carries what the default one has."""
    default_local.value = "near"
    variable.set("near")
    with executor(1) as pool:
        assert ("near", "near") == pool.submit(lambda: (look(), default_local.value)).result(
            TIMEOUT
        )


def test_options_of_a_thread_pool(registry):
    """`max_workers` and the keyword arguments of ThreadPoolExecutor mean what they do there."""
    with executor(max_workers=3, thread_name_prefix="mine", registry=registry) as pool:
        assert 3 == pool._max_workers
        name = pool.submit(lambda: threading.current_thread().name).result(TIMEOUT)
        assert name.startswith("mine")
    with pytest.raises(ValueError, match="max_workers"):
        executor(0)
    with pytest.raises(TypeError):
        executor(1, no_such_option=1)
    with pytest.raises(TypeError, match="callable"):
        executor(1, initializer=3)


def test_default_number_of_workers():
    """Without `max_workers` there are as many threads as in a plain pool."""
    with executor() as ours, ThreadPoolExecutor() as plain:
        assert plain._max_workers == ours._max_workers


@pytest.mark.parametrize("kind", ["threads", "", None, "fork"])
def test_unknown_kind(kind):
    """A kind that does not exist is a ValueError that lists those that do."""
    with pytest.raises(ValueError, match="Available: 'thread'"):
        executor(kind=kind)


def test_known_kind():
    """`kind="thread"` is what there is without it."""
    with executor(1, kind="thread") as pool:
        assert isinstance(pool, ThreadPoolExecutor)


def test_submit_signature_is_positional_only(make):
    """A task's keyword arguments may have the names of the parameters of `submit`."""
    parameters = inspect.signature(make().submit).parameters.values()
    assert inspect.Parameter.POSITIONAL_ONLY == next(iter(parameters)).kind


KEYWORDS = [
    "fn",
    "func",
    "self",
    "args",
    "kwargs",
    "snapshot",
    "plan",
    "states",
    "future",
    "handed",
]


@pytest.mark.parametrize("options", [{}, {"check_leaks": True}, {"merge_back": True}])
def test_keyword_arguments_may_have_any_name(options, make):
    """No keyword argument of the task collides with one of ours (trap 12)."""
    arguments = {name: name.upper() for name in KEYWORDS}
    future = make(**options).submit(lambda *a, **k: (a, k), 1, 2, **arguments)
    assert ((1, 2), arguments) == future.result(TIMEOUT)


def test_submit_without_a_function(make):
    """`submit()` is a TypeError, as for a plain pool."""
    with pytest.raises(TypeError):
        make().submit()
    with pytest.raises(TypeError):
        make().submit(fn=look)


def test_submit_of_what_cannot_be_called(make):
    """What cannot be called fails in the future, as for a plain pool."""
    with pytest.raises(TypeError, match="not callable"):
        make().submit(3).result(TIMEOUT)


def test_result_and_exception(make):
    """Results are those of the task, and exceptions are the very objects that it raised."""
    pool, error = make(), ValueError("mine")

    def fail():
        raise error

    assert (1, 2) == pool.submit(divmod, 5, 3).result(TIMEOUT)[:2]
    assert error is pool.submit(fail).exception(TIMEOUT)
    assert not getattr(error, "__notes__", [])


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=repr)
def test_base_exceptions_reach_the_future(error, make):
    """What a plain pool would put into the future is put there, and the worker goes on."""
    pool = make()

    def fail():
        raise error

    assert error is pool.submit(fail).exception(TIMEOUT)
    assert 1 == pool.submit(int, 1).result(TIMEOUT)


def test_futures_are_futures(make):
    """Futures work with `wait`, `as_completed` and callbacks."""
    pool, seen = make(2), []
    futures = [pool.submit(int, n) for n in range(4)]
    assert all(isinstance(f, Future) for f in futures)
    for future in futures:
        future.add_done_callback(seen.append)
    assert set(futures) == wait(futures, TIMEOUT).done
    assert {0, 1, 2, 3} == {f.result() for f in as_completed(futures, TIMEOUT)}
    assert set(futures) == set(seen)


def test_shutdown(make):
    """After `shutdown` nothing can be submitted or mapped, and what was queued has run."""
    pool = make()
    futures = [pool.submit(int, n) for n in range(5)]
    pool.shutdown(wait=True)
    assert [0, 1, 2, 3, 4] == [f.result(0) for f in futures]
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(int)
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.map(int, [1])


def test_shutdown_with_cancel_futures(make, occupied):
    """`shutdown(cancel_futures=True)` cancels what is queued."""
    pool = make()
    with occupied(pool):
        futures = [pool.submit(int) for _ in range(3)]
        pool.shutdown(wait=False, cancel_futures=True)
        assert [True] * 3 == [f.cancelled() for f in futures]


def test_cancel(make, occupied):
    """A queued task can be cancelled and then does not run; one that has run cannot be."""
    pool, ran = make(), []
    with occupied(pool):
        future = pool.submit(ran.append, 1)
        assert future.cancel()
    after = pool.submit(ran.append, 2)
    after.result(TIMEOUT)
    assert ([2], False) == (ran, after.cancel())
    with pytest.raises(CancelledError):
        future.result(0)


def test_result_times_out(make, occupied):
    """A result that is not there in time is a TimeoutError, and comes later."""
    pool = make()
    with occupied(pool):
        future = pool.submit(int, 3)
        with pytest.raises(TimeoutError if sys.version_info >= (3, 11) else Exception):
            future.result(timeout=0)
    assert 3 == future.result(TIMEOUT)


def test_run_in_executor(make):
    """The pool works as the executor of an event loop, and carries there (trap 9)."""
    pool = make()

    async def main():
        variable.set("near")
        return await asyncio.get_running_loop().run_in_executor(pool, look)

    assert "near" == asyncio.run(main())
