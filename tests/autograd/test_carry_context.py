"""`@carry_context` on a function of autograd: the context of its forward, in its backward."""

import inspect
import threading

import pytest
import torch

import ctxcarry

CARRIED = ("SET", "SET", True)


def function(contexts, seen, **methods):
    """Return a function whose backward looks at the contexts, decorated."""

    class Same(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, scale: int = 1):
            """Return `x`."""
            return x.view_as(x)

        @staticmethod
        def backward(ctx, grad):
            seen.append(contexts.seen())
            return grad, None

    for name, method in methods.items():
        setattr(Same, name, staticmethod(method))
    return ctxcarry.carry_context(Same)


def test_the_context_of_the_forward(device, contexts):
    """Whatever is set where the pass is started, and with nothing installed."""
    seen = []
    y = function(contexts, seen).apply(device.leaf())
    contexts.set("LATER")
    y.sum().backward()
    assert seen == [CARRIED]
    assert contexts.seen()[:2] == ("LATER", "LATER")
    assert "autograd" not in ctxcarry.installed()


@pytest.mark.usefixtures("installed")
def test_over_what_is_installed(device, contexts):
    """With the boundary installed too, the context of the forward is what counts."""
    seen = []
    x = device.leaf()
    y = function(contexts, seen).apply(x)
    x.register_hook(lambda grad: seen.append(contexts.seen()))
    contexts.set("LATER")
    y.sum().backward()
    assert seen == [CARRIED, ("LATER", "LATER", True)]


def test_each_call_has_its_own(device, contexts):
    """Two calls in two contexts, in one graph."""
    seen = []
    same = function(contexts, seen)
    y = same.apply(device.leaf())
    contexts.set("SECOND")
    y = same.apply(y)
    contexts.set("LATER")
    y.sum().backward()
    assert [look[:2] for look in seen] == [("SECOND", "SECOND"), ("SET", "SET")]


def test_setup_context(device, contexts):
    """A function that splits its forward has the context noted in ``setup_context``."""
    seen = []

    @ctxcarry.carry_context
    class Same(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x.view_as(x)

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, grad):
            seen.append(contexts.seen())
            return grad

    y = Same.apply(device.leaf())
    contexts.set("LATER")
    y.sum().backward()
    assert seen == [CARRIED]


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
def test_functorch(contexts):
    """``torch.func`` makes functions of its own from it, which carry as well."""
    seen = []

    @ctxcarry.carry_context
    class Square(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x * x

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, grad):
            seen.append(contexts.seen()[:2])
            return 2 * ctx.saved_tensors[0] * grad

    def loss(x):
        y = Square.apply(x)
        contexts.set("LATER")
        return y.sum()

    assert torch.func.grad(loss)(torch.ones(2)).tolist() == [2, 2]
    contexts.set("SET")
    assert torch.func.vmap(torch.func.grad(loss))(torch.ones(2, 2)).tolist() == [[2, 2]] * 2
    assert seen == [("SET", "SET")] * 2


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
def test_jvp(contexts):
    """Forward-mode derivatives have it too."""
    seen = []

    def jvp(ctx, tangent, *_):
        seen.append(contexts.seen()[:2])
        return tangent.view_as(tangent)

    same = function(contexts, seen, jvp=jvp)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(torch.ones(2), torch.ones(2))
        tangent = torch.autograd.forward_ad.unpack_dual(same.apply(dual)).tangent
    assert tangent.tolist() == [1, 1]
    assert seen == [("SET", "SET")]


def test_derived_classes(device, contexts):
    """A class derived from it carries in a backward of its own."""
    seen = []

    class Derived(function(contexts, seen)):
        @staticmethod
        def backward(ctx, grad):
            seen.append(("derived", *contexts.seen()[:2]))
            return grad, None

    y = Derived.apply(device.leaf())
    contexts.set("LATER")
    y.sum().backward()
    assert seen == [("derived", "SET", "SET")]


def test_inherited_methods(device, contexts):
    """Methods that a base brings are carried by the decorated class, and the base is not."""
    seen = []

    class Base(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, grad):
            seen.append(contexts.seen()[:2])
            return grad

    @ctxcarry.carry_context
    class Derived(Base):
        pass

    y = Derived.apply(Base.apply(device.leaf()))
    contexts.set("LATER")
    y.sum().backward()
    assert seen == [("SET", "SET"), ("LOST", "LOST")]


def test_only_and_exclude(device, contexts):
    """The policy of the decorator counts."""
    seen = []
    same = function(contexts, seen)
    name = "ambient_of_autograd_tests.local"
    for policy in ({"only": name}, {"exclude": "contextvars"}):

        @ctxcarry.carry_context(**policy)
        class Same(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.view_as(x)

            @staticmethod
            def backward(ctx, grad):
                seen.append(contexts.seen())
                return grad

        Same.apply(device.leaf()).sum().backward()
    assert seen == [("LOST", "SET", True)] * 2
    assert same is ctxcarry.carry_context(same)


def test_what_is_the_engines_own(contexts):
    """Grad mode of the forward is not brought into backward."""
    seen = []

    def backward(ctx, grad):
        seen.append(torch.is_grad_enabled())
        return grad, None

    same = function(contexts, [], backward=backward)
    x = torch.ones(2, requires_grad=True)
    y = same.apply(x).sum()
    y.backward(retain_graph=True)
    torch.autograd.grad(y, x, create_graph=True)
    assert seen == [False, True]


def test_signature_and_name(contexts):
    """To whoever looks, the methods are what they were."""
    same = function(contexts, [])
    assert list(inspect.signature(same.forward).parameters) == ["ctx", "x", "scale"]
    assert same.forward.__doc__ == "Return `x`."
    assert same.__name__ == "Same"


def test_gradcheck(contexts):
    """Torch's own check of gradients passes on a decorated function."""
    seen = []
    same = function(contexts, seen)
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(same.apply, (x,))
    assert seen


def test_from_a_pool_thread(device, contexts):
    """A forward in a pool thread, and the backward here."""
    seen = []
    same = function(contexts, seen)
    made = []

    def run():
        contexts.set("THREAD")
        made.append(same.apply(device.leaf()))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    made[0].sum().backward()
    assert [look[:2] for look in seen] == [("THREAD", "THREAD")]
