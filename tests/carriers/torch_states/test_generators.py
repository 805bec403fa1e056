"""Generators that hold a state of torch across their pauses."""

from __future__ import annotations

import asyncio
import gc

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch_states_subjects import AMBIENT, ON_CPU, STEPPED, autocast, entered

import ctxcarry


def paused(ambient, state):
    """Return a carried generator that yields its state, twice within `ambient`, once after."""

    @ctxcarry.carry_context
    def generate():
        with entered(AMBIENT[ambient]):
            yield state()
            yield state()
        yield state()

    return generate()


@pytest.mark.parametrize("ambient", STEPPED)
def test_generator_paused_and_resumed_on_one_thread(ambient, state):
    """A block that a carried generator is paused in is there at the resume and not in between."""
    outside, found, between = state(), [], []
    for value in paused(ambient, state):
        found.append(value)
        between.append(state())
    with entered(AMBIENT[ambient]):
        inside = state()
    assert [inside, inside, outside] == found
    assert [outside] * 3 == between
    assert outside == state()


@pytest.mark.parametrize("ambient", STEPPED)
def test_generator_resumed_on_another_thread(ambient, state, worker):
    """A block that a generator was paused in is there when another thread resumes it."""
    outside = state()
    generator = paused(ambient, state)
    found = [next(generator)]

    def step():
        before = state()
        found.append(next(generator))
        return before == state()

    assert worker.submit(step).result()
    assert outside == state()
    found.append(next(generator))
    assert outside == state()
    with entered(AMBIENT[ambient]):
        inside = state()
    assert [inside, inside, outside] == found
    assert worker.submit(lambda: list(generator)).result() == []


class _Noted(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class _Passed(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


CONSUMERS = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": autocast("cpu", torch.float16),
    "fake tensors": FakeTensorMode,
    "a dispatch mode": _Noted,
    "a function mode": _Passed,
    "no multithreading": lambda: torch.autograd.set_multithreading_enabled(False),
    "a default device": lambda: torch.device("meta"),
    "no forward grad": lambda: forward_ad._set_fwd_grad_enabled(False),
    "keys below autograd": torch._C._AutoDispatchBelowAutograd,
}


@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("ambient", STEPPED)
def test_consumer_keeps_what_it_entered_while_a_generator_was_paused(ambient, consumer, state):
    """A step of a paused generator does not undo what its consumer entered in the meantime."""
    outside = state()
    generator = paused(ambient, state)
    next(generator)
    with CONSUMERS[consumer]():
        before = state()
        made = type(torch.empty(2)), torch.empty(2).device.type
        next(generator)
        after = state()
        made_after = type(torch.empty(2)), torch.empty(2).device.type
    generator.close()
    assert made == made_after
    assert before == after
    assert outside == state()


@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("ambient", STEPPED)
def test_consumer_on_another_thread_keeps_its_state(ambient, consumer, state, worker):
    """A generator paused elsewhere does not change the thread that resumes it."""
    generator = paused(ambient, state)
    next(generator)

    def step():
        with CONSUMERS[consumer]():
            before = state()
            made = type(torch.empty(2)), torch.empty(2).device.type
            next(generator)
            return before, state(), made, (type(torch.empty(2)), torch.empty(2).device.type)

    before, after, made, made_after = worker.submit(step).result()
    generator.close()
    assert made == made_after
    assert before == after


@pytest.mark.parametrize("hop", [False, True], ids=["same thread", "another thread"])
@pytest.mark.parametrize("ambient", ["no_grad", "inference_mode", "bfloat16"])
def test_function_transform_may_step_a_paused_generator(ambient, hop, state, worker):
    """The gradient of a function that steps a generator is right: the transform stays in force."""
    generator = paused(ambient, state)
    next(generator)

    def square(x):
        next(generator)
        return (x * x).sum()

    def work():
        return torch.func.grad(square)(torch.ones(2)).tolist()

    gradient = worker.submit(work).result() if hop else work()
    generator.close()
    assert [2.0, 2.0] == gradient


@pytest.mark.parametrize("end", ["close", "drop"])
@pytest.mark.parametrize("consumer", CONSUMERS)
def test_generator_paused_in_inference_mode_may_end_on_another_thread(consumer, end, state, worker):
    """Closing or dropping a generator that another thread paused leaves this thread as it was."""
    held = [paused("inference_mode", state)]
    next(held[0])

    def finish():
        with CONSUMERS[consumer]():
            before = state()
            if end == "close":
                held[0].close()
            held.clear()
            gc.collect()
            return before, state()

    before, after = worker.submit(finish).result()
    assert before == after


def test_generator_that_raises_within_inference_mode_leaves_the_thread_as_it_was(state):
    """An exception out of a carried generator ends its inference mode."""
    outside = state()

    @ctxcarry.carry_context
    def generate():
        with torch.inference_mode(), torch.autocast(*ON_CPU):
            yield
            raise KeyError

    generator = generate()
    next(generator)
    with pytest.raises(KeyError):
        next(generator)
    assert outside == state()


def test_async_generator_holds_its_state_across_yields(state):
    """An async generator's inference mode is its own at each of its steps."""
    outside = state()

    @ctxcarry.carry_context
    async def generate():
        with torch.inference_mode():
            for _ in range(2):
                yield torch.is_inference_mode_enabled()
                await asyncio.sleep(0)
        yield torch.is_inference_mode_enabled()

    async def main():
        return [(found, state()) async for found in generate()]

    assert [(True, outside), (True, outside), (False, outside)] == asyncio.run(main())
