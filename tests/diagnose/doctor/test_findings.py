"""What doctor finds here, and that nothing of it stays behind."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.pool import ThreadPool

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("spmd_types")

import torch
import torch.distributed as dist
import torch.futures
from doctor_subjects import ALL_BOUNDARIES, KEPT_BY_CHECKPOINT, NEAR, is_owned, row

import ctxcarry
from ctxcarry.boundaries import _install
from ctxcarry.diagnose.boundaries import BOUNDARIES
from ctxcarry.diagnose.doctor import examine
from ctxcarry.diagnose.matrix import run_matrix
from ctxcarry.diagnose.probes import GENERIC

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

OFF_IN_BACKWARD = {"torch.function_modes", "torch.default_device"}

FAR = {b.name for b in BOUNDARIES if b.far}

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


def test_boundary_of_an_absent_package_has_no_column():
    """A boundary that needs what is not installed is not crossed."""
    absent = replace(BOUNDARIES[0], name="absent", needs="doctor_test_absent")
    found = run_matrix([BOUNDARIES[0], absent])
    assert [BOUNDARIES[0].name] == [b.name for b in found.boundaries]
    assert all("absent" not in r.cells for r in found.rows)


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


def test_context_of_the_process_is_shown_as_such():
    """A carrier of what every thread sees has no cells."""
    wide = [c.name for c in ctxcarry.carriers() if getattr(c, "process_wide", False)]
    matrix = run_matrix(NEAR)
    assert ["process-wide"] * len(wide) == [row(matrix, name).kind for name in wide]
