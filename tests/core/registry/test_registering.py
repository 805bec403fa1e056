"""The ordered set of carriers: which ones are accepted, and in what order."""

import threading
from contextvars import ContextVar

import pytest
from registry_subjects import Slot, names

import ctxcarry
from ctxcarry import (
    MISSING,
    ContextVarCarrier,
    DuplicateCarrierError,
    Registry,
    ThreadLocalCarrier,
    UnknownCarrierError,
    ValueCarrier,
)


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


def test_default_registry_functions():
    """`register`, `carriers` and `unregister` work on `ctxcarry.registry`."""
    carrier = ctxcarry.register(Slot("test.slot"), after=["contextvars"])
    try:
        assert carrier in ctxcarry.carriers()
        assert ctxcarry.carriers() == ctxcarry.registry.carriers()
    finally:
        ctxcarry.unregister("test.slot")
    assert carrier not in ctxcarry.carriers()


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


def test_generic_carriers_satisfy_the_protocol():
    """Each generic carrier is a `Carrier`."""
    carriers = (
        ContextVarCarrier(ContextVar("v")),
        ThreadLocalCarrier(threading.local(), name="l"),
        ValueCarrier("v", int, print),
    )
    assert all(isinstance(carrier, ctxcarry.Carrier) for carrier in carriers)
