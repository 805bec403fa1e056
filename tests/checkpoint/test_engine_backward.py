"""Backward passes of every kind: repeated, in parts, out of order, within one another."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from ctxcarry_checkpoint import checkpoint, policies
from torch import nn
from torch.autograd import grad
from torch.utils.checkpoint import checkpoint as torch_checkpoint

sys.path.insert(0, str(Path(__file__).parent))
from blocks import POLICIES, Dropouts, Scaled, compare

each_policy = pytest.mark.parametrize("policy", list(POLICIES.values()), ids=list(POLICIES))


@pytest.fixture
def model():
    """Return a block with random numbers, and one with a backward of its own behind it."""
    torch.manual_seed(2)
    return nn.Sequential(Dropouts(), Scaled())


def leaf(*shape):
    """Return random numbers that require a gradient."""
    return torch.randn(shape).requires_grad_()


def grads(model, x):
    """Return the gradients, and forget them."""
    found = [p.grad for p in model.parameters()] + [x.grad]
    model.zero_grad()
    return found


@each_policy
def test_retain_graph(policy, model):
    """Several passes through one graph add up; one after the last fails as without us."""

    def run(call):
        x = leaf(4, 8)
        y = call(model, x).sum()
        y.backward(retain_graph=True)
        y.backward(retain_graph=True)
        y.backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            y.backward()
        return grads(model, x)

    compare(run, policy)


@each_policy
def test_two_outputs_one_after_the_other(policy, model):
    """The gradients of each output are those of that output."""

    def block(x):
        h = model[0](x)
        return model[1](h), (h * x).exp()

    def run(call):
        x = leaf(4, 8)
        one, other = call(block, x)
        parameters = list(model[0].parameters())
        return [
            *grad(one.sum(), [x, *parameters], retain_graph=True),
            *grad(other.sum(), [x, *parameters]),
        ]

    compare(run, policy)


@each_policy
def test_the_second_output_is_dropped(policy, model):
    """An output that nobody uses does not matter."""

    def block(x):
        h = model[0](x)
        return (h * x).exp(), model[1](h)

    def run(call):
        x = leaf(4, 8)
        return grad(call(block, x)[0].sum(), [x, *model[0].parameters()])

    compare(run, policy)


@each_policy
def test_input_first_and_weights_later(policy, model):
    """A backward in two parts, as pipelines with few bubbles have it."""

    def run(call):
        x = leaf(4, 8)
        y = call(model, x).sum()
        of_input = grad(y, x, retain_graph=True)
        return [*of_input, *grad(y, list(model.parameters()))]

    compare(run, policy)


@each_policy
def test_parts_as_a_pipeline_has_them(policy, model):
    """The parts that torch's own pipelines make give the same."""
    backward = pytest.importorskip("torch.distributed.pipelining._backward")

    def run(call):
        x = leaf(4, 8)
        y = call(model, x)
        weights = list(model.parameters())
        of_input, groups = backward.stage_backward_input(
            [y], [torch.ones_like(y)], [x], iter(weights)
        )
        backward.stage_backward_weight(iter(weights), groups)
        found = [*of_input, *(p.grad for p in weights)]
        model.zero_grad()
        return found

    compare(run, policy)


@each_policy
def test_a_saved_tensor_that_somebody_looks_at(policy):
    """Looking at what a node keeps, twice and outside of any pass, shows it."""
    weight = torch.randn(8, 8)

    def run(call):
        x = leaf(4, 8)
        y = call(lambda t: (t @ weight).exp().sin(), x)
        looks = [y.grad_fn._saved_self for _ in range(2)]
        return [*looks, *grad(y.sum(), x)]

    compare(run, policy)


@each_policy
def test_microbatches_out_of_order(policy, model):
    """Forwards in flight at once do not disturb each other, in whatever order they end."""

    def run(call):
        xs = [leaf(size, 8) for size in (4, 4, 3)]
        ys = [call(model, x).sum() for x in xs]
        for number in (2, 0, 1):
            ys[number].backward()
        return [*(x.grad for x in xs), *grads(model, xs[0])]

    compare(run, policy)


def test_microbatches_of_several_policies(model):
    """Nor do those of other policies."""
    kinds = list(POLICIES.values())

    def run(call):
        xs = [leaf(4, 8) for _ in kinds]
        plain = "checkpoint" not in repr(call)
        ys = [model(x) if plain else checkpoint(model, x, policy=p) for x, p in zip(xs, kinds)]
        for y in reversed(ys):
            y.sum().backward()
        return [*(x.grad for x in xs), *grads(model, xs[0])]

    compare(run, policies.full())


@each_policy
def test_blocks_after_each_other(policy, model):
    """What one block returns is what the next one starts from."""

    def run(call):
        x = leaf(4, 8)
        h = x
        for _ in range(3):
            h = call(model[1], call(model[0], h))
        h.sum().backward()
        return grads(model, x)

    compare(run, policy)


@each_policy
def test_within_one_another(policy, model):
    """A block in a block in a block: each has its own recompute."""

    def run(call):
        def inner(t):
            return model[1](t).sin()

        def middle(t):
            return call(inner, t.cos()) * t

        def outer(t):
            return call(middle, model[0](t)) + call(middle, t)

        x = leaf(4, 8)
        call(outer, x).sum().backward()
        return grads(model, x)

    compare(run, policy)


@each_policy
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_ours_within_torchs(policy, use_reentrant, model):
    """Within a checkpoint of torch's, which gives a saved tensor once only, ours is the same."""

    def run(call):
        x = leaf(4, 8)

        def outer(t):
            return call(model[0], t.sin()).cos()

        if "checkpoint" in repr(call):
            y = torch_checkpoint(outer, x, use_reentrant=use_reentrant)
        else:
            y = outer(x)
        y.sum().backward()
        return grads(model[0], x)

    compare(run, policy)


@each_policy
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_torchs_within_ours(policy, use_reentrant, model):
    """And a checkpoint of torch's within ours."""

    def run(call):
        def outer(t):
            h = t.sin()
            if "checkpoint" in repr(call):
                return torch_checkpoint(model[0], h, use_reentrant=use_reentrant).cos()
            return model[0](h).cos()

        x = leaf(4, 8)
        call(outer, x).sum().backward()
        return grads(model[0], x)

    compare(run, policy)


@each_policy
def test_a_gradient_taken_in_the_forward(policy, model):
    """A block that derives something itself, as force fields do."""

    def block(x):
        with torch.enable_grad():
            energy = model[1](x).pow(2).sum()
            (force,) = grad(energy, x, create_graph=True)
        return force.sin() * x

    def run(call):
        x = leaf(4, 8)
        call(block, x).sum().backward()
        return grads(model[1], x)

    compare(run, policy)


@each_policy
def test_a_gradient_that_ends_in_the_forward(policy, model):
    """The same without a graph of its own."""

    def block(x):
        inner = x.detach().requires_grad_()
        (force,) = grad(model[1](inner).pow(2).sum(), inner)
        return force * model[1](x).sin()

    def run(call):
        x = leaf(4, 8)
        call(block, x).sum().backward()
        return grads(model[1], x)

    compare(run, policy)


@each_policy
@pytest.mark.parametrize("early_stop", [True, False])
def test_second_derivatives(policy, early_stop):
    """A gradient of a gradient is either right or an error, and never silently wrong."""
    weight = torch.randn(8, 8, requires_grad=True)

    def block(t):
        return (t @ weight).exp().sin()

    def run(call):
        x = leaf(4, 8)
        (first,) = grad(call(block, x).sum(), x, create_graph=True)
        return [first, *grad(first.pow(2).sum(), [x, weight])]

    compare(run, policy, early_stop=early_stop)


@each_policy
def test_many_passes_within_one_another(policy):
    """Past 60 of them autograd goes on on another thread."""
    weight = torch.randn(4, 4, requires_grad=True)

    class Deeper(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, depth, call, rows):
            ctx.rest = depth, call, rows
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            depth, call, rows = ctx.rest
            if depth:
                with torch.enable_grad():
                    rows.append(nested(call, depth - 1, rows))
            return grad, None, None, None

    def block(t, depth, call, rows):
        return Deeper.apply((t @ weight).sin(), depth, call, rows).exp()

    def nested(call, depth, rows):
        x = torch.ones(2, 4, requires_grad=True)
        call(block, x, depth, call, rows).sum().backward()
        return x.grad

    def run(call):
        rows = []
        rows.append(nested(call, 65, rows))
        rows.append(weight.grad)
        weight.grad = None
        return rows

    compare(run, policy, times=2)


def test_an_unused_graph_and_an_error_in_the_block():
    """A block that raises raises, and the next call is as if nothing had been."""

    def block(x, *, fail):
        h = x.sin()
        if fail:
            raise ValueError("in the block")
        return h.cos()

    def run(call):
        x = leaf(4)
        with pytest.raises(ValueError, match="in the block"):
            call(block, x, fail=True)
        return grad(call(block, x, fail=False).sum(), x)

    compare(run, policies.none())
