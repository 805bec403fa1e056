"""The carrier of a value with a getter and a setter."""

import ctypes
import threading

import pytest

import ctxcarry
from ctxcarry import MISSING, UNCHANGED, CarrierError, Registry, ValueCarrier


class Cell(threading.local):
    """One value of each thread behind a getter and a setter."""

    value = "unset"

    def get(self):
        return self.value

    def set(self, value):
        self.value = value


@pytest.mark.parametrize("value", [None, 0, "near", (), [1]])
def test_value_round_trip(value):
    """The captured value is set, and undo sets the former one."""
    cell = Cell()
    carrier = ValueCarrier("v", cell.get, cell.set)
    cell.set(value)
    state = carrier.capture()
    cell.set("far")
    token = carrier.apply(state)
    assert value is cell.get()
    carrier.undo(token)
    assert "far" == cell.get()


@pytest.mark.parametrize("wrong", [None, 3, "get"])
def test_value_needs_functions(wrong):
    """A getter or setter that cannot be called is a TypeError that says which."""
    with pytest.raises(TypeError, match="get must be callable"):
        ValueCarrier("v", wrong, print)
    with pytest.raises(TypeError, match="set must be callable"):
        ValueCarrier("v", print, wrong)


def test_value_equal_to_what_is_there_is_not_set():
    """A value that is already there is not set again, and nothing is undone."""
    calls = []
    carrier = ValueCarrier("v", lambda: 1, calls.append)
    assert UNCHANGED is carrier.apply(1)
    assert [] == calls


@pytest.mark.parametrize(
    ("near", "far"),
    [(True, 1), (1, True), (1.0, 1), (1, 1.0), ("1", b"1"), (-0.0, 0.0), (0.0, -0.0)],
)
def test_value_that_is_merely_equal_is_set(near, far):
    """What compares equal but is something else is not mistaken for the same."""
    cell = Cell()
    registry = Registry()
    registry.register(ValueCarrier("v", cell.get, cell.set))
    cell.set(near)
    snapshot = registry.capture()
    cell.set(far)
    assert repr(near) == repr(snapshot.run(cell.get))


def test_value_of_equal_containers():
    """Two lists with the same elements are two lists: the work gets the captured one."""
    cell = Cell()
    registry = Registry()
    registry.register(ValueCarrier("v", cell.get, cell.set))
    near, far = [1], [1]
    cell.set(near)
    snapshot = registry.capture()
    cell.set(far)
    assert near is snapshot.run(cell.get)
    assert far is cell.get()


def test_value_default_unsets():
    """With a default, MISSING and `clear` set the default."""
    cell = Cell()
    registry = Registry()
    carrier = registry.register(ValueCarrier("v", cell.get, cell.set, default="unset"))
    cell.set("far")
    carrier.undo(token := carrier.apply(MISSING))
    assert ("far", "far") == (token, cell.get())
    with ctxcarry.policy(clear="v"):
        snapshot = registry.capture()
    assert "unset" == snapshot.run(cell.get)
    assert "far" == cell.get()


def test_value_getter_may_say_missing():
    """A getter that returns MISSING needs a setter that gets the default."""
    cell = Cell()
    cell.set(MISSING)
    carrier = ValueCarrier("v", cell.get, cell.set, default=None)
    state = carrier.capture()
    cell.set("far")
    token = carrier.apply(state)
    assert cell.get() is None
    carrier.undo(token)
    assert "far" == cell.get()


def test_value_former_missing_is_restored_through_the_default():
    """Undo over a value that was not set hands the default to the setter."""
    cell = Cell()
    cell.set(MISSING)
    carrier = ValueCarrier("v", cell.get, cell.set, default=None)
    carrier.undo(carrier.apply("near"))
    assert cell.get() is None


def test_value_without_default_cannot_be_unset():
    """Unsetting a value that has no default is an error that says how to give one."""
    cell = Cell()
    registry = Registry()
    carrier = registry.register(ValueCarrier("app.v", cell.get, cell.set))
    with pytest.raises(CarrierError, match="default=") as caught:
        carrier.apply(MISSING)
    assert ("app.v", "apply") == (caught.value.carrier, caught.value.stage)
    with ctxcarry.policy(clear="app.v"):
        snapshot = registry.capture()
    ran = []
    with pytest.raises(CarrierError, match="default="):
        snapshot.run(ran.append, 1)
    assert [] == ran


def test_value_of_native_thread_state(in_thread):
    """State that lives in C for each thread is carried like any other (feature 7)."""
    registry = Registry()
    registry.register(ValueCarrier("errno", ctypes.get_errno, ctypes.set_errno, default=0))
    ctypes.set_errno(42)
    try:
        snapshot = registry.capture()
        seen = in_thread(
            lambda: (ctypes.get_errno(), snapshot.run(ctypes.get_errno), ctypes.get_errno())
        )
    finally:
        ctypes.set_errno(0)
    assert (0, 42, 0) == seen
