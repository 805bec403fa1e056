"""Groups and meshes that are not the same over there: both sides are shown, nothing is made."""

import pytest
import torch

import ctxcarry
from ctxcarry import ContextMismatchError, Snapshot, process_groups
from ctxcarry.errors import CtxCarryWarning

dist = torch.distributed


def same_group(**changes):
    """Return the entry of the whole world's group, with changes."""
    return {"name": dist.group.WORLD.group_name, "ranks": list(range(8)), **changes}


def test_same_name_other_ranks(written, world):
    """A group of the same name with other ranks is a mismatch that shows the ranks of both."""
    data = written({"process_groups": ["v", {"tp": same_group(ranks=[4, 5])}]})
    with pytest.raises(ContextMismatchError) as caught:
        Snapshot.loads(data)
    message = str(caught.value)
    parts = ("tp", "[4, 5]", str(list(range(8))), dist.group.WORLD.group_name, "suppress")
    assert [] == [part for part in parts if part not in message]


@pytest.mark.parametrize("name", ["process_groups", "torch.process_group"])
def test_no_such_name(written, world, name):
    """A group that is not here by name is a mismatch that lists what is here."""
    missing = same_group(name="elsewhere")
    data = written({name: ["v", {"dp": missing} if name == "process_groups" else missing]})
    with pytest.raises(ContextMismatchError) as caught:
        Snapshot.loads(data, strict=True)
    message = str(caught.value)
    parts = ("'elsewhere'", repr(dist.group.WORLD.group_name), str(list(range(8))))
    assert [] == [part for part in parts if part not in message]


@pytest.mark.parametrize(
    "change",
    [
        {"ranks": [[0, 1], [2, 3], [4, 5], [6, 7]]},
        {"names": ["dp", "cp"]},
        {"names": None},
        {"device": "cuda"},
    ],
)
def test_another_mesh(written, mesh, change):
    """A mesh of another shape, device or with other names is a mismatch that shows both."""
    here = {"device": "cpu", "names": ["dp", "tp"], "ranks": mesh.mesh.tolist()}
    with pytest.raises(ContextMismatchError) as caught:
        Snapshot.loads(written({"torch.device_mesh": ["v", [{**here, **change}]]}))
    message = str(caught.value)
    theirs = {**here, **change}
    assert [] == [p for p in (str(theirs["ranks"]), str(here["ranks"])) if p not in message]
    assert theirs["device"] in message


def test_mesh_of_an_ended_world(written, mesh):
    """A mesh whose groups are destroyed is not taken for the one that this process has now."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    ended, stack = [mesh], torch.distributed.device_mesh._mesh_resources
    with mesh:
        Snapshot.loads(ctxcarry.capture().dumps(), strict=True)
    for i in range(1, 5):  # which of several alike is found first depends on their addresses
        dist.destroy_process_group()
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
        for _ in range(i):  # so that the mesh's groups have other names than those before
            dist.new_group([0, 1])
        now = init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
        with now:
            data = ctxcarry.capture().dumps()
        found = Snapshot.loads(data, strict=True).run(lambda: stack.mesh_stack[-1])
        assert found.get_group("tp") is now.get_group("tp")
        ended.append(now)


def test_nothing_is_made(written, mesh):
    """Neither a mismatch nor a match makes a group or a mesh."""
    before = dict(dist.distributed_c10d._world.pg_names)
    with pytest.raises(ContextMismatchError):
        Snapshot.loads(written({"process_groups": ["v", {"tp": same_group(name="new")}]}))
    with mesh:
        Snapshot.loads(ctxcarry.capture().dumps(), strict=True)
    assert before == dist.distributed_c10d._world.pg_names


def test_a_mismatch_applies_nothing(written, world):
    """Nothing of a snapshot with a mismatch in it is applied."""
    data = written(
        {
            "torch.grad_mode": ["v", False],
            "process_groups": ["v", {"tp": same_group(ranks=[0])}],
        }
    )
    with pytest.raises(ContextMismatchError):
        Snapshot.loads(data)
    assert (True, ()) == (torch.is_grad_enabled(), process_groups.roles())


MESH = {"device": "cpu", "names": ["dp"], "ranks": [0, 1]}
ENTRIES = {
    "process_groups": {"tp": {"name": "0", "ranks": [0, 1]}},
    "torch.process_group": {"name": "0", "ranks": [0, 1]},
    "torch.device_mesh": [MESH],
    "torchtitan.mesh": {"dense_mesh": MESH},
}


@pytest.mark.parametrize("name", ENTRIES)
def test_without_torch_distributed(written, name):
    """In a process without groups they are left alone with a warning, and the rest is carried."""
    if name not in {carrier.name for carrier in ctxcarry.carriers()}:
        pytest.skip(f"{name} is not carried with what is installed here")
    data = written({name: ["v", ENTRIES[name]], "torch.grad_mode": ["v", False]})
    with pytest.warns(CtxCarryWarning, match="not initialised"):
        assert Snapshot.loads(data).run(torch.is_grad_enabled) is False
