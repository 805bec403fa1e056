"""Compiled backward passes: their contexts, and the one Context that torch has them enter."""

import os
import shutil
import threading
from functools import partial

import pytest
import torch
from torch._dynamo import compiled_autograd
from torch.autograd import Variable
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import ctxcarry

pytestmark = [  # what torch says of itself
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:<class 'torch.autograd.function.Function'> should not be"),
]
# Earlier ones stash no Context; later ones enter copies of it themselves.
fault = pytest.mark.skipif(
    not hasattr(torch._C, "_remove_obj_from_tls") or torch.__version__ >= "2.14",
    reason="needs torch 2.12 or 2.13, which enter one Context for all of a pass",
)

CARRIED = ("SET", "SET", True)
LOST = ("LOST", "LOST", True)
at_visit = []


@torch.library.custom_op("tests_autograd::visit", mutates_args=())
def visit(x: torch.Tensor) -> torch.Tensor:
    """Call the last of `at_visit`, in the midst of a compiled backward."""
    at_visit[-1]()
    return x.clone()


@torch.library.custom_op("tests_autograd::visited", mutates_args=())
def visited(x: torch.Tensor) -> torch.Tensor:
    """Return `x`, whose gradient `visit` passes on."""
    return x.clone()


visit.register_fake(torch.clone)
visited.register_fake(torch.clone)
visited.register_autograd(lambda _, grad: visit(grad))


@pytest.fixture(autouse=True)
def _forget():
    """Have nothing compiled before a test, nor after it."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    at_visit.clear()


@pytest.fixture(params=["aot_eager", "inductor"])
def compiled(request):
    """Return a function that compiles another as a whole, its backward included."""
    compilers = os.environ.get("CXX"), "g++", "clang++"
    if request.param == "inductor" and not any(map(shutil.which, filter(None, compilers))):
        pytest.skip("inductor needs a C++ compiler")
    return partial(torch.compile, backend=request.param, fullgraph=True)


@pytest.fixture
def nothing():
    """Take back what the explicit hooks of other tests have installed."""
    ctxcarry.uninstall()


def leaf():
    """Return a tensor on the CPU that requires a gradient."""
    return torch.ones(2, requires_grad=True)


def visiting(compiled, x, fn):
    """Return a compiled loss of `x` that calls ``fn()`` in the midst of its backward."""
    at_visit.append(fn)
    return compiled(lambda t: visited(t.sin()).sum())(x)


def start(loss):
    """Start a pass by asking the engine itself, as Megatron-LM does: no new Context is stashed."""
    ones = (torch.ones_like(loss),)
    Variable._execution_engine.run_backward((loss,), ones, False, False, (), True, True)


def seen_on_a_thread(compiled, device, tap, contexts):
    """Return what a compiled backward sees that is started on a thread of autograd."""
    seen = []
    loss = visiting(compiled, leaf(), lambda: seen.append(contexts.seen()))
    tap(device.leaf(), loss.backward).sum().backward()
    return seen


@pytest.mark.usefixtures("nothing")
def test_a_thread_without_contexts(compiled, device, tap, contexts):
    """The fault: there is nothing of what was set where the outer pass was started."""
    assert seen_on_a_thread(compiled, device, tap, contexts) == [LOST]


@pytest.mark.usefixtures("installed")
def test_a_thread(compiled, device, tap, contexts):
    """With the boundary installed there is everything."""
    assert seen_on_a_thread(compiled, device, tap, contexts) == [CARRIED]


def one_within_another(compiled):
    """Run a compiled backward in the midst of another, and return both gradients."""
    x, y = leaf(), leaf()
    inner = compiled(lambda t: t.cos().sum())(y)
    visiting(compiled, x, lambda: start(inner)).backward()
    return x.grad, y.grad


@fault
@pytest.mark.usefixtures("nothing")
def test_one_within_another_fails(compiled):
    """The fault (pytorch#185372): both enter the one Context of the pass."""
    with pytest.raises(RuntimeError, match="cannot enter context"):
        one_within_another(compiled)


@pytest.mark.usefixtures("installed")
def test_one_within_another(compiled):
    """With the boundary installed each enters a copy."""
    x, y = one_within_another(compiled)
    torch.testing.assert_close(x, torch.ones(2).cos())
    torch.testing.assert_close(y, -torch.ones(2).sin())


def two_threads(compiled, device, tap, contexts):
    """
    Run two compiled backwards of one pass at once, and return what both see.

    One is on this thread, where the pass is started. The other is on the thread of the
    device, and begins and ends while the first one is under way.
    """
    entered, left = threading.Event(), threading.Event()
    seen = []

    def here():
        entered.set()
        assert left.wait(60)

    def there():
        assert entered.wait(60)
        at_visit.append(lambda: seen.append(contexts.seen()))
        try:
            start(other)
        finally:
            left.set()

    x, y = leaf(), leaf()
    other = visiting(compiled, y, None)
    first = visiting(compiled, x, here)
    torch.autograd.backward((first, tap(device.leaf(), there).sum()))
    torch.testing.assert_close((x.grad, y.grad), (torch.ones(2).cos(),) * 2)
    return seen


@fault
@pytest.mark.usefixtures("nothing")
def test_two_threads_fail(compiled, device, tap, contexts):
    """The fault: a Context cannot be entered on two threads."""
    with pytest.raises(RuntimeError, match="cannot enter context"):
        two_threads(compiled, device, tap, contexts)


@pytest.mark.usefixtures("installed")
def test_two_threads(compiled, device, tap, contexts):
    """With the boundary installed it can, and has what is carried besides it, too."""
    assert two_threads(compiled, device, tap, contexts) == [CARRIED]


@ctxcarry.carry_context
class Carried(torch.autograd.Function):
    """A function under `carry_context`."""

    @staticmethod
    def forward(ctx, x):
        return x.sin()

    @staticmethod
    def backward(ctx, grad):
        return 3 * grad


def _on_a_tensor(x):
    x.register_hook(lambda grad: 3 * grad)
    return x.sum()


def _on_a_tensor_carried(x):
    x.register_hook(ctxcarry.autograd.hook(lambda grad: 3 * grad))
    return x.sum()


def _on_a_node(x):
    y = x * 1
    y.grad_fn.register_prehook(lambda grads: (3 * grads[0],))
    return y.sum()


def _on_unpacking(x):
    with saved_tensors_hooks(lambda t: t / 3, lambda t: t * 9):
        return (x * torch.ones(2)).sum()


def _function(x):
    return Carried.apply(x).sum()


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    "make", [_on_a_tensor, _on_a_tensor_carried, _on_a_node, _on_unpacking, _function]
)
def test_compiled_autograd(make):
    """A whole pass is compiled without a graph break, with what it calls put into its graph."""
    x = leaf()
    loss = make(x)
    with compiled_autograd._enable(partial(torch.compile, backend="eager", fullgraph=True)):
        loss.backward()
    assert x.grad.tolist() == [3, 3]


# Of torch 2.11 itself, where a graph breaks with a tensor at hand.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.usefixtures("installed")
def test_compiled_autograd_of_a_reentrant_checkpoint():
    """A pass within a pass breaks the graph as it does without us, and without a warning."""
    x = leaf()
    loss = checkpoint(lambda t: t.sin().sum(), x, use_reentrant=True)
    with compiled_autograd._enable(partial(torch.compile, backend="eager")):
        loss.backward()
    torch.testing.assert_close(x.grad, torch.ones(2).cos())
