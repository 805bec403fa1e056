"""Case 38 (verl#6950, torchtitan#3253, torchtitan#3565): a recompute has no mesh of spmd_types."""

from __future__ import annotations

from functools import partial

import pytest

torch = pytest.importorskip("torch")
spmd = pytest.importorskip("spmd_types")

import torch.distributed as dist  # noqa: E402
from ctxcarry_checkpoint import checkpoint as our_checkpoint  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.utils.checkpoint import (  # noqa: E402
    checkpoint,
    create_selective_checkpoint_contexts,
    noop_context_fn,
)

import ctxcarry  # noqa: E402

HOW = {
    "selective": partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default]),
    "full": noop_context_fn,
}
NO_MESH = r"requires an active mesh|no current mesh"
each_kind = pytest.mark.parametrize("context_fn", list(HOW.values()), ids=list(HOW))


@pytest.fixture
def mesh():
    """Make a mesh over a process group of this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
    finally:
        dist.destroy_process_group()


def gradient(mesh, checkpoint=checkpoint, **arguments):
    """Return the gradient through a block whose mesh covers the forward only."""
    weight = torch.ones(3, 3, requires_grad=True)

    def block(x):
        product = x @ weight
        spmd.assert_type(product, spmd.R)
        return product.sin()

    with spmd.set_current_mesh(mesh):
        y = checkpoint(block, torch.ones(2, 3, requires_grad=True), **arguments)
    y.sum().backward()
    return weight.grad


EXPECTED = torch.full((3, 3), 2 * torch.cos(torch.tensor(3.0)).item())


@each_kind
def test_fault(mesh, context_fn):
    """The recompute cannot assert the type that the forward did."""
    with pytest.raises(spmd.SpmdTypeError, match=NO_MESH):
        gradient(mesh, use_reentrant=False, context_fn=context_fn)


def test_fault_of_the_older_checkpoint(mesh):
    """Nor can that of the reentrant checkpoint."""
    with pytest.raises(spmd.SpmdTypeError, match=NO_MESH):
        gradient(mesh, use_reentrant=True)


@each_kind
def test_cure(mesh, context_fn):
    """A checkpoint with our ``context_fn`` around its own has the mesh."""
    carried = ctxcarry.autograd.context_fn(context_fn)
    found = gradient(mesh, use_reentrant=False, context_fn=carried)
    torch.testing.assert_close(found, EXPECTED)
    assert spmd.current_mesh() is None


@pytest.mark.parametrize(
    "arguments",
    [
        *({"use_reentrant": False, "context_fn": context_fn} for context_fn in HOW.values()),
        {"use_reentrant": True},
    ],
    ids=[*HOW, "reentrant"],
)
def test_cure_installed(mesh, arguments):
    """Installed, each kind of checkpoint has it as it is, and no longer afterwards."""
    ctxcarry.install("autograd")
    try:
        torch.testing.assert_close(gradient(mesh, **arguments), EXPECTED)
        assert spmd.current_mesh() is None
    finally:
        ctxcarry.uninstall("autograd")
    with pytest.raises(spmd.SpmdTypeError, match=NO_MESH):
        gradient(mesh, **arguments)


@pytest.mark.parametrize("policy", [None, [torch.ops.aten.mm]], ids=["full", "selective"])
def test_cure_of_our_checkpoint(mesh, policy):
    """Our own checkpoint brings the mesh along by itself."""
    for _ in range(3):
        found = gradient(mesh, our_checkpoint, policy=policy)
        torch.testing.assert_close(found, EXPECTED)
    assert spmd.current_mesh() is None
