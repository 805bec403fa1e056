"""What a snapshot takes of a registry, and what edits of the registry change in it."""

from contextvars import ContextVar

import pytest
from registry_subjects import Slot

import ctxcarry
from ctxcarry import MISSING, CarrierError, Registry, UnknownCarrierError


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


def test_default_registry_carries_contextvars():
    """Without any registration every ContextVar is carried."""
    variable = ContextVar("variable")
    variable.set("near")
    snapshot = ctxcarry.capture()
    variable.set("far")
    assert "near" == snapshot.run(variable.get)
