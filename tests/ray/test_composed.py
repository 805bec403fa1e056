"""Boundaries within a Ray call: pools and backward passes there have the caller's contexts."""

import threading

import pytest
import ray
import ray_work as work
import torch
from torch.utils.checkpoint import checkpoint

import ctxcarry

pytestmark = pytest.mark.usefixtures("cluster")


class Node(torch.autograd.Function):
    """A node whose backward runs another pass, down to a depth, and looks at the bottom."""

    @staticmethod
    def forward(ctx, x, depth, look):
        """Pass on, and note the rest."""
        ctx.rest = depth, look
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        """Nest, or look."""
        depth, look = ctx.rest
        if depth:
            with torch.enable_grad():
                inner = Node.apply(torch.ones(1, requires_grad=True), depth - 1, look).sum()
            inner.backward()
        else:
            look()
        return grad, None, None


class Actor:
    """An actor that hands work over itself."""

    def __init__(self, *install):
        ctxcarry.install(*install or ("thread",))
        self.kept = []

    def pool(self):
        """Return what a carrying pool's thread has, and whether it is another."""
        with ctxcarry.executor(1) as pool:
            found, _, thread = pool.submit(work.here).result()
        return found, thread != threading.get_ident()

    def nested_backward(self):
        """Return what the bottom of many nested passes has, and whether it is another thread."""
        found = []
        torch.set_num_threads(1)
        y = Node.apply(torch.ones(1, requires_grad=True), 70, lambda: found.append(work.here()))
        y.sum().backward()
        (value, _, thread) = found[0]
        return value, thread != threading.get_ident()

    def forward(self):
        """Run a checkpointed function, whose context goes with this call."""
        seen = []

        def block(x):
            seen.append(work.read())
            return x * x

        loss = checkpoint(block, torch.ones(1, requires_grad=True), use_reentrant=False).sum()
        self.kept = [seen, loss]

    def backward(self):
        """Return what the forward and the recompute of the former call have seen."""
        seen, loss = self.kept
        loss.backward()
        return seen


@pytest.mark.parametrize("options", [{}, {"max_concurrency": 2}])
def test_a_pool_in_a_method(made, options):
    """A carrying pool that a method makes has the contexts of the method's caller."""
    actor = made(ctxcarry.ray.remote(Actor).options(**options))
    work.VARIABLE.set("there")
    assert ("there", True) == ray.get(actor.pool.remote())


def test_a_pool_of_an_actor_with_a_base(made):
    """A carrying pool has what ``__init__`` set, where the caller has set nothing."""

    @ctxcarry.ray.remote(max_concurrency=2)
    class Based(Actor):
        def __init__(self):
            super().__init__()
            work.VARIABLE.set("base")

    assert ("base", True) == ray.get(made(Based).pool.remote())


@pytest.mark.parametrize("boundary", ["autograd", "thread"])
def test_nested_backward_in_a_method(made, boundary):
    """The engine's other threads have the caller's contexts if "autograd" is installed there."""
    actor = made(ctxcarry.ray.remote(Actor), boundary)
    work.VARIABLE.set("there")
    expected = "there" if boundary == "autograd" else "unset"
    assert (expected, True) == ray.get(actor.nested_backward.remote())


@pytest.mark.parametrize("boundary", ["autograd", "thread"])
def test_recompute_in_a_later_call(made, boundary):
    """A recompute has the contexts of its forward's caller, if "autograd" is installed there."""
    actor = made(ctxcarry.ray.remote(Actor), boundary)
    token = work.VARIABLE.set("forward")
    forward = actor.forward.remote()
    work.VARIABLE.reset(token)
    work.VARIABLE.set("backward")
    ray.get(forward)
    expected = "forward" if boundary == "autograd" else "backward"
    assert ["forward", expected] == ray.get(actor.backward.remote())


def test_a_process_in_a_task():
    """A carrying process pool that a task makes has the contexts of the task's caller."""

    @ctxcarry.ray.remote
    def task():
        import multiprocessing

        context = multiprocessing.get_context("spawn")
        with ctxcarry.executor(1, kind="process", mp_context=context) as pool:
            return pool.submit(work.read).result()

    work.VARIABLE.set("there")
    assert "there" == ray.get(task.remote())


def test_a_bound_method(made):
    """What `bind` bound on the driver runs in a method under the contexts of its binding."""

    class Caller:
        def call(self, fn):
            return fn(), work.read()

    actor = made(ctxcarry.ray.remote(Caller))
    token = work.VARIABLE.set("bound")
    fn = ctxcarry.bind(work.read)
    work.VARIABLE.reset(token)
    work.VARIABLE.set("caller")
    assert ("bound", "caller") == ray.get(actor.call.remote(fn))
