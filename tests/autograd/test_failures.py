"""Contexts that fail on a thread of the engine, and what an exception there keeps alive."""

import threading
import weakref

import pytest

import ctxcarry


class Slot:
    """A carrier of one value per thread, which may fail."""

    name = "tests.slot"

    def __init__(self, *, fails=None):
        self.local = threading.local()
        self.fails = fails

    def capture(self):
        """Return the value."""
        return getattr(self.local, "value", ctxcarry.MISSING)

    def apply(self, state):
        """Set the value."""
        if self.fails == "apply":
            msg = "the slot is jammed"
            raise OSError(msg)
        before = self.capture()
        self.local.value = state
        return before

    def undo(self, token):
        """Set the former value."""
        if self.fails == "undo":
            msg = "the slot is jammed"
            raise OSError(msg)
        self.local.value = token


@pytest.fixture
def slot():
    """Return a function that registers a slot with a value."""

    def make(value="value", fails=None):
        slot = ctxcarry.register(Slot(fails=fails))
        slot.local.value = value
        return slot

    yield make
    ctxcarry.unregister(Slot.name)


@pytest.mark.usefixtures("installed")
def test_a_context_that_cannot_be_applied(slot, device, tap):
    """The pass fails with the error that names it, and the function is not called."""
    slot(fails="apply")
    called = []
    y = tap(device.leaf(), lambda: called.append(1)).sum()
    with pytest.raises(ctxcarry.CarrierError, match=r"'tests.slot' failed to apply.*jammed"):
        y.backward()
    assert called == []


@pytest.mark.usefixtures("installed")
def test_a_context_that_cannot_be_undone(slot, device, tap):
    """The pass fails with what is left, unless the function itself has failed: that comes first."""
    slot(fails="undo")

    def fail():
        msg = "in backward"
        raise ValueError(msg)

    with pytest.raises(ValueError, match="in backward") as caught:
        tap(device.leaf(), fail).sum().backward()
    assert "failed to undo" in caught.value.__notes__[0]
    y = tap(device.leaf(), lambda: None).sum()
    with pytest.raises(Exception, match=r"'tests\.slot' could not be undone") as caught:
        y.backward()
    assert type(caught.value).__name__ == "ExceptionGroup"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("count", [1, 2])
def test_an_exception_keeps_no_state_alive(count, slot, contexts, device, tap, is_collected):
    """What was set around a pass that failed is free, although its exception is kept."""

    class Big:
        """Something that somebody would notice."""

    def fail():
        msg = "in backward"
        raise ValueError(msg)

    if count == 1:
        contexts.unset()
    carried = slot(Big())
    reference = weakref.ref(carried.local.value)
    y = tap(device.leaf(), fail).sum()
    with pytest.raises(ValueError, match="in backward") as caught:
        y.backward()
    del carried.local.value
    assert caught.value.__traceback__ is not None
    assert is_collected(reference)
