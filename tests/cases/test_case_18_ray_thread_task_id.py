"""
Case 18 (ray#31879, #10324): a thread started inside a Ray task reports another task id.

And the task itself sees nothing of what the driver has set.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray", reason="the thread part of this case needs a Ray task")

import ray
import torch

import ctxcarry
import ctxcarry.ray

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def cluster(ray_address):
    """Connect to Ray for these tests."""
    ray.init(ray_address, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


def task_id():
    """Return the id of the task that this thread is in."""
    return ray.get_runtime_context().get_task_id()


def ids(make):
    """Return the id that the task's thread sees and the one that a pool's thread sees."""
    with make(1) as pool:
        return task_id(), pool.submit(task_id).result()


@pytest.mark.parametrize("make", [ThreadPoolExecutor, ctxcarry.executor])
def test_fault_is_rays(cluster, make):
    """Ray keeps the id in C++ for each thread and lets nobody set it, carried or not."""
    own, other = ray.get(ray.remote(ids).remote(make))
    assert own != other


def grad():
    """Return whether grad mode is on in the task, and in a thread of its own."""
    import torch

    with ctxcarry.executor(1) as pool:
        return torch.is_grad_enabled(), pool.submit(torch.is_grad_enabled).result()


def test_fault_of_the_driver(cluster):
    """A task has grad mode on although the driver has not."""
    with torch.no_grad():
        assert (True, True) == ray.get(ray.remote(grad).remote())


def test_cure_of_the_driver(cluster):
    """The task has the driver's grad mode, as it is at the call, and so has its thread."""
    carried = ctxcarry.ray.remote(grad)
    with torch.no_grad():
        inside = carried.remote()
    outside = carried.remote()
    assert [(False, False), (True, True)] == ray.get([inside, outside])
