"""Dumping again: the same bytes while nothing has changed, and other ones as soon as it has."""

import contextvars
import gc
import sys
import threading
import types
import weakref

import pytest
import torch
import wire_subjects
from torch.distributed.device_mesh import init_device_mesh

import ctxcarry
from ctxcarry import process_groups
from ctxcarry._redump import dumped
from ctxcarry.errors import CtxCarryWarning

triton = pytest.importorskip("triton")

V0, V1 = wire_subjects.V0, wire_subjects.V1


def now():
    """Return what is dumped now, however often before."""
    return dumped(ctxcarry.registry.plan())


def anew():
    """Return what is dumped without regard to what was before."""
    return ctxcarry.capture().dumps()


def settled():
    """Dump until nothing more is noted; return the bytes."""
    found = [now() for _ in range(4)]
    assert [anew()] * 4 == found
    return found[-1]


def in_context(fn):
    """Call `fn` in a Context of its own, so that it may set variables."""
    return contextvars.copy_context().run(fn)


def test_nothing_set():
    """Where nothing is set, the very same bytes come again."""
    assert settled() is now()


def test_the_same_again(mesh):
    """What stays as it is, or is set to the very same, is not dumped anew."""

    def check():
        V0.set("zero")
        V1.set((1, "a", None, frozenset({2.5})))
        triton.set_allocator(wire_subjects.allocate)
        groups = {"tp": mesh.get_group("tp"), "dp": mesh.get_group("dp")}
        with mesh, process_groups.use(**groups), torch.no_grad():
            first = settled()
            with process_groups.use(**groups):
                assert first is now()
        return first

    assert in_context(check)


@pytest.mark.parametrize(
    ("value", "other"),
    [("a", "b"), (1, True), (1, 1.0), (0.0, -0.0), ((1,), (True,)), ("a", None), ("a", ["a"])],
)
def test_another_value(value, other):
    """Another value is dumped, also one that is equal and of another type."""

    def check():
        V0.set(value)
        former = settled()
        V0.set(other)
        assert former != now() == anew()
        V0.set(value)
        assert former == now()

    in_context(check)


@pytest.mark.parametrize(
    ("value", "change"),
    [
        ([1], lambda value: value.append(2)),
        ({"a": [1]}, lambda value: value["a"].append(2)),
        (([1],), lambda value: value[0].append(2)),
        (wire_subjects.Point(1), lambda value: vars(value).update(x=2)),
    ],
)
def test_a_value_changed_in_place(value, change):
    """A value that was changed where it is arrives as it is at the call."""

    def check():
        V0.set(value)
        former = settled()
        change(value)
        assert former != now() == anew()

    in_context(check)


def test_one_more_and_one_fewer():
    """A variable that is set besides is dumped, and no more where it is not set."""

    def check():
        V0.set("zero")
        former = settled()

        def more():
            V1.set("one")
            assert former != now() == anew()
            settled()

        in_context(more)
        assert former == now()

    in_context(check)


def test_another_group(mesh):
    """Another group in a role, and a role of another name."""
    tp, dp = mesh.get_group("tp"), mesh.get_group("dp")
    found = []
    for groups in ({"tp": tp}, {"tp": dp}, {"ep": dp}, {"ep": dp, "tp": tp}):
        with process_groups.use(**groups):
            found.append(settled())
            assert now() == anew()
    # One after the other, without time to settle.
    for groups, data in zip(({"tp": tp}, {"tp": dp}, {"ep": dp}), found):
        with process_groups.use(**groups):
            assert data == now()
    assert len(set(found)) == 4


def test_another_mesh(mesh):
    """Another mesh, and one more on the stack."""
    other = init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp", "tp"))
    with mesh:
        first = settled()
        with other:
            second = now()
            assert second == anew()
    with other:
        third = now()
        assert third == anew()
    assert len({first, second, third}) == 3


def test_a_flag():
    """A state of torch's that has changed."""
    former = settled()
    with torch.no_grad():
        without = now()
        assert former != without == anew()
        settled()
        with torch.enable_grad():
            assert former == now()


def test_an_allocator_that_has_lost_its_name(monkeypatch):
    """An allocator that can no longer be imported is complained of, though it is the same."""

    def check():
        triton.set_allocator(wire_subjects.allocate)
        former = settled()
        monkeypatch.setattr(wire_subjects, "allocate", wire_subjects.allocate_profile)
        with pytest.warns(CtxCarryWarning, match="no import path"):
            assert former != now()

    in_context(check)


def test_a_complaint_each_time():
    """What cannot travel is complained of at each call."""

    def check():
        triton.set_allocator(lambda size, alignment, stream: None)
        for _ in range(4):
            with pytest.warns(CtxCarryWarning, match="no import path"):
                now()

    in_context(check)


def test_a_policy():
    """What a policy leaves out is left out, inside of it."""

    def check():
        with torch.no_grad():
            V0.set("zero")
            former = settled()
            for policy in (
                ctxcarry.suppress("torch.grad_mode"),
                ctxcarry.policy(clear="contextvars"),
            ):
                with policy:
                    assert former != settled()
            assert former == now()

    in_context(check)


@pytest.fixture
def register():
    """Return ``registry.register``; the carriers go after the test."""
    names = []

    def add(carrier):
        names.append(ctxcarry.register(carrier).name)

    yield add
    for name in names:
        ctxcarry.unregister(name)


@pytest.mark.parametrize("process_wide", [False, True])
@pytest.mark.parametrize("values", [(1, 2), (1, True), ([1], [1, 2])])
def test_a_carrier_of_a_value(register, process_wide, values):
    """The value of a carrier that came later, of a thread's or of all of them."""
    former = settled()
    here = [None]
    carrier = ctxcarry.ValueCarrier(
        "wire.value",
        lambda: here[0],
        lambda value: here.__setitem__(0, value),
        None,
        process_wide=process_wide,
    )
    register(carrier)
    assert former == settled()
    here[0] = values[0]
    first = settled()
    here[0] = values[1]
    assert former != first != now() == anew()
    here[0] = None
    assert former == now()


def test_a_state_changed_in_place(register):
    """A carrier's state that is changed where it is, is dumped as it is at the call."""
    here = [1]
    register(ctxcarry.ValueCarrier("wire.value", lambda: here, lambda value: None))
    former = settled()
    here.append(2)
    assert former != now() == anew()


def test_a_carrier_with_a_dump_of_its_own(register):
    """What a carrier of the user's dumps may change without its state."""
    added = [1]

    class Adding(ctxcarry.ValueCarrier):
        def dump(self, state):
            return state + added[0]

    register(Adding("wire.adding", lambda: 1, lambda value: None, 0))
    former = settled()
    added[0] = 2
    assert former != now() == anew()


def test_variables_that_grow(register):
    """A variable that a carrier of several has taken over."""
    variables = [V1]
    carrier = ctxcarry.ContextVarCarrier(V1, "wire.several")
    several = type(carrier).__mro__[1]("wire.several", lambda: tuple(variables))

    def check():
        V0.set("zero")
        register(several)
        former = settled()
        variables.append(V0)
        assert former != now() == anew()

    in_context(check)


def test_a_module_that_comes_later():
    """A variable is dumped as soon as there is a module that it is in."""
    late = contextvars.ContextVar("wire.late")

    def check():
        late.set("here")
        former = settled()
        module = sys.modules["wire_late"] = types.ModuleType("wire_late")
        module.LATE = late
        try:
            assert former != now() == anew()
        finally:
            del sys.modules["wire_late"]

    in_context(check)


def test_threads_with_contexts_of_their_own():
    """Each of several threads dumps its own, by turns."""
    barrier = threading.Barrier(3)
    found = {}

    def run(name):
        V0.set(name)
        with torch.set_grad_enabled(name == "a"):
            expected = anew()
            found[name] = []
            for _ in range(20):
                barrier.wait()
                found[name].append(now() == expected)

    threads = [threading.Thread(target=run, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: [True] * 20 for name in "abc"} == found


def test_nothing_is_kept_alive(world):
    """Neither a value, nor a mesh or a group's mapping lives on in what was noted."""
    nameless = contextvars.ContextVar("wire.nameless")

    def check():
        value, mesh = wire_subjects.Point(1), init_device_mesh("cpu", (8,))
        nameless.set(value)
        with mesh:
            assert settled() is now()
        return weakref.ref(value), weakref.ref(mesh)

    references = in_context(check)
    gc.collect()
    assert [None, None] == [reference() for reference in references]
