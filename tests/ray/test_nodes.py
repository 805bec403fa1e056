"""Two nodes: contexts travel from one to the other and back, small ones and large ones."""

import pytest
import ray
import ray_work as work
import torch

import ctxcarry

pytestmark = pytest.mark.usefixtures("cluster")


def node():
    """Return on which node this is."""
    return ray.get_runtime_context().get_node_id()


@pytest.fixture
def other_node(ray_nodes):
    """Add a node to that of all tests."""
    added = ray_nodes.add_node(num_cpus=1, resources={"there": 1})
    yield added.node_id
    ray_nodes.remove_node(added)


def test_two_nodes(made, other_node):
    """A call to another node carries, and so does the one that it makes back to the first."""

    @ctxcarry.ray.remote(num_cpus=0, resources={"here": 0.1})
    def back():
        return work.probe(), node()

    @ctxcarry.ray.remote(num_cpus=0, resources={"there": 0.1}, max_concurrency=2)
    class Actor(work.Based):
        def look(self):
            return self.read(), node(), ray.get(back.remote())

    large = "x" * 100_000  # which is kept in the object store of the one node
    actor = made(Actor)
    first = ray.get(actor.look.remote())
    work.VARIABLE.set(large)
    with torch.no_grad():
        second = ray.get(actor.look.remote())
    # What it calls on the way has the base of its actor.
    assert ("base", other_node, (("base", True), node())) == first
    assert (large, other_node, ((large, False), node())) == second
