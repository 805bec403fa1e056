"""Compiled code: it compiles as before, and what is around it has its contexts."""

import os
import shutil
from functools import partial

import pytest
import torch
from torch._dynamo.testing import AotEagerAndRecordGraphs
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import ctxcarry

# What torch says of itself.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:<class 'torch.autograd.function.Function'> should not be"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]

CARRIED = ("SET", "SET", True)


@ctxcarry.carry_context
class Square(torch.autograd.Function):
    """A function under `carry_context`."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


@ctxcarry.carry_context
class Cube(torch.autograd.Function):
    """The same with a ``setup_context``."""

    @staticmethod
    def forward(x):
        return x * x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * x * x * grad


class ToHost(torch.autograd.Function):
    """Take a tensor from the device to the CPU, and its gradient back."""

    @staticmethod
    def forward(ctx, x, device):
        ctx.device = device
        return device.to_host(x).clone()

    @staticmethod
    def backward(ctx, grad):
        return ctx.device.put(grad), None


def policy(_, op, *args, **kwargs):
    """Save the results of matrix products, and nothing else."""
    if op is torch.ops.aten.mm.default:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


selecting = partial(create_selective_checkpoint_contexts, policy)
carried = ctxcarry.autograd.context_fn()
carried_selecting = ctxcarry.autograd.context_fn(selecting)


def block(x):
    """Compute something that is worth a recompute."""
    return (x.sin() @ x).sin().sum()


def hooked(hook, x):
    """Register `hook` on a tensor within."""
    y = x.sin()
    y.register_hook(hook)
    return y.sum()


def triple(grad):
    """Be a hook."""
    return 3 * grad


def differentiated(x):
    """Return a function of a gradient that is computed within."""
    (grad,) = torch.autograd.grad(x.sin().sum(), x)
    return (grad.detach() * x).sum()


INSIDE = {
    "function": lambda x: Square.apply(x).sum(),
    "setup_context": lambda x: Cube.apply(x).sum(),
    "checkpoint": lambda x: checkpoint(block, x, use_reentrant=False),
    "reentrant": lambda x: checkpoint(block, x, use_reentrant=True),
    "context_fn": lambda x: checkpoint(block, x, use_reentrant=False, context_fn=carried),
    "selective": lambda x: checkpoint(block, x, use_reentrant=False, context_fn=carried_selecting),
    "hook": partial(hooked, triple),
    "grad": differentiated,
}


@pytest.fixture(autouse=True)
def _forget():
    """Have nothing compiled before a test, nor after it."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture(params=["eager", "aot_eager", "inductor"])
def compiled(request):
    """Return a function that compiles another as a whole."""
    compilers = os.environ.get("CXX"), "g++", "clang++"
    if request.param == "inductor" and not any(map(shutil.which, filter(None, compilers))):
        pytest.skip("inductor needs a C++ compiler")
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        yield partial(torch.compile, backend=request.param, fullgraph=True)


def gradient(fn):
    """Return the gradient of `fn` at some matrix."""
    x = torch.linspace(0, 1, 9).reshape(3, 3).requires_grad_()
    fn(x).backward()
    return x.grad


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("name", INSIDE)
def test_inside_a_compiled_region(compiled, name):
    """All of it compiles without a graph break, and the gradients are those without compiling."""
    expected = gradient(INSIDE[name])
    torch.testing.assert_close(gradient(compiled(INSIDE[name])), expected)


def test_a_carried_hook_inside_a_compiled_region(compiled):
    """So does a hook that is carried explicitly."""
    fn = partial(hooked, ctxcarry.autograd.hook(triple))
    torch.testing.assert_close(gradient(compiled(fn)), gradient(fn))


@pytest.mark.usefixtures("installed")
@pytest.mark.filterwarnings("ignore:Your compiler for AOTAutograd is returning a function")
def test_what_a_compiled_checkpoint_saves():
    """It saves what the inner ``context_fn`` says, and nothing where there is none."""
    found = []
    for context_fn in (selecting, carried_selecting, carried):
        torch._dynamo.reset()
        backend = AotEagerAndRecordGraphs()
        fn = partial(checkpoint, block, use_reentrant=False, context_fn=context_fn)
        gradient(torch.compile(fn, backend=backend, fullgraph=True))
        code = backend.bw_graphs[0].code
        found.append((code.count("aten.mm.default"), code.count("aten.sin.default")))
    assert found == [(2, 1), (2, 1), (3, 1)]


@pytest.mark.usefixtures("installed")
def test_around_a_compiled_region(compiled, device, tap, contexts):
    """Functions and hooks before it are on a thread of autograd, and have the contexts there."""
    seen = []

    def note(*_):
        seen.append(contexts.seen())

    x = device.leaf()
    x.register_hook(note)
    x.register_post_accumulate_grad_hook(note)
    y = tap(x, note)
    y.grad_fn.register_prehook(note)
    compiled(lambda t: t.sin().sum())(ToHost.apply(y, device)).backward()
    assert seen == [CARRIED] * 4
    torch.testing.assert_close(device.to_host(x.grad), torch.ones(2).cos())


@pytest.mark.usefixtures("installed")
def test_recompute_of_a_compiled_region(compiled, contexts):
    """A checkpoint around it has, in its recompute, the context of its forward."""
    seen = []
    fn = compiled(block)

    def noting(x):
        seen.append(contexts.seen()[:2])
        return fn(x)

    def start(x):
        contexts.set("FORWARD")
        y = checkpoint(noting, x, use_reentrant=False)
        contexts.set("SET")
        return y

    torch.testing.assert_close(gradient(start), gradient(block))
    assert seen == [("FORWARD", "FORWARD")] * 2
    assert contexts.seen()[:2] == ("SET", "SET")


@pytest.mark.usefixtures("installed")
def test_hooks_of_a_compiled_module(compiled, contexts):
    """Hooks on its parameters and around it are called once each, and change what they did."""
    seen = []

    def note(value):
        seen.append((value, *contexts.seen()[:2]))

    def accumulated(parameter):
        note("accumulated")
        parameter.grad += 1

    module = torch.nn.Linear(2, 1, bias=False)
    module.weight.register_hook(lambda grad: note("tensor") or 2 * grad)
    module.weight.register_post_accumulate_grad_hook(accumulated)
    outer = torch.nn.Sequential(compiled(module))
    outer.register_full_backward_hook(lambda *_: note("module"))
    outer(torch.ones(1, 2, requires_grad=True)).sum().backward()
    assert sorted(seen) == [(hook, "SET", "SET") for hook in ("accumulated", "module", "tensor")]
    assert module.weight.grad.tolist() == [[3, 3]]


@pytest.mark.usefixtures("installed")
def test_saved_tensors_hooks_around_a_compiled_region(compiled, contexts):
    """What it saves goes through the hooks, on the way in and on the way out."""
    packed, seen = [], []

    def pack(tensor):
        packed.append(tensor)
        return len(packed) - 1

    def unpack(number):
        seen.append((number, *contexts.seen()[:2]))
        return packed[number]

    def start(x):
        with saved_tensors_hooks(pack, unpack):
            return compiled(block)(x)

    torch.testing.assert_close(gradient(start), gradient(block))
    assert packed
    assert sorted(seen) == [(number, "SET", "SET") for number in range(len(packed))]


@pytest.mark.usefixtures("installed")
def test_saved_tensors_hooks_that_are_compiled(compiled):
    """Hooks that the compiler may put into its graph are left as they are."""
    from torch._functorch._aot_autograd import utils

    double, halve = (torch.fx.symbolic_trace(fn) for fn in (lambda t: t * 2, lambda t: t / 2))

    def start(x):
        with saved_tensors_hooks(double, halve):
            assert utils.saved_tensors_hooks_are_inlineable(utils.top_saved_tensors_hooks())
            return compiled(block)(x)

    torch.testing.assert_close(gradient(start), gradient(block))
