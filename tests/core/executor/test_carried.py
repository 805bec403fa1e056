"""What a task of the executor sees, and what its worker keeps."""

import asyncio
import functools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from executor_subjects import TIMEOUT, bare, failing, look, look_at_worker, variable

import ctxcarry
from ctxcarry import CarrierError, executor, policy, suppress

# Whether other pools are instrumented must make no difference to this one.
pytestmark = pytest.mark.usefixtures("instrumentation")


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
