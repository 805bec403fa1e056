"""Meshes, carried to threads and left as they were."""

from __future__ import annotations

import pytest
from torch.overrides import _get_current_function_mode_stack

import ctxcarry

spmd = pytest.importorskip("spmd_types")

from spmd_state_subjects import (  # noqa: E402
    NAME,
    function_modes,
    names,
    outcome,
    replicate,
    stack,
)
from spmd_types import _state as upstream  # noqa: E402
from spmd_types import set_current_mesh  # noqa: E402
from spmd_types.checker import typecheck  # noqa: E402


def test_mesh_is_lost_in_a_plain_pool(mesh, worker):
    """Without ctxcarry assert_type finds no mesh in the worker (verl#6950)."""
    with set_current_mesh(mesh):
        inline, there = outcome(replicate), worker.submit(outcome, replicate).result()
    assert "ok" == inline[0]
    assert "SpmdTypeError" == there[0]
    assert "requires an active mesh" in there[1]


def test_mesh_is_carried(mesh, carrying):
    """A task asserts types on its submitter's mesh, and the next task has no mesh."""
    with set_current_mesh(mesh):
        inline = outcome(replicate), names()
        carried = carrying.submit(outcome, replicate), carrying.submit(names)
    assert inline == tuple(future.result() for future in carried)
    assert (None, None) == (carrying.submit(names).result(), carrying.submit(stack).result())


def test_nested_meshes_are_carried(mesh, flat, carrying):
    """The innermost mesh is the current one, and the outer ones are beneath it."""

    def work():
        inner = names()
        upstream._pop_mesh()
        return inner, names()

    with set_current_mesh(mesh), set_current_mesh(flat):
        future = carrying.submit(work)
        assert ["world"] == names()
    assert (["world"], ["dp", "tp"]) == future.result()


def test_local_axes_are_carried(mesh, carrying):
    """The axes that stay local under global checking are those of the submitter."""
    with set_current_mesh(mesh, local_axes=("dp",)):
        inline = upstream._current_local_axes()
        carried = carrying.submit(upstream._current_local_axes).result()
    assert 1 == len(inline)
    assert inline == carried


def test_task_may_set_a_mesh_of_its_own(mesh, flat, carrying):
    """A task's own mesh block works and ends in the carried mesh."""

    def work():
        with set_current_mesh(flat):
            inside = names()
        return inside, names()

    with set_current_mesh(mesh):
        future = carrying.submit(work)
    assert (["world"], ["dp", "tp"]) == future.result()


def test_mesh_stack_is_not_shared_with_the_task(mesh, flat, carrying, barrier):
    """Submitter and task push and pop at once, and neither sees what the other does."""

    def work():
        with set_current_mesh(flat):
            barrier.wait()
            pushed = len(stack())
            barrier.wait()
        barrier.wait()
        popped = len(stack())
        barrier.wait()
        return pushed, popped, names()

    with set_current_mesh(mesh):
        own = stack()
        future = carrying.submit(work)
        with set_current_mesh(flat), set_current_mesh(mesh):
            barrier.wait()
            pushed = len(stack())
            barrier.wait()
        barrier.wait()
        popped = len(stack())
        barrier.wait()
        assert (2, 1, ["dp", "tp"]) == future.result()
        assert (3, 1) == (pushed, popped)
        assert own is stack()


def test_undo_restores_the_very_stack_of_the_worker(mesh, flat, worker):
    """The worker's own stack is back as the same object with the same meshes."""
    with set_current_mesh(mesh):
        snapshot = ctxcarry.capture()

    def work():
        with set_current_mesh(flat):
            before = stack()
            inside = snapshot.run(names)
            with snapshot.active():
                block = names()
            return inside, block, names(), before is stack(), len(before)

    assert (["dp", "tp"], ["dp", "tp"], ["world"], True, 1) == worker.submit(work).result()


def test_undo_leaves_nothing_in_a_thread_that_had_nothing(mesh, worker):
    """A thread that never used spmd_types has no field of it after the work."""
    with set_current_mesh(mesh), typecheck():
        bound = ctxcarry.bind(names)
    assert ["dp", "tp"] == worker.submit(bound).result()
    assert {} == worker.submit(lambda: dict(vars(upstream._tls))).result()


def test_task_that_raises_within_a_mesh_of_its_own_leaves_none(mesh, flat, carrying):
    """Whatever a failed task left on the stack is gone."""

    def careless():
        upstream._push_mesh(flat)
        raise KeyError

    with set_current_mesh(mesh), pytest.raises(KeyError):
        carrying.submit(careless).result()
    assert carrying.submit(names).result() is None


def test_equal_snapshot_keeps_stack_and_mode(mesh):
    """A snapshot that equals what is active replaces neither the stack nor the mode."""
    with set_current_mesh(mesh), typecheck():
        own = stack(), upstream._current_mode(), _get_current_function_mode_stack()
        found = ctxcarry.capture().run(
            lambda: (stack(), upstream._current_mode(), _get_current_function_mode_stack())
        )
        assert own[0] is found[0]
        assert own[1] is found[1]
        assert own[2] == found[2]


def test_cleared_state_is_unset_in_the_worker(mesh, flat, worker):
    """A cleared state leaves the work without mesh and checking, whatever is set there."""
    with ctxcarry.policy(clear=NAME), set_current_mesh(mesh), typecheck():
        bound = ctxcarry.bind(lambda: (names(), spmd.is_type_checking(), function_modes()))

    def work():
        with set_current_mesh(flat), typecheck():
            return bound(), names(), spmd.is_type_checking()

    assert ((None, False, []), ["world"], True) == worker.submit(work).result()


def test_suppressed_state_is_the_workers_own(mesh, flat, worker):
    """A suppressed state is neither captured nor applied."""
    with ctxcarry.suppress(NAME), set_current_mesh(mesh), typecheck():
        bound = ctxcarry.bind(lambda: (names(), spmd.is_type_checking()))

    def work():
        with set_current_mesh(flat):
            return bound()

    assert (["world"], False) == worker.submit(work).result()


def test_explain_names_the_axes(mesh):
    """Explain tells the axes of the mesh and whether types are checked."""
    with set_current_mesh(mesh):
        without = ctxcarry.capture().explain()
        with typecheck():
            checked = ctxcarry.capture().explain()
    lines = [line for text in (without, checked) for line in text.splitlines() if NAME in line]
    assert [True, True] == ["dp" in line and "tp" in line for line in lines]
    assert [True, False] == ["no type checking" in line for line in lines]
    assert "spmd_types.state: not set" in ctxcarry.capture().explain()
