"""Two actors with gloo: a caller's groups are found there by name and ranks, or it is an error."""

from datetime import timedelta

import pytest
import ray
import ray_work as work
import torch

import ctxcarry
from ctxcarry import ContextMismatchError, process_groups

if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("needs gloo", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("cluster")


class Rank:
    """One rank of a world of two, with a group of both and one of rank 0 alone."""

    def __init__(self, rank, store):
        self.rank = rank
        self.store = store

    def join(self):
        """Join the world."""
        import torch.distributed as dist

        store = dist.FileStore(self.store, 2)
        timeout = timedelta(seconds=60)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=2, timeout=timeout)
        self.pair = dist.new_group([0, 1])
        self.alone = dist.new_group([0])

    def ask(self, other, name):
        """Call the other actor under a group of this one, and return what it does."""
        with process_groups.use(tp=getattr(self, name)):
            reference = other.reduce.remote()
            if name == "pair":
                self.reduce()
            return ray.get(reference)

    def reduce(self):
        """Return the sum over the caller's group, and whether it is this one's own."""
        import torch
        import torch.distributed as dist

        total = torch.tensor([self.rank + 1])
        group = process_groups.current("tp")
        dist.all_reduce(total, group=group)
        return total.item(), group is self.pair, process_groups.roles()

    def roles(self):
        """Return the roles for which there is a group, and the variable."""
        return process_groups.roles(), work.read()

    def ask_roles(self, other):
        """Call a process without groups under one of this one's."""
        work.VARIABLE.set("there")
        with process_groups.use(tp=self.pair):
            return ray.get(other.roles.remote())


@pytest.fixture(scope="module")
def ranks(cluster, tmp_path_factory):
    """Give two actors in a world of two."""
    store = str(tmp_path_factory.mktemp("ranks") / "store")
    cls = ctxcarry.ray.remote(Rank)
    actors = [cls.remote(rank, store) for rank in range(2)]
    ray.get([actor.join.remote() for actor in actors])
    yield actors
    for actor in actors:
        ray.kill(actor)


def test_a_group(ranks):
    """A caller's group is the actor's own of that name, and a collective works over it."""
    assert (3, True, ("tp",)) == ray.get(ranks[0].ask.remote(ranks[1], "pair"))
    assert ((), "unset") == ray.get(ranks[1].roles.remote())


def test_a_mismatch(ranks):
    """A group that the actor has not is an error that shows both sides; the method is not run."""
    with pytest.raises(ContextMismatchError) as caught:
        ray.get(ranks[0].ask.remote(ranks[1], "alone"))
    message = str(caught.value)
    assert [] == [part for part in ("tp", "[0]", "[0, 1]") if part not in message]
    assert ((), "unset") == ray.get(ranks[1].roles.remote())


def test_an_actor_without_groups(ranks, made):
    """An actor that never joined the world goes without groups, and with all the rest."""
    bystander = made(ctxcarry.ray.remote(Rank), 2, "nowhere")
    assert ((), "there") == ray.get(ranks[0].ask_roles.remote(bystander))
