"""Case 11 (pytorch#124788, pytorch#193922): the reentrant checkpoint forgets the default device."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from torch.utils.checkpoint import checkpoint

import ctxcarry


@pytest.fixture
def installed():
    """Install the boundary, and take it off again."""
    ctxcarry.install("autograd")
    yield
    ctxcarry.uninstall("autograd")


def devices(scope, **arguments):
    """Return on which devices a factory makes tensors in the forward and in the recompute."""
    seen = []

    def block(x):
        seen.append(torch.empty(1).device.type)
        return x.sin()

    with scope:
        y = checkpoint(block, torch.ones(2, requires_grad=True, device="cpu"), **arguments)
    y.sum().backward()
    assert "cpu" == torch.empty(1).device.type
    return seen


def test_fault():
    """The reentrant recompute makes its tensors elsewhere than its forward."""
    assert ["meta", "cpu"] == devices(torch.device("meta"), use_reentrant=True)


def test_torch_restores_the_device_in_the_other_checkpoint():
    """That of the checkpoint that is not reentrant does not, as torch keeps the device for it."""
    assert ["meta", "meta"] == devices(torch.device("meta"), use_reentrant=False)


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.usefixtures("installed")
def test_cure(use_reentrant):
    """Installed, both make them where the forward did."""
    assert ["meta", "meta"] == devices(torch.device("meta"), use_reentrant=use_reentrant)


@pytest.mark.usefixtures("installed")
def test_cure_of_the_setter():
    """A device that was set globally in the forward, and reset since, is there again."""
    seen = []

    def block(x):
        seen.append((torch.empty(1).device.type, str(torch.get_default_device())))
        return x.sin()

    x = torch.ones(2, requires_grad=True)
    torch.set_default_device("meta")
    try:
        y = checkpoint(block, x, use_reentrant=True)
    finally:
        torch.set_default_device(None)
    y.sum().backward()
    assert [("meta", "meta")] * 2 == seen
    assert "cpu" == str(torch.get_default_device())
