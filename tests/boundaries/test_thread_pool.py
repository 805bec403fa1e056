"""``multiprocessing.pool.ThreadPool``: its functions and callbacks."""

from __future__ import annotations

import threading
from multiprocessing.pool import Pool, ThreadPool

import pytest

import ctxcarry

TIMEOUT = 30
SET, UNSET = ("mine", "mine"), ("unset", "unset")

WAYS = {
    "apply": lambda pool, fn: pool.apply(fn, (0,)),
    "apply_async": lambda pool, fn: pool.apply_async(fn, (0,)).get(TIMEOUT),
    "map": lambda pool, fn: pool.map(fn, [0])[0],
    "map_async": lambda pool, fn: pool.map_async(fn, [0]).get(TIMEOUT)[0],
    "imap": lambda pool, fn: next(pool.imap(fn, [0])),
    "imap in chunks": lambda pool, fn: list(pool.imap(fn, [0, 1, 2], 2))[2],
    "imap_unordered": lambda pool, fn: next(pool.imap_unordered(fn, [0])),
    "starmap": lambda pool, fn: pool.starmap(fn, [(0, 1)])[0],
    "starmap_async": lambda pool, fn: pool.starmap_async(fn, [(0, 1)]).get(TIMEOUT)[0],
    "by keyword": lambda pool, fn: pool.apply_async(func=fn, args=(0,)).get(TIMEOUT),
}

CALLBACKS = {
    "apply_async": lambda pool, fn, **kw: pool.apply_async(fn, (0,), **kw),
    "map_async": lambda pool, fn, **kw: pool.map_async(fn, [0], **kw),
    "starmap_async": lambda pool, fn, **kw: pool.starmap_async(fn, [(0,)], **kw),
    "apply_async by position": lambda pool, fn, callback=None, error_callback=None: (
        pool.apply_async(fn, (0,), {}, callback, error_callback)
    ),
    "map_async by position": lambda pool, fn, callback=None, error_callback=None: pool.map_async(
        fn, [0], None, callback, error_callback
    ),
}


@pytest.fixture
def pool():
    """Give a plain pool of one thread."""
    with ThreadPool(1) as pool:
        yield pool
        pool.terminate()
        pool.join()


@pytest.mark.parametrize("way", WAYS)
def test_installed_pool_carries(way, pool, seen, ambient):
    """With the boundary installed each method carries, and without it none does."""
    with ambient("mine"):
        plain = WAYS[way](pool, seen)
        ctxcarry.install("thread_pool")
        carried = WAYS[way](pool, seen)
        ctxcarry.uninstall("thread_pool")
        after = WAYS[way](pool, seen)
    assert [UNSET, SET, UNSET] == [plain, carried, after]


@pytest.mark.parametrize("way", WAYS)
def test_decorated_function_is_carried(way, pool, seen, ambient):
    """A decorated function carries through each method, and an undecorated one does not."""
    decorated = ctxcarry.carry_context(lambda *args: seen())
    with ambient("mine"):
        assert [SET, UNSET] == [WAYS[way](pool, fn) for fn in (decorated, seen)]
    assert UNSET == WAYS[way](pool, decorated)


@pytest.mark.parametrize("way", CALLBACKS)
@pytest.mark.parametrize("fails", [False, True], ids=["callback", "error_callback"])
def test_callbacks_run_in_the_context_of_who_gave_them(way, fails, pool, seen, ambient):
    """Both callbacks see the context of the hand-over, on the pool's own thread."""
    ctxcarry.install("thread_pool")
    found, done = [], threading.Event()

    def work(_):
        if fails:
            raise KeyError

    def callback(_):
        found.append((seen(), threading.current_thread() is threading.main_thread()))
        done.set()

    name = "error_callback" if fails else "callback"
    with ambient("mine"):
        CALLBACKS[way](pool, work, **{name: callback})
    assert done.wait(TIMEOUT)
    assert [(SET, False)] == found


def test_decorated_callback_of_a_plain_function(pool, seen, ambient):
    """A decorated callback carries although the function beside it is not decorated."""
    found, done = [], threading.Event()

    @ctxcarry.carry_context
    def callback(result):
        found.append((result, seen()))
        done.set()

    with ambient("mine"):
        pool.apply_async(seen, callback=callback)
    assert done.wait(TIMEOUT)
    assert [(UNSET, SET)] == found


def test_lazy_iterator_carries_the_context_of_the_call(pool, seen, ambient):
    """Items of imap that are taken up later run in the context of the call, not of then."""
    ctxcarry.install("thread_pool")
    gate = threading.Event()

    def items():
        yield 0
        assert gate.wait(TIMEOUT)
        yield 1

    with ambient("mine"):
        results = pool.imap(seen, items())
    with ambient("later"):
        gate.set()
        assert [SET, SET] == list(results)


@pytest.mark.parametrize("way", WAYS)
def test_one_capture_for_each_hand_over(way, pool, seen):
    """Methods that are built upon each other take one snapshot, not two."""
    captures = []

    def get():
        captures.append(threading.get_ident())

    ctxcarry.install("thread_pool", "process", "thread")
    ctxcarry.register(ctxcarry.ValueCarrier("test.count", get, lambda value: None))
    try:
        WAYS[way](pool, seen)
    finally:
        ctxcarry.unregister("test.count")
    assert 1 == captures.count(threading.get_ident())


def test_bound_function_keeps_its_own_snapshot(pool, seen, ambient):
    """A function that is bound already keeps the context that it was bound to."""
    ctxcarry.install("thread_pool")
    with ambient("bound"):
        bound = ctxcarry.bind(seen)
    with ambient("mine"):
        assert ("bound", "bound") == pool.apply(bound)


def test_errors_and_results_are_as_plain(pool):
    """Exceptions are raised, results come in order, and iterables may be of any length."""
    ctxcarry.install("thread_pool")
    error = KeyError("theirs")

    def fail(_):
        raise error

    with pytest.raises(KeyError) as caught:
        pool.map(fail, [0])
    assert error is caught.value
    assert [0, 1, 4, 9] == pool.map(lambda x: x * x, range(4), 3)
    assert [] == pool.map(fail, [])
    assert [3, 7] == pool.starmap(lambda a, b: a + b, [(1, 2), (3, 4)])
    assert {"fn": 1, "func": 2} == pool.apply(dict, (), {"fn": 1, "func": 2})


def test_worker_is_as_it_was_after_a_careless_function(pool, local, seen, ambient):
    """What a function leaves set is gone from the worker afterwards."""
    ctxcarry.install("thread_pool")

    def careless():
        local.value = "left"
        raise KeyError

    with ambient("mine"), pytest.raises(KeyError):
        pool.apply(careless)
    ctxcarry.uninstall("thread_pool")
    assert UNSET == pool.apply(seen)


def test_snapshot_is_released_after_the_run(pool, watched, is_collected):
    """A result that is kept keeps nothing of the context, be it a value or an error."""
    ctxcarry.install("thread_pool")

    def fail():
        raise KeyError

    reference = watched()
    results = [pool.apply_async(int), pool.apply_async(fail)]
    for result in results:
        result.wait(TIMEOUT)
    watched.forget()
    pool.apply(int)  # a worker lets go of its last task when it takes the next
    assert is_collected(reference)
    assert [True, False] == [result.successful() for result in results]


def test_uninstall_gives_back_inherited_methods():
    """After uninstall the methods are those of Pool again, not copies of them in ThreadPool."""
    ctxcarry.install("thread_pool", "process")
    ctxcarry.uninstall("process")
    ctxcarry.uninstall("thread_pool")
    assert [] == [name for name in vars(ThreadPool) if name in {"map", "apply_async", "imap"}]
    assert Pool.map is ThreadPool.map
    assert not hasattr(Pool.map, "__wrapped__")
