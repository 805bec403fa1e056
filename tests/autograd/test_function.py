"""Custom functions: their backward has the context of whoever started the pass."""

import threading

import pytest
import torch

import ctxcarry
from ctxcarry.boundaries import _autograd_tls

CARRIED = ("SET", "SET", True)
LOST = ("LOST", "LOST", True)


def seen_in_backward(device, tap, contexts, start=lambda y: y.sum().backward()):
    """Return what the backward of a custom function sees on its thread."""
    seen = []
    start(tap(device.leaf(), lambda: seen.append(contexts.seen())))
    return seen


def test_plain_backward_loses_the_contexts(device, tap, contexts):
    """The fault: a thread of autograd has nothing of the thread that called backward."""
    assert seen_in_backward(device, tap, contexts) == [LOST]


@pytest.mark.usefixtures("installed")
def test_backward(device, tap, contexts):
    """With the boundary installed it has everything."""
    assert seen_in_backward(device, tap, contexts) == [CARRIED]


@pytest.mark.usefixtures("installed")
def test_grad(device, tap, contexts):
    """``torch.autograd.grad`` starts a pass as well."""
    seen = []
    x = device.leaf()
    y = tap(x, lambda: seen.append(contexts.seen()))
    torch.autograd.grad(y.sum(), x)
    assert seen == [CARRIED]


@pytest.mark.usefixtures("installed")
def test_the_engine_itself(device, tap, contexts):
    """Megatron-LM asks the engine directly."""

    def start(y):
        total = y.sum()
        torch.autograd.Variable._execution_engine.run_backward(
            (total,), (torch.ones_like(total),), False, False, (), True, True
        )

    assert seen_in_backward(device, tap, contexts, start) == [CARRIED]


@pytest.mark.usefixtures("installed")
def test_the_context_of_backward_and_not_of_forward(device, tap, contexts):
    """What counts is what is set where the pass is started."""
    seen = []
    y = tap(device.leaf(), lambda: seen.append(contexts.seen()[:2]))
    contexts.set("LATER")
    y.sum().backward()
    assert seen == [("LATER", "LATER")]


@pytest.mark.usefixtures("installed")
def test_a_retained_graph(device, tap, contexts):
    """Each pass over one graph has the context of its own start."""
    seen = []
    y = tap(device.leaf(), lambda: seen.append(contexts.seen()[:2])).sum()
    y.backward(retain_graph=True)
    contexts.set("SECOND")
    y.backward()
    assert seen == [("SET", "SET"), ("SECOND", "SECOND")]


@pytest.mark.usefixtures("installed")
def test_double_backward(device, contexts):
    """The backward of a backward has it too."""
    seen = []

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            seen.append(contexts.seen())
            return Twice.apply(x) * grad

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x + x

        @staticmethod
        def backward(ctx, grad):
            seen.append(contexts.seen())
            return grad + grad

    x = device.leaf()
    (first,) = torch.autograd.grad(Square.apply(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert seen == [CARRIED, CARRIED]
    assert device.to_host(second).tolist() == [2, 2]


@pytest.mark.usefixtures("installed")
def test_vjp_as_the_name_of_backward(device, contexts):
    """A function may call its backward ``vjp``."""
    seen = []

    class Same(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def vjp(ctx, grad):
            seen.append(contexts.seen())
            return grad

    Same.apply(device.leaf()).sum().backward()
    assert seen == [CARRIED]


@pytest.mark.skipif(
    not hasattr(torch.autograd.Function, "boxed_grads_call"), reason="needs torch 2.13"
)
@pytest.mark.usefixtures("installed")
def test_boxed_gradients(device, contexts):
    """A function that takes its gradients in one list."""
    seen = []

    class Same(torch.autograd.Function):
        boxed_grads_call = True

        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, grads):
            seen.append(contexts.seen())
            return grads.pop()

    Same.apply(device.leaf()).sum().backward()
    assert seen == [CARRIED]


@pytest.mark.usefixtures("installed")
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
def test_forward_mode(device, contexts):
    """Forward-mode derivatives are computed where the forward is, as without us."""
    seen = []

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x + x

        @staticmethod
        def jvp(ctx, tangent):
            seen.append(contexts.seen()[:2])
            return tangent + tangent

    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(torch.ones(2), torch.ones(2))
        tangent = torch.autograd.forward_ad.unpack_dual(Double.apply(dual)).tangent
    assert tangent.tolist() == [2, 2]
    assert seen == [("SET", "SET")]


@pytest.mark.usefixtures("installed")
@pytest.mark.filterwarnings("ignore:Anomaly Detection:UserWarning")
def test_anomaly_mode(device, tap, contexts):
    """Anomaly mode finds the forward of a failing backward as before."""

    def fail():
        assert contexts.seen() == CARRIED
        msg = "in backward"
        raise ValueError(msg)

    with torch.autograd.detect_anomaly(check_nan=False):
        y = tap(device.leaf(), fail).sum()
        with (
            pytest.warns(UserWarning, match="Error detected in _TapBackward"),
            pytest.raises(ValueError, match="in backward"),
        ):
            y.backward()


@pytest.mark.usefixtures("installed")
def test_clean_after_an_exception(device, tap, contexts):
    """A pass that fails leaves nothing on the threads of the engine, nor on this one."""

    def fail():
        contexts.set("CHANGED")
        msg = "in backward"
        raise ValueError(msg)

    with pytest.raises(ValueError, match="in backward"):
        tap(device.leaf(), fail).sum().backward()
    assert contexts.seen()[:2] == ("SET", "SET")
    assert _autograd_tls.stashed() is None
    ctxcarry.uninstall("autograd")
    assert seen_in_backward(device, tap, contexts) == [LOST]


@pytest.mark.usefixtures("installed")
def test_clean_after_a_pass(device, tap, contexts):
    """A thread of the engine is as it was before the pass."""
    assert seen_in_backward(device, tap, contexts) == [CARRIED]
    ctxcarry.uninstall("autograd")
    assert seen_in_backward(device, tap, contexts) == [LOST]


@pytest.mark.usefixtures("installed")
def test_suppress(device, tap, contexts):
    """A context that is not to be carried is not."""
    with ctxcarry.suppress("contextvars"):
        assert seen_in_backward(device, tap, contexts) == [("LOST", "SET", True)]


@pytest.mark.usefixtures("installed")
def test_one_node_finds_what_another_has_set(device, tap):
    """As without us, a variable that a node sets is there for the nodes after it."""
    import contextvars

    own = contextvars.ContextVar("own", default=None)
    seen = []
    x = tap(device.leaf(), lambda: seen.append(own.get()))
    tap(x, lambda: own.set("by the first node")).sum().backward()
    assert seen == ["by the first node"]
    assert own.get() is None


@pytest.mark.usefixtures("installed")
def test_from_another_python_thread(device, tap, contexts):
    """The context is that of the thread that starts the pass, whichever thread made the graph."""
    seen = []
    y = tap(device.leaf(), lambda: seen.append(contexts.seen())).sum()

    def run():
        contexts.set("OTHER")
        y.backward()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [("OTHER", "OTHER", True)]


@pytest.mark.usefixtures("installed")
def test_backward_and_vjp_at_once(device):
    """Torch's own error stays."""

    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, grad):
            return grad

        @staticmethod
        def vjp(ctx, grad):
            return grad

    with pytest.raises(RuntimeError, match=r"both .*backward.* and .*vjp"):
        Both.apply(device.leaf()).sum().backward()


def test_a_method_that_somebody_else_replaced(device, tap, contexts, monkeypatch):
    """What stands in place of torch's method is called, in the context."""
    called = []
    name = "apply"
    torchs = torch.autograd.function.BackwardCFunction.apply

    def apply(self, *grads):
        called.append(contexts.seen())
        return torchs(self, *grads)

    monkeypatch.setattr(torch.autograd.function.BackwardCFunction, name, apply)
    ctxcarry.install("autograd")
    try:
        assert seen_in_backward(device, tap, contexts) == [CARRIED]
    finally:
        ctxcarry.uninstall("autograd")
    assert called == [CARRIED]
