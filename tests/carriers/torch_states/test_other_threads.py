"""Blocks that end in another thread, and carried classes."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch_states_subjects import ON_CPU, ONES

import ctxcarry


def test_block_left_in_another_thread_changes_neither(state, worker):
    """Leaving an active() block in a wrong thread is an error that does not alter that thread."""
    with torch.inference_mode():
        snapshot = ctxcarry.capture()
    block = snapshot.active()
    block.__enter__()
    inside = state()
    held = [block]

    def leave():
        with FakeTensorMode():
            before = state()
            with pytest.raises(ctxcarry.LeakError):
                held[0].__exit__(None, None, None)
            return before, state()

    try:
        before, after = worker.submit(leave).result()
        assert before == after
        assert inside == state()
    finally:
        block.__exit__(None, None, None)


def test_methods_of_a_carried_class_see_what_its_init_saw(worker, state):
    """A method runs over the state in which its instance was made, on any thread."""

    @ctxcarry.carry_context
    class Model:
        def __init__(self):
            self.lin = torch.nn.Linear(4, 4)

        def call(self):
            return self.lin(ONES), state()

    with torch.no_grad(), torch.autocast(*ON_CPU):
        model = Model()
    here, there = model.call(), worker.submit(model.call).result()
    with torch.autocast("cpu", torch.float16):
        other = model.call()
    assert here[1] == there[1]
    assert (False, torch.bfloat16) == (there[0].requires_grad, there[0].dtype)
    assert (False, torch.float16) == (other[0].requires_grad, other[0].dtype)
