"""What a block may take and return."""

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("torch")

import torch
from ctxcarry_checkpoint import checkpoint, policies
from ctxcarry_checkpoint._checkpoint import _site
from torch import nn
from torch.autograd import grad

sys.path.insert(0, str(Path(__file__).parent))
from blocks import POLICIES, Dropouts, compare

each_policy = pytest.mark.parametrize("policy", list(POLICIES.values()), ids=list(POLICIES))


class Pair(NamedTuple):
    """Two tensors."""

    left: torch.Tensor
    right: torch.Tensor


@dataclass
class Result:
    """A tensor, which pytree does not know of, and a number."""

    hidden: torch.Tensor
    steps: int


MAKE = {
    "tuple": lambda a, b: (a, b, None),
    "list": lambda a, b: [a, [b]],
    "dict": lambda a, b: {"left": a, "right": {"right": b}},
    "named tuple": Pair,
    "dataclass": lambda a, b: (Result(a, 3), Result(b, 4)),
}
TAKE = {
    "tuple": lambda made: made[:2],
    "list": lambda made: (made[0], made[1][0]),
    "dict": lambda made: (made["left"], made["right"]["right"]),
    "named tuple": tuple,
    "dataclass": lambda made: (made[0].hidden, made[1].hidden),
}


@each_policy
@pytest.mark.parametrize("kind", list(MAKE))
def test_what_it_returns(kind, policy):
    """Tensors come back in what the block has put them in."""

    def block(x):
        h = x.sin().exp()
        return MAKE[kind](h * x, h.cos())

    def run(call):
        x = torch.randn(4, requires_grad=True)
        left, right = TAKE[kind](call(block, x))
        return grad((left * right).sum(), x)

    compare(run, policy)


@each_policy
def test_nothing_but_a_closure(policy):
    """A block without arguments has its tensors from around it."""
    weight = torch.randn(4, 4, requires_grad=True)

    def run(call):
        return grad(call(lambda: (weight @ weight).sin().exp()).sum(), weight)

    compare(run, policy)


@each_policy
def test_arguments_without_gradients(policy):
    """Only the parameters require any."""
    torch.manual_seed(2)
    model = Dropouts()

    def run(call):
        return grad(call(model, torch.randn(4, 8)).sum(), list(model.parameters()))

    compare(run, policy)


@each_policy
def test_arguments_in_structures(policy):
    """Tensors in lists and dictionaries, positional and by name, and what is no tensor."""

    def block(x, pair, *, named, factor, flag=None):
        h = (x * pair[0]).sin() * named["a"]["b"].exp()
        return h * factor if flag else h + pair[1]

    def run(call):
        x, a, b, c = (torch.randn(4, requires_grad=True) for _ in range(4))
        found = call(block, x, [a, b], named={"a": {"b": c}}, factor=2.0, flag="yes")
        return grad(found.sum(), [x, a, c])

    compare(run, policy)


@each_policy
def test_results_that_require_no_gradient(policy):
    """A block with a result that is an integer, and one without a graph."""

    def block(x):
        h = x.sin().exp()
        return h, h.argmax(), h.detach() * 2

    def run(call):
        x = torch.randn(4, requires_grad=True)
        h, most, detached = call(block, x)
        assert not detached.requires_grad
        return [most, *grad((h * detached).sum() + h[most], x)]

    compare(run, policy)


@each_policy
def test_an_argument_that_comes_back(policy):
    """A block that returns its argument, and a view of it."""

    def block(x):
        return x, x.view(2, 2), x.sin().exp()

    def run(call):
        x = torch.randn(4, requires_grad=True)
        same, view, made = call(block, x * 1)
        return grad((same * made).sum() + view[0, 1], x)

    compare(run, policy)


@each_policy
@pytest.mark.parametrize("kind", ["partial", "method", "callable", "lambda", "module"])
def test_what_a_block_may_be(kind, policy):
    """Whatever can be called."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.linspace(-1, 1, 16).view(4, 4))

        def forward(self, x):
            return (x @ self.weight).sin().exp()

        def method(self, x):
            return (x @ self.weight).cos().exp()

    class Callable:
        def __init__(self, module):
            self.module = module

        def __call__(self, x):
            return self.module(x).cos()

    module = Block()

    def run(call):
        fn = {
            "partial": partial(module.forward),
            "method": module.method,
            "callable": Callable(module),
            "lambda": lambda x: module(x),  # noqa: PLW0108 - what is tested
            "module": module,
        }[kind]
        x = torch.randn(3, 4, requires_grad=True)
        return grad(call(fn, x).sum(), [x, module.weight])

    compare(run, policy)


@each_policy
def test_no_grad(policy):
    """Without gradients a block is called, once and as it is."""
    calls = []

    def block(x):
        calls.append(1)
        return x.sin()

    x = torch.randn(4, requires_grad=True)
    with torch.no_grad():
        assert torch.equal(checkpoint(block, x, policy=policy), x.sin())
    with torch.inference_mode():
        assert torch.equal(checkpoint(block, x, policy=policy), x.sin())
    assert len(calls) == 2


@each_policy
def test_no_grad_within(policy):
    """A block may switch gradients off for a part of it."""

    def block(x):
        with torch.no_grad():
            scale = x.abs().amax().exp()
        return (x * scale).sin() / scale

    def run(call):
        x = torch.randn(4, requires_grad=True)
        return grad(call(block, x).sum(), x)

    compare(run, policy)


@each_policy
def test_nothing_requires_gradients(policy):
    """A block of which nothing requires a gradient returns what requires none."""
    x = torch.randn(4)
    for _ in range(3):
        y = checkpoint(lambda t: t.sin().exp(), x, policy=policy)
        assert not y.requires_grad
        assert torch.equal(y, x.sin().exp())


@each_policy
def test_numbers_read_in_the_block(policy):
    """What ``item()`` gives decides what follows, in the recompute as in the forward."""

    def block(x):
        size = int((x > 0).sum())
        kept = x[x > 0]
        return torch.cat([kept.sin() * size, x[:1].exp() * x.sum().item()])

    def run(call):
        x = torch.randn(9, requires_grad=True)
        return grad(call(block, x).sum(), x)

    compare(run, policy, times=5)


def test_what_is_no_block():
    """An error says what was given."""
    with pytest.raises(TypeError, match=r"takes a callable, not 3 of type int"):
        checkpoint(3)
    with pytest.raises(TypeError, match="policies"):
        checkpoint(torch.sin, torch.ones(2), policy=3)
    with pytest.raises(TypeError, match="call it"):
        checkpoint(torch.sin, torch.ones(2), policy=policies.full)


def test_what_is_known_of_a_block_is_its_own():
    """Containers of other parts and partials of other functions are other blocks."""
    policy = policies.full()
    blocks = [
        nn.Sequential(nn.Linear(4, 4)),
        nn.Sequential(nn.Linear(4, 4), nn.Tanh()),
        partial(nn.functional.softmax, dim=-1),
        partial(nn.functional.layer_norm, normalized_shape=[4]),
        lambda x: x.sin(),
    ]
    sites = [_site(block, policy) for block in blocks]
    assert len(set(map(id, sites))) == len(blocks)
    assert [_site(block, policy) for block in blocks] == sites
    assert _site(nn.Sequential(nn.Linear(8, 8)), policy) is sites[0]
    assert _site(blocks[0], policies.full()) is not sites[0]
