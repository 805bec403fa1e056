"""Case 25 (pytorch#176065): a selective checkpoint that is given a packet saves nothing."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from ctxcarry_checkpoint import checkpoint as our_checkpoint
from ctxcarry_checkpoint import policies
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

MM = torch.ops.aten.mm


class Count(TorchDispatchMode):
    """Count the products of matrices."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is MM.default
        return func(*args, **(kwargs or {}))


def products(checkpointed):
    """Return how many there are in the backward of ``(x @ weight).sin()``."""
    weight, x = (torch.ones(3, 3, requires_grad=True) for _ in range(2))
    y = checkpointed(lambda t: (t @ weight).sin(), x)
    with Count() as mode:
        y.sum().backward()
    return mode.count


def with_torchs(saved):
    """Return a checkpoint of torch's that saves some operators."""

    def policy(ctx, op, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE if op in saved else CheckpointPolicy.PREFER_RECOMPUTE

    return lambda fn, x: checkpoint(
        fn,
        x,
        use_reentrant=False,
        context_fn=lambda: create_selective_checkpoint_contexts(policy),
    )


def test_fault():
    """It is computed again, as if nothing had been said, while its overload is saved."""
    assert 3 == products(with_torchs({MM}))
    assert 2 == products(with_torchs({MM.default}))


@pytest.mark.parametrize("saved", [MM, MM.default, "aten.mm"])
def test_cure(saved):
    """A packet stands for all its overloads."""
    assert 2 == products(lambda fn, x: our_checkpoint(fn, x, policy=policies.save(saved)))
    assert 2 == products(lambda fn, x: our_checkpoint(fn, x, policy=[saved]))


def test_cure_of_what_matches_nothing():
    """What the block does not call is told of, with what it does call."""
    policy = policies.save(torch.ops.aten.bmm)
    with pytest.warns(UserWarning, match=r"aten\.bmm.* matched none of the 2 operators.*aten\.mm"):
        assert 3 == products(lambda fn, x: our_checkpoint(fn, x, policy=policy))
