"""The rule of TorchTitan, against the TorchTitan that is installed."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("hypothesis")
pytest.importorskip("torchtitan.distributed.activation_checkpoint")

from types import SimpleNamespace

import torch
from ctxcarry_checkpoint import policies
from ctxcarry_checkpoint._ops import Action, Call
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy
from torchtitan.distributed import activation_checkpoint as titan

aten = torch.ops.aten
ROUTER = (16, 4)


class Router(nn.Module):
    """What TorchTitan looks for."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(*ROUTER, bias=False)


class Block(nn.Module):
    """A block with a router."""

    def __init__(self):
        super().__init__()
        self.moe = nn.ModuleDict({"router": Router()})


def calls_of(op):
    """Return calls of an operator with each size and device that the rule tells apart."""
    if op in {aten.mm.default, aten.linear.default}:
        for inner, columns in (ROUTER, (16, 16), (4, 16)):
            shape = (inner, columns) if op is aten.mm.default else (columns, inner)
            left = torch.empty(2, inner, device="meta")
            yield Call(op, 0, 0, (left, torch.empty(shape, device="meta")), {}, None)
        return
    yield Call(op, 0, 0, (torch.empty(2, 2, device="meta"),), {}, torch.empty(2, 2, device="meta"))


SAVED = sorted(titan._get_default_save_ops(), key=str)
OPS = [*SAVED, aten.mm.default, aten.mm.dtype, aten.relu.default, aten.baddbmm.default]
calls = st.lists(st.sampled_from([call for op in OPS for call in calls_of(op)]), max_size=20)


@pytest.fixture(scope="module")
def theirs():
    """Return what makes TorchTitan's function for one forward."""
    made = []
    patch = pytest.MonkeyPatch()
    patch.setattr(titan, "ptd_checkpoint_wrapper", lambda _, context_fn, **__: context_fn)
    patch.setattr(titan, "create_selective_checkpoint_contexts", made.append)
    policy = titan.SelectiveAC(titan.SelectiveAC.Config())
    context_fn = policy._wrap_block(Block(), base_fqn="layers.0")

    def make():
        context_fn()
        return made.pop()

    yield make
    patch.undo()


@given(sequence=calls)
@settings(deadline=None)
def test_decides_as_torchtitan_does(theirs, sequence):
    """Whatever is called in whatever order, both decide alike."""
    ours = policies.torchtitan(policies.linear_shapes(Block(), "moe.router.gate")).start()
    function, context = theirs(), SimpleNamespace(is_recompute=False)
    for call in sequence:
        said = function(context, call.op, *call.args, **call.kwargs)
        saves = said is CheckpointPolicy.MUST_SAVE
        assert (ours.decide(call) is Action.SAVE) == saves, call.op


def test_saves_all_that_torchtitan_saves():
    """Each operator that TorchTitan saves is one that is saved here."""
    for op in SAVED:
        for call in calls_of(op):
            assert policies.torchtitan().start().decide(call) is Action.SAVE, op


def test_products_that_are_left_out_are_recomputed():
    """A policy behind the rule has no say in every second product, as it has in others."""
    decider = (policies.torchtitan() | policies.none()).start()
    (mm, *_), (relu,) = calls_of(aten.mm.default), calls_of(aten.relu.default)
    found = [decider.decide(call) for call in (mm, mm, relu)]
    assert found == [Action.SAVE, Action.RECOMPUTE, Action.SAVE]


def test_saves_what_goes_to_the_cpu():
    """What a device sends to the CPU is saved."""
    args = (torch.empty(2, device="meta"),)
    call = Call(aten._to_copy.default, 0, 0, args, {"device": "cpu"}, torch.empty(2))
    assert policies.torchtitan().start().decide(call) is Action.SAVE


def test_reads_sizes_only_where_asked():
    """Without sizes to recompute, the rule need not be asked about other ones."""
    assert not policies.torchtitan().by_shape
    assert policies.torchtitan({ROUTER}).by_shape


def test_linear_shapes():
    """The sizes of linear layers are found by the last parts of their names."""
    assert policies.linear_shapes(Block(), "router.gate") == {ROUTER}
    assert policies.linear_shapes(Block(), "router.*", "gate") == {ROUTER}


def test_linear_shapes_of_nothing():
    """A name of no module, or of another one than a linear layer, is refused."""
    with pytest.raises(ValueError, match=r"matches 'router.gates'; closest: 'moe.router.gate'"):
        policies.linear_shapes(Block(), "router.gates")
    with pytest.raises(ValueError, match=r"'moe.router' is a Router, and no linear layer"):
        policies.linear_shapes(Block(), "router")
