"""Actors with several threads, an event loop or both: each call has its own contexts."""

import asyncio
import threading

import pytest
import ray
import ray_work as work
import torch

import ctxcarry

pytestmark = pytest.mark.usefixtures("cluster")


def test_threads(made, variable_set):
    """All threads of an actor have its base, which those of a plain actor have not."""
    for make, base in ((ctxcarry.ray.remote, "base"), (ray.remote, "unset")):
        actor = made(make(max_concurrency=3)(work.Based))
        assert (base, True) == ray.get(actor.elsewhere.remote())
        with variable_set():
            calls = [actor.elsewhere.remote() for _ in range(6)]
        inside = "there" if make is ctxcarry.ray.remote else "unset"
        assert [(inside, True)] * 6 == ray.get(calls)


def test_calls_at_once(made, something_set):
    """Calls that run at the same time on several threads have each its own caller's contexts."""

    @ctxcarry.ray.remote(max_concurrency=3)
    class Actor:
        def __init__(self):
            self.barrier = threading.Barrier(3)

        def meet(self):
            self.barrier.wait(60)
            found = work.probe()
            self.barrier.wait(60)
            return found

    actor, calls = made(Actor), []
    for value in ("first", "second"):
        with something_set(value):
            calls.append(actor.meet.remote())
    calls.append(actor.meet.remote())
    assert [("first", False), ("second", False), work.UNSET] == ray.get(calls)


class Meeting:
    """Two async calls that wait for each other between their steps."""

    def __init__(self):
        work.OTHER.set("base")
        self.there = 0
        self.steps = [asyncio.Event() for _ in range(2)]

    async def step(self, number):
        """Wait for the other call."""
        self.there += 1
        if self.there == 2 * (number + 1):
            self.steps[number].set()
        await self.steps[number].wait()

    async def meet(self, *, grad):
        """Return what is there before and after the other call has run in between."""
        import torch

        with torch.set_grad_enabled(grad):
            first = *work.both(), torch.is_grad_enabled()
            await self.step(0)
            second = *work.both(), torch.is_grad_enabled()
            work.OTHER.set(work.read())
            await self.step(1)
            return first, second, (*work.both(), torch.is_grad_enabled())

    async def look(self):
        """Return what is there."""
        return *work.probe(), work.OTHER.get()

    async def stream(self):
        """Yield what is there at each step, and set something."""
        for i in range(3):
            yield *work.probe(), work.OTHER.get()
            work.OTHER.set(i)
            await asyncio.sleep(0)

    async def cancelled(self):
        """Wait until this is cancelled, and note what is there then."""
        self.there = "waiting"
        try:
            await asyncio.Event().wait()
        finally:
            self.there = work.probe()

    async def state(self):
        """Return what was noted."""
        return self.there


def meetings(actor):
    """Return what two calls that meet have found."""
    references = []
    for value, grad in (("first", False), ("second", True)):
        token = work.VARIABLE.set(value)
        references.append(actor.meet.remote(grad=grad))
        work.VARIABLE.reset(token)
    return ray.get(references)


def test_async_calls(made):
    """Async calls that take turns keep their own contexts across each await."""
    found = meetings(made(ctxcarry.ray.remote(Meeting)))
    assert [
        (("first", "base", False), ("first", "base", False), ("first", "first", False)),
        (("second", "base", True), ("second", "base", True), ("second", "second", True)),
    ] == found


def test_plain_async_calls(made):
    """In a plain actor they have neither the caller's nor the base, and share grad mode."""
    first, second = meetings(made(ray.remote(Meeting)))
    assert [("unset", "unset", False), ("unset", "unset", True)] == [first[0], second[0]]
    assert first[1] == second[1]


def test_async_generators(made, something_set):
    """A streaming async method has the contexts of its call at each step."""
    actor = made(ctxcarry.ray.remote(Meeting))
    with something_set():
        generator = actor.stream.remote()
    found = [ray.get(reference) for reference in generator]
    assert [(*work.SET, other) for other in ("base", 0, 1)] == found
    assert (*work.UNSET, "base") == ray.get(actor.look.remote())


def test_cancelled_async_call(made, something_set):
    """An async call that is cancelled has its contexts while it is, and leaves none behind."""
    actor = made(ctxcarry.ray.remote(Meeting))
    with something_set():
        reference = actor.cancelled.remote()
    while ray.get(actor.state.remote()) != "waiting":
        pass
    ray.cancel(reference)
    with pytest.raises((ray.exceptions.TaskCancelledError, ray.exceptions.RayTaskError)):
        ray.get(reference)
    found = ray.get([actor.state.remote(), actor.look.remote()])
    assert [work.SET, (*work.UNSET, "base")] == found


def test_identity_of_async_calls(made):
    """A nested async call is still itself to Ray: what Ray keeps in ContextVars does not travel."""

    class Actor:
        async def nest(self, other):
            return self.own(), await other.own_task.remote()

        def own(self):
            context = ray.get_runtime_context()
            return context.get_task_id(), context.get_task_name()

        async def own_task(self):
            return self.own()

    (outer, outer_name), (inner, inner_name) = (None, None), (None, None)
    for make in (ray.remote, ctxcarry.ray.remote):
        first, second = made(make(Actor)), made(make(Actor))
        work.VARIABLE.set("there")
        (outer, outer_name), (inner, inner_name) = ray.get(first.nest.remote(second))
        assert (True, "Actor.nest", "Actor.own_task") == (outer != inner, outer_name, inner_name)


def test_generator_methods(made, something_set):
    """A streaming method has at each step its caller's contexts, and between them nobody has."""

    @ctxcarry.ray.remote(max_concurrency=2)
    class Actor(work.Based):
        def stream(self):
            for i in range(3):
                yield *work.probe(), work.OTHER.get()
                work.OTHER.set(i)

        def look(self):
            return work.probe()

    actor = made(Actor)
    with something_set():
        generator = actor.stream.remote()
    found = [ray.get(reference) for reference in generator]
    assert [(*work.SET, other) for other in ("unset", 0, 1)] == found
    own = [ray.get(reference) for reference in actor.stream.remote()]
    assert [("base", True, other) for other in ("unset", 0, 1)] == own
    assert ("base", True) == ray.get(actor.look.remote())


def test_concurrency_groups(made, something_set):
    """Methods of each concurrency group, and of none, have the base and their caller's contexts."""

    class Actor:
        def __init__(self):
            import torch

            self.made_on = threading.get_ident()
            work.VARIABLE.set("base")
            torch.set_grad_enabled(False)

        def look(self):
            return work.probe(), threading.get_ident() != self.made_on

        @ray.method(concurrency_group="io")
        def io(self):
            return self.look()

        @ray.method(concurrency_group="compute")
        def compute(self):
            return self.look()

    groups = {"io": 2, "compute": 1}
    actor = made(ctxcarry.ray.remote(concurrency_groups=groups)(Actor))
    methods = actor.look, actor.io, actor.compute
    assert [(("base", False), True)] * 3 == ray.get([method.remote() for method in methods])
    with something_set():
        calls = [method.remote() for method in methods]
        calls.append(actor.look.options(concurrency_group="io").remote())
    assert [(work.SET, True)] * 4 == ray.get(calls)
    plain = made(ray.remote(concurrency_groups=groups)(Actor))
    assert (work.UNSET, True) == ray.get(plain.io.remote())


def test_async_concurrency_groups(made, something_set):
    """Async methods of a concurrency group have an event loop of their own, and all the same."""

    @ctxcarry.ray.remote(concurrency_groups={"io": 2})
    class Actor:
        def __init__(self):
            work.VARIABLE.set("base")

        async def look(self):
            return work.probe()

        @ray.method(concurrency_group="io")
        async def io(self):
            await asyncio.sleep(0)
            return work.probe()

    actor = made(Actor)
    outside = ray.get([actor.look.remote(), actor.io.remote()])
    with something_set():
        inside = ray.get([actor.look.remote(), actor.io.remote()])
    assert ([("base", True)] * 2, [work.SET] * 2) == (outside, inside)


def test_grad_mode_off_at_the_caller_with_a_base_that_has_it_off(made):
    """A base that switches grad off is for callers that have not switched it off themselves."""

    @ctxcarry.ray.remote(max_concurrency=2)
    class Actor(work.Grad):
        def __init__(self):
            import torch

            torch.set_grad_enabled(False)

    actor = made(Actor)
    with torch.no_grad():
        inside = actor.probe.remote()
    assert [("unset", False)] * 2 == ray.get([inside, actor.probe.remote()])
