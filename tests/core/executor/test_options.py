"""The executor's options: leaks, callbacks, merging back."""

import asyncio
import threading
from concurrent.futures import wait

import pytest
from executor_subjects import TIMEOUT, bare, failing, look, look_at_worker, variable

from ctxcarry import LeakError, policy, suppress

# Whether other pools are instrumented must make no difference to this one.
pytestmark = pytest.mark.usefixtures("instrumentation")


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
