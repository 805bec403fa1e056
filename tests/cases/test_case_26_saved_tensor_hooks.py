"""Case 26 (pytorch#190581): saved-tensor hooks do not see what a selective checkpoint saves."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from ctxcarry_checkpoint import checkpoint as our_checkpoint
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

MM = torch.ops.aten.mm.default


def seen(checkpointed, steps=1):
    """Return the shapes that hooks around ``(x @ weight).sin()`` see, and its gradient."""
    weight = torch.ones(5, 7, requires_grad=True)
    for _ in range(steps):
        shapes = []

        def pack(tensor, shapes=shapes):
            shapes.append(tuple(tensor.shape))
            return tensor.numpy(force=True)

        x = torch.ones(3, 5, requires_grad=True)
        with saved_tensors_hooks(pack, torch.from_numpy):
            y = checkpointed(lambda t: (t @ weight).sin().exp().sum(), x)
        (found,) = torch.autograd.grad(y, x)
    plain = torch.ones(3, 5, requires_grad=True)
    (expected,) = torch.autograd.grad((plain @ weight).sin().exp().sum(), plain)
    assert torch.equal(expected, found)
    return shapes


def test_fault():
    """They see what comes in, and not the product that is saved."""

    def torchs(fn, x):
        return checkpoint(
            fn,
            x,
            use_reentrant=False,
            context_fn=lambda: create_selective_checkpoint_contexts([MM]),
        )

    assert (3, 7) not in seen(torchs)


@pytest.mark.parametrize("steps", [1, 3])
def test_cure(steps):
    """They see both, and may put them where they like."""
    shapes = seen(lambda fn, x: our_checkpoint(fn, x, policy=[MM]), steps)
    assert (3, 7) in shapes
    assert (3, 5) in shapes


def test_cure_without_saving():
    """What is not saved they do not see."""
    assert (3, 7) not in seen(our_checkpoint)
