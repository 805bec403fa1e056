"""Inference mode."""

from __future__ import annotations

import pytest
import torch
from torch_states_subjects import ONES


def test_tensor_made_in_a_carried_task_is_an_inference_tensor(carrying):
    """Tensors that a task makes under the submitter's inference mode are inference tensors."""
    net = torch.nn.Linear(4, 1)
    with torch.inference_mode():
        made = carrying.submit(net, ONES).result()
    plain = carrying.submit(net, ONES).result()
    assert (True, False) == (made.is_inference(), made.requires_grad)
    assert (False, True) == (plain.is_inference(), plain.requires_grad)


def test_plain_pool_makes_no_inference_tensor(worker):
    """Without ctxcarry the worker makes ordinary tensors, which is the fault (sglang#33470)."""
    with torch.inference_mode():
        made = worker.submit(torch.ones, 2).result()
    assert not made.is_inference()


def test_inplace_on_an_inference_tensor_works_in_a_carried_task(carrying):
    """An inference tensor can be changed in place by a carried task, as inline (sglang#33470)."""
    with torch.inference_mode():
        held = torch.zeros(2)
        carrying.submit(held.add_, 1).result()
    assert [1.0, 1.0] == held.tolist()
    with pytest.raises(RuntimeError, match=r"[Ii]nference"):
        carrying.submit(held.add_, 1).result()


def test_task_may_leave_inference_mode_for_a_block(carrying, state):
    """A task's own inference_mode(False) block works and ends in the carried inference mode."""

    def work():
        before = state()
        with torch.inference_mode(False):
            made = torch.ones(2, requires_grad=True) * 2
        return before, made.requires_grad, made.is_inference(), state()

    with torch.inference_mode():
        before, requires_grad, inference, after = carrying.submit(work).result()
    assert (True, False) == (requires_grad, inference)
    assert before == after
