"""What is left out, what is cleared, and what happens to what cannot travel."""

import os
import pickle
import subprocess
import sys
import warnings
from contextvars import Context
from pathlib import Path

import pytest
import torch
import wire_subjects

import ctxcarry
from ctxcarry import NotPortableError, Snapshot, process_groups
from ctxcarry._wire import decode
from ctxcarry.errors import CtxCarryWarning


class Stuck:
    """A carrier of something that does not travel."""

    name = "stuck"

    def __init__(self, not_portable=None):
        if not_portable:
            self.not_portable = not_portable

    def capture(self):
        return "set"

    def apply(self, state):
        return state

    def undo(self, token):
        pass


def captured(not_portable=None):
    """Return a snapshot of a registry that carries it."""
    registry = ctxcarry.Registry()
    registry.register(Stuck(not_portable))
    return registry.capture()


def test_unset_is_left_out():
    """Where nothing is set nothing is written, and loading it changes nothing over there."""
    # In a Context of its own: torch's compiler leaves variables of its own in that of a program.
    data = Context().run(ctxcarry.capture).dumps(not_portable="raise")
    assert {} == decode(data)
    loaded = Snapshot.loads(data, strict=True)
    wire_subjects.VARIABLE.set("its own")
    with torch.no_grad():
        seen = loaded.run(lambda: (wire_subjects.VARIABLE.get(), torch.is_grad_enabled()))
    assert ("its own", False) == seen


def test_set_and_unset_side_by_side():
    """A variable that was not set keeps its value over there although another one was set."""
    wire_subjects.V0.set("sent")
    data = ctxcarry.capture().dumps()
    wire_subjects.V0.set("here")
    wire_subjects.V1.set("kept")
    loaded = Snapshot.loads(data, strict=True)
    assert ("sent", "kept") == loaded.run(lambda: (wire_subjects.V0.get(), wire_subjects.V1.get()))


def test_clear_travels():
    """What a policy clears is unset over there, whatever is set there."""
    with ctxcarry.policy(clear=("torch.grad_mode", "contextvars")):
        data = ctxcarry.capture().dumps()
    assert {"torch.grad_mode": ["c"], "contextvars": ["c"]} == decode(data)
    wire_subjects.VARIABLE.set("there")
    with torch.no_grad():
        seen = Snapshot.loads(data, strict=True).run(
            lambda: (wire_subjects.VARIABLE.get(), torch.is_grad_enabled())
        )
        assert torch.is_grad_enabled() is False
    assert ("unset", True) == seen


def test_clear_of_an_allocator_travels():
    """An allocator that a policy clears is unset over there, while other variables stay."""
    allocation = pytest.importorskip("triton.runtime._allocation")
    import triton

    with ctxcarry.policy(clear="triton.allocator"):
        data = ctxcarry.capture().dumps()
    triton.set_allocator(wire_subjects.allocate)
    wire_subjects.VARIABLE.set("there")
    seen = Snapshot.loads(data, strict=True).run(
        lambda: (allocation._allocator.get(), wire_subjects.VARIABLE.get())
    )
    assert (allocation._NULL_ALLOCATOR, "there") == seen


def test_policy_in_force_does_not_travel():
    """A module that was there before ctxcarry and holds its variable does not make it travel."""
    code = (
        "import sys, types\n"
        "holder = sys.modules['holder'] = types.ModuleType('holder')\n"
        "import ctxcarry\n"
        "from ctxcarry._policy import ambient_policy\n"
        "holder.variable = ambient_policy\n"
        "from ctxcarry._wire import decode\n"
        "with ctxcarry.suppress('triton.allocator'):\n"
        "    print(decode(ctxcarry.capture().dumps(not_portable='raise')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(Path(ctxcarry.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == ("{}", "")


def test_suppressed_does_not_travel():
    """What a policy leaves unchanged is not written."""
    wire_subjects.VARIABLE.set("here")
    with ctxcarry.suppress("contextvars"), torch.no_grad():
        data = ctxcarry.capture().dumps()
    assert {"torch.grad_mode": ["v", False]} == decode(data)


def test_not_portable_warns_unless_told():
    """A context that cannot travel is left out with a warning which names it and the way out."""
    with pytest.warns(CtxCarryWarning, match="'stuck' cannot travel.*ctxcarry.suppress"):
        assert {} == decode(captured().dumps())


@pytest.mark.parametrize("own", ["raise", "warn", "skip"])
@pytest.mark.parametrize("given", [None, "raise", "warn", "skip"])
def test_not_portable(own, given):
    """The carrier says what happens when it cannot travel, and dumps may override it."""
    expected = given or own
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            captured(own).dumps(not_portable=given)
            raised = False
        except NotPortableError:
            raised = True
    told = [w for w in caught if issubclass(w.category, CtxCarryWarning)]
    assert (expected == "raise", expected == "warn") == (raised, len(told) == 1)


def test_an_unknown_choice_is_refused():
    """A misspelt choice is an error, and not taken for "skip"."""
    with pytest.raises(ValueError, match="not_portable"):
        captured().dumps(not_portable="rise")


@pytest.mark.parametrize("set_up", ["lambda", "local"])
def test_allocator_without_an_import_path(set_up):
    """The message about an allocator that has no import path says what to do."""
    triton = pytest.importorskip("triton")

    def local(size, alignment, stream):
        raise NotImplementedError

    triton.set_allocator(local if set_up == "local" else lambda *a: None)
    with pytest.raises(NotPortableError, match=r"triton\.allocator.*def.*top of a module"):
        ctxcarry.capture().dumps(not_portable="raise")


MODES = {
    "torch.function_modes": torch.overrides.BaseTorchFunctionMode,
    "torch.dispatch_modes": torch._subclasses.FakeTensorMode,
    "torch.saved_tensors_hooks": lambda: torch.autograd.graph.saved_tensors_hooks(id, id),
}


@pytest.mark.parametrize("name", MODES)
def test_modes_stay(name):
    """Modes and hooks are objects of this process: each is named as not portable."""
    with MODES[name](), pytest.raises(NotPortableError, match=name):
        ctxcarry.capture().dumps(not_portable="raise")


def test_spmd_meshes_travel(mesh):
    """The meshes of spmd_types travel, with their groups found again at the destination."""
    spmd_types = pytest.importorskip("spmd_types")
    from spmd_types import _state

    with spmd_types.set_current_mesh(mesh):
        inside = _state._tls.mesh_stack[-1]
        data = ctxcarry.capture().dumps(not_portable="raise")
    assert _state.current_mesh() is None
    assert inside == Snapshot.loads(data, strict=True).run(lambda: _state._tls.mesh_stack[-1])


def test_spmd_checking_stays(mesh):
    """While type checking is on the state cannot travel, and that is said."""
    spmd_types = pytest.importorskip("spmd_types")
    from spmd_types.checker import typecheck

    with spmd_types.set_current_mesh(mesh), typecheck():
        snapshot = ctxcarry.capture()
    with pytest.warns(CtxCarryWarning, match="spmd_types.state"):
        assert "spmd_types.state" not in decode(snapshot.dumps())


def test_a_variable_that_cannot_travel_is_named():
    """A ContextVar of a module whose value cannot be pickled is no exception to "raise"."""
    wire_subjects.VARIABLE.set(lambda: None)
    with pytest.raises(NotPortableError, match="VARIABLE"):
        ctxcarry.capture().dumps(not_portable="raise")


def test_snapshot_pickles():
    """A Snapshot survives pickle with what is portable."""
    with torch.no_grad():
        token = wire_subjects.VARIABLE.set((1, 2))
        data = pickle.dumps(ctxcarry.capture())
        wire_subjects.VARIABLE.reset(token)
    seen = pickle.loads(data).run(lambda: (wire_subjects.VARIABLE.get(), torch.is_grad_enabled()))  # noqa: S301 - our own
    assert ((1, 2), False) == seen


def test_bound_function_pickles():
    """A function bound to a snapshot survives pickle, and still runs under it."""
    with torch.no_grad():
        data = pickle.dumps(ctxcarry.bind(torch.is_grad_enabled))
    assert (False, True) == (pickle.loads(data)(), torch.is_grad_enabled())  # noqa: S301 - our own


def sent(value):
    """Return a snapshot with a variable and grad mode as bytes."""
    with torch.no_grad():
        token = wire_subjects.VARIABLE.set(value)
        data = ctxcarry.capture().dumps()
        wire_subjects.VARIABLE.reset(token)
    return data


def test_capture_under_a_loaded_snapshot():
    """What runs under a loaded snapshot hands the same contexts on."""
    data = sent("far")
    seen = Snapshot.loads(data, strict=True).run(lambda: decode(ctxcarry.capture().dumps()))
    assert decode(data) == seen


def test_loaded_snapshot_travels_on():
    """A loaded snapshot can be dumped again as it is, ContextVars included."""
    data = sent("far")
    assert decode(data) == decode(Snapshot.loads(data, strict=True).dumps(not_portable="raise"))


@pytest.mark.parametrize("name", ["process_groups", "torch.process_group"])
def test_a_group_that_torch_does_not_list(world, name):
    """A group that is not in torch's tables, as of _dist2.new_group, just cannot travel."""
    _dist2 = pytest.importorskip("torch.distributed._dist2")
    group = torch.distributed.ProcessGroup(0, 1)
    scope = (
        process_groups.use(tp=group) if name == "process_groups" else _dist2.process_group(group)
    )
    with scope:
        snapshot = ctxcarry.capture()
    assert name not in decode(snapshot.dumps(not_portable="skip"))
    with pytest.raises(NotPortableError, match=name):
        snapshot.dumps(not_portable="raise")
