"""Carriers and probes that are broken, absent or impossible here."""

from contextlib import contextmanager
from dataclasses import replace

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("spmd_types")

from doctor_subjects import (
    ALL_BOUNDARIES,
    KEPT_BY_CHECKPOINT,
    NEAR,
    WITHOUT_RAY,
    Slot,
    is_owned,
    row,
)

import ctxcarry
from ctxcarry.diagnose.boundaries import BOUNDARIES
from ctxcarry.diagnose.matrix import run_matrix
from ctxcarry.diagnose.probes import PROBES, CannotProbeError, Probe


class AppliesNothing(Slot):
    """Claims to have applied."""

    def apply(self, state):
        """Do nothing."""
        return self.read()


class UndoesNothing(Slot):
    """Claims to have undone."""

    def undo(self, token):
        """Do nothing."""


class CannotCapture(Slot):
    """Fails on the near side."""

    def capture(self):
        """Raise."""
        msg = "the slot is jammed"
        raise OSError(msg)


class CannotApply(Slot):
    """Fails on the far side."""

    def apply(self, state):
        """Raise."""
        msg = "the slot is jammed"
        raise OSError(msg)


class CaptureSets(Slot):
    """Changes the thread that it only should read."""

    def capture(self):
        """Change what is captured."""
        seen, self.local.value = self.read(), "captured"
        return seen


@pytest.fixture
def register():
    """Register carriers for the length of a test."""
    registered = []

    def do_register(carrier):
        registered.append(ctxcarry.register(carrier).name)
        return carrier

    yield do_register
    for name in registered:
        ctxcarry.unregister(name)


@pytest.fixture
def probed(register, monkeypatch):
    """Register a carrier whose probe sets and reads its slot."""

    def do_probe(carrier):
        @contextmanager
        def make():
            yield Probe(carrier.set, carrier.read)

        monkeypatch.setitem(PROBES, carrier.name, make)
        return register(carrier)

    return do_probe


def test_context_that_this_machine_cannot_show_is_neutral(register, monkeypatch):
    """A probe that lacks something here has no cells and says what it lacks."""

    @contextmanager
    def make():
        msg = "a second device is needed"
        raise CannotProbeError(msg)
        yield

    slot = register(Slot())
    monkeypatch.setitem(PROBES, slot.name, make)
    matrix = run_matrix(BOUNDARIES[:1])
    seen = row(matrix, slot.name)
    assert ("no probe", {}, "a second device is needed") == (seen.kind, seen.cells, seen.reason)
    assert matrix.ok


def test_working_carrier_is_ok(probed):
    """A carrier of one's own that works passes."""
    probed(Slot())
    matrix = run_matrix(WITHOUT_RAY)
    assert row(matrix, "test.slot").cells.keys() >= ALL_BOUNDARIES
    assert matrix.ok


@pytest.mark.parametrize(
    ("broken", "carried", "after", "text"),
    [
        (AppliesNothing, "failed", "clean", "the work saw 'unset' instead of 'set'"),
        (UndoesNothing, "ok", "left", "the worker was left with 'set', and had 'unset' before"),
        (
            CannotCapture,
            "failed",
            None,
            "failed to capture its context: OSError: the slot is jammed",
        ),
        (
            CannotApply,
            "failed",
            "clean",
            "failed to apply its context: OSError: the slot is jammed",
        ),
        (CaptureSets, "ok", "left", "left with 'captured'"),
    ],
)
def test_broken_carrier_fails_and_only_it(probed, broken, carried, after, text):
    """Each way in which a carrier can be broken is told in its own cells, and in no other."""
    probed(broken())
    matrix = run_matrix(NEAR)
    assert not matrix.ok
    cell = row(matrix, "test.slot").cells["wrap_executor"]
    assert ("lost", carried) == (cell.plain, cell.carried)
    assert text in cell.error
    if after is not None:
        assert after == cell.after
    failing = {r.carrier for r in matrix.rows for c in r.cells.values() if not c.ok}
    assert failing == {"test.slot"}


def test_carrier_without_a_probe_is_neutral(register):
    """A carrier that doctor cannot set is named, has no cells, and fails nothing."""
    register(Slot())
    matrix = run_matrix(NEAR)
    assert ("no probe", {}) == (row(matrix, "test.slot").kind, row(matrix, "test.slot").cells)
    assert matrix.ok


def test_carrier_without_a_probe_that_breaks_every_hand_over_is_found(register):
    """A carrier that cannot capture makes doctor fail even without a probe of its own."""
    register(CannotCapture())
    matrix = run_matrix(NEAR)
    assert not matrix.ok
    assert list(matrix.faults) == ["test.slot"]
    assert all(cell.ok for r in matrix.rows for cell in r.cells.values())


@pytest.mark.parametrize("part", ["make", "set", "read", "nothing"])
def test_probe_that_fails_is_told(register, monkeypatch, part):
    """An error of the probe itself, or a probe that sets nothing, fails its cells with the text."""

    def fail():
        msg = f"cannot {part}"
        raise OSError(msg)

    slot = register(Slot())

    @contextmanager
    def make():
        if part == "make":
            fail()
        if part == "nothing":
            yield Probe(slot.set, lambda: "the same")
        else:
            yield Probe(fail if part == "set" else slot.set, fail if part == "read" else slot.read)

    monkeypatch.setitem(PROBES, slot.name, make)
    matrix = run_matrix(NEAR)
    expected = "but reads 'the same' as before" if part == "nothing" else f"OSError: cannot {part}"
    cells = row(matrix, slot.name).cells
    assert set(cells) >= ALL_BOUNDARIES - {"process"}
    assert all(cell.carried == "failed" and expected in cell.error for cell in cells.values())
    assert not matrix.ok


def test_boundary_that_does_not_carry_fails_every_cell():
    """The matrix would notice a boundary that carries nothing."""
    idle = [replace(b, carried=b.plain) for b in NEAR if b.name != "to_thread"]
    cells = [
        cell
        for r in run_matrix(idle).rows
        for boundary, cell in r.cells.items()
        if not is_owned(r, boundary) and (r.carrier, boundary) not in KEPT_BY_CHECKPOINT
    ]
    assert cells
    assert {("lost", "failed", "clean")} == {(c.plain, c.carried, c.after) for c in cells}
