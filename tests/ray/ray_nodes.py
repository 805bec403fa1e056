"""A program on two nodes, which prints what a task and an actor on the other node have."""

import json

import ray
import ray_work as work
from ray.cluster_utils import Cluster

import ctxcarry


def main():
    """Start the nodes, and call from one to the other and back."""
    memory = {"object_store_memory": 80 << 20}
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 1,
            "include_dashboard": False,
            "resources": {"here": 1},
            **memory,
        },
    )
    cluster.add_node(num_cpus=1, resources={"there": 1}, **memory)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    cluster.wait_for_nodes()

    def node():
        return ray.get_runtime_context().get_node_id()

    @ctxcarry.ray.remote(num_cpus=0, resources={"here": 0.1})
    def back():
        return work.probe(), node()

    @ctxcarry.ray.remote(num_cpus=0, resources={"there": 0.1}, max_concurrency=2)
    class Actor(work.Based):
        def look(self):
            return self.read(), node(), ray.get(back.remote())

    import torch

    large = "x" * 100_000  # which is kept in the object store of the one node
    actor = Actor.remote()
    base, other, (unset, here) = ray.get(actor.look.remote())
    work.VARIABLE.set(large)
    with torch.no_grad():
        there, _, (again, _) = ray.get(actor.look.remote())
    different = other != here == node()
    print(json.dumps([base, unset, len(there), len(again[0]), again[1], different]))  # noqa: T201
    ray.shutdown()
    cluster.shutdown()


main()
