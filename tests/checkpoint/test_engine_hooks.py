"""Hooks for saved tensors, around a checkpoint and within it (pytorch#190581)."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from ctxcarry_checkpoint import checkpoint, policies
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

sys.path.insert(0, str(Path(__file__).parent))
from blocks import POLICIES, Dropouts, InPlace, Scaled, compare

each_policy = pytest.mark.parametrize("policy", list(POLICIES.values()), ids=list(POLICIES))


@each_policy
@pytest.mark.parametrize("kind", [Dropouts, InPlace, Scaled])
def test_hooks_around(kind, policy):
    """Whatever hooks make of what is kept, the gradients are the same."""
    torch.manual_seed(2)
    model = kind()

    def run(call):
        x = torch.randn(4, 8, requires_grad=True)
        with saved_tensors_hooks(lambda t: t.clone().numpy(), torch.from_numpy):
            y = call(model, x)
        return torch.autograd.grad(y.sum(), [x, *model.parameters()])

    compare(run, policy)


@each_policy
def test_save_on_cpu(policy):
    """So with torch's own."""
    model = Dropouts()

    def run(call):
        x = torch.randn(4, 8, requires_grad=True)
        with save_on_cpu():
            y = call(model, x)
        return torch.autograd.grad(y.sum(), [x, *model.parameters()])

    compare(run, policy)


@each_policy
def test_retain_graph_within_hooks(policy):
    """Hooks are asked for what they have as often as there are passes."""
    model = Dropouts()

    def run(call):
        x = torch.randn(4, 8, requires_grad=True)
        with save_on_cpu():
            y = call(model, x).sum()
        first = torch.autograd.grad(y, [x, *model.parameters()], retain_graph=True)
        return [*first, *torch.autograd.grad(y, [x, *model.parameters()])]

    compare(run, policy)


@pytest.mark.parametrize("step", range(3))
@pytest.mark.parametrize("kept", [True, False])
def test_what_hooks_see(kept, step):
    """Hooks see the arguments, and what the policy keeps: in the forward and in the backward."""
    packed, unpacked = [], []
    w = torch.ones(5, 7, requires_grad=True)

    def unpack(tensor):
        unpacked.append(tuple(tensor.shape))
        return tensor

    policy = policies.save(torch.ops.aten.mm) if kept else policies.full()
    for _ in range(step + 1):
        packed.clear()
        unpacked.clear()
        x = torch.ones(3, 5, requires_grad=True)
        with saved_tensors_hooks(lambda t: packed.append(tuple(t.shape)) or t, unpack):
            y = checkpoint(lambda t: (t @ w).sin().exp().sum(), x, policy=policy)
        y.backward()
    assert (3, 5) in packed
    assert ((3, 7) in packed) is kept
    assert ((3, 7) in unpacked) is kept


@each_policy
def test_hooks_within(policy):
    """Hooks of the block are called for what they surround, in the recompute as well."""
    weight = torch.randn(8, 8, requires_grad=True)

    def block(x):
        h = (x @ weight).exp()
        with saved_tensors_hooks(lambda t: t * 2, lambda t: t / 2):
            h = h.sin().tanh()
        with save_on_cpu():
            return (h @ weight).cos() * h

    def run(call):
        x = torch.randn(4, 8, requires_grad=True)
        return torch.autograd.grad(call(block, x).sum(), [x, weight])

    compare(run, policy)


def test_hooks_around_the_backward():
    """Hooks that are on in the backward only do not get at a recompute."""
    seen = []

    def fail(tensor):
        seen.append(tensor)
        return tensor

    x = torch.ones(3, requires_grad=True)
    y = checkpoint(lambda t: t.sin().exp(), x).sum()
    with saved_tensors_hooks(fail, fail):
        y.backward()
    assert seen == []


def test_hooks_that_store_less():
    """Gradients follow what hooks have made of the arguments, as without a checkpoint."""

    def half(tensor):
        return tensor.to(torch.float16)

    for _ in range(3):
        x = torch.linspace(0, 1, 7).requires_grad_()
        with saved_tensors_hooks(half, lambda t: t.to(torch.float32)):
            y = checkpoint(torch.sin, x)
        (found,) = torch.autograd.grad(y.sum(), x)
        assert torch.equal(found, half(x).float().cos())
