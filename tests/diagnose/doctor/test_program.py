"""Doctor in a program that has its own Ray, patches, process group and packages."""

from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("spmd_types")

import torch
import torch.distributed as dist
from doctor_subjects import NEAR, WITHOUT_RAY, Slot, row

import ctxcarry
from ctxcarry.diagnose import doctor
from ctxcarry.diagnose.boundaries import BOUNDARIES
from ctxcarry.diagnose.doctor import examine
from ctxcarry.diagnose.matrix import run_matrix


@pytest.fixture
def near_only(monkeypatch):
    """Have doctor start no other process."""
    monkeypatch.setattr(doctor, "run_matrix", lambda: run_matrix(NEAR))


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
