"""
The meshes and the type checking of real spmd_types in the recompute of a checkpoint.

Verl#6950 and torchtitan#3565: a block that types its tensors with a bare ``R`` needs
a mesh, and its recompute finds none. Autograd's threads are left on throughout.
"""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.checkpoint import (
    CheckpointFunction,
    checkpoint,
    create_selective_checkpoint_contexts,
    noop_context_fn,
)

import ctxcarry

spmd = pytest.importorskip("spmd_types")

from spmd_types import _local_registration, _mesh_axis, _state  # noqa: E402
from spmd_types.checker import typecheck  # noqa: E402

NO_MESH = "requires an active mesh|no current mesh"
MAIN = threading.main_thread()

selective = partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
HOW = {
    "selective": {"use_reentrant": False, "context_fn": selective},
    "full": {"use_reentrant": False, "context_fn": noop_context_fn},
    "reentrant": {"use_reentrant": True},
}


@pytest.fixture(autouse=True)
def _threads_stay_on():
    """Check that nobody switches autograd's threads off; have the older checkpoint known."""
    assert torch._C._is_multithreading_enabled()
    spmd.register_local_autograd_function(CheckpointFunction)  # spmd_types refuses it else
    yield
    _local_registration._LOCAL_AUTOGRAD_FUNCTIONS.discard(CheckpointFunction)
    assert torch._C._is_multithreading_enabled()


@pytest.fixture
def mesh():
    """Make a mesh over ranks that do not exist, and end them."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    try:
        yield init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
    finally:
        torch.distributed.destroy_process_group()
        _mesh_axis._reset()


@pytest.fixture(params=["install", "context_fn"])
def way(request):
    """Give each way to carry, as a function of the arguments for the checkpoint."""
    if request.param == "install":
        request.getfixturevalue("installed")
        return dict
    return lambda how: {**how, "context_fn": ctxcarry.autograd.context_fn(how["context_fn"])}


class Block:
    """A layer that needs a mesh and notes what it has, and whether operations are checked."""

    def __init__(self):
        self.seen, self.threads, self.errors = [], [], []

    def __call__(self, x, weight):
        product = torch.mm(x, weight)
        self.threads.append(threading.current_thread())
        try:
            spmd.assert_type(product, spmd.R)
        except spmd.SpmdTypeError as error:
            self.errors.append(str(error))
            # Torch ends the process if unpacking raises on the thread of a device.
            if x.device.type == "cpu":
                raise
        names = sorted(spmd.current_mesh_names() or ())
        inferred = spmd.has_local_type(torch.neg(product))
        self.seen.append((names, spmd.is_type_checking(), inferred))
        return torch.sin(product)


class Nested(torch.autograd.Function):
    """Start a backward pass within backward, so many times, and call a function in the last."""

    @staticmethod
    def forward(ctx, x, depth, fn):
        ctx.depth, ctx.fn = depth, fn
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        if ctx.depth:
            start_nested(ctx.depth - 1, ctx.fn)
        else:
            ctx.fn()
        return grad, None, None


def start_nested(depth, fn):
    """Call `fn` within so many backward passes."""
    with torch.enable_grad():
        Nested.apply(torch.ones(1, requires_grad=True), depth, fn).sum().backward()


def here(y, **kwargs):
    """Start the backward pass, with a gradient, since spmd_types refuses a replicated loss."""
    y.backward(torch.ones_like(y), **kwargs)


def from_another_thread(y):
    """Start the backward pass on a thread of Python."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(here, y).result()


def in_a_pool_of_the_engine(y):
    """Start it so deep in others that the engine runs it on a thread of a pool."""
    with spmd.no_typecheck():  # of the passes around it, whose tensors have no type
        start_nested(70, partial(here, y))


class Place(NamedTuple):
    """Where and when the backward pass is."""

    start: object = here
    on_device: bool = False
    in_scope: bool = True


PLACES = {
    "device": Place(on_device=True),
    "device, scope closed": Place(on_device=True, in_scope=False),
    "scope closed": Place(in_scope=False),
    "another thread": Place(from_another_thread),
    "nested": Place(in_a_pool_of_the_engine),
}


def run(block, device, mesh, place, how, *, checking=False):
    """Run the block in a checkpoint, and its backward pass; return the gradient of the weight."""
    if checking and hasattr(torch.utils.checkpoint, "_NoopSaveInputs"):
        pytest.skip("needs torch 2.13: typecheck() refuses the checkpoint of earlier ones")
    put, back = (device.put, device.to_host) if place.on_device else (torch.clone, torch.clone)
    x, weight = (put(torch.full((3, 3), 0.1)).requires_grad_() for _ in range(2))
    with spmd.set_current_mesh(mesh), typecheck() if checking else nullcontext():
        spmd.assert_type(x, spmd.R)
        spmd.assert_type(weight, spmd.R)
        y = checkpoint(block, x, weight, **how)
        if place.in_scope:
            place.start(y)
    if not place.in_scope:
        place.start(y)
    return back(weight.grad)


def check(block, grad, place, *, checking, reentrant=False):
    """Check that the recompute had what the forward had, on a thread that has none of it."""
    # The reentrant checkpoint runs its block without function modes, in forward too.
    assert block.seen == [(["dp", "tp"], checking, checking and not reentrant)] * 2
    assert [block.threads[0] is MAIN, block.threads[1] is MAIN] == [True, place == "scope closed"]
    weight = torch.full((3, 3), 0.1, requires_grad=True)
    torch.sin(torch.mm(torch.full((3, 3), 0.1), weight)).sum().backward()
    torch.testing.assert_close(grad, weight.grad)


@pytest.mark.parametrize("checking", [False, True], ids=["unchecked", "checked"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("how", HOW)
def test_plain_recompute_has_no_mesh(how, place, checking, device, mesh):
    """The fault: typing a tensor fails in the recompute, wherever it is."""
    block = Block()
    raises = pytest.raises(spmd.SpmdTypeError, match=NO_MESH)
    with nullcontext() if PLACES[place].on_device else raises:
        run(block, device, mesh, PLACES[place], HOW[how], checking=checking)
    assert [bool(re.search(NO_MESH, error)) for error in block.errors] == [True]


@pytest.mark.parametrize("checking", [False, True], ids=["unchecked", "checked"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("how", ["selective", "full"])
def test_recompute(how, place, checking, way, device, mesh):
    """It has the mesh of its forward, and checks types as that did."""
    block = Block()
    grad = run(block, device, mesh, PLACES[place], way(HOW[how]), checking=checking)
    check(block, grad, place, checking=checking)


@pytest.mark.parametrize("checking", [False, True], ids=["unchecked", "checked"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.usefixtures("installed")
def test_reentrant_recompute(place, checking, device, mesh):
    """So has that of the older checkpoint, which takes no ``context_fn``."""
    block = Block()
    grad = run(block, device, mesh, PLACES[place], HOW["reentrant"], checking=checking)
    check(block, grad, place, checking=checking, reentrant=True)


@pytest.mark.parametrize("on_device", [True, False], ids=["device", "same thread"])
def test_the_mesh_of_forward_and_not_of_backward(on_device, way, device, mesh):
    """A recompute has what its forward had, also while another mesh and checking are current."""

    def start(y):
        grad = torch.ones_like(y)
        with spmd.set_current_mesh(mesh["tp"]), typecheck():
            y.backward(grad)

    block = Block()
    run(block, device, mesh, Place(start, on_device, in_scope=False), way(HOW["selective"]))
    assert block.seen == [(["dp", "tp"], False, False)] * 2


def test_plain_recompute_checks_nothing(device, mesh):
    """The silent fault: on the very thread, the mesh is there, but no operation is checked."""
    block = Block()
    run(block, device, mesh, Place(), HOW["full"], checking=True)
    assert block.seen == [(["dp", "tp"], True, True), (["dp", "tp"], True, False)]


@pytest.mark.parametrize("how", ["selective", "full"])
def test_recompute_checks_on_the_same_thread(how, way, device, mesh):
    """Carried, it checks there as well."""
    block = Block()
    run(block, device, mesh, Place(), way(HOW[how]), checking=True)
    assert block.seen == [(["dp", "tp"], True, True)] * 2


def test_a_retained_graph(way, device, mesh):
    """Each pass over one graph recomputes with the mesh."""

    def twice(y):
        here(y, retain_graph=True)
        here(y)

    block = Block()
    place = Place(twice, on_device=True, in_scope=False)
    run(block, device, mesh, place, way(HOW["full"]), checking=True)
    assert block.seen == [(["dp", "tp"], True, True)] * 3


def test_nothing_is_left_on_the_engines_thread(way, device, mesh, tap):
    """The thread that recomputed has neither a mesh nor checking afterwards."""
    block, left = Block(), []

    def look():
        modes = torch.overrides._get_current_function_mode_stack()
        left.append((threading.current_thread(), dict(vars(_state._tls)), modes))

    run(block, device, mesh, PLACES["device"], way(HOW["selective"]), checking=True)
    assert block.seen == [(["dp", "tp"], True, True)] * 2
    ctxcarry.uninstall("autograd")
    tap(device.leaf(), look).sum().backward()
    assert left == [(block.threads[1], {}, [])]


def test_nodes_find_the_mesh_whatever_another_left(mesh, device, tap):
    """A node that leaves a type-check mode on the engine's thread leaves it to no other."""
    seen = []

    def look():
        seen.append((_state.current_mesh(), _state._tls.__dict__.get("current_mode")))

    with typecheck():
        mode = _state._tls.current_mode
    y = tap(device.leaf(), lambda: _state._tls.__dict__.pop("current_mode"))
    for act in (look, lambda: setattr(_state._tls, "current_mode", mode), look):
        y = tap(y, act)
    ctxcarry.install("autograd")
    try:
        with spmd.set_current_mesh(mesh):
            here = _state.current_mesh()
            y.sum().backward()
    finally:
        ctxcarry.uninstall("autograd")
    assert seen == [(here, None), (here, None)]
