"""`ctxcarry.Thread`, `ctxcarry.Timer`, ``install("thread")`` and decorated targets."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool

import pytest

import ctxcarry

TIMEOUT = 30
SET, UNSET = ("mine", "mine"), ("unset", "unset")


def result_of(thread, results):
    """Start `thread`, wait for it and return the one result that it left."""
    thread.start()
    thread.join(TIMEOUT)
    assert 1 == len(results)
    return results.pop()


def plain_thread(work):
    """Return a thread of the standard library."""
    return threading.Thread(target=work)


def plain_timer(work):
    """Return a timer of the standard library."""
    return threading.Timer(0, work)


def subclass(base):
    """Return a function that makes a subclass of `base` which overrides `run`."""

    class Overriding(base):
        def __init__(self, work):
            super().__init__(**({"target": None} if "Thread" in base.__name__ else {}))
            self.work = work

        def run(self):
            self.work()

    return Overriding


class OverridingTimer(threading.Timer):
    """A timer of the standard library that overrides `run`."""

    def __init__(self, work):
        super().__init__(0, None)
        self.work = work

    def run(self):
        """Call the work without waiting."""
        self.work()


class OverridingCarryTimer(ctxcarry.Timer):
    """A timer of ours that overrides `run`."""

    def __init__(self, work):
        super().__init__(0, None)
        self.work = work

    def run(self):
        """Call the work without waiting."""
        self.work()


PLAIN = {
    "Thread": plain_thread,
    "Timer": plain_timer,
    "subclass of Thread": subclass(threading.Thread),
    "subclass of Timer": OverridingTimer,
}
OURS = {
    "Thread": lambda work: ctxcarry.Thread(target=work),
    "Timer": lambda work: ctxcarry.Timer(0, work),
    "subclass of Thread": subclass(ctxcarry.Thread),
    "subclass of Timer": OverridingCarryTimer,
}


@pytest.mark.parametrize("kind", PLAIN)
def test_plain_thread_loses_the_context(kind, work, results, ambient):
    """Without ctxcarry a thread has neither ContextVars nor thread-locals of its starter."""
    with ambient("mine"):
        assert UNSET == result_of(PLAIN[kind](work), results)


@pytest.mark.parametrize("kind", OURS)
def test_explicit_thread_carries(kind, work, results, ambient):
    """A thread of ours runs in the context of whoever starts it."""
    with ambient("maker"):
        threads = [OURS[kind](work) for _ in range(2)]
    with ambient("mine"):
        assert SET == result_of(threads[0], results)
    assert UNSET == result_of(threads[1], results)


@pytest.mark.parametrize("kind", PLAIN)
def test_installed_thread_carries(kind, work, results, ambient):
    """With the boundary installed every thread carries, and after uninstall none does."""
    ctxcarry.install("thread")
    with ambient("mine"):
        assert SET == result_of(PLAIN[kind](work), results)
        ctxcarry.uninstall("thread")
        assert UNSET == result_of(PLAIN[kind](work), results)


@pytest.mark.parametrize("kind", ["Thread", "Timer"])
def test_decorated_target_is_carried_by_a_plain_thread(kind, work, results, ambient):
    """A decorated target carries, an undecorated one beside it does not."""
    decorated = ctxcarry.carry_context(work)
    with ambient("mine"):
        found = [result_of(PLAIN[kind](fn), results) for fn in (decorated, work)]
    assert [SET, UNSET] == found


def test_decorated_target_obeys_its_own_policy(seen, ambient):
    """What the decorator excludes is not carried to a plain thread."""
    found = []
    fn = ctxcarry.carry_context(exclude="test.local")(lambda: found.append(seen()))
    with ambient("mine"):
        assert ("mine", "unset") == result_of(threading.Thread(target=fn), found)


def test_decorated_method_as_target(seen, ambient, results):
    """A bound method that is decorated is carried by a plain thread."""

    class Job:
        @ctxcarry.carry_context
        def work(self):
            results.append(seen())

    with ambient("mine"):
        assert SET == result_of(threading.Thread(target=Job().work), results)


def test_policy_in_force_at_start_decides(work, results, ambient):
    """A suppressed context is not carried by a thread that is started under the policy."""
    thread = ctxcarry.Thread(target=work)
    with ambient("mine"), ctxcarry.suppress("test.local"):
        assert ("mine", "unset") == result_of(thread, results)


def test_arguments_name_and_daemon_are_as_plain(results):
    """Arguments reach the target, and name and daemon are kept."""
    thread = ctxcarry.Thread(
        target=lambda *a, **k: results.append((a, k, threading.current_thread().name)),
        args=(1,),
        kwargs={"fn": 2, "target": 3},
        name="ours",
        daemon=True,
    )
    assert ((1,), {"fn": 2, "target": 3}, "ours") == result_of(thread, results)
    assert thread.daemon is True


@pytest.mark.parametrize("make", [threading.Thread, ctxcarry.Thread])
@pytest.mark.parametrize("installed", [False, True])
def test_second_start_is_the_plain_error(make, installed):
    """A thread started twice raises RuntimeError as a plain one does, and runs once."""
    if installed:
        ctxcarry.install("thread")
    calls = []
    thread = make(target=lambda: calls.append(1))
    thread.start()
    thread.join(TIMEOUT)
    with pytest.raises(RuntimeError, match="threads can only be started once"):
        thread.start()
    assert [1] == calls


@pytest.mark.parametrize("make", [threading.Thread, ctxcarry.Thread])
def test_second_start_while_the_first_is_running(make, seen, ambient, results):
    """A second start during the run is the plain error, and the run keeps its context."""
    ctxcarry.install("thread")
    begun, go = threading.Event(), threading.Event()

    def work():
        begun.set()
        go.wait(TIMEOUT)
        results.append(seen())

    thread = make(target=work)
    with ambient("mine"):
        thread.start()
    begun.wait(TIMEOUT)
    with pytest.raises(RuntimeError, match="threads can only be started once"):
        thread.start()
    go.set()
    thread.join(TIMEOUT)
    assert [SET] == results


@pytest.mark.parametrize("make", [threading.Thread, ctxcarry.Thread])
def test_run_called_directly_just_runs(make, work, results, ambient):
    """A direct call of run runs the target here, in the context of its caller."""
    ctxcarry.install("thread")
    with ambient("maker"):
        thread = make(target=work)
    with ambient("mine"):
        thread.run()
    assert [SET] == results
    assert "run" not in vars(thread)


@pytest.mark.parametrize("make", [threading.Thread, ctxcarry.Thread])
def test_snapshot_is_released_when_the_thread_has_it(make, watched, is_collected):
    """A finished thread, and one in its run, keeps nothing of the context (trap 10)."""
    ctxcarry.install("thread")
    begun, go = threading.Event(), threading.Event()

    def work():
        begun.set()
        go.wait(TIMEOUT)

    reference = watched()
    thread = make(target=work)
    thread.start()
    begun.wait(TIMEOUT)
    watched.forget()
    go.set()
    thread.join(TIMEOUT)
    assert is_collected(reference)
    assert "run" not in vars(thread)


@pytest.mark.parametrize("make", [threading.Thread, ctxcarry.Thread])
def test_snapshot_is_released_when_start_fails(make, watched, is_collected, monkeypatch):
    """A thread that cannot be started keeps nothing, and can be started later."""
    ctxcarry.install("thread")

    def refuse(*_, **__):
        raise RuntimeError("can't start new thread")

    name = "_start_new_thread" if hasattr(threading, "_start_new_thread") else None
    name = name or "_start_joinable_thread"
    calls = []
    thread = make(target=lambda: calls.append(1))
    reference = watched()
    with monkeypatch.context() as patch:
        patch.setattr(threading, name, refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            thread.start()
    watched.forget()
    assert is_collected(reference)
    assert "run" not in vars(thread)
    thread.start()
    thread.join(TIMEOUT)
    assert [1] == calls


def test_failing_capture_starts_no_thread(work, results):
    """A carrier that cannot capture is an error of start, and no thread is started."""

    def fail():
        raise OSError("gone")

    ctxcarry.register(ctxcarry.ValueCarrier("test.broken", fail, lambda value: None))
    thread = ctxcarry.Thread(target=work)
    try:
        with pytest.raises(ctxcarry.CarrierError, match=r"test\.broken"):
            thread.start()
    finally:
        ctxcarry.unregister("test.broken")
    assert (None, []) == (thread.ident, results)


def test_exception_reaches_the_excepthook_as_plain(monkeypatch, ambient):
    """An exception of the target goes to threading.excepthook, with the thread."""
    caught = []
    monkeypatch.setattr(threading, "excepthook", caught.append)
    error = KeyError("theirs")

    def work():
        raise error

    thread = ctxcarry.Thread(target=work)
    with ambient("mine"):
        thread.start()
        thread.join(TIMEOUT)
    assert [(error, thread)] == [(args.exc_value, args.thread) for args in caught]


def test_cancelled_timer_runs_nothing_and_keeps_nothing(watched, is_collected):
    """A cancelled timer calls nothing, and its snapshot is gone with the thread."""
    calls = []
    reference = watched()
    timer = ctxcarry.Timer(3600, calls.append, (1,))
    timer.start()
    timer.cancel()
    timer.join(TIMEOUT)
    watched.forget()
    assert [] == calls
    assert is_collected(reference)


@pytest.mark.parametrize(
    ("make", "submit"),
    [
        (lambda: ThreadPoolExecutor(1), lambda pool, fn: pool.submit(fn).result(TIMEOUT)),
        (lambda: ThreadPool(1), lambda pool, fn: pool.apply(fn)),
    ],
    ids=["ThreadPoolExecutor", "ThreadPool"],
)
def test_pool_workers_do_not_inherit_the_first_submitter(make, submit, ambient, seen):
    """With threads installed a pool's worker has nothing of whoever made it start (trap 10)."""
    ctxcarry.install("thread")
    with ambient("first"):
        pool = make()
        first = submit(pool, seen)
    try:
        assert [UNSET, UNSET] == [first, submit(pool, seen)]
    finally:
        pool.terminate() if isinstance(pool, ThreadPool) else pool.shutdown()


def test_handler_threads_of_a_pool_do_not_inherit(ambient, seen):
    """A callback, which a pool's handler thread calls, has nothing of who made the pool."""
    ctxcarry.install("thread")
    found, done = [], threading.Event()

    def callback(_):
        found.append(seen())
        done.set()

    with ambient("first"):
        pool = ThreadPool(1)
    with pool:
        pool.apply_async(int, callback=callback)
        assert done.wait(TIMEOUT)
    assert [UNSET] == found


def test_thread_of_ours_is_captured_once(work, results, ambient):
    """An explicit thread with a decorated target and the boundary installed captures once."""
    captures = []

    def get():
        captures.append(threading.get_ident())

    ctxcarry.install("thread", "dataloader")
    ctxcarry.register(ctxcarry.ValueCarrier("test.count", get, lambda value: None))
    try:
        thread = ctxcarry.Thread(target=ctxcarry.carry_context(work))
        with ambient("mine"):
            assert SET == result_of(thread, results)
    finally:
        ctxcarry.unregister("test.count")
    assert 1 == captures.count(threading.get_ident())
