"""A recompute that does something else than its forward, or starts from something else."""

import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import torch
from ctxcarry_checkpoint import (
    CheckpointMutationError,
    RecomputeMismatchError,
    checkpoint,
    policies,
    region,
)
from torch import nn
from torch.utils.checkpoint import CheckpointError

import ctxcarry

sys.path.insert(0, str(Path(__file__).parent))
from blocks import POLICIES, compare

each_policy = pytest.mark.parametrize("policy", list(POLICIES.values()), ids=list(POLICIES))
# Whose recompute calls something whatever is kept.
RERUN = {name: policy for name, policy in POLICIES.items() if name in {"nothing kept", "some kept"}}
world = SimpleNamespace(way="forward")


@pytest.fixture(autouse=True)
def _forward_again():
    yield
    world.way = "forward"


def line_of(text):
    """Return the number of a line of this file."""
    lines = Path(__file__).read_text().splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if line.rstrip().endswith("# " + text)]
    return number


def extra(x, w):
    """Call one operator more."""
    h = (x @ w).sin()
    if world.way != "forward":
        h = h.exp()
    h = h.cos()  # extra
    return h * x


def fewer(x, w):
    """Call one operator less."""
    h = (x @ w).sin()
    if world.way == "forward":
        h = h.exp()  # fewer
    return h.cos() * x


def ends_early(x, w):
    """Lack the last operators."""
    h = (x @ w).sin()
    return h if world.way != "forward" else h.cos() * h.exp()


def number(x, w):
    """Use another number."""
    h = (x @ w) * (2 if world.way == "forward" else 3)  # number
    return h.sin() * x


def named_number(x, w):
    """Use another number, given by name."""
    h = torch.add(x @ w, x, alpha=2 if world.way == "forward" else 3)  # named number
    return h.sin() * x


def shape(x, w):
    """Use another shape."""
    h = (x @ w).sin()
    h = h if world.way == "forward" else h[:2]
    return (h.exp() * 2).sum() * x  # shape


def dtype(x, w):
    """Use another type."""
    kind = torch.float32 if world.way == "forward" else torch.float64
    return ((x @ w).sin().to(kind).exp() * 2).cos() * x


DIFFERENT = {
    extra: ["the forward called aten.cos.default, the recompute aten.exp.default", "extra"],
    fewer: ["the forward called aten.exp.default, the recompute aten.cos.default", "fewer"],
    number: ["aten.mul.Tensor had the arguments (2) in the forward, and (3)", "number"],
    named_number: ["aten.add.Tensor had the arguments (", "named number"],
    shape: ["the forward called aten.exp.default, the recompute aten.slice.Tensor", "shape"],
    dtype: ["the forward called aten.exp.default, the recompute aten._to_copy.default", None],
}


def started(block, policy, **options):
    """Take a step, and the forward of another one; have the world changed after it."""
    w = torch.linspace(-1, 1, 16).view(4, 4).requires_grad_()
    for _ in range(2):
        world.way = "forward"
        x = torch.ones(3, 4, requires_grad=True)
        y = checkpoint(block, x, w, policy=policy, **options).sum()
        world.way = "other"
        if _ == 0:
            world.way = "forward"
            y.backward()
            world.way = "other"
    return y


@pytest.mark.parametrize("policy", list(RERUN.values()), ids=list(RERUN))
@pytest.mark.parametrize("block", list(DIFFERENT), ids=lambda block: block.__name__)
@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "followed"])
def test_another_operator(block, policy, recorded):
    """The first operator that differs is named, with the line of the forward that called it."""
    text, line = DIFFERENT[block]
    if recorded:
        # With a policy of its own it is the first forward.
        policy = policies.first(policy)
        x = torch.ones(3, 4, requires_grad=True)
        w = torch.linspace(-1, 1, 16).view(4, 4).requires_grad_()
        y = checkpoint(block, x, w, policy=policy).sum()
        world.way = "other"
    else:
        y = started(block, policy)
    with pytest.raises(RecomputeMismatchError) as caught:
        y.backward()
    message = str(caught.value)
    assert text in message
    if line is not None:
        assert f"{__file__}:{line_of(line)} in {block.__name__}" in message
    assert "let it depend on its arguments" in message


def test_the_end_is_missing():
    """A recompute that ends too early says how far it came."""
    y = started(ends_early, policies.full())
    with pytest.raises(RecomputeMismatchError, match=r"ended after 2 of 5 operators, without "):
        y.backward()


def test_it_is_one_of_torchs_errors():
    """Who catches torch's error of a checkpoint catches this one."""
    y = started(extra, policies.full())
    with pytest.raises(CheckpointError):
        y.backward()
    y = started(extra, policies.full())
    with pytest.raises(ctxcarry.CtxCarryError):
        y.backward()


def test_a_backward_after_the_error():
    """An error leaves no trace: once the world is as it was, the same graph works."""
    y = started(extra, policies.full())
    with pytest.raises(RecomputeMismatchError):
        y.backward(retain_graph=True)
    world.way = "forward"
    y.backward()


def test_other_values():
    """In debug mode other values are found, and the operator that made them."""
    generator = torch.Generator()

    def block(x, w):
        h = torch.mul(x @ w, 2)
        noise = torch.rand(4, generator=generator)  # noise
        return (h + noise).sin() * x

    w = torch.ones(4, 4, requires_grad=True)
    y = checkpoint(block, torch.ones(3, 4, requires_grad=True), w, debug=True)
    with pytest.raises(RecomputeMismatchError) as caught:
        y.sum().backward()
    assert "aten.rand.generator returned other values" in str(caught.value)
    assert f"{__file__}:{line_of('noise')} in block" in str(caught.value)


@pytest.mark.parametrize("steps", [1, 2])
def test_the_module_is_named(steps):
    """The message says in which module the operator ran."""

    class Odd(nn.Module):
        def forward(self, x):
            return x.exp() if world.way == "forward" else x.cos()

    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), Odd()), nn.Tanh())
    policy = policies.first(policies.full())
    for _ in range(steps):
        world.way = "forward"
        y = checkpoint(model, torch.ones(3, 4), policy=policy).sum()
    world.way = "other"
    with pytest.raises(RecomputeMismatchError, match=r"aten.exp.default in module '1.1'"):
        y.backward()


def test_regions_do_not_hide_it():
    """Within a region it is the same."""

    def block(x, w):
        with region("odd"):
            return extra(x, w)

    with pytest.raises(RecomputeMismatchError):
        started(block, policies.full()).backward()


def test_the_context_that_differs_is_named():
    """What is another context where the backward runs is in the message."""
    local = threading.local()
    local.size = "big"
    sys.modules["engine_mismatch_local"] = SimpleNamespace(local=local)
    carrier = ctxcarry.ThreadLocalCarrier("engine_mismatch_local:local", fields=("size",))
    ctxcarry.register(carrier)
    try:
        y = started(extra, policies.full())
        local.size = "small"
        with pytest.raises(RecomputeMismatchError) as caught:
            y.backward()
    finally:
        ctxcarry.unregister(carrier.name)
        del sys.modules["engine_mismatch_local"]
    after = str(caught.value).partition("Carried contexts that differ")[2]
    assert "big" in after
    assert "small" in after


@pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="torch's guard of a device in Python ends the process while an error is raised",
)
@pytest.mark.parametrize("block", [extra, number], ids=["operator", "number"])
def test_on_the_thread_of_a_device(device, block):
    """The error comes out of ``backward()`` where a device's thread has met it."""
    w = device.put(torch.ones(4, 4)).requires_grad_()
    y = checkpoint(block, device.put(torch.ones(3, 4)).requires_grad_(), w).sum()
    world.way = "other"
    with pytest.raises(RecomputeMismatchError, match="differs from the forward at operator"):
        y.backward()


@pytest.mark.parametrize("policy", list(RERUN.values()), ids=list(RERUN))
def test_an_argument_that_was_changed(policy):
    """A recompute does not start from an input that was written to."""

    def block(x, w):
        return ((x @ w).sin() * x).cos()

    for _ in range(3):
        base = torch.ones(3, 4, requires_grad=True)
        x = base * 2
        w = torch.ones(4, 4, requires_grad=True)
        y = checkpoint(block, x, w, policy=policy).sum()
        with torch.no_grad():
            x.add_(1)
        with pytest.raises(CheckpointMutationError, match=r"argument 0 .*\[3, 4\] float32"):
            y.backward()


@pytest.mark.parametrize("named", [True, False])
def test_an_argument_in_a_structure_that_was_changed(named):
    """Also one in a list or given by name."""
    x, other = torch.ones(4, requires_grad=True), torch.ones(4)

    def block(x, rest):
        return (x * rest[0]).sin().exp()

    y = checkpoint(block, x, rest=[other]) if named else checkpoint(block, x, [other])
    other.mul_(2)
    with pytest.raises(CheckpointMutationError, match="argument 1"):
        y.sum().backward()


@each_policy
def test_a_weight_that_was_changed(policy):
    """A weight that the backward itself needs is looked at as autograd looks at it."""
    x = torch.ones(3, 4, requires_grad=True)
    w = torch.ones(4, 4, requires_grad=True)
    y = checkpoint(lambda t: (t @ w).sin() @ w, x, policy=policy).sum()
    with torch.no_grad():
        w.add_(1)
    with pytest.raises((CheckpointMutationError, RuntimeError), match=r"in.?place"):
        y.backward()


@each_policy
def test_a_result_that_the_caller_changes(policy):
    """What the caller does in place to what a block returns does not matter to the block."""
    weight = torch.randn(4, 4, requires_grad=True)

    def block(x):
        return (x @ weight).tanh()

    x = torch.randn(3, 4, requires_grad=True)

    def run(call):
        h = call(block, x)
        if "checkpoint" in repr(call):
            h.add_(1)
        else:
            h = h + 1
        return [h, *torch.autograd.grad(h.sin().sum(), [x, weight])]

    compare(run, policy)


@each_policy
def test_the_residual_is_added_in_place(policy):
    """So with several blocks, each of which returns what it saves."""
    weight = torch.randn(4, 4, requires_grad=True)

    def block(x):
        return (x @ weight).sigmoid().exp()

    def run(call):
        first = torch.randn(3, 4, requires_grad=True)
        x = first
        for _ in range(3):
            h = call(block, x)
            x = h.add_(x) if "checkpoint" in repr(call) else h + x
        return torch.autograd.grad(x.sum(), [first, weight])

    compare(run, policy)


@each_policy
@pytest.mark.parametrize("early_stop", [True, False])
def test_what_the_block_changes_after_it_was_needed(policy, early_stop):
    """Autograd would raise an error; a recompute is right or raises one too."""

    def block(x, change):
        h = x * 2
        y = h.sin()
        return y.exp() * (h.add_(1) if change else h + 1).cos()

    for _ in range(3):
        x = torch.linspace(-1, 1, 8).requires_grad_()
        (expected,) = torch.autograd.grad(block(x, change=False).sum(), x)
        y = checkpoint(block, x, change=True, policy=policy, early_stop=early_stop).sum()
        try:
            (found,) = torch.autograd.grad(y, x)
        except (CheckpointMutationError, RuntimeError) as error:
            assert "in place" in str(error) or "inplace" in str(error)  # noqa: PT017
        else:
            assert torch.equal(expected, found)
