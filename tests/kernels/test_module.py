"""The module: parameters under the names of a linear layer, and the options it was made with."""

import pytest
import torch
from ctxcarry_kernels import LinearCrossEntropy, LinearCrossEntropyOutput, linear_cross_entropy


@pytest.mark.parametrize("bias", [False, True])
def test_parameters(bias):
    """They have the names and sizes of a linear layer's, whose state it takes."""
    linear = torch.nn.Linear(8, 40, bias=bias)
    head = LinearCrossEntropy(8, 40, bias=bias)
    assert {n: t.shape for n, t in head.state_dict().items()} == {
        n: t.shape for n, t in linear.state_dict().items()
    }
    head.load_state_dict(linear.state_dict())
    for name, parameter in linear.named_parameters():
        assert torch.equal(getattr(head, name), parameter)


def test_type_and_device():
    """The parameters are of the type and on the device that are asked for."""
    head = LinearCrossEntropy(8, 40, bias=True, device="meta", dtype=torch.bfloat16)
    for parameter in (head.weight, head.bias):
        assert (parameter.device.type, parameter.dtype) == ("meta", torch.bfloat16)


@pytest.mark.parametrize("bias", [False, True])
def test_call(bias):
    """It is the function with its own weight, bias and options."""
    torch.manual_seed(0)
    head = LinearCrossEntropy(8, 40, bias=bias, temperature=0.5, ignore_index=3)
    hidden, labels = torch.randn(2, 3, 8, requires_grad=True), torch.randint(0, 40, (2, 3))
    labels[0, 0] = 3
    out = head(hidden, labels)
    assert type(out) is LinearCrossEntropyOutput
    want = linear_cross_entropy(
        hidden, head.weight, labels, bias=head.bias, temperature=0.5, ignore_index=3
    )
    assert torch.equal(out.logprobs, want.logprobs)
    assert torch.equal(out.entropy, want.entropy)
    assert out.logprobs[0, 0] == 0
    (out.logprobs.sum() + out.entropy.sum()).backward()
    for tensor in (hidden, *head.parameters()):
        assert tensor.grad.abs().sum() > 0


def test_representation():
    """It tells the sizes, whether there is a bias, and the options."""
    plain = LinearCrossEntropy(8, 40)
    assert repr(plain) == "LinearCrossEntropy(8, 40, bias=False)"
    head = LinearCrossEntropy(8, 40, bias=True, temperature=0.5, reduction="mean")
    assert head.extra_repr() == "8, 40, bias=True, temperature=0.5, reduction=mean"
