"""Recomputes on other threads: of autograd, of the caller, and two at once."""

import sys
import threading
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from ctxcarry_checkpoint import checkpoint, policies

sys.path.insert(0, str(Path(__file__).parent))
from blocks import POLICIES, Dropouts, compare

each_policy = pytest.mark.parametrize("policy", list(POLICIES.values()), ids=list(POLICIES))

# What is written in Python has no streams to copy with.
ON_DEVICE = {name: policy for name, policy in POLICIES.items() if name != "offloaded"}


def in_a_thread(fn):
    """Call it on another thread, and raise what it raises."""
    raised = []

    def run():
        try:
            fn()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    for error in raised:
        raise error


@each_policy
def test_another_thread(policy):
    """A backward that another thread starts gives the same."""
    torch.manual_seed(3)
    model = Dropouts()

    def run(call):
        x = torch.randn(4, 8, requires_grad=True)
        y = call(model, x).sum()
        in_a_thread(y.backward)
        found = [x.grad, *(p.grad for p in model.parameters())]
        model.zero_grad()
        return found

    compare(run, policy)


def test_threads_with_the_same_block():
    """Forwards and backwards of one block on several threads at once do not mix."""
    torch.manual_seed(3)
    weight = torch.randn(8, 8)

    def block(x, times):
        for _ in range(times):
            x = (x @ weight).tanh()
        return x

    def gradients(call, seed):
        generator = torch.Generator().manual_seed(seed)
        found = []
        for step in range(6):
            x = torch.randn(4, 8, generator=generator).requires_grad_()
            call(block, x, 1 + (seed + step) % 3).sum().backward()
            found.append(x.grad)
        return found

    policy = policies.matmuls()
    expected = [gradients(lambda fn, *args: fn(*args), seed) for seed in range(4)]
    found = [None] * 4
    start = threading.Barrier(4)

    def run(seed):
        start.wait()
        found[seed] = gradients(partial(checkpoint, policy=policy), seed)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(expected, found):
        assert [torch.equal(a, b) for a, b in zip(one, other)] == [True] * 6


@pytest.mark.parametrize("policy", ON_DEVICE.values(), ids=list(ON_DEVICE))
def test_a_device_thread(device, policy):
    """Tensors of a device have their recompute on its thread."""
    weight = device.put(torch.linspace(-1, 1, 64).view(8, 8)).requires_grad_()
    ran = []

    def block(x):
        ran.append(threading.current_thread() is threading.main_thread())
        return (x @ weight).sin() * x

    found = []
    for step in range(3):
        for call in (lambda fn, x: fn(x), partial(checkpoint, policy=policy)):
            x = device.put(torch.full((4, 8), 0.1 * step)).requires_grad_()
            weight.grad = None
            ran.clear()
            call(block, x).sum().backward()
            found.append((device.to_host(x.grad).clone(), device.to_host(weight.grad).clone()))
        assert ran[0]
        assert not any(ran[1:])
        assert all(torch.equal(a, b) for a, b in zip(*found[-2:]))


@pytest.mark.parametrize("policy", [policies.full(), policies.none()], ids=["full", "none"])
def test_two_threads_need_one_recompute(device, policy):
    """The thread of the caller and that of a device unpack one block at once (pytorch#96764)."""
    runs = []

    def block(a, b, on_host, on_device):
        runs.append(1)
        for _ in range(8):
            a, b = (a * on_host).sin(), (b * on_device).sin()
        return a.sum(), b.sum()

    def both(call, seed):
        generator = torch.Generator().manual_seed(seed)
        a, on_host, b, on_device = (torch.randn(8, generator=generator) for _ in range(4))
        on_host.requires_grad_()
        on_device = device.put(on_device).requires_grad_()
        outputs = call(block, a, device.put(b), on_host, on_device)
        torch.autograd.backward(outputs)
        return on_host.grad, device.to_host(on_device.grad)

    for seed in range(10):
        expected = both(lambda fn, *args: fn(*args), seed)
        runs.clear()
        found = both(partial(checkpoint, policy=policy), seed)
        assert len(runs) <= 2, "one recompute serves both"
        assert all(torch.equal(a, b) for a, b in zip(expected, found))
