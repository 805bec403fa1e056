"""Tasks: they run in the contexts of whoever calls them, and are otherwise as plain ones are."""

import time
from pathlib import Path

import pytest
import ray
import ray_work as work

import ctxcarry

pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture
def carried():
    """Return a task that returns what is there."""
    return ctxcarry.ray.remote(work.probe)


@ray.remote
def plain():
    """Return what is there."""
    return work.probe()


def test_a_task(carried, something_set):
    """A task has what its caller has set, which a plain one has not."""
    with something_set():
        found, lost = ray.get([carried.remote(), plain.remote()])
    assert (work.SET, work.UNSET) == (found, lost)


def test_nothing_stays_in_the_worker(carried, something_set):
    """A task leaves nothing of its caller's contexts in the worker for the next one."""
    with something_set():
        ray.get([carried.remote() for _ in range(4)])
    found = ray.get([plain.remote() for _ in range(8)] + [carried.remote() for _ in range(4)])
    assert [work.UNSET] * 12 == found


def test_contexts_are_those_of_the_call(carried, something_set):
    """Each call carries what is set when it is made, in whatever order the tasks run."""
    references = []
    for value in ("first", "second", "third"):
        with something_set(value):
            references.append(carried.remote())
    assert [("first", False), ("second", False), ("third", False)] == ray.get(references)


def test_nested_tasks(something_set):
    """A task that a task calls has the contexts of the driver, or what its own caller has set."""

    @ctxcarry.ray.remote
    def inner():
        return work.both()

    @ctxcarry.ray.remote
    def outer():
        first = inner.remote()
        work.OTHER.set("by outer")
        return ray.get([first, inner.remote()])

    with something_set():
        assert [("there", "unset"), ("there", "by outer")] == ray.get(outer.remote())


def test_options(variable_set):
    """Options at the decorator and at the call are Ray's, and the calls carry."""

    @ctxcarry.ray.remote(num_returns=2)
    def two():
        return work.read(), "second"

    with variable_set():
        pair = ray.get(two.remote())
        one = ray.get(two.options(num_returns=1, name="renamed").remote())
    assert (["there", "second"], ("there", "second")) == (pair, one)


def test_a_large_context():
    """Contexts that are too large for an argument travel all the same, to every call."""
    large = "x" * 300_000
    work.VARIABLE.set(large)

    @ctxcarry.ray.remote
    def nested(depth):
        found = work.read()
        return ray.get(nested.remote(depth - 1)) if depth else len(found)

    assert [300_000] * 3 == ray.get([nested.remote(depth) for depth in (0, 0, 1)])


def test_generator_tasks(something_set):
    """Each step of a streaming task has the contexts of its call, and what the task itself sets."""

    @ctxcarry.ray.remote
    def stream(count):
        for i in range(count):
            yield (i, *work.probe(), work.OTHER.get())
            work.OTHER.set(i)

    with something_set():
        generator = stream.remote(3)
    found = [ray.get(reference) for reference in generator]
    others = ("unset", 0, 1)
    assert [(i, "there", False, other) for i, other in enumerate(others)] == found


def test_exceptions(something_set):
    """An error is of the user's class, with the user's error as its cause, as in plain Ray."""
    raised = []
    for make in (ctxcarry.ray.remote, ray.remote):

        @make(max_retries=0)
        def task():
            work.fail(7)

        with something_set(), pytest.raises(work.OwnError) as caught:
            ray.get(task.remote())
        raised.append((type(caught.value).__name__, type(caught.value.cause), caught.value.code))
        arguments = caught.value.cause.args
        assert (7, "there" if make is ctxcarry.ray.remote else "unset") == arguments
    assert raised[0] == raised[1]


def wait_for(condition):
    """Wait until `condition` holds, and fail if it does not come to that."""
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    pytest.fail("it did not come to that in half a minute")


def test_cancellation(tmp_path):
    """A task that runs can be cancelled, and has its contexts while it is."""

    @ctxcarry.ray.remote(max_retries=0)
    def sleep(marker):
        try:
            marker.with_suffix(".began").touch()
            while True:
                time.sleep(0.01)
        finally:
            marker.write_text(work.read())

    work.VARIABLE.set("there")
    # To cancel is to interrupt, which Ray does not promise to reach a task on a busy machine, and
    # does not try again for the same one: so with another task if need be.
    for number in range(3):
        marker = tmp_path / f"marker{number}"
        reference = sleep.remote(marker)
        wait_for(marker.with_suffix(".began").exists)
        ray.cancel(reference)
        if ray.wait([reference], timeout=15)[0]:
            break
        ray.cancel(reference, force=True)
    with pytest.raises(ray.exceptions.TaskCancelledError):
        ray.get(reference, timeout=10)
    wait_for(lambda: marker.exists() and marker.read_text())
    assert "there" == marker.read_text()


def test_retry_after_a_death(tmp_path):
    """A task that is tried again, since its worker died, has the contexts of its call."""

    @ctxcarry.ray.remote(max_retries=1)
    def task(marker):
        return work.die_once(marker)

    token = work.VARIABLE.set("there")
    reference = task.remote(str(tmp_path / "marker"))
    work.VARIABLE.reset(token)
    assert "there" == ray.get(reference)


def test_retry_after_an_exception(tmp_path):
    """A task that is tried again after an exception has the contexts of its call."""

    @ctxcarry.ray.remote(max_retries=1, retry_exceptions=[work.OwnError])
    def task(marker):
        if not Path(marker).exists():
            Path(marker).write_text(work.read())
            work.fail(7)
        return Path(marker).read_text(), work.read()

    work.VARIABLE.set("there")
    assert ("there", "there") == ray.get(task.remote(str(tmp_path / "marker")))


def test_a_bound_closure_in_the_object_store(something_set):
    """What `bind` bound goes through the object store with its contexts, to a plain task."""

    @ray.remote
    def call(fn):
        return fn(), work.probe()

    suffix = "!"
    with something_set():
        reference = ray.put(ctxcarry.bind(lambda: (*work.probe(), suffix)))
    assert ((*work.SET, "!"), work.UNSET) == ray.get(call.remote(reference))


def test_policies(carried, something_set):
    """A policy at the call says what is carried, and what is cleared."""
    with something_set():
        with ctxcarry.suppress():
            nothing = carried.remote()
        with ctxcarry.suppress("contextvars"):
            grad_only = carried.remote()
        with ctxcarry.policy(propagate="contextvars", unchanged="*"):
            variables_only = carried.remote()
        found = ray.get([nothing, grad_only, variables_only])
    assert [work.UNSET, ("unset", False), ("there", True)] == found


def test_a_policy_stays_with_its_block(carried, something_set):
    """A policy at the call is not in force for the calls that the task makes."""

    @ctxcarry.ray.remote
    def outer():
        token = work.VARIABLE.set("by outer")
        try:
            return ray.get(carried.remote())
        finally:  # or it would be there for the next task of this worker, as in plain Ray
            work.VARIABLE.reset(token)

    with something_set(), ctxcarry.suppress("contextvars"):
        assert ("by outer", False) == ray.get(outer.remote())
