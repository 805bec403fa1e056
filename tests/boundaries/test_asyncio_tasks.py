"""Tasks under ``install("asyncio")``: the state of the thread is the task's own."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import sys
from contextlib import ExitStack

import pytest

pytest.importorskip("torch")

import torch

import ctxcarry

TIMEOUT = 30
needs_task_groups = pytest.mark.skipif(sys.version_info < (3, 11), reason="came with 3.11")


@pytest.fixture
def installed():
    """Install the boundary."""
    ctxcarry.install("asyncio")


def run(main):
    """Run a coroutine in a loop of its own, with a limit that only a defect reaches."""

    async def limited():
        return await asyncio.wait_for(main, TIMEOUT)

    return asyncio.run(limited())


async def created(loop, *coroutines):
    """Run coroutines as tasks of the loop."""
    return [await task for task in [loop.create_task(c) for c in coroutines]]


async def gathered(loop, *coroutines):
    """Run coroutines with gather."""
    return await asyncio.gather(*coroutines)


async def grouped(loop, *coroutines):
    """Run coroutines in a TaskGroup."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(c) for c in coroutines]
    return [task.result() for task in tasks]


WAYS = [created, gathered, pytest.param(grouped, marks=needs_task_groups)]


async def holds_no_grad():
    """Say whether grad is enabled before and after a pause inside no_grad, and after it."""
    with torch.no_grad():
        before = torch.is_grad_enabled()
        await asyncio.sleep(0)
        after = torch.is_grad_enabled()
    return before, after, torch.is_grad_enabled()


async def looks():
    """Say whether grad is enabled, before and after a pause."""
    before = torch.is_grad_enabled()
    await asyncio.sleep(0)
    return before, torch.is_grad_enabled()


@pytest.mark.parametrize("way", WAYS)
def test_plain_tasks_leak_into_each_other(way):
    """Without ctxcarry no_grad held across an await is seen by other tasks (bug 4)."""

    async def main():
        return await way(asyncio.get_running_loop(), holds_no_grad(), looks())

    assert ((False, False, True), (False, True)) == tuple(run(main()))


@pytest.mark.parametrize("way", WAYS)
def test_installed_tasks_do_not(way, installed):
    """With the boundary installed each task has its own state, and the loop has none of it."""

    async def main():
        results = await way(asyncio.get_running_loop(), holds_no_grad(), looks(), holds_no_grad())
        return tuple(results), torch.is_grad_enabled()

    own = (False, False, True)
    assert ((own, (True, True), own), True) == run(main())


def test_callbacks_between_steps_see_nothing_of_a_task(installed):
    """A callback of the loop that runs while a task is paused in no_grad does not see it."""
    found = []

    async def main():
        loop = asyncio.get_running_loop()
        task = loop.create_task(holds_no_grad())
        loop.call_soon(lambda: found.append(torch.is_grad_enabled()))
        await task

    run(main())
    assert [True] == found


def test_task_begins_with_the_state_of_its_creator(installed):
    """A task has the state of the thread in which it was created, whatever its creator does."""

    async def main():
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            task = asyncio.create_task(looks())
        await asyncio.sleep(0)
        return await task, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")

    assert ((False, False), True, False) == run(main())


def test_several_contexts_of_interleaved_tasks(installed):
    """Modes, default device, autocast and inference mode are each task's own across pauses."""

    def state():
        return (
            torch.empty(1).device.type,
            torch.is_autocast_enabled("cpu"),
            torch.is_inference_mode_enabled(),
        )

    async def hold(*managers):
        with ExitStack() as stack:
            for manager in managers:
                stack.enter_context(manager)
            found = [state()]
            for _ in range(3):
                await asyncio.sleep(0)
                found.append(state())
        return set(found), state()

    async def main():
        return await asyncio.gather(
            hold(torch.device("meta")),
            hold(torch.autocast("cpu", torch.bfloat16), torch.device("meta")),
            hold(torch.inference_mode()),
            hold(),
        )

    plain = ("cpu", False, False)
    expected = [
        ({("meta", False, False)}, plain),
        ({("meta", True, False)}, plain),
        ({("cpu", False, True)}, plain),
        ({plain}, plain),
    ]
    assert expected == run(main())
    assert plain == state()


def test_saved_tensor_hooks_held_across_an_await_stay_in_their_task(installed):
    """What other tasks save passes no hooks of a paused task, and its own does before and after."""
    notes = []

    def hook(tensor):
        notes.append(asyncio.current_task().get_name())
        return tensor

    async def hold():
        with torch.autograd.graph.saved_tensors_hooks(hook, hook):
            torch.ones(1, requires_grad=True).exp()
            await asyncio.sleep(0)
            torch.ones(1, requires_grad=True).exp()

    async def other():
        await asyncio.sleep(0)
        torch.ones(1, requires_grad=True).exp()

    async def main():
        tasks = [asyncio.create_task(c(), name=c.__name__) for c in (hold, other)]
        between = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(lambda: between.set_result(top()))
        await asyncio.gather(*tasks)
        return await between

    def top():
        return torch._C._autograd._top_saved_tensors_default_hooks(False)

    try:
        assert run(main()) is None
        assert top() is None
    finally:
        while top() is not None:
            torch._C._autograd._pop_saved_tensors_default_hooks()
    assert ["hold", "hold"] == notes


@pytest.mark.parametrize(
    "policy", [{"exclude": "contextvars"}, {"only": "torch.grad_mode"}], ids=str
)
def test_coroutine_without_variables_keeps_what_it_sets(policy, var):
    """A decorated coroutine that does not carry ContextVars sets them where it is awaited."""

    @ctxcarry.carry_context(**policy)
    async def work():
        var.set("set")
        await asyncio.sleep(0)
        return var.get()

    async def main():
        return await work(), var.get()

    assert ("set", "set") == run(main())


def test_variables_are_as_asyncio_has_them(installed, var):
    """A task sees the ContextVars of its creation, and what it sets stays in it."""

    async def child():
        before = var.get()
        var.set("child's")
        await asyncio.sleep(0)
        return before, var.get()

    async def main():
        var.set("parent's")
        task = asyncio.create_task(child())
        var.set("later")
        return await task, var.get()

    assert (("parent's", "child's"), "later") == run(main())


@needs_task_groups
def test_given_context_is_the_tasks(installed, var):
    """With context= the task runs in that very Context, and sets variables there."""
    context = contextvars.Context()
    context.run(var.set, "given")

    async def child():
        before = var.get()
        var.set("set in it")
        await asyncio.sleep(0)
        return before, var.get()

    async def main():
        return await asyncio.create_task(child(), context=context), var.get()

    assert (("given", "set in it"), "unset") == run(main())
    assert "set in it" == context[var]


def test_name_coroutine_and_current_task_are_as_plain(installed):
    """A task keeps its name, tells its coroutine's name, and is the current task inside."""

    async def child():
        return asyncio.current_task()

    async def main():
        task = asyncio.create_task(child(), name="mine")
        inside = await task
        coroutine = task.get_coro()
        return inside is task, task.get_name(), coroutine.__name__, coroutine.__qualname__

    assert (True, "mine", "child", child.__qualname__) == run(main())


def test_exception_is_the_very_one(installed):
    """The awaiting task gets the exception that the body raised, with the body's frame."""
    error = KeyError("theirs")

    async def fail():
        await asyncio.sleep(0)
        raise error

    async def main():
        with torch.no_grad(), pytest.raises(KeyError) as caught:
            await asyncio.create_task(fail())
        return caught.value, "fail" in [entry.name for entry in caught.traceback]

    assert (error, True) == run(main())


def test_cancellation_runs_the_cleanup_in_the_tasks_state(installed):
    """A cancelled task cleans up in its own state, passes the message on, and leaves nothing."""
    found = []

    async def child():
        with torch.no_grad():
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError as error:
                found.append((torch.is_grad_enabled(), error.args))
                raise

    async def main():
        task = asyncio.create_task(child())
        await asyncio.sleep(0)
        task.cancel("stop")
        with pytest.raises(asyncio.CancelledError):
            await task
        return task.cancelled(), torch.is_grad_enabled()

    assert (True, True) == run(main())
    assert [(False, ("stop",))] == found


def test_task_cancelled_before_its_first_step(installed, recwarn):
    """A task that never began is cancelled as a plain one, and nobody is warned."""
    calls = []

    async def child():
        calls.append(1)

    async def main():
        task = asyncio.create_task(child())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return task.cancelled()

    assert run(main()) is True
    gc.collect()
    assert ([], []) == (calls, [str(w.message) for w in recwarn])


def test_timeout_inside_a_task(installed):
    """A timeout ends the wait with TimeoutError, and the state is as before the block."""

    async def child():
        with torch.no_grad():
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), 0.001)
            inside = torch.is_grad_enabled()
        return inside, torch.is_grad_enabled()

    async def main():
        return await asyncio.create_task(child())

    assert (False, True) == run(main())


@needs_task_groups
def test_failing_task_cancels_its_group_as_plain(installed):
    """The siblings of a failing task are cancelled in their own state, and the group raises."""
    found = []

    async def sibling():
        try:
            with torch.no_grad():
                await asyncio.Event().wait()
        finally:
            found.append(torch.is_grad_enabled())

    async def fail():
        await asyncio.sleep(0)
        raise KeyError

    async def main():
        async with asyncio.TaskGroup() as group:
            group.create_task(sibling())
            group.create_task(fail())

    with pytest.raises(BaseException) as caught:  # noqa: PT011 - has no name in Python 3.10
        run(main())
    assert ["KeyError"] == [type(error).__name__ for error in caught.value.exceptions]
    assert [True] == found


def test_task_factory_still_gets_each_coroutine(installed):
    """A task factory of the user is called, and its tasks have their own state."""
    names = []

    def factory(loop, coroutine, **kwargs):
        names.append(coroutine.__name__)
        return asyncio.Task(coroutine, loop=loop, **kwargs)

    async def main():
        asyncio.get_running_loop().set_task_factory(factory)
        return await asyncio.gather(holds_no_grad(), looks())

    assert [(False, False, True), (True, True)] == run(main())
    assert ["holds_no_grad", "looks"] == names[:2]


def test_uninstall_while_a_task_is_paused(installed):
    """A task that began under the boundary keeps its own state to its end."""

    async def main():
        task = asyncio.create_task(holds_no_grad())
        await asyncio.sleep(0)
        ctxcarry.uninstall("asyncio")
        return torch.is_grad_enabled(), await task, torch.is_grad_enabled()

    assert (True, (False, False, True), True) == run(main())
