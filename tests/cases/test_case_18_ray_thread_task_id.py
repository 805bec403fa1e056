"""Case 18 (ray#31879, #10324): a thread started inside a Ray task reports another task id."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("ray", reason="the thread part of this case needs a Ray task")

import ray

import ctxcarry

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def cluster():
    """Start Ray for these tests."""
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=80 << 20)
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
