"""The function modes that type checking is among."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import torch
from torch.overrides import _get_current_function_mode_stack

import ctxcarry

spmd = pytest.importorskip("spmd_types")

from spmd_state_subjects import (  # noqa: E402
    NAME,
    Other,
    function_modes,
    names,
    outcome,
)
from spmd_types import _state as upstream  # noqa: E402
from spmd_types import no_typecheck, set_current_mesh  # noqa: E402
from spmd_types.checker import typecheck  # noqa: E402


def test_function_mode_left_entered_by_a_task_is_gone(mesh, carrying):
    """The worker has no function mode after a task that left its own on top of the carried one."""

    def careless():
        Other().__enter__()
        return function_modes()

    with set_current_mesh(mesh), typecheck():
        assert ["_SpmdTypeMode", "Other"] == carrying.submit(careless).result()
    assert [] == carrying.submit(function_modes).result()


def test_function_modes_of_the_worker_are_as_before(mesh, worker):
    """The very modes that a worker had are back, in order, after a task and after a failed one."""
    with set_current_mesh(mesh), typecheck():
        snapshot = ctxcarry.capture()

    def fail():
        raise KeyError

    def work():
        with Other(), Other():
            before = _get_current_function_mode_stack()
            snapshot.run(int)
            with pytest.raises(KeyError):
                snapshot.run(fail)
            with snapshot.active():
                pass
            return before == _get_current_function_mode_stack(), function_modes()

    assert (True, ["Other", "Other"]) == worker.submit(work).result()


@pytest.mark.parametrize("outer", ["check", "other"])
def test_mode_takes_the_place_of_the_one_it_replaces(outer, mesh):
    """On its own thread the carried mode is where the mode was, inside or outside of another."""
    with ExitStack() as entered:
        entered.enter_context(set_current_mesh(mesh))
        for manager in [typecheck(), Other()][:: 1 if outer == "check" else -1]:
            entered.enter_context(manager)
        before = function_modes()
        assert before == ctxcarry.capture().run(function_modes)
        with no_typecheck():  # differs from what is active now
            snapshot = ctxcarry.capture()
        assert before == snapshot.run(function_modes)
        assert before == function_modes()
        assert spmd.is_type_checking()


def test_mode_comes_on_top_of_those_that_a_worker_has(mesh, tensors, worker):
    """A worker with a function mode of its own checks on top of it, and both see the operation."""
    with set_current_mesh(mesh), typecheck():
        bound = ctxcarry.capture(only=NAME).wrap(
            lambda: (function_modes(), outcome(torch.mul, tensors["R"], tensors["R"])[0])
        )

    def work():
        with Other() as other:
            found = bound()
            return found, torch.mul in other.seen

    assert ((["Other", "_SpmdTypeMode"], "ok"), True) == worker.submit(work).result()


def test_mode_of_the_worker_gives_way_to_no_checking(mesh, tensors, worker):
    """A task whose submitter did not check does not, in a thread that does."""
    with set_current_mesh(mesh):
        bound = ctxcarry.capture(only=NAME).wrap(
            lambda: (outcome(torch.mul, tensors["P"], tensors["P"])[0], function_modes())
        )

    def work():
        with set_current_mesh(mesh), typecheck(), Other():
            inside = bound()
            return inside, outcome(torch.mul, tensors["P"], tensors["P"])[0], function_modes()

    inside, after, modes = worker.submit(work).result()
    assert ("ok", ["Other"]) == inside
    assert ("SpmdTypeError", ["_SpmdTypeMode", "Other"]) == (after, modes)


def test_snapshot_within_its_own_snapshot_checks_once(mesh, tensors, worker):
    """A snapshot that is activated twice has one mode on the stack, not two."""
    with set_current_mesh(mesh), typecheck():
        snapshot = ctxcarry.capture()

    def work():
        with snapshot.active():
            return snapshot.run(function_modes), function_modes(), names()

    found = worker.submit(work).result()
    assert (["_SpmdTypeMode"], ["_SpmdTypeMode"], ["dp", "tp"]) == found


@pytest.mark.skipif(not hasattr(spmd, "register_no_typecheck"), reason="new in spmd-types 0.3.1")
def test_function_exempt_from_checking_hands_its_exemption_over(mesh, tensors, carrying):
    """Work that an exempted function hands over is not checked, as it would not be inline."""

    def exempt(call):
        return call(outcome, torch.mul, tensors["P"], tensors["P"])

    spmd.register_no_typecheck(exempt)
    try:
        with set_current_mesh(mesh), typecheck():
            inline = exempt(lambda fn, *args: fn(*args))
            carried = exempt(lambda fn, *args: carrying.submit(fn, *args).result())
    finally:
        upstream._NO_TYPECHECK_CODES.discard(exempt.__code__)
    assert "ok" == inline[0]
    # The submitter waits in the exempted function here, but its frame is on its own thread.
    assert inline[0] == carried[0]
