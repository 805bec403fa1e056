"""
The meshes of real TorchTitan in the recompute of its activation checkpointing.

Torchtitan#3565: where the recompute is on an autograd thread, the size of the
tensor-parallel group is 1 there, without an error, so that its branches are skipped.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import ctxcarry

pytest.importorskip("torchtitan.distributed.spmd_types")

import torchtitan.distributed.spmd_types as titan
from spmd_types import _mesh_axis, current_mesh_names
from torchtitan.distributed import activation_checkpoint, utils

# The second multiplication is recomputed, and the first one is saved.
SELECTIVE = activation_checkpoint.SelectiveAC(
    activation_checkpoint.SelectiveAC.Config(force_recompute_mm_shapes_by_fqns=[])
)
FULL = activation_checkpoint.FullAC(activation_checkpoint.FullAC.Config())
each_policy = pytest.mark.parametrize("policy", [SELECTIVE, FULL], ids=["selective", "full"])
in_scope = pytest.mark.parametrize("in_scope", [True, False], ids=["scope open", "scope closed"])


@pytest.fixture(autouse=True)
def _threads_stay_on():
    """Check that nobody switches autograd's threads off."""
    assert torch._C._is_multithreading_enabled()
    yield
    assert torch._C._is_multithreading_enabled()


@pytest.fixture(autouse=True)
def _lru_cache():
    """Switch a cache of the compiler on again, which applying a policy switches off."""
    yield
    torch._C._dynamo.eval_frame._set_lru_cache(True)


@pytest.fixture
def mesh():
    """Make a mesh over ranks that do not exist, with TorchTitan's backend that has meshes."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    before = utils.get_spmd_backend()
    utils.set_spmd_backend("spmd_types")
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    try:
        yield init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp", "tp"))
    finally:
        torch.distributed.destroy_process_group()
        _mesh_axis._reset()
        utils.set_spmd_backend(before)
        assert titan.current_spmd_mesh() is None
        vars(titan._MESH_TLS).clear()


class Seen(NamedTuple):
    """What a block sees of the tensor-parallel group."""

    size: int
    ranks: int | None
    names: list[str]
    elsewhere: bool

    @classmethod
    def now(cls):
        mesh = titan.current_spmd_mesh()
        return cls(
            titan.spmd_mesh_size("tp"),
            None if mesh is None else mesh.get_group("tp").size(),
            sorted(current_mesh_names() or ()),
            threading.current_thread() is not threading.main_thread(),
        )


FORWARD = Seen(2, 2, ["dp", "tp"], elsewhere=False)
CARRIED = FORWARD._replace(elsewhere=True)
LOST = Seen(1, None, [], elsewhere=True)


class Layer(nn.Module):
    """A layer of two multiplications that branches on the size of the group."""

    def __init__(self, device, seen):
        super().__init__()
        self.up = nn.Parameter(device.put(torch.full((3, 3), 0.1)))
        self.down = nn.Parameter(device.put(torch.full((3, 3), 0.2)))
        self.seen = seen

    def forward(self, x):
        self.seen.append(Seen.now())
        hidden = torch.sin(torch.mm(x, self.up)) * titan.spmd_mesh_size("tp")
        return torch.sin(torch.mm(hidden, self.down))


def model(device, seen):
    """Make a model of two layers, to whose ``layers`` TorchTitan applies its policies."""
    made = nn.Module()
    made.layers = nn.ModuleDict({str(i): Layer(device, seen) for i in range(2)})
    return made


def run(device, mesh, policy, *, in_scope=True):
    """Train the model for one step; return what was seen, and the gradients."""
    seen = []
    made = model(device, seen)
    if policy is not None:
        policy.apply(made)
    with titan.set_current_spmd_mesh(mesh):
        x = device.leaf(3, 3)
        for layer in made.layers.values():
            x = layer(x)
        loss = x.sum()
        if in_scope:
            loss.backward()
    if not in_scope:
        loss.backward()
    return seen, [device.to_host(p.grad) for p in made.parameters()]


@in_scope
@each_policy
def test_plain_recompute_sees_a_group_of_one(policy, in_scope, device, mesh):
    """The fault: there is no mesh in the recompute, and nothing fails."""
    seen, _ = run(device, mesh, policy, in_scope=in_scope)
    assert seen == [FORWARD] * 2 + [LOST] * 2


@each_policy
def test_plain_gradients_are_wrong(policy, device, mesh):
    """What that comes to: other gradients than without checkpoints."""
    _, expected = run(device, mesh, None)
    _, found = run(device, mesh, policy)
    with pytest.raises(AssertionError, match="not close"):
        torch.testing.assert_close(found, expected, rtol=0.1, atol=0)


@in_scope
@each_policy
@pytest.mark.usefixtures("installed")
def test_recompute_sees_the_group(policy, in_scope, device, mesh):
    """Installed, the recompute has group, size and types' mesh of its forward, and is right."""
    _, expected = run(device, mesh, None)
    seen, found = run(device, mesh, policy, in_scope=in_scope)
    assert seen == [FORWARD] * 2 + [CARRIED] * 2
    torch.testing.assert_close(found, expected)


@each_policy
@pytest.mark.usefixtures("installed")
def test_registered_meshes(policy, device, mesh):
    """The meshes registered for dense and sparse regions are there too."""
    sparse = init_device_mesh("cpu", (2, 4), mesh_dim_names=("efsdp", "ep"))
    seen = []

    class Experts(nn.Module):
        def forward(self, x):
            with titan.maybe_set_sparse_mesh():
                seen.append((titan.spmd_mesh_size("ep"), titan.spmd_mesh_size("tp")))
            return torch.sin(x)

    made = nn.Module()
    made.layers = nn.ModuleDict({"0": Experts()})
    policy.apply(made)
    titan.set_spmd_meshes(dense_mesh=mesh, sparse_mesh=sparse)
    with titan.set_current_spmd_mesh(mesh):
        loss = made.layers["0"](device.leaf(3)).sum()
    loss.backward()
    assert seen == [(4, 1)] * 2


@each_policy
def test_nothing_is_left_on_the_engines_thread(policy, device, mesh, tap):
    """The thread that recomputed has no mesh in the next pass."""
    ctxcarry.install("autograd")
    try:
        seen, _ = run(device, mesh, policy)
    finally:
        ctxcarry.uninstall("autograd")
    assert seen[-1] == CARRIED
    tap(device.leaf(), lambda: seen.append(Seen.now())).sum().backward()
    assert seen[-1] == LOST
