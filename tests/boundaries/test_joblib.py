"""``joblib.Parallel`` with its backends."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("joblib")

import joblib

import ctxcarry

TIMEOUT = 30
SET, UNSET = ("mine", "mine"), ("unset", "unset")


def parallel(fn, count=4, **kwargs):
    """Call `fn` some times in two threads."""
    kwargs.setdefault("backend", "threading")
    return joblib.Parallel(n_jobs=2, **kwargs)(joblib.delayed(fn)(i) for i in range(count))


def test_plain_threads_lose_the_context(seen, ambient):
    """Without ctxcarry the threads of joblib have nothing of the caller's context."""
    with ambient("mine"):
        assert {UNSET} == set(parallel(seen))


@pytest.mark.parametrize("options", [{}, {"batch_size": 3}, {"pre_dispatch": "all"}], ids=str)
def test_installed_threads_carry(options, seen, ambient):
    """With the boundary installed all calls run in the caller's context, until uninstall."""
    ctxcarry.install("joblib")
    with ambient("mine"):
        assert {SET} == set(parallel(seen, 8, **options))
        ctxcarry.uninstall("joblib")
        assert {UNSET} == set(parallel(seen, **options))


def test_decorated_function_is_carried(seen, ambient):
    """A decorated function carries without install, and an undecorated one does not."""
    decorated = ctxcarry.carry_context(lambda i: seen())
    with ambient("mine"):
        assert ({SET}, {UNSET}) == (set(parallel(decorated)), set(parallel(seen)))
    assert {UNSET} == set(parallel(decorated))


def test_late_batches_have_the_context_of_the_call(seen, ambient):
    """Batches that joblib's own threads dispatch later on carry too (scikit-learn#25363)."""
    ctxcarry.install("joblib")
    with ambient("mine"):
        results = parallel(seen, 32, pre_dispatch=2, batch_size=1)
    assert [SET] * 32 == results


def test_generator_of_results_has_the_context_of_the_call(seen, ambient):
    """With return_as="generator" what is dispatched later has the context of the call."""
    ctxcarry.install("joblib")
    with ambient("mine"):
        results = parallel(seen, 8, return_as="generator", pre_dispatch=2)
    with ambient("later"):
        assert [SET] * 8 == list(results)


def test_nested_parallel_carries_on(seen, ambient):
    """A Parallel inside of a carried call carries what that call has."""
    ctxcarry.install("joblib")
    with ambient("mine"):
        results = parallel(lambda i: parallel(seen, 2), 2)
    assert [[SET] * 2] * 2 == results


def test_sequential_backend_is_as_inline(seen, local, ambient):
    """With one job the calls run here in the caller's context."""
    ctxcarry.install("joblib")
    with ambient("mine"):
        results = joblib.Parallel(n_jobs=1)(joblib.delayed(seen)(i) for i in range(2))
        assert [SET] * 2 == results
        assert SET == seen()


def test_reused_parallel_takes_a_snapshot_for_each_call(seen, ambient):
    """A Parallel kept open as a context manager carries the context of each of its calls."""
    ctxcarry.install("joblib")
    found = []
    with joblib.Parallel(n_jobs=2, backend="threading") as pool:
        for value in ("one", "two"):
            with ambient(value):
                found.append(set(pool(joblib.delayed(seen)(i) for i in range(4))))
        found.append(set(pool(joblib.delayed(seen)(i) for i in range(4))))
    assert [{("one", "one")}, {("two", "two")}, {UNSET}] == found


def test_results_and_errors_are_as_plain():
    """Results come in order with their arguments, and the exception of a call is raised."""
    ctxcarry.install("joblib")
    calls = (joblib.delayed(dict)(func=i, fn=i) for i in range(3))
    results = joblib.Parallel(n_jobs=2, backend="threading")(calls)
    assert [{"func": i, "fn": i} for i in range(3)] == results

    def fail(i):
        raise KeyError(i)

    with pytest.raises(KeyError):
        parallel(fail, 1)


def test_bound_function_keeps_its_own_snapshot(seen, ambient):
    """A function that is bound already keeps the context that it was bound to."""
    ctxcarry.install("joblib")
    with ambient("bound"):
        bound = ctxcarry.bind(seen)
    with ambient("mine"):
        assert {("bound", "bound")} == set(parallel(bound))


def test_parallel_keeps_nothing_after_the_call(seen, watched, is_collected):
    """A Parallel that is kept keeps nothing of the context."""
    ctxcarry.install("joblib")
    pool = joblib.Parallel(n_jobs=2, backend="threading")
    reference = watched()
    pool(joblib.delayed(int)() for _ in range(4))
    watched.forget()
    assert is_collected(reference)
    assert [0] == pool([joblib.delayed(int)()])


def test_threads_of_joblib_do_not_inherit_with_threads_installed(seen, ambient):
    """With threads installed too, a reused worker has nothing of the first caller."""
    ctxcarry.install("thread", "thread_pool")
    with joblib.Parallel(n_jobs=2, backend="threading") as pool:
        with ambient("first"):
            pool(joblib.delayed(seen)(i) for i in range(2))
        ctxcarry.uninstall()
        assert {UNSET} == set(pool(joblib.delayed(seen)(i) for i in range(4)))


def test_processes_of_loky_still_work(ambient):
    """With the boundary installed calls to processes work, and what can travel does."""
    torch = pytest.importorskip("torch")
    ctxcarry.install("joblib")
    lock = threading.Lock()  # stands for something in a context that cannot be pickled
    with ambient("mine"), torch.no_grad():
        results = joblib.Parallel(n_jobs=2, backend="loky")(
            joblib.delayed(torch.is_grad_enabled)() for _ in range(2)
        )
    assert lock.acquire(blocking=False) is True
    assert [False, False] == results
