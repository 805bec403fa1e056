"""Initializers, and the baseline of a worker."""

import threading
from concurrent.futures import BrokenExecutor
from concurrent.futures.thread import BrokenThreadPool
from contextvars import copy_context

import pytest
from executor_subjects import TIMEOUT, bare, look, look_at_worker, variable

from ctxcarry import ContextVarCarrier, Registry, executor, policy

# Whether other pools are instrumented must make no difference to this one.
pytestmark = pytest.mark.usefixtures("instrumentation")


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
