"""Each portable context, dumped where it is set, is the same where it is loaded."""

from contextlib import ExitStack, contextmanager

import pytest
import torch
import wire_subjects

import ctxcarry
from ctxcarry import Snapshot, process_groups
from ctxcarry._wire import decode

dist = torch.distributed


def autocast():
    """Return the state of autocast."""
    nesting = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return (
        nesting,
        torch.is_autocast_cache_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_enabled("cuda"),
    )


@contextmanager
def two_regions():
    """Enter autocast twice."""
    with (
        torch.autocast("cpu", torch.float16, cache_enabled=False),
        torch.autocast("cpu", torch.bfloat16, cache_enabled=False),
    ):
        yield


@contextmanager
def multithreading_off():
    """Have autograd use no threads of its own."""
    with torch.autograd.set_multithreading_enabled(False):
        yield


THREAD_STATE = {
    "torch.grad_mode": (torch.no_grad, torch.is_grad_enabled),
    "torch.inference_mode": (torch.inference_mode, torch.is_inference_mode_enabled),
    "torch.autocast": (two_regions, autocast),
    "torch.default_device": (lambda: torch.device("meta"), lambda: torch.ones(1).device),
    "torch.multithreading": (multithreading_off, torch._C._is_multithreading_enabled),
}


@pytest.mark.parametrize("name", THREAD_STATE)
def test_torch_state(name):
    """A state of torch's that is set here is so again where it is loaded, and only there."""
    enter, probe = THREAD_STATE[name]
    outside = probe()
    with enter():
        expected = probe()
        data = ctxcarry.capture().dumps(not_portable="raise")
    assert outside != expected
    assert name in decode(data)
    assert expected == Snapshot.loads(data, strict=True).run(probe)
    assert outside == probe()


def test_allocators_by_import_path():
    """Both allocators of Triton travel as the name under which they are imported."""
    allocation = pytest.importorskip("triton.runtime._allocation")
    import triton

    triton.set_allocator(wire_subjects.allocate)
    nothing = allocation._profile_allocator.get()
    allocation.set_profile_allocator(wire_subjects.allocate_profile)
    try:
        data = ctxcarry.capture(exclude="contextvars").dumps(not_portable="raise")
    finally:
        allocation._profile_allocator.set(nothing)
    allocation._allocator.set(allocation._NULL_ALLOCATOR)

    def probe():
        return allocation._allocator.get(), allocation._profile_allocator.get()

    assert {
        "triton.allocator": ["v", "wire_subjects:allocate"],
        "triton.profile_allocator": ["v", "wire_subjects:allocate_profile"],
    } == decode(data)
    loaded = Snapshot.loads(data, trusted=True, strict=True)
    assert (wire_subjects.allocate, wire_subjects.allocate_profile) == loaded.run(probe)
    assert (allocation._NULL_ALLOCATOR, nothing) == probe()


def test_process_groups(world):
    """Groups by role are found again as the very groups that this process has of them."""
    tp, dp = dist.new_group([0, 1]), dist.new_group([0, 2])
    with process_groups.use(tp=tp, dp=dp):
        data = ctxcarry.capture().dumps(not_portable="raise")

    def probe():
        return process_groups.current("tp"), process_groups.current("dp"), process_groups.roles()

    found = Snapshot.loads(data, strict=True).run(probe)
    assert (True, True, ("tp", "dp")) == (tp is found[0], dp is found[1], found[2])
    assert () == process_groups.roles()


def test_torch_process_group(world):
    """Torch's own current group is found again by name and ranks."""
    _dist2 = pytest.importorskip("torch.distributed._dist2")
    group = dist.new_group([0, 3])
    with _dist2.process_group(group):
        data = ctxcarry.capture().dumps(not_portable="raise")
    found = Snapshot.loads(data, strict=True).run(torch._C._distributed_c10d._current_process_group)
    assert group is found


def test_device_mesh(mesh):
    """The stack of meshes comes back in its order, submeshes included, as the very objects."""
    submesh = mesh["tp"]
    stack = torch.distributed.device_mesh._mesh_resources
    with mesh, submesh:
        data = ctxcarry.capture().dumps(not_portable="raise")
    found = Snapshot.loads(data, strict=True).run(lambda: list(stack.mesh_stack))
    assert [(True, True)] == [(mesh is found[0], submesh == found[1])]
    assert [] == stack.mesh_stack


def test_torchtitan(mesh):
    """TorchTitan's registered and current meshes are found again."""
    titan = pytest.importorskip("torchtitan.distributed.spmd_types")
    local = titan._MESH_TLS

    def forget():
        local.__dict__.clear()

    with ExitStack() as scope:
        scope.callback(forget)
        titan.set_spmd_meshes(dense_mesh=mesh, sparse_mesh=None)
        local.mesh_stack = [None, mesh]
        data = ctxcarry.capture().dumps(not_portable="raise")
    loaded = Snapshot.loads(data, strict=True)
    expected = {"dense_mesh": mesh, "sparse_mesh": None, "mesh_stack": [None, mesh]}
    assert expected == loaded.run(lambda: dict(local.__dict__))
    assert {} == local.__dict__


VALUES = {
    "plain": ["text", 1, 1.5, True, None, {"k": [1, {"x": -0.0}]}],
    "tuple": (1, 2),
    "bytes": b"\0\xff",
    "object": wire_subjects.Point(3),
    "int keys": {1: "one"},
    "not a number": float("inf"),
    "deep": [[[[[[[[[[[[[[[[[[[["deep"]]]]]]]]]]]]]]]]]]]],
    "surrogate, as in a file name": "\udcff",
    "huge int": 10**5000,
}


@pytest.mark.parametrize("kind", VALUES)
def test_context_variables(kind):
    """A ContextVar of a module has an equal value of the same type where it is loaded."""
    value = VALUES[kind]
    token = wire_subjects.VARIABLE.set(value)
    data = ctxcarry.capture().dumps(not_portable="raise")
    wire_subjects.VARIABLE.reset(token)
    found = Snapshot.loads(data, trusted=True, strict=True).run(wire_subjects.VARIABLE.get)
    assert (type(value), value) == (type(found), found)
    assert "unset" == wire_subjects.VARIABLE.get()


def test_plain_variables_need_no_trust():
    """Plain values of ContextVars are loaded from bytes that nobody vouches for."""
    token = wire_subjects.VARIABLE.set(["plain", 1])
    data = ctxcarry.capture().dumps()
    wire_subjects.VARIABLE.reset(token)
    assert ["plain", 1] == Snapshot.loads(data, strict=True).run(wire_subjects.VARIABLE.get)


@pytest.mark.parametrize("value", [{"a": [1]}, {"a": wire_subjects.Point(1)}])
def test_thread_local(registry, value):
    """A field of a threading.local travels, plain or pickled."""
    registry.local.__dict__.update(value)
    data = registry.capture().dumps(not_portable="raise")
    registry.local.__dict__.clear()
    loaded = Snapshot.loads(data, trusted=True, strict=True, registry=registry)
    assert value == loaded.run(lambda: dict(registry.local.__dict__))
    assert {} == registry.local.__dict__


@pytest.mark.parametrize("value", [7, (7,)])
def test_value_carrier(value):
    """A value behind a getter and a setter travels, plain or pickled."""
    box = [value]
    registry = ctxcarry.Registry()
    registry.register(ctxcarry.ValueCarrier("box", lambda: box[0], lambda v: box.__setitem__(0, v)))
    data = registry.capture().dumps(not_portable="raise")
    box[0] = 0
    loaded = Snapshot.loads(data, trusted=True, strict=True, registry=registry)
    assert (value, 0) == (loaded.run(lambda: box[0]), box[0])


def test_contextvars_extras_registry():
    """The variables of a contextvars-extras registry travel under the registry's name."""
    extras = pytest.importorskip("contextvars_extras")
    from ctxcarry._carriers.contextvars_extras import ContextVarsRegistryCarrier

    class Current(extras.ContextVarsRegistry):
        user: str = "nobody"
        tags: object = None

    current = Current()
    registry = ctxcarry.Registry()
    registry.register(ContextVarsRegistryCarrier(current))
    current.user, current.tags = "ada", ("x",)
    data = registry.capture().dumps(not_portable="raise")
    current.user, current.tags = "eve", ()
    loaded = Snapshot.loads(data, trusted=True, strict=True, registry=registry)
    assert ("ada", ("x",)) == loaded.run(lambda: (current.user, current.tags))
    assert ("eve", ()) == (current.user, current.tags)


def test_context_var_carrier():
    """A ContextVar with a carrier of its own travels under that name, and without an address."""
    registry = ctxcarry.Registry()
    registry.register(ctxcarry.ContextVarCarrier(wire_subjects.VARIABLE, "mine"))
    token = wire_subjects.VARIABLE.set("there")
    data = registry.capture().dumps(not_portable="raise")
    wire_subjects.VARIABLE.reset(token)
    assert {"mine": ["v", "there"]} == decode(data)
    loaded = Snapshot.loads(data, strict=True, registry=registry)
    assert "there" == loaded.run(wire_subjects.VARIABLE.get)


def test_shared_parts_are_written_once():
    """A value of parts that are shared stays as small as it is in memory."""
    value = ["part"]
    for _ in range(12):
        value = [value] * 3
    wire_subjects.VARIABLE.set(value)
    assert len(ctxcarry.capture().dumps()) <= 1024


def test_everything_is_small(mesh):
    """Allocator, mesh, process groups and ten small ContextVars fit into 1 KB."""
    triton = pytest.importorskip("triton")
    triton.set_allocator(wire_subjects.allocate)
    for i, variable in enumerate(wire_subjects.TEN):
        variable.set(f"value {i}")
    with mesh, process_groups.use(tp=mesh.get_group("tp"), dp=mesh.get_group("dp")):
        data = ctxcarry.capture().dumps(not_portable="raise")
    loaded = Snapshot.loads(data, trusted=True, strict=True)
    assert 10 == len(loaded.run(lambda: [v.get() for v in wire_subjects.TEN]))
    assert len(data) <= 1024
