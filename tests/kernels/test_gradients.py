"""Which gradients are asked for, by whom, and how often."""

import pytest
import torch
from table import DEVICE, check, check_gradient, problem
from torch.utils.checkpoint import checkpoint

NAMES = ("hidden", "weight", "bias")


@pytest.mark.parametrize("wanted", [["hidden"], ["weight"], ["bias"], ["hidden", "bias"]], ids=str)
def test_some_of_the_inputs(wanted, way):
    """Who asks for no gradient gets none, and the others' is right."""
    given = problem(way, bias=True)
    want = given.expected()
    leaves = dict(zip(NAMES, given.leaves()))
    for name in set(NAMES) - set(wanted):
        leaves[name].requires_grad_(False)
    out = given.call(*leaves.values())
    torch.autograd.backward(out, (given.dlogp, given.dentropy))
    for name, right in zip(NAMES, want[2:5]):
        if name in wanted:
            check_gradient(leaves[name].grad, right, way.dtype)
        else:
            assert leaves[name].grad is None


@pytest.mark.parametrize("missing", ["dlogp", "dentropy"])
def test_one_of_the_results(missing, way):
    """A gradient of only one result is the gradient of only that."""
    given = problem(way, bias=True)
    setattr(given, missing, None)
    check(given)


def test_none_of_the_inputs(way):
    """Nothing is recorded without a gradient to make: under no_grad, or of detached tensors."""
    given = problem(way)
    want = given.run()
    plain = given.call(given.hidden, given.weight, None)
    hidden, weight, _ = given.leaves()
    with torch.no_grad():
        silent = given.call(hidden, weight, None)
    with torch.inference_mode():
        inferred = given.call(given.hidden, given.weight, None)
    for out in (plain, silent, inferred):
        assert not out.logprobs.requires_grad
        assert not out.entropy.requires_grad
        assert (out.logprobs - want.logprobs).abs().max() <= 1e-5
        assert (out.entropy - want.entropy).abs().max() <= 1e-5


def test_expanded_gradient(way):
    """The gradient that sum() gives, one number with a stride of 0, is as good as its copy."""
    given = problem(way)
    given.dlogp = torch.tensor(0.5, device=DEVICE).expand(9)
    given.dentropy = torch.tensor([-2.0], device=DEVICE).expand(9)
    check(given)


def test_gradient_with_gaps(way):
    """Gradients that come with gaps in memory are read as they are."""
    given = problem(way)
    given.dlogp = torch.stack([given.dlogp, given.dlogp + 9], dim=1)[:, 0]
    check(given)


def test_second_derivative(way):
    """There is none: a RuntimeError says so, and what to use; the first is right."""
    given = problem(way)
    want = given.expected()
    hidden, weight, _ = given.leaves()
    out = given.call(hidden, weight, None)
    (first,) = torch.autograd.grad(out, hidden, (given.dlogp, given.dentropy), create_graph=True)
    check_gradient(first.detach(), want.dhidden, way.dtype)
    with pytest.raises(RuntimeError, match=r"no second derivative.*log_softmax"):
        first.sum().backward()


def test_backward_twice(way):
    """A graph that is kept gives the same again, and one that is not says that it is gone."""
    given = problem(way, bias=True)
    want = given.expected()
    leaves = given.leaves()
    out = given.call(*leaves)
    gradients = given.dlogp, given.dentropy
    for keep in (True, True, False):
        for mine, right in zip(
            torch.autograd.grad(out, leaves, gradients, retain_graph=keep), want[2:5]
        ):
            check_gradient(mine, right, way.dtype)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(out, leaves, gradients)


def test_backward_of_each_result(way):
    """Two passes, one for each result, add up to the pass for both."""
    given = problem(way)
    want = given.expected()
    hidden, weight, _ = given.leaves()
    out = given.call(hidden, weight, None)
    out.logprobs.backward(given.dlogp, retain_graph=True)
    out.entropy.backward(given.dentropy)
    for mine, right in ((hidden.grad, want.dhidden), (weight.grad, want.dweight)):
        assert (mine - right).norm() <= 1e-2 * right.norm()


def test_two_calls_in_one_graph(way):
    """Calls that share a weight keep what each of them needs."""
    given, other = problem(way), problem(way, seed=1)
    other.weight = given.weight
    want, more = given.expected(), other.expected()
    weight = given.weight.detach().requires_grad_()
    outs = [one.call(one.hidden, weight, None) for one in (given, other)]
    torch.autograd.backward(
        [part for out in outs for part in out],
        [given.dlogp, given.dentropy, other.dlogp, other.dentropy],
    )
    right = want.dweight + more.dweight
    assert (weight.grad - right).norm() <= 5e-3 * right.norm()


def test_kept_elsewhere(way):
    """What the forward keeps may be moved away meanwhile, and lose its padding."""
    given = problem(way, v=603)
    want = given.expected()
    hidden, weight, _ = given.leaves()
    with torch.autograd.graph.save_on_cpu():
        out = given.call(hidden, weight, None)
    torch.autograd.backward(out, (given.dlogp, given.dentropy))
    check_gradient(hidden.grad, want.dhidden, way.dtype)
    check_gradient(weight.grad, want.dweight, way.dtype)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint(reentrant, way):
    """Under a checkpoint the forward is run again, for the same gradients."""
    given = problem(way)
    want = given.expected()
    hidden, weight, _ = given.leaves()
    out = checkpoint(given.call, hidden, weight, None, use_reentrant=reentrant)
    torch.autograd.backward(out, (given.dlogp, given.dentropy))
    check_gradient(hidden.grad, want.dhidden, way.dtype)
    check_gradient(weight.grad, want.dweight, way.dtype)


def test_inputs_are_untouched(way):
    """Neither forward nor backward writes into what the caller has."""
    given = problem(way, bias=True)
    names = ("hidden", "weight", "labels", "bias", "dlogp", "dentropy")
    before = {name: getattr(given, name).clone() for name in names}
    given.run()
    for name in names:
        assert torch.equal(getattr(given, name), before[name])
