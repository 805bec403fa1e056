"""In an actor with several threads, none of which is the one it was made in."""

import sys
import threading

import pytest
import torch
from ctxcarry_kernels import linear_cross_entropy

ray = pytest.importorskip("ray")

import ctxcarry  # noqa: E402

pytestmark = pytest.mark.ray


def tensors(seed):
    """Return hidden, weight and labels."""
    make = torch.Generator().manual_seed(seed)
    hidden, weight = (torch.randn(size, 16, generator=make).requires_grad_() for size in (24, 200))
    return hidden, weight, torch.randint(0, 200, (24,), generator=make)


def step(seed):
    """Return results and gradients as lists."""
    hidden, weight, labels = tensors(seed)
    out = linear_cross_entropy(hidden, weight, labels)
    (out.logprobs.sum() + out.entropy.sum()).backward()
    found = (out.logprobs, out.entropy, hidden.grad, weight.grad)
    return [tensor.detach().tolist() for tensor in found]


class Worker:
    """Computes in two threads at a time."""

    def __init__(self):
        self.barrier = threading.Barrier(2)
        self.made_on = threading.get_ident()

    def compute(self, seed):
        """Return whether this is another thread than the actor's first, and the results."""
        self.barrier.wait(60)
        return threading.get_ident() != self.made_on, step(seed)


@pytest.fixture(scope="module")
def cluster(ray_address):
    """Connect to Ray, whose workers cannot import this file."""
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    ray.init(ray_address, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.mark.usefixtures("cluster")
def test_threads_of_an_actor():
    """Two calls at once, plain or carried, each make what this process makes."""
    expected = [(True, step(seed)) for seed in range(2)]
    for make in (ray.remote, ctxcarry.ray.remote):
        actor = make(max_concurrency=2)(Worker).remote()
        found = ray.get([actor.compute.remote(seed) for seed in range(2)], timeout=120)
        assert [elsewhere for elsewhere, _ in found] == [True, True]
        for (_, mine), (_, right) in zip(found, expected):
            for one, other in zip(mine, right):
                torch.testing.assert_close(torch.tensor(one), torch.tensor(other))
        ray.kill(actor)
