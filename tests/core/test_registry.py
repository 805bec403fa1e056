"""Registry: the ordered set of carriers."""

import importlib
import sys
import threading
from contextvars import ContextVar

import pytest

import ctxcarry
from ctxcarry import (
    MISSING,
    CarrierError,
    ContextVarCarrier,
    DuplicateCarrierError,
    Registry,
    ThreadLocalCarrier,
    UnknownCarrierError,
    ValueCarrier,
)


class Slot:
    """A carrier from scratch: one value of each thread."""

    def __init__(self, name):
        self.name = name
        self.local = threading.local()

    def capture(self):
        return getattr(self.local, "value", MISSING)

    def apply(self, state):
        before = self.capture()
        self.assign(state)
        return before

    def undo(self, token):
        self.assign(token)

    def assign(self, value):
        if value is not MISSING:
            self.local.value = value
        elif hasattr(self.local, "value"):
            del self.local.value


def names(registry):
    """Return the names of the carriers in order."""
    return [carrier.name for carrier in registry.carriers()]


def test_new_registry_is_empty():
    """A registry of one's own starts without carriers, and then there is nothing to carry."""
    registry = Registry()
    assert () == registry.carriers()
    assert len is registry.capture().wrap(len)


def test_register_returns_the_carrier():
    """What is registered is returned, so that a definition can be one line."""
    carrier = Slot("a")
    assert carrier is Registry().register(carrier)


def test_order_is_that_of_registration():
    """Carriers stay in the order in which they were registered."""
    registry = Registry()
    for name in "cab":
        registry.register(Slot(name))
    assert ["c", "a", "b"] == names(registry)


def test_carriers_is_a_tuple_of_the_moment():
    """What `carriers` returned does not change with the registry."""
    registry = Registry()
    registry.register(Slot("a"))
    before = registry.carriers()
    registry.register(Slot("b"))
    assert (("a",), tuple) == (tuple(c.name for c in before), type(before))


def test_after_moves_behind():
    """A carrier comes after those that it names."""
    registry = Registry()
    registry.register(Slot("a"), after=["c"])
    registry.register(Slot("b"))
    registry.register(Slot("c"))
    order = names(registry)
    assert order.index("c") < order.index("a")
    assert {"a", "b", "c"} == set(order)


def test_after_takes_one_name_or_several():
    """``after`` may be one name, and any iterable of names."""
    registry = Registry()
    registry.register(Slot("long-name"), after="x1")
    registry.register(Slot("b"), after=iter(["x1", "x2"]))
    registry.register(Slot("x2"), after=("x1",))
    registry.register(Slot("x1"))
    order = names(registry)
    assert ["x1", "x2", "b"] == [n for n in order if n != "long-name"]
    assert order.index("x1") < order.index("long-name")


def test_after_an_absent_name_is_no_error():
    """A carrier may ask to come after one that is never registered."""
    registry = Registry()
    registry.register(Slot("a"), after=["absent"])
    assert ["a"] == names(registry)


@pytest.mark.parametrize("circle", [[("a", "a")], [("a", "b"), ("b", "c"), ("c", "a")]])
def test_circle_is_an_error_and_changes_nothing(circle):
    """Carriers that ask to come after one another are a ValueError that shows the circle."""
    registry = Registry()
    *good, (last, last_after) = circle
    for name, after in good:
        registry.register(Slot(name), after=[after])
    before = names(registry)
    with pytest.raises(ValueError, match="a → ") as caught:
        registry.register(Slot(last), after=[last_after])
    assert all(name in str(caught.value) for name, _ in circle)
    assert before == names(registry)
    registry.register(Slot(last))
    assert {name for name, _ in circle} == set(names(registry))


def test_order_survives_unregister():
    """Removing a carrier keeps the others where they are."""
    registry = Registry()
    registry.register(Slot("a"), after=["d"])
    for name in "bcd":
        registry.register(Slot(name))
    order = names(registry)
    registry.unregister("c")
    assert [n for n in order if n != "c"] == names(registry)


def test_duplicate_names_both_parties():
    """A second carrier of one name is refused; the error names both and the way out."""
    registry = Registry()
    first, second = Slot("a"), Slot("a")
    registry.register(first)
    with pytest.raises(DuplicateCarrierError) as caught:
        registry.register(second)
    assert repr(first) in str(caught.value)
    assert repr(second) in str(caught.value)
    assert "unregister('a')" in str(caught.value)
    assert (first,) == registry.carriers()


def test_name_is_free_after_unregister():
    """After `unregister` the name can be given again."""
    registry = Registry()
    registry.register(Slot("a"))
    registry.unregister("a")
    second = registry.register(Slot("a"))
    assert (second,) == registry.carriers()


def test_unregister_unknown_suggests():
    """An unknown name says what exists and what was probably meant."""
    registry = Registry()
    registry.register(Slot("app.tenant"))
    registry.register(Slot("other"))
    with pytest.raises(UnknownCarrierError) as caught:
        registry.unregister("app.tennant")
    message = str(caught.value)
    assert "Did you mean 'app.tenant'?" in message
    assert "Available: app.tenant, other" in message


def test_unregister_in_an_empty_registry():
    """With nothing registered the error says that there is none."""
    with pytest.raises(UnknownCarrierError, match="Available: none"):
        Registry().unregister("a")


@pytest.mark.parametrize("missing", ["capture", "apply", "undo", "name"])
def test_incomplete_carrier_is_refused(missing):
    """A carrier without one of its members is a TypeError that names it."""
    members = {
        "name": "a",
        "capture": lambda self: MISSING,
        "apply": lambda self, state: None,
        "undo": lambda self, token: None,
    }
    del members[missing]
    carrier = type("Incomplete", (), members)()
    with pytest.raises(TypeError, match=rf"lacks {missing}"):
        Registry().register(carrier)


def test_carrier_class_is_refused():
    """A class in place of its instance is a TypeError that says so."""

    class Whole(Slot):
        name = "whole"

    with pytest.raises(TypeError, match="instance"):
        Registry().register(Whole)


@pytest.mark.parametrize("name", ["", "*", None, 3])
def test_impossible_name_is_refused(name):
    """A name is a non-empty string that policies can mention."""
    with pytest.raises(TypeError, match="name"):
        Registry().register(Slot(name))


def test_registry_edits_do_not_affect_snapshots():
    """A snapshot keeps the carriers, the order and the states that it was taken with."""
    registry = Registry()
    kept, later = Slot("kept"), Slot("later")
    registry.register(kept)
    kept.assign("near")
    snapshot = registry.capture()
    registry.unregister("kept")
    registry.register(later)
    kept.assign("far")
    later.assign("far")
    assert ("near", "far") == snapshot.run(lambda: (kept.capture(), later.capture()))
    assert ("far", "far") == (kept.capture(), later.capture())


def test_registry_edits_do_not_affect_open_scopes():
    """A scope that is open while carriers come and go is closed as it was opened."""
    registry = Registry()
    first, second = Slot("first"), Slot("second")
    registry.register(first)
    first.assign("near")
    snapshot = registry.capture()
    first.assign("far")
    with snapshot.active():
        registry.unregister("first")
        registry.register(second)
        second.assign("inside")
        assert "near" == first.capture()
    assert ("far", "inside") == (first.capture(), second.capture())


def test_replaced_carrier_does_not_take_over_a_snapshot():
    """A carrier that took over the name gets nothing from a snapshot of its predecessor."""
    registry = Registry()
    old, new = Slot("a"), Slot("a")
    registry.register(old)
    old.assign("old")
    snapshot = registry.capture()
    registry.unregister("a")
    registry.register(new)
    old.assign("far")
    assert ("old", MISSING) == snapshot.run(lambda: (old.capture(), new.capture()))


def test_policy_applies_to_a_carrier_registered_later():
    """A plan cached for a policy is not used once the registry has changed."""
    registry = Registry()
    registry.register(Slot("a"))
    with ctxcarry.policy(clear="*"):
        registry.capture()
        late = registry.register(Slot("late"))
        snapshot = registry.capture()
    late.assign("far")
    assert MISSING is snapshot.run(late.capture)


def test_only_and_exclude():
    """``only`` and ``exclude`` take one name or several and leave the rest alone."""
    registry = Registry()
    slots = [registry.register(Slot(name)) for name in ("aa", "bb", "cc")]

    def seen(**which):
        for slot in slots:
            slot.assign("near")
        snapshot = registry.capture(**which)
        for slot in slots:
            slot.assign("far")
        return snapshot.run(lambda: [slot.capture() for slot in slots])

    assert ["near", "far", "far"] == seen(only="aa")
    assert ["near", "far", "near"] == seen(only=iter(["aa", "cc"]))
    assert ["near", "far", "near"] == seen(exclude="bb")
    assert ["far", "far", "near"] == seen(exclude=["aa", "bb"])
    assert ["far", "far", "far"] == seen(only=())
    assert ["near", "near", "near"] == seen(exclude=())


def test_only_and_exclude_together():
    """Both at once are a ValueError."""
    registry = Registry()
    registry.register(Slot("a"))
    with pytest.raises(ValueError, match="only= or exclude="):
        registry.capture(only="a", exclude="a")


@pytest.mark.parametrize("which", ["only", "exclude"])
def test_selection_of_an_unknown_name(which):
    """An unknown name is an error with a suggestion, not a silent nothing."""
    registry = Registry()
    registry.register(Slot("torch.grad_mode"))
    with pytest.raises(UnknownCarrierError, match=r"Did you mean 'torch\.grad_mode'\?"):
        registry.capture(**{which: "torch.gradmode"})


def test_known_names_may_be_mentioned():
    """A context of a framework that is not imported can be named, and is not carried."""
    registry = Registry(known=["frame.work"])
    registry.register(Slot("a"))
    assert registry.capture(exclude="frame.work").run(lambda: True)
    with ctxcarry.suppress("frame.work"):
        assert registry.capture().run(lambda: True)


def test_unavailable_context_asked_for_by_name():
    """A context that exists but cannot be carried here is an error when asked for by name."""
    registry = Registry(known=["frame.work"])
    registry.mark_unavailable("frame.work", "version 0 is too old")
    assert {"frame.work": "version 0 is too old"} == registry.unavailable()
    with pytest.raises(CarrierError, match="version 0 is too old") as caught:
        registry.capture(only="frame.work")
    assert ("frame.work", "capture") == (caught.value.carrier, caught.value.stage)
    registry.register(Slot("frame.work"))
    assert {} == registry.unavailable()
    assert registry.capture(only="frame.work").run(lambda: True)


def test_process_wide_carriers_are_left_alone():
    """A carrier of a state that all threads share is not applied in a thread."""

    class Global(Slot):
        process_wide = True

    registry = Registry()
    shared = registry.register(Global("shared"))
    shared.assign("near")
    snapshot = registry.capture()
    shared.assign("far")
    assert "far" == snapshot.run(shared.capture)


def test_default_registry_functions():
    """`register`, `carriers` and `unregister` work on `ctxcarry.registry`."""
    carrier = ctxcarry.register(Slot("test.slot"), after=["contextvars"])
    try:
        assert carrier in ctxcarry.carriers()
        assert ctxcarry.carriers() == ctxcarry.registry.carriers()
    finally:
        ctxcarry.unregister("test.slot")
    assert carrier not in ctxcarry.carriers()


def test_default_registry_carries_contextvars():
    """Without any registration every ContextVar is carried."""
    variable = ContextVar("variable")
    variable.set("near")
    snapshot = ctxcarry.capture()
    variable.set("far")
    assert "near" == snapshot.run(variable.get)


def test_registration_from_many_threads(in_thread):
    """Carriers registered and removed by several threads at once are all there or all gone."""
    registry = Registry()
    together = threading.Barrier(6)
    failures = []

    def work(number):
        together.wait(30)
        try:
            for index in range(30):
                registry.register(Slot(f"{number}.{index}"))
                registry.capture().run(int)
                if index % 2:
                    registry.unregister(f"{number}.{index}")
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [] == failures
    assert {f"{n}.{i}" for n in range(6) for i in range(0, 30, 2)} == set(names(registry))


@pytest.fixture
def offer(tmp_path, monkeypatch):
    """Return a function that installs a distribution with entry points."""
    modules = []

    def offer(module, source, **points):
        (tmp_path / f"{module}.py").write_text(source)
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        lines = [f"{name} = {module}:{target}" for name, target in points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[ctxcarry.carriers]", *lines, ""]))
        modules.append(module)
        importlib.invalidate_caches()

    monkeypatch.syspath_prepend(str(tmp_path))
    before = {carrier.name for carrier in ctxcarry.carriers()}
    yield offer
    for module in modules:
        sys.modules.pop(module, None)
    for carrier in ctxcarry.carriers():
        if carrier.name not in before:
            ctxcarry.unregister(carrier.name)


OFFERED = """
from contextvars import ContextVar
from ctxcarry import ContextVarCarrier
carrier = ContextVarCarrier(ContextVar("one"), name="offered.one")
def make():
    return ContextVarCarrier(ContextVar("two"), name="offered.two")
class Own:
    name = "offered.three"
    def capture(self): ...
    def apply(self, state): ...
    def undo(self, token): ...
"""


def test_entry_points_are_registered_on_demand(offer):
    """A carrier, a function that makes one and a carrier's class can be offered."""
    offer("ctxcarry_offer_a", OFFERED, one="carrier", two="make", three="Own")
    assert "ctxcarry_offer_a" not in sys.modules
    expected = {"offered.one", "offered.two", "offered.three"}
    assert expected == set(ctxcarry.load_entry_points())
    assert expected <= {carrier.name for carrier in ctxcarry.carriers()}


def test_entry_points_twice(offer):
    """A second scan leaves what is registered and reports nothing new."""
    offer("ctxcarry_offer_b", OFFERED, one="carrier", two="make")
    ctxcarry.load_entry_points()
    before = ctxcarry.carriers()
    assert () == ctxcarry.load_entry_points()
    assert before == ctxcarry.carriers()


def test_entry_point_that_cannot_be_loaded_is_named(offer):
    """A broken entry point is a CarrierError that names it."""
    offer("ctxcarry_offer_c", "", broken="nothing_there")
    with pytest.raises(CarrierError, match="AttributeError") as caught:
        ctxcarry.load_entry_points()
    assert ("broken", "load") == (caught.value.carrier, caught.value.stage)
    assert isinstance(caught.value.__cause__, AttributeError)


def test_entry_point_that_is_no_carrier_is_named(offer):
    """An entry point that offers something else is a CarrierError that names it."""
    offer("ctxcarry_offer_d", "def make(): return object()\n", strange="make")
    with pytest.raises(CarrierError) as caught:
        ctxcarry.load_entry_points()
    assert "strange" == caught.value.carrier


def test_generic_carriers_satisfy_the_protocol():
    """Each generic carrier is a `Carrier`."""
    carriers = (
        ContextVarCarrier(ContextVar("v")),
        ThreadLocalCarrier(threading.local(), name="l"),
        ValueCarrier("v", int, print),
    )
    assert all(isinstance(carrier, ctxcarry.Carrier) for carrier in carriers)
