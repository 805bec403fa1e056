"""A block that is another one from step to step: the forward that was recorded does not bind it."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from ctxcarry_checkpoint import Action, Policy, policies
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))
import blocks
from blocks import POLICIES, assert_same, compare, train

each_policy = pytest.mark.parametrize("policy", list(POLICIES.values()), ids=list(POLICIES))


class Deep(nn.Module):
    """Two layers, random numbers, and a norm."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.norm, self.dropout = nn.LayerNorm(8), nn.Dropout(0.2)

    def forward(self, x):
        """Run."""
        return self.second(self.dropout(self.norm(self.first(x).sin()))).tanh() * x


def freeze_some(module, step):
    """Freeze another parameter in each step, and all of them in the last."""
    for number, parameter in enumerate(module.parameters()):
        parameter.requires_grad_(step < 6 and (number + step) % 3 != 0)


def alternate(module, step):
    """Train in every second step."""
    module.train(step % 2 == 0)


def other_dropout(module, step):
    """Change the probability, to 0 and 1 as well."""
    for each in module.modules():
        if isinstance(each, nn.Dropout):
            each.p = [0.2, 0.0, 0.5, 1.0, 0.0, 0.2, 0.2][step]


def other_dtype(module, step):
    """Change the type of the parameters."""
    module.to([torch.float32, torch.float64, torch.bfloat16][step % 3])


CHANGES = {
    "frozen": freeze_some,
    "train and eval": alternate,
    "dropout": other_dropout,
    "dtype": other_dtype,
}


@each_policy
@pytest.mark.parametrize("change", list(CHANGES))
def test_a_module_that_changes(change, policy):
    """Parameters frozen, modes, probabilities and types changed between steps."""
    batches = [[torch.randn(6, 8)] for _ in range(7)]
    if change == "dtype":
        kinds = [torch.float32, torch.float64, torch.bfloat16]
        batches = [[x.to(kinds[step % 3])] for step, (x,) in enumerate(batches)]

    def model():
        torch.manual_seed(4)
        return Deep()

    expected = train(model(), batches, before=CHANGES[change])
    assert_same(expected, train(model(), batches, policy, before=CHANGES[change]))


@each_policy
def test_shapes_that_change(policy):
    """Inputs of other sizes, also those seen before."""

    def model():
        torch.manual_seed(4)
        return blocks.Llama()

    batches = [[torch.randn(b, s, 16)] for b, s in [(2, 4), (1, 7), (2, 4), (3, 1), (1, 7)]]
    assert_same(train(model(), batches), train(model(), batches, policy))


@each_policy
def test_two_ways_in_turn(policy):
    """A block that goes one way or the other, and changes within the way."""
    weight = torch.randn(8, 8, requires_grad=True)

    def block(x, way):
        h = (x @ weight).sin()
        if way == 0:
            h = h.exp() @ weight
        elif way == 1:
            h = h.cos().mul_(2).relu_() @ weight
        else:
            h = torch.nn.functional.dropout(h, 0.5)
        return h.sigmoid() * (x if way else h)

    def run(call):
        found = []
        for way in (0, 1, 0, 1, 2, 2, 0, 1, 2):
            x = torch.randn(4, 8, requires_grad=True)
            found += torch.autograd.grad(call(block, x, way).sum(), [x, weight])
        return found

    compare(run, policy, times=2)


@each_policy
def test_more_ways_than_are_kept(policy):
    """Past the limit of ways that are remembered a block is as right as before."""
    weight = torch.randn(4, 4, requires_grad=True)

    def block(x, times):
        for number in range(times):
            x = (x @ weight).sin() if number % 2 else (x * 0.5).cos().relu_()
        return x * x

    def run(call):
        found = []
        for times in (*range(1, 12), 3, 11, 5):
            x = torch.randn(3, 4, requires_grad=True)
            found += torch.autograd.grad(call(block, x, times).sum(), x)
        return found

    compare(run, policy, times=2)


@each_policy
def test_numbers_that_change(policy):
    """A number that a block takes is that of its own forward."""

    def block(x, factor, *, shift):
        return (x * factor + shift).sin() * (x + factor).exp()

    def run(call):
        found = []
        for factor in (2.0, 3.0, -1.0, 2.0):
            x = torch.randn(4, 8, requires_grad=True)
            found += torch.autograd.grad(call(block, x, factor, shift=factor / 2).sum(), x)
        return found

    compare(run, policy)


def test_numbers_in_forwards_at_once():
    """Also where several forwards wait for their backward."""

    def block(x, factor):
        return (x * factor).sin().exp()

    def run(call):
        x = torch.randn(4, 8, requires_grad=True)
        outputs = [call(block, x, factor) for factor in (1.0, 2.0, 3.0)]
        return [torch.autograd.grad(y.sum(), x)[0] for y in outputs]

    compare(run, policies.full())


class Turns(Policy):
    """Decides otherwise in each forward."""

    static = False

    def __init__(self):
        self.forward = 0

    def start(self):
        """Begin a forward."""
        self.forward += 1
        return Decider(self.forward)


class Decider:
    """Keeps what its number says."""

    def __init__(self, number):
        self.number = number

    def decide(self, call):
        """Decide by number and place."""
        return Action.SAVE if (call.index + self.number) % 3 == 0 else None


def test_a_policy_that_changes_its_mind():
    """What is kept of one forward does not decide of the next."""

    def model():
        torch.manual_seed(4)
        return Deep()

    batches = [[torch.randn(6, 8)] for _ in range(7)]
    assert_same(train(model(), batches), train(model(), batches, Turns()))


def test_other_policies_for_one_block():
    """Each policy has what it knows of a block for itself."""

    def model():
        torch.manual_seed(4)
        return Deep()

    batches = [[torch.randn(6, 8)] for _ in range(2)]
    expected = train(model(), batches)
    for policy in (*POLICIES.values(), [torch.ops.aten.addmm], None, *POLICIES.values()):
        assert_same(expected, train(model(), batches, policy or policies.full()))
