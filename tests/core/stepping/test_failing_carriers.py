"""Carriers that fail at a step or at a pause."""

import sys

import pytest

from ctxcarry import MISSING, CarrierError, Registry, ValueCarrier

if sys.version_info < (3, 11):
    from exceptiongroup import ExceptionGroup


class Cell:
    """A carrier of one value, which can be told to fail."""

    name = "test.cell"

    def __init__(self):
        self.value = "far"
        self.failing = None

    def fail(self, stage):
        if self.failing == stage:
            self.failing = None
            raise OSError(stage)

    def capture(self):
        self.fail("capture")
        return self.value

    def apply(self, state):
        self.fail("apply")
        before, self.value = self.value, state
        return before

    def undo(self, token):
        self.fail("undo")
        self.value = token


@pytest.fixture
def cell():
    """Return a carrier that fails when it is told to."""
    return Cell()


@pytest.fixture
def cells(cell, registry, local):
    """Return a registry with a threading.local and, behind it, a carrier that may fail."""
    registry.register(cell)
    return registry


def test_apply_fails_at_a_step(cells, cell, local):
    """A context that cannot be applied at a step: the step is not made, and nothing is left."""
    local.value = cell.value = "near"

    def body():
        yield local.value

    generator = cells.capture().run(body)
    local.value = cell.value = "far"
    cell.failing = "apply"
    with pytest.raises(CarrierError, match=r"'test\.cell' failed to apply"):
        next(generator)
    assert ("far", "far") == (local.value, cell.value)


def test_capture_fails_at_a_pause(cells, cell, local):
    """A context that cannot be read at a pause: everything is undone all the same, by name."""

    def body():
        cell.failing = "capture"
        yield

    local.value = cell.value = "near"
    generator = cells.capture().run(body)
    local.value = cell.value = "far"
    with pytest.raises((CarrierError, ExceptionGroup), match=r"'test\.cell'"):
        next(generator)
    assert ("far", "far") == (local.value, cell.value)


@pytest.mark.parametrize("stage", ["capture", "undo"])
def test_carrier_that_fails_at_a_pause_does_not_mask(stage, cells, cell, local):
    """The body's own exception stays what the caller sees when a carrier fails beside it."""

    def body():
        cell.failing = stage
        raise ValueError("mine")
        yield

    local.value = cell.value = "near"
    generator = cells.capture().run(body)
    local.value = cell.value = "far"
    with pytest.raises(ValueError, match="mine") as caught:
        next(generator)
    assert "test.cell" in "".join(getattr(caught.value, "__notes__", []))
    assert "far" == local.value


def test_value_that_cannot_be_unset_outside_does_not_mask():
    """Putting back what was outside may fail too, and does not hide the body's exception."""
    box = {"now": MISSING}
    registry = Registry()
    registry.register(ValueCarrier("box", lambda: box["now"], lambda v: box.update(now=v)))

    def body():
        box["now"] = "body"
        raise ValueError("mine")
        yield

    generator = registry.capture().run(body)
    with pytest.raises(ValueError, match="mine"):
        next(generator)
