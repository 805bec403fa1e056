"""Blocks of the kinds that models have: bit by bit what they give without a checkpoint."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))
import blocks
from blocks import POLICIES, assert_same, train

each_policy = pytest.mark.parametrize("policy", list(POLICIES.values()), ids=list(POLICIES))
KINDS = {
    "llama": blocks.Llama,
    "experts": blocks.Mixture,
    "experts left out": lambda: blocks.Mixture(leave_out=True),
    "dropout": blocks.Dropouts,
    "in place": blocks.InPlace,
    "batch norm": blocks.Normed,
    "autograd function": blocks.Scaled,
    "library operator": blocks.Squared,
}


def batches(kind, steps=4):
    """Return different inputs for each step."""
    generator = torch.Generator().manual_seed(3)
    shape = (2, 5, 16) if kind == "llama" else (10, 8)
    return [[torch.randn(shape, generator=generator)] for _ in range(steps)]


def made(kind):
    """Make a block, the same each time."""
    torch.manual_seed(1)
    return KINDS[kind]()


@each_policy
@pytest.mark.parametrize("kind", list(KINDS))
def test_gradients(kind, policy):
    """Output, gradients and the generator are the same, in the first step and later ones."""
    expected = train(made(kind), batches(kind))
    assert_same(expected, train(made(kind), batches(kind), policy))


@each_policy
@pytest.mark.parametrize("kind", ["experts", "experts left out"])
def test_an_expert_without_rows(kind, policy):
    """A router that changes its mind, up to an expert that gets nothing, changes nothing."""

    def before(module, step):
        with torch.no_grad():
            module.router.bias.zero_()
            if step % 2:
                module.router.bias[step // 2] = -1e9

    expected = train(made(kind), batches(kind, 6), before=before)
    assert_same(expected, train(made(kind), batches(kind, 6), policy, before=before))


@each_policy
def test_memory_from_outside(policy):
    """A write to memory from outside the block is done again, to what it was."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(8, 8)
            self.room = torch.zeros(10, 8)

        def forward(self, x):
            with torch.no_grad():
                self.room.copy_(x * 2)
            return (self.first(x) * self.room.exp()).tanh() * x

    def block():
        torch.manual_seed(1)
        return Block()

    assert_same(train(block(), batches("")), train(block(), batches(""), policy))


def test_statistics_of_a_batch_norm():
    """A recompute does not count as another batch."""
    expected, found = made("batch norm"), made("batch norm")
    train(expected, batches("batch norm"))
    train(found, batches("batch norm"), POLICIES["nothing kept"])
    for (name, buffer), other in zip(expected.named_buffers(), found.buffers()):
        assert torch.equal(buffer, other), name


@each_policy
def test_early_stop_off(policy):
    """The recompute of the whole block gives the same."""
    expected = train(made("dropout"), batches("dropout"))
    assert_same(expected, train(made("dropout"), batches("dropout"), policy, early_stop=False))


@each_policy
def test_debug(policy):
    """Comparing all values gives the same."""
    expected = train(made("dropout"), batches("dropout"))
    assert_same(expected, train(made("dropout"), batches("dropout"), policy, debug=True))
