"""What doctor finds, and that it leaves the process as it was."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.pool import ThreadPool

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("spmd_types")

import torch
import torch.distributed as dist
import torch.futures

import ctxcarry
from ctxcarry.boundaries import _install
from ctxcarry.diagnose import doctor
from ctxcarry.diagnose.boundaries import BOUNDARIES
from ctxcarry.diagnose.doctor import examine
from ctxcarry.diagnose.matrix import run_matrix
from ctxcarry.diagnose.probes import GENERIC, PROBES, CannotProbeError, Probe

ALL_BOUNDARIES = {
    "executor",
    "wrap_executor",
    "bind",
    "carry_context",
    "install",
    "Thread",
    "Timer",
    "thread_pool",
    "asyncio",
    "to_thread",
    "process",
    "torch.futures",
    "autograd",
    "hook",
    "recompute",
    "context_fn",
}
# Torch sets in a backward pass itself what is its own there.
TORCHS_OWN = {
    "torch.grad_mode",
    "torch.inference_mode",
    "torch.autocast",
    "torch.dispatch_modes",
    "torch.saved_tensors_hooks",
    "torch.multithreading",
    "torch.cuda_device",
    "torch.cuda_stream",
}
# A checkpoint brings the default device of its forward back itself.
KEPT_BY_CHECKPOINT = {("torch.default_device", "recompute"), ("torch.default_device", "context_fn")}
OFF_IN_BACKWARD = {"torch.function_modes", "torch.default_device"}
# Starting another process takes longer than all the rest.
NEAR = tuple(b for b in BOUNDARIES if not b.far)
FAR = {b.name for b in BOUNDARIES if b.far}
# Starting a Ray takes longer still.
WITHOUT_RAY = tuple(b for b in BOUNDARIES if b.needs != "ray")
# What asyncio.to_thread takes along by itself.
CONTEXT_VARS = {
    "contextvars",
    "process_groups",
    "triton.allocator",
    "ContextVarCarrier",
    "ContextVarsRegistryCarrier",
}
STAY = {
    "torch.dispatch_modes",
    "torch.function_modes",
    "torch.saved_tensors_hooks",
}
PER_THREAD = {
    "contextvars",
    "spmd_types.state",
    "torch.autocast",
    "torch.device_mesh",
    "torch.grad_mode",
    "torch.inference_mode",
    "triton.allocator",
}


class Slot:
    """A carrier of one attribute of a threading.local, whose parts tests break."""

    name = "test.slot"

    def __init__(self):
        self.local = threading.local()

    def read(self):
        """Return what this thread sees."""
        return getattr(self.local, "value", "unset")

    @contextmanager
    def set(self):
        """Set the slot of this thread."""
        self.local.value = "set"
        try:
            yield
        finally:
            self.local.value = "unset"

    def capture(self):
        """Capture as a carrier should."""
        return self.read()

    def apply(self, state):
        """Apply as a carrier should."""
        before, self.local.value = self.read(), state
        return before

    def undo(self, token):
        """Undo as a carrier should."""
        self.local.value = token


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


def row(matrix, name):
    """Return the row of the carrier called `name`."""
    return next(r for r in matrix.rows if r.carrier == name)


def everything():
    """Return what doctor might leave changed."""
    return (
        ctxcarry.carriers(),
        ctxcarry.installed(),
        _install._decorated,
        ThreadPoolExecutor.submit,
        ThreadPoolExecutor.map,
        threading.Thread.start,
        ThreadPool.apply_async,
        torch.futures.Future.then,
        sys.modules.get("_ctxcarry_doctor"),
        dist.is_initialized(),
        sys.excepthook,
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        threading.active_count(),
    )


@pytest.fixture(scope="module")
def report():
    """Return what doctor finds here."""
    return examine()


@pytest.fixture(scope="module")
def matrix(report):
    """Return the matrix of what is here."""
    return report.matrix


@pytest.fixture
def near_only(monkeypatch):
    """Have doctor start no other process."""
    monkeypatch.setattr(doctor, "run_matrix", lambda: run_matrix(NEAR))


def test_every_boundary_loses_and_carries_every_context_of_a_thread(matrix):
    """Each context of a thread is lost in the plain way and arrives carried, leaving nothing."""
    rows = {r.carrier: r for r in matrix.rows if r.kind == "probed"}
    assert {*PER_THREAD, *GENERIC} <= set(rows)
    for each in rows.values():
        assert set(each.cells) >= ALL_BOUNDARIES
        within = {b: c for b, c in each.cells.items() if b not in {*FAR, "to_thread"}}
        for boundary, cell in within.items():
            if cell.carried == "torch's own":
                continue
            plain = "kept" if (each.carrier, boundary) in KEPT_BY_CHECKPOINT else "lost"
            assert (cell.plain, cell.carried, cell.after, cell.error) == (
                plain,
                "ok",
                "clean",
                None,
            )


def test_what_torch_sets_itself_is_left_to_it(matrix):
    """Neither a backward pass nor a recompute is given what torch brings there itself."""
    owned = {
        boundary: {r.carrier for r in matrix.rows if is_owned(r, boundary)}
        for boundary in ALL_BOUNDARIES
    }
    present = {r.carrier for r in matrix.rows if r.kind == "probed"}
    assert owned["recompute"] == owned["context_fn"] == TORCHS_OWN & present
    assert owned["autograd"] == owned["hook"] == (TORCHS_OWN | OFF_IN_BACKWARD) & present
    others = ALL_BOUNDARIES - {"autograd", "hook", "recompute", "context_fn"}
    assert all(owned[boundary] == set() for boundary in others)


def is_owned(row, boundary):
    """Say whether the cell tells that the context is torch's own there, and why."""
    cell = row.cells.get(boundary)
    return cell is not None and cell.carried == "torch's own" and bool(cell.reason)


def test_to_thread_keeps_context_variables_only(matrix):
    """``asyncio.to_thread`` takes ContextVars along by itself, and ours takes everything."""
    cells = {r.carrier: r.cells["to_thread"] for r in matrix.rows if r.kind == "probed"}
    assert {"ok"} == {c.carried for c in cells.values()}
    assert {name for name, c in cells.items() if c.plain == "kept"} == CONTEXT_VARS & set(cells)


@pytest.mark.parametrize("boundary", ["process", pytest.param("ray", marks=pytest.mark.ray)])
def test_process_carries_what_is_portable_and_says_what_is_not(matrix, boundary):
    """What travels arrives; what cannot is neutral, with the reason, and no failure."""
    if boundary not in {b.name for b in matrix.boundaries}:
        pytest.skip("needs Ray")
    cells = {r.carrier: r.cells[boundary] for r in matrix.rows if r.kind == "probed"}
    stays = {name: c for name, c in cells.items() if c.carried == "not portable"}
    assert set(stays) >= STAY
    assert all(c.ok and c.reason for c in stays.values())
    travels = {name: c for name, c in cells.items() if name not in stays}
    assert {"contextvars", "torch.grad_mode", "torch.device_mesh", "process_groups"} <= set(travels)
    assert {("lost", "ok", "clean", None)} == {
        (c.plain, c.carried, c.after, c.error) for c in travels.values()
    }


@pytest.mark.ray
def test_ray_of_the_program_is_used(ray_address):
    """A Ray that the program is connected to is crossed, and not left."""
    import ray

    ray.init(ray_address, log_to_driver=False, logging_level="ERROR")
    try:
        matrix = run_matrix([b for b in BOUNDARIES if b.name == "ray"])
        assert ray_address == ray.get_runtime_context().gcs_address
    finally:
        ray.shutdown()
    cells = [r.cells["ray"] for r in matrix.rows if r.kind == "probed"]
    assert {"ok", "not portable"} == {cell.carried for cell in cells}


def test_boundary_of_an_absent_package_has_no_column():
    """A boundary that needs what is not installed is not crossed."""
    absent = replace(BOUNDARIES[0], name="absent", needs="doctor_test_absent")
    found = run_matrix([BOUNDARIES[0], absent])
    assert [BOUNDARIES[0].name] == [b.name for b in found.boundaries]
    assert all("absent" not in r.cells for r in found.rows)


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


def test_report_is_ok_and_tells_the_versions(report):
    """A report without failure is ok and names what it was made with."""
    assert report.ok
    assert {"python", "ctxcarry", "torch", "triton", "spmd-types", "wrapt"} <= set(report.versions)
    assert torch.__version__ == report.versions["torch"]


def test_nothing_stays_behind(report):
    """Carriers, patches, process group, modes and threads are as before doctor ran."""
    before = everything()
    examine()
    assert before == everything()


def test_instrumentation_is_put_back():
    """With instrumentation in force the plain way is still plain, and stays instrumented."""
    ctxcarry.install("executor")
    try:
        cells = row(run_matrix(NEAR), "torch.device_mesh").cells
        assert ctxcarry.installed() == ("executor",)
        with ThreadPoolExecutor(1) as pool, torch.no_grad():
            assert pool.submit(torch.is_grad_enabled).result() is False
    finally:
        ctxcarry.uninstall("executor")
    assert {"lost"} == {cell.plain for cell in cells.values()}
    assert {"ok"} == {cell.carried for cell in cells.values()}


def test_decorated_functions_stay_carried():
    """Functions that were decorated before doctor ran are carried after it."""
    enabled = ctxcarry.carry_context(torch.is_grad_enabled)
    run_matrix(NEAR)
    with ThreadPoolExecutor(1) as pool, torch.no_grad():
        assert pool.submit(enabled).result() is False


def test_default_process_group_of_the_program_is_used():
    """A default process group that exists is neither replaced nor destroyed."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        group = dist.group.WORLD
        matrix = run_matrix(WITHOUT_RAY)
        assert group is dist.group.WORLD
    finally:
        dist.destroy_process_group()
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


def test_context_of_the_process_is_shown_as_such():
    """A carrier of what every thread sees has no cells."""
    wide = [c.name for c in ctxcarry.carriers() if getattr(c, "process_wide", False)]
    matrix = run_matrix(NEAR)
    assert ["process-wide"] * len(wide) == [row(matrix, name).kind for name in wide]


def test_carriers_of_entry_points_are_shown_and_taken_back(monkeypatch, near_only):
    """A carrier that a package offers has a row, and is not registered afterwards."""
    offered = Slot()

    def load():
        return (ctxcarry.register(offered).name,)

    monkeypatch.setattr(ctxcarry, "load_entry_points", load)
    report = examine()
    assert row(report.matrix, "test.slot").kind == "no probe"
    assert offered not in ctxcarry.carriers()


def test_entry_point_that_cannot_be_loaded_is_a_failure(monkeypatch, near_only):
    """A package whose carrier cannot be loaded is named, and the report is not ok."""

    def load():
        name = "their.carrier"
        raise ctxcarry.CarrierError(name, "load", "ImportError: gone")

    monkeypatch.setattr(ctxcarry, "load_entry_points", load)
    report = examine()
    assert not report.ok
    assert "ImportError: gone" in report.faults["their.carrier"]
