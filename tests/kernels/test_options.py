"""Temperature, softcap, bias, reductions, and what autocast does."""

import pytest
import torch
from ctxcarry_kernels import linear_cross_entropy
from table import DEVICE, Outcome, check, check_gradient, check_values, problem


@pytest.mark.parametrize("temperature", [0.1, 0.5, 2, 5.0])
def test_temperature(temperature, way):
    """Logits are divided by it, and by the chain rule so are their gradients."""
    check(problem(way, bias=True), temperature=temperature)


@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("softcap", [0.5, 30.0])
def test_softcap(softcap, temperature, way):
    """Logits are capped after the bias and before the temperature, and so are gradients."""
    given = problem(way, bias=True)
    given.weight *= 3
    check(given, softcap=softcap, temperature=temperature)


def test_softcap_of_large_logits(way):
    """Logits far over the cap are at the cap, and have no gradient."""
    given = problem(way)
    given.bias = torch.tensor([2000.0, -2000.0], device=DEVICE).to(way.dtype).repeat(300)
    got, want = given.run(softcap=20.0), given.expected(softcap=20.0)
    check_values(got, want)
    assert (got.dhidden == 0).all()
    assert (got.dbias == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_bias_of_another_type(dtype, way):
    """A bias may be of a type of its own, which its gradient is of as well."""
    given = problem(way, bias=True)
    given.bias = given.bias.to(dtype)
    got, want = given.run(), given.expected()
    check_values(got, want)
    assert got.dbias.dtype is dtype
    assert (got.dbias - want.dbias).norm() <= 5e-3 * want.dbias.norm()


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("return_entropy", [True, False])
def test_reduction(return_entropy, reduction, way):
    """Both results are added up, or are the mean, over the tokens not ignored."""
    given = problem(way)
    given.labels[[1, 5]] = -100
    share = 1 / 7 if reduction == "mean" else 1.0
    given.dlogp = torch.full((9,), share, device=DEVICE)
    given.dentropy = torch.full((9,), 0.5 * share, device=DEVICE) if return_entropy else None
    want = given.expected()
    hidden, weight, _ = given.leaves()
    out = given.call(hidden, weight, None, reduction=reduction, return_entropy=return_entropy)
    assert out.logprobs.shape == ()
    assert abs(out.logprobs - want.logprobs.sum() * share) <= 1e-4
    loss = out.logprobs
    if return_entropy:
        assert abs(out.entropy - want.entropy.sum() * share) <= 1e-4
        loss = loss + 0.5 * out.entropy
    else:
        assert out.entropy is None
    loss.backward()
    check_gradient(hidden.grad, want.dhidden, way.dtype)
    check_gradient(weight.grad, want.dweight, way.dtype)


@pytest.mark.parametrize("tokens", [0, 3])
def test_mean_of_nothing(tokens, way):
    """With no token to ask for, the mean is 0, and so is its gradient."""
    given = problem(way, tokens)
    given.labels[:] = -100
    hidden, weight, _ = given.leaves()
    out = given.call(hidden, weight, None, reduction="mean")
    assert (out.logprobs, out.entropy) == (0, 0)
    (out.logprobs + out.entropy).backward()
    assert (weight.grad == 0).all()
    assert hidden.grad.shape == hidden.shape
    assert (hidden.grad == 0).all()


@pytest.mark.parametrize("keep_graph", [False, True])
def test_without_entropy(keep_graph, way):
    """Entropy is None where it is not asked for, and the logprob is what it is."""
    given = problem(way)
    given.dentropy = None
    want = given.expected()
    hidden, weight, _ = given.leaves()
    out = given.call(hidden, weight, None, return_entropy=False)
    assert out.entropy is None
    out.logprobs.backward(given.dlogp, retain_graph=keep_graph)
    check_values((out.logprobs.detach(), want.entropy.float()), want)
    check_gradient(hidden.grad, want.dhidden, way.dtype)
    check_gradient(weight.grad, want.dweight, way.dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("features", [40, 61])
def test_autocast(features, dtype, one_tile):
    """Under autocast fp32 parameters serve: results and gradients are fp32, logits exact."""
    import table

    given = problem(table.Way(torch.float32, "all"), 9, features, bias=True)
    leaves = given.leaves()
    with torch.autocast(DEVICE, dtype=dtype):
        out = linear_cross_entropy(leaves[0], leaves[1], given.labels, bias=leaves[2])
    torch.autograd.backward(out, (given.dlogp, given.dentropy))
    given.hidden, given.weight, given.bias = (
        t.to(dtype) for t in (given.hidden, given.weight, given.bias)
    )
    want = given.expected()
    got = Outcome(out.logprobs.detach(), out.entropy.detach())
    check_values(got, want)
    for leaf, right in zip(leaves, want[2:5]):
        assert leaf.grad.dtype is torch.float32
        assert (leaf.grad - right).norm() <= 5e-3 * right.norm()


def test_backward_under_autocast(way):
    """A backward inside of the autocast region is as exact as outside."""
    given = problem(way)
    want = given.expected()
    hidden, weight, _ = given.leaves()
    out = given.call(hidden, weight, None)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        torch.autograd.backward(out, (given.dlogp, given.dentropy))
    check_gradient(hidden.grad, want.dhidden, way.dtype)
    check_gradient(weight.grad, want.dweight, way.dtype)
