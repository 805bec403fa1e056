"""
Case 37 (quack#209, ms-swift#10130): a fused loss that scales its gradient in place.

It saves a gradient that it has computed in the forward, and changes that in the backward,
so that the next backward finds it changed. In a checkpoint each backward has its own.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from ctxcarry_checkpoint import checkpoint, policies


class FusedLoss(torch.autograd.Function):
    """A loss that computes the gradient with its value."""

    @staticmethod
    def forward(ctx, hidden, weight, targets):
        p = (hidden @ weight.t()).softmax(-1)
        loss = -p.gather(1, targets[:, None]).log().mean()
        p[torch.arange(len(targets)), targets] -= 1
        ctx.save_for_backward((p @ weight) / len(targets))
        return loss

    @staticmethod
    def backward(ctx, grad):
        (of_hidden,) = ctx.saved_tensors
        of_hidden.mul_(grad)
        return of_hidden, None, None


def gradients(call):
    """Return the gradients of two passes through one graph, the second of twice the loss."""
    torch.manual_seed(0)
    hidden = torch.randn(4, 3, requires_grad=True)
    loss = call(FusedLoss.apply, hidden, torch.randn(5, 3), torch.tensor([0, 1, 2, 3]))
    (first,) = torch.autograd.grad(loss, hidden, retain_graph=True)
    first = first.clone()
    (second,) = torch.autograd.grad(2 * loss, hidden)
    return first, second


def test_fault():
    """The second pass finds what the first one has changed."""
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients(lambda fn, *args: fn(*args))


@pytest.mark.parametrize("policy", [policies.full(), policies.none()], ids=["full", "none"])
def test_cure(policy):
    """In a checkpoint what a pass has changed is made again for the next one."""
    for _ in range(3):
        first, second = gradients(lambda fn, *args: checkpoint(fn, *args, policy=policy))
        assert torch.equal(2 * first, second)
