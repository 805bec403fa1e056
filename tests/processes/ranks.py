"""What each of two real ranks does: make groups and meshes, send a snapshot, load the other's."""

import warnings
from datetime import timedelta

TASKS = ("groups", "meshes", "mismatches", "to_a_child")


def run(rank, store, queue):
    """Join the world of two ranks, and put what each task returns into the queue."""
    import torch.distributed as dist

    try:
        dist.init_process_group(
            "gloo",
            store=dist.FileStore(store, 2),
            rank=rank,
            world_size=2,
            timeout=timedelta(seconds=60),
        )
        try:
            results = {}
            for task in TASKS:
                results[task] = globals()[task](rank)
                dist.barrier()
        finally:
            dist.destroy_process_group()
        queue.put((rank, results))
    except BaseException as error:
        queue.put((rank, repr(error)))
        raise


def sent_by(source, rank, make):
    """Return, on both ranks, the bytes that `make` returns on rank `source`."""
    import torch.distributed as dist

    box = [make() if rank == source else None]
    dist.broadcast_object_list(box, source)
    return box[0]


def groups(rank):
    """Return what is current under a snapshot of rank 0, and a sum over the group it names."""
    import torch
    import torch.distributed as dist
    from torch.distributed import _dist2

    from ctxcarry import Snapshot, capture, process_groups

    pair, other = dist.new_group([0, 1]), dist.new_group([0, 1])

    def make():
        with process_groups.use(tp=other, dp=pair), _dist2.process_group(pair):
            return capture().dumps(not_portable="raise")

    loaded = Snapshot.loads(sent_by(0, rank, make), strict=True)

    def under():
        total = torch.tensor([rank + 1])
        dist.all_reduce(total, group=process_groups.current("tp"))
        current = torch._C._distributed_c10d._current_process_group()
        return (
            process_groups.current("tp") is other,
            process_groups.current("dp") is pair,
            current is pair,
            total.item(),
        )

    return *loaded.run(under), process_groups.roles()


def meshes(rank):
    """Return whether the meshes under a snapshot of rank 1 are this process's own."""
    from torch.distributed import device_mesh as dm

    from ctxcarry import Snapshot, capture

    mesh = dm.init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "tp"))
    inner = mesh["dp"]

    def make():
        with mesh, inner:
            return capture().dumps(not_portable="raise")

    loaded = Snapshot.loads(sent_by(1, rank, make), strict=True)
    found = loaded.run(lambda: list(dm._mesh_resources.mesh_stack))
    own = found[1].get_group() is inner.get_group()
    return found[0] is mesh, own, found[1].mesh_dim_names, found[1].get_local_rank()


def mismatches(rank):
    """Return how each mismatch is told on rank 1, and that rank 0 finds its own."""
    import torch.distributed as dist
    from torch.distributed import device_mesh as dm

    from ctxcarry import ContextMismatchError, Snapshot, capture, process_groups

    alone = dist.new_group([0])  # of rank 0 only
    mesh = dm.init_device_mesh("cpu", (2,), mesh_dim_names=("dp" if rank == 0 else "tp",))

    def group():
        with process_groups.use(tp=alone):
            return capture().dumps()

    def shape():
        with mesh:
            return capture().dumps()

    told = []
    for make in (group, shape):
        data = sent_by(0, rank, make)
        try:
            Snapshot.loads(data)
            told.append("loaded")
        except ContextMismatchError as error:
            told.append(str(error))
    return told


def to_a_child(rank):
    """Return what a process pool's worker, which has no groups, makes of a group."""
    import multiprocessing

    import torch.distributed as dist
    import work

    import ctxcarry
    from ctxcarry import process_groups

    if rank == 1:
        return None
    work.VARIABLE.set("there")
    context = multiprocessing.get_context("spawn")
    with (
        ctxcarry.executor(1, kind="process", mp_context=context) as pool,
        process_groups.use(tp=dist.group.WORLD),
    ):
        return pool.submit(roles).result()


def roles():
    """Return the roles and the variable."""
    import work

    from ctxcarry import process_groups

    return process_groups.roles(), work.VARIABLE.get()


warnings.filterwarnings("ignore", category=UserWarning, module="torch")
