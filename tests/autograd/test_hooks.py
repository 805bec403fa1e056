"""Hooks and other callables that the engine calls: they have the context of their pass."""

import copy
import pickle
import threading

import pytest
import torch

import ctxcarry

CARRIED = ("SET", "SET", True)
LOST = ("LOST", "LOST", True)


class Deaf(torch.autograd.Function):
    """A node written in Python that looks at nothing."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad


def on_tensor(device, look):
    """Register on a tensor within the graph."""
    y = device.leaf() + 1
    y.register_hook(lambda grad: look())
    return y


def on_leaf(device, look):
    """Register on a leaf, after its gradient is accumulated."""
    x = device.leaf()
    x.register_post_accumulate_grad_hook(lambda param: look())
    return x + 1


def on_native_node(device, look):
    """Register on a node that is written in C++."""
    y = device.leaf() + 1
    y.grad_fn.register_hook(lambda inputs, outputs: look())
    return y


def before_native_node(device, look):
    """Register on what comes into a node that is written in C++."""
    y = device.leaf() + 1
    y.grad_fn.register_prehook(lambda grads: look())
    return y


def on_python_node(device, look):
    """Register on a node that is written in Python."""
    y = Deaf.apply(device.leaf())
    y.grad_fn.register_hook(lambda inputs, outputs: look())
    return y


def before_python_node(device, look):
    """Register on what comes into a node that is written in Python."""
    y = Deaf.apply(device.leaf())
    y.grad_fn.register_prehook(lambda grads: look())
    return y


def on_module(device, look):
    """Register on a module."""
    module = torch.nn.Identity()
    module.register_full_backward_hook(lambda module, inputs, outputs: look())
    return module(device.leaf() + 1)


def before_module(device, look):
    """Register on what comes into a module."""
    module = torch.nn.Identity()
    module.register_full_backward_pre_hook(lambda module, outputs: look())
    return module(device.leaf() + 1)


def on_several(device, look):
    """Register one hook for the gradients of several tensors."""
    x, y = device.leaf(), device.leaf()
    torch.autograd.graph.register_multi_grad_hook((x, y), lambda grads: look())
    return x * y


def on_unpacking(device, look):
    """Have a saved tensor unpacked by a function."""

    def unpack(tensor):
        look()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.detach(), unpack):
        x = device.leaf()
        return x * x.detach()


def at_the_end(device, look):
    """Queue a callback for the end of the pass, on the thread of the engine."""
    y = device.leaf() + 1
    engine = torch.autograd.Variable._execution_engine
    y.register_hook(lambda grad: engine.queue_callback(look))
    return y


KINDS = [
    on_tensor,
    on_leaf,
    on_native_node,
    before_native_node,
    on_python_node,
    before_python_node,
    on_module,
    before_module,
    on_several,
    on_unpacking,
]


def seen_by(kind, device, contexts):
    """Return what a hook of this kind sees."""
    seen = []
    kind(device, lambda: seen.append(contexts.seen())).sum().backward()
    return seen


@pytest.mark.parametrize("kind", KINDS)
def test_plain_hooks_lose_the_contexts(kind, device, contexts):
    """The fault: a hook on a thread of autograd sees none of the contexts."""
    assert seen_by(kind, device, contexts) == [LOST]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("kind", KINDS)
def test_hooks(kind, device, contexts):
    """With the boundary installed they have everything."""
    assert seen_by(kind, device, contexts) == [CARRIED]


@pytest.mark.usefixtures("installed")
def test_callbacks_of_the_engine(device, contexts):
    """A callback at the end of the pass has the context, on whichever thread it runs."""
    seen = seen_by(at_the_end, device, contexts)
    assert [(variable, field) for variable, field, _ in seen] == [("SET", "SET")]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("kind", [on_tensor, on_native_node])
def test_a_hook_can_be_removed(kind, device):
    """The handle still works, and a removed hook is not called."""
    seen = []
    y = device.leaf() + 1
    if kind is on_native_node:
        handle = y.grad_fn.register_hook(lambda inputs, outputs: seen.append(1))
    else:
        handle = y.register_hook(lambda grad: seen.append(1))
    handle.remove()
    y.sum().backward()
    assert seen == []


@pytest.mark.usefixtures("installed")
def test_what_a_hook_returns(device):
    """The gradient that a hook returns is the one that goes on."""
    x = device.leaf()
    y = x + 1
    y.register_hook(lambda grad: grad + grad)
    y.sum().backward()
    assert device.to_host(x.grad).tolist() == [2, 2]


@pytest.mark.usefixtures("installed")
def test_what_is_no_hook_is_refused_as_without_us():
    """Torch's own error for a hook that cannot be called."""
    y = torch.ones(1, requires_grad=True) + 1
    y.register_hook(None)
    with pytest.raises(TypeError, match="not callable"):
        y.sum().backward()


@pytest.mark.parametrize("wrap", [lambda fn: fn, ctxcarry.autograd.hook])
@pytest.mark.usefixtures("installed")
def test_hooks_registered_before_uninstall_fall_silent(wrap, device, contexts):
    """A hook that stays registered when the boundary goes off has no context from then on."""
    seen = []
    x = device.leaf()
    x.register_hook(wrap(lambda grad: seen.append(contexts.seen())))
    (x + 1).sum().backward()
    ctxcarry.uninstall()
    contexts.set("LATER")
    (x + 1).sum().backward()
    # The one that was wrapped by hand still has what was set where it was registered.
    later = LOST if wrap is not ctxcarry.autograd.hook else CARRIED
    assert seen == [CARRIED, later]


@pytest.fixture
def nothing_installed():
    """Take off whatever single hooks put on."""
    yield
    ctxcarry.uninstall()


@pytest.mark.usefixtures("nothing_installed")
def test_a_single_hook(device, contexts):
    """Without the boundary, one hook has the context of the pass, and others do not."""
    seen = []
    x = device.leaf()
    y = x + 1
    y.register_hook(ctxcarry.autograd.hook(lambda grad: seen.append(contexts.seen())))
    x.register_hook(lambda grad: seen.append(contexts.seen()))
    contexts.set("LATER")
    y.sum().backward()
    assert seen == [("LATER", "LATER", True), LOST]
    assert ctxcarry.installed() == ()


@pytest.mark.usefixtures("nothing_installed")
def test_a_single_hook_of_each_kind(device, contexts):
    """`hook` is for nodes, modules and accumulated gradients too."""
    seen = []
    hook = ctxcarry.autograd.hook
    x = device.leaf()
    x.register_post_accumulate_grad_hook(hook(lambda p: seen.append(contexts.seen())))
    module = torch.nn.Identity()
    module.register_full_backward_hook(hook(lambda m, i, o: seen.append(contexts.seen())))
    y = module(x + 1)
    y.grad_fn.register_prehook(hook(lambda grads: seen.append(contexts.seen())))
    y.sum().backward()
    assert seen == [CARRIED] * 3


@pytest.mark.usefixtures("nothing_installed")
def test_a_single_hook_called_by_nobody_we_know(contexts):
    """On a thread that runs no backward pass it has the context of its registration."""
    seen = []
    hook = ctxcarry.autograd.hook(lambda: seen.append(contexts.seen()))
    contexts.set("LATER")
    thread = threading.Thread(target=hook)
    thread.start()
    thread.join()
    hook()  # here it just calls
    assert seen == [CARRIED, ("LATER", "LATER", False)]


@pytest.mark.usefixtures("nothing_installed")
def test_a_single_hook_is_what_it_wraps_to_others():
    """It has the name of the function, copies and pickles, and is not wrapped twice."""
    hook = ctxcarry.autograd.hook(named)
    assert hook.__name__ == "named"
    assert copy.copy(hook)(1) == 1
    assert pickle.loads(pickle.dumps(hook)).__wrapped__ is named  # noqa: S301 - our own
    assert ctxcarry.autograd.hook(hook) is hook


def named(grad):
    """Return the gradient."""
    return grad


def test_a_single_hook_that_cannot_be_called():
    """What is no function is refused where it is wrapped."""
    with pytest.raises(TypeError, match=r"hook takes a callable, not 3 of type int"):
        ctxcarry.autograd.hook(3)
