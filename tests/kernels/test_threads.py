"""In threads, checkpoints and passes of others: the same results, and no allocator is touched."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from ctxcarry_kernels import linear_cross_entropy
from torch.utils.checkpoint import checkpoint

import ctxcarry

N, H, V = 40, 32, 300
TIMEOUT = 120


def tensors(seed=0):
    """Return hidden, weight and labels."""
    make = torch.Generator().manual_seed(seed)
    hidden, weight = (torch.randn(size, H, generator=make).requires_grad_() for size in (N, V))
    return hidden, weight, torch.randint(0, V, (N,), generator=make)


def loss(hidden, weight, labels):
    """Return a loss of logprob and entropy."""
    out = linear_cross_entropy(hidden, weight, labels, temperature=0.8)
    return out.entropy.sum() - out.logprobs.sum()


def step(seed=0, fn=loss):
    """Return the loss and the gradients."""
    hidden, weight, labels = tensors(seed)
    value = fn(hidden, weight, labels)
    value.backward()
    return value.detach(), hidden.grad, weight.grad


def equal(found, expected):
    """Check that results are the same to the last bit."""
    assert [True] * 3 == [torch.equal(f, e) for f, e in zip(found, expected)]


@pytest.mark.parametrize("make", [ThreadPoolExecutor, ctxcarry.executor])
def test_threads_at_once(make):
    """Several threads that call at the same time each have what one has."""
    expected = [step(seed) for seed in range(8)]
    barrier = threading.Barrier(4)

    def run(seed):
        barrier.wait(TIMEOUT)
        return threading.get_ident(), step(seed)

    with make(4) as pool:
        done = [future.result(TIMEOUT) for future in [pool.submit(run, s) for s in range(8)]]
    assert threading.get_ident() not in {ident for ident, _ in done}
    assert len({ident for ident, _ in done}) > 1
    for (_, found), right in zip(done, expected):
        equal(found, right)


def test_backward_in_another_thread():
    """A pass is started where the forward was not."""
    hidden, weight, labels = tensors()
    value = loss(hidden, weight, labels)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(value.backward).result(TIMEOUT)
    equal((value.detach(), hidden.grad, weight.grad), step())


def test_one_weight_in_several_threads():
    """Passes of several threads that end in one weight add up there."""
    weight = tensors()[1]
    inputs = [tensors(seed) for seed in range(4)]

    def run(seed):
        hidden, _, labels = inputs[seed]
        loss(hidden, weight, labels).backward()

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(run, seed) for seed in range(4)]:
            future.result(TIMEOUT)
    found, weight.grad = weight.grad, None
    for seed in range(4):
        run(seed)
    torch.testing.assert_close(found, weight.grad)


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("threaded", [True, False])
def test_checkpoint(use_reentrant, threaded):
    """A checkpoint calls it again in the backward, in whichever thread that is."""
    calls = []

    def counted(*args):
        calls.append(threading.get_ident())
        return loss(*args)

    def around(*args):
        return checkpoint(counted, *args, use_reentrant=use_reentrant)

    hidden, weight, labels = tensors()
    value = around(hidden, weight, labels)
    if threaded:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(value.backward).result(TIMEOUT)
    else:
        value.backward()
    equal((value.detach(), hidden.grad, weight.grad), step())
    assert len(calls) == 2
    assert threaded == (calls[0] != calls[1])


def test_deep_pass():
    """The engine's own threads, to which it moves a pass inside sixty others, serve as well."""

    class Deep(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, depth):
            ctx.depth = depth
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            with torch.enable_grad():
                descend(ctx.depth - 1)
            return grad, None

    hidden, weight, labels = tensors()
    value = loss(hidden, weight, labels)
    threads = []
    value.grad_fn.register_prehook(lambda _: threads.append(threading.get_ident()))

    def descend(depth):
        if depth:
            Deep.apply(torch.ones(1, requires_grad=True), depth).sum().backward()
        else:
            value.backward()

    descend(61)
    assert threads != [threading.get_ident()]
    equal((value.detach(), hidden.grad, weight.grad), step())


PROGRAM = """
import contextvars, sys, threading
from concurrent.futures import ThreadPoolExecutor

import torch, triton
from triton.runtime import _allocation

sys.path.insert(0, {folder!r})
import test_threads as tests
from ctxcarry_kernels import _path

assert _path.why_not_fused(*tests.tensors()[:2]) is None

def current():
    # A ContextVar, or in Triton 3.4 a plain global.
    allocator = _allocation._allocator
    return allocator.get() if isinstance(allocator, contextvars.ContextVar) else allocator

def used(size, alignment, stream):
    raise AssertionError("asked for memory")

none = current()
without = tests.step()
assert current() is none
triton.set_allocator(used)
found = tests.step()
assert current() is used
with ThreadPoolExecutor(1) as pool:
    def run():
        before = current()
        return tests.step(), current() is before
    elsewhere, kept = pool.submit(run).result(60)
assert kept
for other in (found, elsewhere):
    tests.equal(other, without)
print("reached the end", [t.sum().item() for t in without])
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton")
def test_the_allocator_is_the_users():
    """The kernels run with no allocator, and leave one that is set as it is, in each thread."""
    program = PROGRAM.format(folder=str(Path(__file__).parent))
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.startswith("reached the end"), done.stderr[-3000:]
    sums = [float(text) for text in done.stdout.partition("[")[2].rstrip("]\n").split(",")]
    torch.testing.assert_close(sums, [t.sum().item() for t in step()], rtol=1e-3, atol=1e-2)
