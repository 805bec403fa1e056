"""What compiling makes of a block: results between products take no memory and no time."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("scipy")

import torch
from ctxcarry_checkpoint._cost import Estimator, Roofline
from ctxcarry_checkpoint._fused import as_compiled, is_fusible
from ctxcarry_checkpoint._kinds import Kind
from ctxcarry_checkpoint._record import Recorder
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).parent))
from _graphs import op

aten = torch.ops.aten
# A byte takes a millisecond, a launch 1000 of them.
SLOW = Roofline("slow", {torch.float32: 1e9}, 1e3, 1e3, 1e3, launch=1.0)
SQUARE = 4 * 8 * 8


class Seven(Estimator):
    """What takes the same time whatever it is."""

    def ms(self, func, args, kwargs, output):
        """Return it."""
        return 7.0


class Recording(TorchDispatchMode):
    """Record what runs, and what autograd keeps."""

    def __init__(self):
        super().__init__()
        self.recorder, self.funcs = Recorder(Seven()), []
        self.hooks = saved_tensors_hooks(self.pack, lambda packed: packed)

    def pack(self, tensor):
        self.recorder.pack(tensor)
        return tensor

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        if func is not aten.detach.default:
            self.recorder.add(func, args, kwargs or {}, output)
            self.funcs.append(func)
        return output


def compiled(function):
    """Return the operators of a function of two squares, as compiled, and its gradients."""
    leaves = [torch.randn(8, 8, requires_grad=True) for _ in range(2)]
    with Recording() as mode, mode.hooks:
        output = function(*leaves)
    returned = mode.recorder.owners_of([output])
    return as_compiled(mode.recorder.ops, mode.funcs, returned, SLOW)


def told(ops):
    """Return name, milliseconds and whether it is fused, of what is no view."""
    return [(op.name.split(".")[1], op.ms, op.fused) for op in ops if not op.view]


def moved(squares):
    """Return the milliseconds to move some squares."""
    return 1000 + squares * SQUARE


def test_between_products():
    """A chain is one kernel: it reads what it starts from and writes what a product reads."""
    ops, _ = compiled(lambda x, w: (x @ w).sin().exp().mul(2) @ w)
    assert told(ops) == [
        ("mm", 7.0, False),
        ("sin", 0.0, True),
        ("exp", 0.0, True),
        ("mul", moved(2), False),
        ("mm", 7.0, False),
    ]


def test_all_that_a_kernel_reads():
    """Two products that are added are both read; what is read twice is read once."""
    ops, _ = compiled(lambda x, w: ((a := x @ w).sin() + (w @ x).exp() + a.cos()) @ w)
    assert told(ops)[-2:] == [("add", moved(3), False), ("mm", 7.0, False)]


def test_from_outside():
    """What comes from outside is taken to be as large as what is made of it."""
    ops, _ = compiled(lambda x, w: x.sin() @ w)
    assert told(ops) == [("sin", moved(2), False), ("mm", 7.0, False)]


def test_through_a_view():
    """A product that reads a view reads what it is of."""
    ops, _ = compiled(lambda x, w: (x @ w).sin().t() @ w)
    assert told(ops)[1] == ("sin", moved(2), False)


def test_what_is_returned():
    """What a block returns is written."""
    ops, _ = compiled(lambda x, w: (x @ w).sin().exp())
    assert told(ops) == [("mm", 7.0, False), ("sin", 0.0, True), ("exp", moved(2), False)]


def test_what_a_product_keeps():
    """An argument that only the backward of a product reads is written."""

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x.sin())
            return x @ w

        @staticmethod
        def backward(ctx, gradient):
            return gradient, gradient

    ops, _ = compiled(Double.apply)
    assert told(ops) == [("sin", moved(2), False), ("mm", 7.0, False)]


def test_what_is_reduced():
    """What is much smaller than what it is made of is written, and costs reading that."""
    ops, _ = compiled(lambda x, w: ((y := x @ w) * y.mean(-1, keepdim=True)).exp())
    assert told(ops)[1] == ("mean", 1000 + SQUARE + SQUARE / 8, False)
    ops, _ = compiled(lambda x, w: (x.exp().mean(-1, keepdim=True) * w) @ w)
    assert told(ops)[:2] == [("exp", 0.0, True), ("mean", 1000 + SQUARE + SQUARE / 8, False)]


def test_in_place():
    """What works in place is one with what it works on."""
    ops, _ = compiled(lambda x, w: (x @ w).sin().mul_(2) @ w)
    assert told(ops)[1:3] == [("sin", moved(2), False), ("mul_", moved(2), False)]


def test_what_is_not_fused():
    """Random numbers, sorts and operators of others are kernels of their own."""
    with torch.library._scoped_library("fused_test", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        assert not is_fusible(torch.ops.fused_test.twice.default)
    assert not is_fusible(aten.sort.default)
    assert not is_fusible(aten.mm.default)
    assert is_fusible(aten._to_copy.default)
    assert is_fusible(aten.silu.default)
    ops, _ = compiled(lambda x, w: torch.dropout(x @ w, 0.5, train=True).sin() @ w)
    assert not any(op.fused for op in ops if op.random)


def test_gradients_that_are_alive_together():
    """Those of both factors, of what they are made from, and of what goes around them."""

    def gated(x, w):
        h = x @ w
        return h + (h @ w).sin().mul(h @ w) @ w

    _, gradients = compiled(gated)
    # At the second product: both factors, h for both products and for the sum.
    assert gradients == 3 * SQUARE


def test_gradients_of_a_chain():
    """A gradient is let go of when the next one is there."""
    _, gradients = compiled(lambda x, w: x @ w @ w @ w @ w)
    assert gradients == 2 * SQUARE


@pytest.mark.parametrize(("fused", "working"), [(False, 30), (True, 20)])
def test_what_is_fused_takes_no_memory_when_it_is_made_again(fused, working):
    """But keeping it does."""
    ops = (
        op(0, nbytes=20, packed=True),
        op(1, 0, nbytes=10, packed=True, fused=fused),
        op(2, 1, nbytes=5),
    )
    kind = Kind(("a",), ops, frozenset({2}), gradients=100)
    assert kind.working(kind.program.choice({})) == working + 100
    assert kind.program.choice({1: 1}).nbytes == 10
