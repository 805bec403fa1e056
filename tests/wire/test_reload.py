"""Loading the same bytes again: as the first time, also when this process has changed."""

import contextvars
import gc
import weakref

import pytest
import torch
import wire_subjects
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

import ctxcarry
from ctxcarry import ContextMismatchError, process_groups
from ctxcarry._reload import _seen, loaded
from ctxcarry.errors import CtxCarryWarning

dist = torch.distributed
triton = pytest.importorskip("triton")
allocation = pytest.importorskip("triton.runtime._allocation")

V0, V1 = wire_subjects.V0, wire_subjects.V1


@pytest.fixture(autouse=True)
def _forget():
    yield
    _seen.clear()


def in_context(fn, *args):
    """Call `fn` in a Context of its own, so that it may set variables."""
    return contextvars.copy_context().run(fn, *args)


def settled(data, probe):
    """Load `data` until what it is has been noted; return what `probe` finds under it."""
    found = [loaded(data).run(probe) for _ in range(4)]
    assert [ctxcarry.Snapshot.loads(data, trusted=True).run(probe)] * 4 == found
    return found[-1]


def known(data):
    """Say whether it was noted how to load `data` again."""
    return bool(_seen.get(data))


def dump(set_up):
    """Return the bytes of what `set_up` sets."""

    def dumps():
        set_up()
        return ctxcarry.capture().dumps()

    return in_context(dumps)


def test_the_same_again(mesh):
    """What was noted loads everything as it does without."""

    def probe():
        stack = torch.distributed.device_mesh._mesh_resources.mesh_stack
        return (
            V0.get(),
            V1.get(),
            allocation._allocator.get(),
            stack[-1],
            process_groups.current("tp"),
            torch.is_grad_enabled(),
        )

    def dumps():
        V0.set("zero")
        V1.set(1)
        triton.set_allocator(wire_subjects.allocate)
        with mesh, process_groups.use(tp=mesh.get_group("tp")), torch.no_grad():
            return ctxcarry.capture().dumps()

    data = in_context(dumps)
    expected = ("zero", 1, wire_subjects.allocate, mesh, mesh.get_group("tp"), False)
    assert (expected, True) == (settled(data, probe), known(data))


@pytest.mark.parametrize("value", [[1], {"a": [1]}, {1: [1]}, ([1],)])
def test_values_are_not_shared(value):
    """What one call changes in a value is not there in the next one."""
    data = dump(lambda: V0.set(value))

    def change():
        inner = V0.get()
        before = repr(inner)
        while not isinstance(inner, list):
            inner = next(iter(inner.values())) if isinstance(inner, dict) else inner[0]
        inner.append("changed")
        return before

    assert [repr(value)] * 4 == [loaded(data).run(change) for _ in range(4)]
    assert not known(data)


def test_a_variable_in_its_place(monkeypatch, written):
    """A variable that a module has in another's place is the one that is set."""
    values = {"wire_subjects:V0": "zero", "wire_subjects:V1": "one"}
    data = written({"contextvars": ["v", [values, {}]]})
    settled(data, V0.get)
    other = contextvars.ContextVar("wire.other", default="unset")
    assert known(data)
    monkeypatch.setattr(wire_subjects, "V0", other)
    assert ("zero", "one") == loaded(data).run(lambda: (other.get(), V1.get()))


def test_a_variable_of_a_class(monkeypatch, written):
    """A variable in another's place is found where the address has a dot, too."""
    monkeypatch.setattr(wire_subjects.Point, "HERE", V0, raising=False)
    data = written({"contextvars": ["v", [{"wire_subjects:Point.HERE": "there"}, {}]]})
    assert settled(data, V0.get) == "there"
    monkeypatch.setattr(wire_subjects.Point, "HERE", V1)
    assert loaded(data).run(V1.get) == "there"


def test_a_variable_that_is_gone(monkeypatch, written):
    """A variable that its module no longer has is complained of each time."""
    values = {"wire_subjects:V0": "zero", "wire_subjects:V1": "one"}
    data = written({"contextvars": ["v", [values, {}]]})
    settled(data, V0.get)
    monkeypatch.delattr(wire_subjects, "V1")
    for _ in range(4):
        with pytest.warns(CtxCarryWarning, match="V1"):
            assert loaded(data).run(V0.get) == "zero"


def test_an_allocator_in_its_place(monkeypatch):
    """An allocator that a module has in another's place is the one that is set."""
    data = dump(lambda: triton.set_allocator(wire_subjects.allocate))
    get = allocation._allocator.get
    settled(data, get)
    assert known(data)
    monkeypatch.setattr(wire_subjects, "allocate", wire_subjects.allocate_profile)
    assert loaded(data).run(get) is wire_subjects.allocate_profile
    monkeypatch.delattr(wire_subjects, "allocate")
    with pytest.warns(CtxCarryWarning, match="no allocator"):
        loaded(data)


def begin():
    """Start a world of eight ranks, and return a mesh of them."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    return init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))


@pytest.mark.parametrize("what", ["group", "mesh"])
def test_another_world(what):
    """When a world has ended there is none of its groups, and in the next one the new ones are."""

    def of(mesh):
        return mesh.get_group("tp") if what == "group" else mesh

    def probe():
        stack = torch.distributed.device_mesh._mesh_resources.mesh_stack
        return process_groups.current("tp") if what == "group" else stack[-1]

    gc.collect()
    mesh = begin()
    with process_groups.use(tp=of(mesh)) if what == "group" else mesh:
        data = ctxcarry.capture().dumps()
    for _ in range(2):
        assert settled(data, probe) is of(mesh)
        assert known(data)
        dist.destroy_process_group()
        with pytest.warns(CtxCarryWarning, match="not initialised"):
            loaded(data)
        mesh = begin()
        gc.collect()
    assert settled(data, probe) is of(mesh)
    dist.destroy_process_group()
    mesh = begin()
    gc.collect()
    # Without a call in between.
    assert loaded(data).run(probe) is of(mesh)
    dist.destroy_process_group()


def test_a_mesh_that_outlives_its_world():
    """A mesh of a world that has ended is not taken for one of the next, which has no groups."""
    gc.collect()
    mesh = begin()
    with mesh:
        data = ctxcarry.capture().dumps()
    settled(data, lambda: None)
    assert known(data)
    dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    try:
        with pytest.raises(ContextMismatchError):
            loaded(data)
    finally:
        dist.destroy_process_group()


def test_a_group_that_is_gone(world):
    """A group that was ended is a mismatch, though its world goes on."""
    group = dist.new_group([0, 1])
    with process_groups.use(tp=group):
        data = ctxcarry.capture().dumps()
    settled(data, lambda: process_groups.current("tp"))
    assert known(data)
    dist.destroy_process_group(group)
    with pytest.raises(ContextMismatchError, match="tp"):
        loaded(data)


def test_a_mesh_that_is_gone(world):
    """A mesh that nobody has kept is a mismatch, and was not kept here."""
    mesh = init_device_mesh("cpu", (8,), mesh_dim_names=("x",))
    with mesh:
        data = ctxcarry.capture().dumps()
    settled(data, lambda: None)
    assert known(data)
    reference = weakref.ref(mesh)
    del mesh
    gc.collect()
    assert reference() is None
    with pytest.raises(ContextMismatchError):
        loaded(data)


def test_a_carrier_in_its_place():
    """A carrier of the same name that was registered since is the one that applies."""
    found = []

    def carrier(tag):
        value = [None]

        def put(new):
            found.append((tag, new))
            value[0] = new

        return value, ctxcarry.ValueCarrier("wire.value", lambda: value[0], put, None)

    value, first = carrier("first")
    ctxcarry.register(first)
    try:
        value[0] = 1
        data = ctxcarry.capture().dumps()
        value[0] = None
        settled(data, lambda: None)
        assert known(data)
        ctxcarry.unregister("wire.value")
        with pytest.warns(CtxCarryWarning, match="wire.value"):
            loaded(data)
        ctxcarry.register(carrier("second")[1])
        found.clear()
        loaded(data).run(lambda: None)
        assert [("second", 1), ("second", None)] == found
    finally:
        ctxcarry.unregister("wire.value")


def test_a_carrier_with_a_load_of_its_own():
    """What a carrier of the user's loads may change without its payload."""
    added = [1]

    class Adding(ctxcarry.ValueCarrier):
        def load(self, payload):
            return payload + added[0]

    value = [0]
    ctxcarry.register(
        Adding("wire.adding", lambda: value[0], lambda new: value.__setitem__(0, new), 0)
    )
    try:
        value[0] = 1
        data = ctxcarry.capture().dumps()
        value[0] = 0
        assert settled(data, lambda: value[0]) == 2
        added[0] = 2
        assert loaded(data).run(lambda: value[0]) == 3
    finally:
        ctxcarry.unregister("wire.adding")


@pytest.mark.parametrize(
    ("name", "entry", "part"),
    [
        ("nobody.knows", ["v", 1], "nobody.knows"),
        ("contextvars", ["v", [{"wire_subjects:V0": 1, "wire_subjects:NO": 1}, {}]], "NO"),
        ("contextvars", ["v", [{"wire_subjects:V0": 1}, {"nowhere:V": "!"}]], "nowhere"),
    ],
)
def test_a_complaint_each_time(written, name, entry, part):
    """What cannot be loaded is complained of at each call, and the rest is carried."""
    data = written({"torch.grad_mode": ["v", False], name: entry})
    for _ in range(4):
        with pytest.warns(CtxCarryWarning, match=part):
            assert loaded(data).run(torch.is_grad_enabled) is False


def test_a_context_that_is_cleared():
    """What the caller clears is cleared each time."""

    def dumps():
        with ctxcarry.policy(clear="torch.grad_mode"):
            return ctxcarry.capture().dumps()

    data = dumps()
    with torch.no_grad():
        assert settled(data, torch.is_grad_enabled) is True
        assert known(data)
