"""Case 29 (pytorch#86245): pool threads make real tensors under a FakeTensorMode."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode


def make():
    """Make a tensor."""
    return torch.empty(2)


def test_fault(plain):
    """In a plain pool the tensor is real although a FakeTensorMode is on."""
    with FakeTensorMode():
        assert (FakeTensor, torch.Tensor) == (type(make()), type(plain(make)))


def test_cure(way):
    """The tensor is fake, of the mode of whoever handed the work over, and then real again."""
    assert torch.Tensor is type(way(make))
    with FakeTensorMode() as mode:
        made = way(make)
    assert (FakeTensor, mode) == (type(made), made.fake_mode)
    assert torch.Tensor is type(way(make))
    assert 0 == torch._C._len_torch_dispatch_stack()


def test_cure_of_a_model(way):
    """A model that is built and run in the other thread takes no memory for its weights."""

    def build():
        net = torch.nn.Linear(4, 3)
        return net(torch.ones(2, 4)), net.weight

    with FakeTensorMode():
        out, weight = way(build)
    assert ((2, 3), FakeTensor, True) == (
        tuple(out.shape),
        type(out),
        isinstance(weight, FakeTensor),
    )
