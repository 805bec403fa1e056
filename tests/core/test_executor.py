"""`ctxcarry.executor`: a ThreadPoolExecutor whose tasks see their submitter's context."""

import asyncio
import functools
import gc
import inspect
import itertools
import sys
import threading
import weakref
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Future,
    ThreadPoolExecutor,
    as_completed,
    wait,
)
from concurrent.futures.thread import BrokenThreadPool
from contextvars import Context, ContextVar, copy_context

import pytest

import ctxcarry
from ctxcarry import (
    CarrierError,
    ContextVarCarrier,
    LeakError,
    Registry,
    ThreadLocalCarrier,
    executor,
    policy,
    suppress,
)

TIMEOUT = 30

# Whether other pools are instrumented must make no difference to this one.
pytestmark = pytest.mark.usefixtures("instrumentation")

variable = ContextVar("variable", default="default")
bare = ContextVar("bare")


def look():
    """Say what is set here."""
    return variable.get()


@pytest.fixture
def make(registry, local):
    """Return a function that makes executors of `registry` and shuts them down at the end."""
    pools = []

    def make(max_workers=1, **options):
        pools.append(executor(max_workers, registry=registry, **options))
        return pools[-1]

    yield make
    for pool in pools:
        pool.shutdown()


# ---------------------------------------------------------------- a drop-in


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


# ---------------------------------------------------------------- what is carried


def test_task_sees_the_submitters_context(make, local):
    """A task sees what was set at its `submit`, whatever is set later."""
    pool = make()
    variable.set(1)
    local.value = 1
    first = pool.submit(lambda: (look(), local.value))
    variable.set(2)
    local.value = 2
    second = pool.submit(lambda: (look(), local.value))
    assert [(1, 1), (2, 2)] == [first.result(TIMEOUT), second.result(TIMEOUT)]


def test_task_submitted_while_the_pool_is_busy(make, local, occupied):
    """A task that waits in the queue sees the context of its `submit`."""
    pool = make()
    with occupied(pool):
        variable.set("near")
        local.value = "near"
        future = pool.submit(lambda: (look(), local.value))
        variable.set("later")
        local.value = "later"
    assert ("near", "near") == future.result(TIMEOUT)


def test_unset_is_carried_too(make, local, on_worker):
    """What was not set at the `submit` is not set in the task, whatever the worker has."""
    pool = make()

    def dirty():
        variable.set("worker")
        bare.set("worker")
        local.value = "worker"

    on_worker(pool, dirty)
    seen = pool.submit(lambda: (look(), bare.get(None), hasattr(local, "value"))).result(TIMEOUT)
    assert ("default", None, False) == seen
    assert ("worker", "worker", "worker") == on_worker(
        pool, lambda: (look(), bare.get(None), local.value)
    )


def test_submit_from_within_a_task(make, local):
    """A task's own `submit` carries the task's context, also to the same pool."""
    pool = make(2)

    def outer():
        variable.set("inner")
        local.value = "inner"
        return pool.submit(lambda: (look(), local.value)).result(TIMEOUT)

    variable.set("near")
    local.value = "near"
    assert ("inner", "inner") == pool.submit(outer).result(TIMEOUT)


def test_worker_is_clean_after_a_task(make, local, on_worker):
    """A worker is the same after a task as before, though the task set everything."""
    pool = make()
    variable.set("near")
    local.value = "near"

    def task():
        variable.set("task")
        bare.set("task")
        local.value = local.added = "task"

    assert {} == on_worker(pool, look_at_worker(local))
    pool.submit(task).result(TIMEOUT)
    assert {} == on_worker(pool, look_at_worker(local))
    pool.submit(failing(task)).exception(TIMEOUT)
    assert {} == on_worker(pool, look_at_worker(local))


def test_worker_is_clean_after_a_task_of_an_unset_submitter(make, local, on_worker):
    """What a task sets is gone when it returns, also when its submitter had set nothing."""
    pool = make()

    def task():
        variable.set("task")
        local.value = "task"

    pool.submit(task).result(TIMEOUT)
    assert {} == on_worker(pool, look_at_worker(local))
    pool.submit(failing(task)).exception(TIMEOUT)
    assert {} == on_worker(pool, look_at_worker(local))


def look_at_worker(local):
    """Return a function: all that is set on the thread that calls it."""

    def look():
        found = {v.name: value for v, value in copy_context().items() if v in (variable, bare)}
        return found | vars(local)

    return look


def failing(fn):
    """Return `fn` so that it fails in the end."""

    def fail():
        fn()
        raise ValueError("mine")

    return fail


def test_policy_in_force_at_submit(make, local):
    """`suppress` and `policy` around a `submit` hold for that task."""
    pool = make()
    variable.set("near")
    local.value = "near"

    def seen():
        return look(), getattr(local, "value", None)

    with suppress("local"):
        one = pool.submit(seen)
    with suppress():
        two = pool.submit(seen)
    with policy(clear="contextvars"):
        three = pool.submit(seen)
    assert [("near", None), ("default", None), ("default", "near")] == [
        f.result(TIMEOUT) for f in (one, two, three)
    ]


def test_capture_that_fails(make, registry):
    """A carrier that cannot capture fails the `submit`, by name, and nothing is queued."""
    pool, ran = make(), []

    class Broken:
        name = "broken"

        def capture(self):
            raise ValueError("no")

        def apply(self, state):
            pass

        def undo(self, token):
            pass

    registry.register(Broken())
    for call in (lambda: pool.submit(ran.append, 1), lambda: pool.map(ran.append, [1])):
        with pytest.raises(CarrierError, match="'broken' failed to capture") as caught:
            call()
        assert isinstance(caught.value.__cause__, ValueError)
    assert [] == ran


def test_apply_that_fails(make, registry):
    """A carrier that cannot apply fails the task before it starts, by name, in the future."""
    pool, ran = make(), []

    class Broken:
        name = "broken"

        def capture(self):
            return threading.get_ident()

        def apply(self, state):
            raise ValueError("no")

        def undo(self, token):
            pass

    registry.register(Broken())
    error = pool.submit(ran.append, 1).exception(TIMEOUT)
    assert ("broken", "apply", []) == (error.carrier, error.stage, ran)


def test_bound_callable_keeps_its_own_context(make, registry, local):
    """A callable that was bound before runs under its own snapshot."""
    pool = make()
    variable.set("bound")
    local.value = "bound"
    bound = registry.capture().wrap(lambda *a: (look(), local.value, *a))
    variable.set("near")
    local.value = "near"
    assert ("bound", "bound", 1) == pool.submit(bound, 1).result(TIMEOUT)
    assert [("bound", "bound", 2)] == list(pool.map(bound, [2]))


def test_partly_bound_callable_keeps_the_rest_of_the_submit(make, registry, local):
    """What a bound callable leaves alone is carried by the pool as for any other task."""
    pool = make()
    variable.set("bound")
    local.value = "bound"
    bound = registry.capture(only="contextvars").wrap(lambda *_: (look(), local.value))
    variable.set("near")
    local.value = "near"
    assert [("bound", "near")] == list(pool.map(bound, [2]))
    assert ("bound", "near") == pool.submit(bound).result(TIMEOUT)


def test_generator_and_coroutine_functions(make, local):
    """What a generator or coroutine function returns is stepped under the submitter's context."""
    pool = make()
    variable.set("near")
    local.value = "near"

    def generate():
        yield look(), local.value

    async def compute():
        return look(), local.value

    generator = pool.submit(generate).result(TIMEOUT)
    coroutine = pool.submit(compute).result(TIMEOUT)
    variable.set("far")
    local.value = "far"
    assert [("near", "near")] == list(generator)
    assert ("near", "near") == asyncio.run(coroutine)


def test_decorated_function_chooses_what_is_carried(default_local):
    """`carry_context(only=...)` and `exclude=` decide in this pool as they do in any other."""

    @ctxcarry.carry_context(only="contextvars")
    def only(*_):
        return look(), getattr(default_local, "value", None)

    @ctxcarry.carry_context(exclude="contextvars")
    def without(*_):
        return look(), getattr(default_local, "value", None)

    variable.set("near")
    default_local.value = "near"
    cases = [
        (only, ("near", None)),
        (without, ("default", "near")),
        (functools.partial(only, 1), ("near", None)),
    ]
    with ThreadPoolExecutor(1) as plain, executor(1) as ours:
        for pool in (plain, ours):
            for fn, expected in cases:
                assert expected == pool.submit(fn).result(TIMEOUT)
                assert [expected] == list(pool.map(fn, [0]))


# ---------------------------------------------------------------- map


def test_map_carries_the_context_of_the_call(make, local):
    """`map` captures once, when it is called, however late its results are asked for (trap 16)."""
    pool = make(2)
    variable.set("near")
    local.value = "near"
    results = pool.map(lambda n: (n, look(), local.value), range(3))
    variable.set("later")
    local.value = "later"
    assert [(n, "near", "near") for n in range(3)] == list(results)


def test_map_captures_once(make, registry):
    """One `map` call takes one snapshot."""
    calls = []

    class Counting:
        name = "counting"

        def capture(self):
            if threading.current_thread() is threading.main_thread():
                calls.append(1)
            return ctxcarry.MISSING

        def apply(self, state):
            pass

        def undo(self, token):
            pass

    registry.register(Counting())
    assert [0, 1, 2] == list(make().map(int, range(3)))
    assert [1] == calls


def test_map_of_unequal_lengths(make):
    """The shortest iterable decides, as for a plain pool."""
    assert [(0, "a"), (1, "b")] == list(make().map(lambda *p: p, range(5), "ab"))
    assert [] == list(make().map(lambda *p: p, range(5), ""))


def test_map_of_unsized_iterables(make):
    """Iterables without a length work, in any place."""
    pool = make()
    generator = (n for n in range(3))
    assert [(0, 5), (1, 6), (2, 7)] == list(pool.map(lambda *p: p, generator, iter([5, 6, 7])))


def test_map_of_an_endless_iterable(make):
    """An endless iterable is no trouble when another one ends, whichever comes first."""
    pool = make()
    assert [(5, 0), (6, 1)] == list(pool.map(lambda *p: p, [5, 6], itertools.count()))
    assert [(0, 5), (1, 6)] == list(pool.map(lambda *p: p, itertools.count(), [5, 6]))


def test_map_consumes_its_iterables_at_the_call(make):
    """Items are taken in the calling thread and context, as by a plain pool."""
    pool = make()
    variable.set("near")
    results = pool.map(lambda seen: (seen, look()), (look() for _ in range(2)))
    variable.set("later")
    assert [("near", "near")] * 2 == list(results)


def test_map_with_chunksize_and_timeout(make, occupied):
    """`chunksize` and `timeout` mean what they do for a plain pool."""
    pool = make()
    assert [0, 1, 2] == list(pool.map(int, range(3), timeout=TIMEOUT, chunksize=2))
    with occupied(pool):
        results = pool.map(int, range(3), timeout=0)
        with pytest.raises(TimeoutError if sys.version_info >= (3, 11) else Exception):
            next(results)


def test_map_raises_where_the_failing_item_is(make):
    """The exception of an item comes when its result is asked for."""
    results = make().map(lambda n: 1 // n, [1, 0, 2])
    assert 1 == next(results)
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_map_cancels_the_rest_when_it_is_closed(make, occupied):
    """Closing the iterator cancels what has not started."""
    pool, ran = make(), []
    with occupied(pool):
        results = pool.map(ran.append, range(3), timeout=0)
        with pytest.raises(TimeoutError if sys.version_info >= (3, 11) else Exception):
            next(results)
        results.close()
    pool.submit(int).result(TIMEOUT)
    assert [] == ran


def test_map_with_a_wrong_option(make):
    """An option that `map` does not have is a TypeError."""
    with pytest.raises(TypeError):
        make().map(int, [1], no_such_option=1)


# ---------------------------------------------------------------- initializer


def test_initializer_gets_its_arguments(make, on_worker):
    """`initializer` and `initargs` mean what they do for a plain pool."""
    started = []
    pool = make(initializer=lambda *a: started.append(a), initargs=(1, 2))
    pool.submit(int).result(TIMEOUT)
    pool.submit(int).result(TIMEOUT)
    assert [(1, 2)] == started


def test_initializers_values_are_the_base(make, local):
    """A task sees what the initializer set where its submitter has set nothing."""

    def start():
        variable.set("worker")
        bare.set("worker")
        local.value = "worker"

    pool = make(initializer=start)

    def seen():
        return look(), bare.get(None), getattr(local, "value", None)

    assert ("worker", "worker", "worker") == pool.submit(seen).result(TIMEOUT)
    variable.set("near")
    assert ("near", "worker", "worker") == pool.submit(seen).result(TIMEOUT)
    local.value = "near"
    assert ("near", "worker", "near") == pool.submit(seen).result(TIMEOUT)
    assert [("near", "worker", "near")] == list(pool.map(lambda _: seen(), [0]))


def test_initializers_values_survive_tasks(make, local, on_worker):
    """The base is the same for each task, whatever a task before it did."""
    pool = make(initializer=lambda: (variable.set("worker"), setattr(local, "stack", ["worker"])))

    def spoil():
        variable.set("task")
        local.stack.append("task")

    for _ in range(2):
        assert ("worker", ["worker"]) == pool.submit(lambda: (look(), local.stack)).result(TIMEOUT)
        pool.submit(spoil).result(TIMEOUT)
    assert ("worker", ["worker"]) == on_worker(pool, lambda: (look(), local.stack))


def test_each_worker_has_its_own_base(make, local):
    """The base of a task is that of the worker that runs it."""
    numbers = iter(range(2))
    lock = threading.Lock()
    together = threading.Barrier(2)

    def start():
        with lock:
            local.value = next(numbers)

    def task():
        together.wait(TIMEOUT)
        return local.value

    pool = make(2, initializer=start)
    futures = [pool.submit(task) for _ in range(2)]
    assert {0, 1} == {f.result(TIMEOUT) for f in futures}


def test_policy_prevails_over_the_base(make, local):
    """What the policy clears is not set in the task, though the initializer set it."""
    pool = make(
        initializer=lambda: (variable.set("worker"), setattr(local, "value", "worker")),
        policy=policy(clear=["local", "contextvars"]),
    )
    variable.set("near")
    local.value = "near"
    assert ("default", {}) == pool.submit(lambda: (look(), dict(vars(local)))).result(TIMEOUT)


def test_unchanged_leaves_what_the_initializer_set(make, local):
    """What the policy leaves unchanged is what the worker has."""
    pool = make(
        initializer=lambda: (variable.set("worker"), setattr(local, "value", "worker")),
        policy=policy(unchanged="*"),
    )
    variable.set("near")
    local.value = "near"
    assert ("worker", "worker") == pool.submit(lambda: (look(), local.value)).result(TIMEOUT)


def test_base_of_a_variable_carried_by_name(local, on_worker):
    """A ContextVar carried by its name alone is taken from the base like any other context."""
    registry = Registry()
    registry.register(ContextVarCarrier(variable))
    with executor(1, registry=registry, initializer=variable.set, initargs=("worker",)) as pool:
        assert "worker" == pool.submit(look).result(TIMEOUT)
        variable.set("near")
        assert "near" == pool.submit(look).result(TIMEOUT)


def test_initializer_does_not_see_the_first_submitter(make, local):
    """The initializer runs in the worker's own context (trap 10)."""
    seen = []
    pool = make(initializer=lambda: seen.append((look(), vars(local).copy())))
    variable.set("near")
    local.value = "near"
    pool.submit(int).result(TIMEOUT)
    assert [("default", {})] == seen


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_failing_initializer_breaks_the_pool(make, caplog):
    """An initializer that raises breaks the pool as it does a plain one."""

    def start():
        raise ValueError("no")

    pool = make(initializer=start)
    future = pool.submit(int)
    assert isinstance(future.exception(TIMEOUT), BrokenThreadPool)
    with pytest.raises(BrokenExecutor):
        pool.submit(int).result(TIMEOUT)


# ---------------------------------------------------------------- the baseline of a worker


def test_unwrapped_work_never_sees_a_submitter(make, local, on_worker):
    """Work that is not carried sees its worker, and not the first submitter (trap 10)."""
    pool = make()
    variable.set("near")
    local.value = "near"
    assert ("near", "near") == pool.submit(lambda: (look(), local.value)).result(TIMEOUT)
    assert {} == on_worker(pool, look_at_worker(local))


def test_done_callbacks_never_see_a_submitter(make, local, occupied):
    """A callback of a pending future runs with the worker's own context (traps 7, 10)."""
    pool, seen, called = make(), [], threading.Event()
    variable.set("near")
    local.value = "near"
    with occupied(pool):
        future = pool.submit(int)
        future.add_done_callback(
            lambda _: (seen.append((look(), vars(local).copy())), called.set())
        )
    assert called.wait(TIMEOUT)
    assert [("default", {})] == seen


def test_threads_never_see_the_context_that_started_them(make, on_worker):
    """A worker that a submit started has none of the submitter's ContextVars."""
    pool = make(2)
    variable.set("near")
    bare.set("near")
    pool.submit(int).result(TIMEOUT)
    assert {} == on_worker(pool, lambda: {v: x for v, x in copy_context().items() if v is bare})


# ---------------------------------------------------------------- options


def test_check_leaks_finds_what_was_left(make, local, on_worker):
    """With `check_leaks` a task that leaves its thread changed fails; the thread is put back."""
    pool = make(check_leaks=True)

    def leak():
        local.value = "left"

    error = pool.submit(leak).exception(TIMEOUT)
    assert isinstance(error, LeakError)
    assert "local" in str(error)
    assert "leak" in str(error)
    assert {} == on_worker(pool, look_at_worker(local))


def test_check_leaks_lets_clean_tasks_pass(make, local):
    """A task that undoes what it sets passes with its result, as does one that raises."""
    pool = make(check_leaks=True)

    def clean(result):
        local.value = "task"
        del local.value
        return result

    assert 3 == pool.submit(clean, 3).result(TIMEOUT)
    with pytest.raises(ZeroDivisionError):
        pool.submit(divmod, 1, 0).result(TIMEOUT)
    local.value = "near"
    assert 4 == pool.submit(lambda: 4).result(TIMEOUT)


def test_check_leaks_puts_back_after_a_failing_task(make, local, on_worker):
    """A task that raises and leaves its thread changed: its own exception, a clean thread."""
    pool = make(check_leaks=True)

    def leak():
        local.value = "left"
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        pool.submit(leak).result(TIMEOUT)
    assert {} == on_worker(pool, look_at_worker(local))


def test_callbacks_are_plain_without_the_option(make, occupied):
    """A plain future's callback sees the canceller's context when it is cancelled (trap 7)."""
    pool, seen = make(), []
    with occupied(pool):
        future = pool.submit(int)
        variable.set("adder")
        future.add_done_callback(lambda _: seen.append(look()))
        variable.set("canceller")
        future.cancel()
    assert ["canceller"] == seen


def test_bind_callbacks(make, local, occupied):
    """With `bind_callbacks` a callback always sees the context of who added it (trap 7)."""
    pool, seen, called = make(bind_callbacks=True), {}, threading.Event()

    def note(key, done=None):
        def callback(future):
            assert future.done()
            seen[key] = look(), getattr(local, "value", None)
            if done is not None:
                done.set()

        return callback

    with occupied(pool):
        variable.set("pending")
        local.value = "pending"
        future, other = pool.submit(int), pool.submit(int)
        future.add_done_callback(note("pending", called))
        variable.set("adder")
        local.value = "adder"
        other.add_done_callback(note("cancelled"))
        variable.set("canceller")
        local.value = "canceller"
        other.cancel()
    assert called.wait(TIMEOUT)
    variable.set("done")
    local.value = "done"
    future.add_done_callback(note("done"))
    assert {
        "pending": ("pending", "pending"),
        "cancelled": ("adder", "adder"),
        "done": ("done", "done"),
    } == seen


def test_bind_callbacks_with_asyncio(make):
    """Such a future still serves an event loop, and `wait`."""
    pool = make(bind_callbacks=True)

    async def main():
        variable.set("near")
        return await asyncio.get_running_loop().run_in_executor(pool, look)

    assert "near" == asyncio.run(main())
    assert 1 == len(wait([pool.submit(int)], TIMEOUT).done)


def test_merge_back(make):
    """`merge_back` returns the result and sets what the task set, where it is called."""
    pool = make(merge_back=True)

    def task():
        variable.set("task")
        bare.set("task")
        return "result"

    variable.set("near")
    future = pool.submit(task)
    assert "result" == future.result(TIMEOUT)
    assert ("near", None) == (look(), bare.get(None))
    assert "result" == pool.merge_back(future)
    assert ("task", "task") == (look(), bare.get(None))


def test_merge_back_brings_only_what_the_task_set(make):
    """What the task did not set stays what it has become meanwhile."""
    pool = make(merge_back=True)
    variable.set("near")
    future = pool.submit(bare.set, "task")
    future.result(TIMEOUT)
    variable.set("later")
    pool.merge_back(future)
    assert ("later", "task") == (look(), bare.get(None))


def test_merge_back_of_a_failing_task(make):
    """The task's exception is raised, and nothing is set."""
    pool = make(merge_back=True)
    future = pool.submit(failing(lambda: variable.set("task")))
    with pytest.raises(ValueError, match="mine"):
        pool.merge_back(future)
    assert "default" == look()


def test_merge_back_of_map_and_of_others(make):
    """A future of another pool, or of one without the option, is a ValueError."""
    with pytest.raises(ValueError, match="merge_back=True"):
        make().merge_back(make().submit(int))
    with pytest.raises(ValueError, match="merge_back=True"):
        make(merge_back=True).merge_back(make(merge_back=True).submit(int))


def test_merge_back_leaves_policies_alone(make):
    """A policy that a task entered and left does not end the one that its caller is in."""
    pool = make(merge_back=True)

    def task():
        with suppress():
            variable.set("task")

    future = pool.submit(task)
    future.result(TIMEOUT)
    with suppress("local"):
        pool.merge_back(future)
        assert "task" == look()


def test_merge_back_of_a_generator_function(make):
    """With the option a generator function's body still runs under the submitter's context."""
    pool = make(merge_back=True)
    variable.set("near")

    def generate():
        yield look()

    generator = pool.submit(generate).result(TIMEOUT)
    variable.set("far")
    assert ["near"] == list(generator)


def test_options_together(make, local):
    """All options work at once."""
    pool = make(
        2,
        initializer=bare.set,
        initargs=("worker",),
        check_leaks=True,
        bind_callbacks=True,
        merge_back=True,
        policy=policy(unchanged="local"),
    )
    variable.set("near")

    def task():
        seen = look(), bare.get()
        variable.set("task")
        return seen

    future = pool.submit(task)
    assert ("near", "worker") == pool.merge_back(future)
    assert "task" == look()


# ---------------------------------------------------------------- what is let go, and when


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
