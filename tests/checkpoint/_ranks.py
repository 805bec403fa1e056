"""What each of two ranks does: train in parallel, with and without a checkpoint."""

import sys
import time
import traceback
import warnings
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from ctxcarry_checkpoint import Plan, SelectiveCheckpoint, policies
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).parent))
from _budgets import CARD
from _models import SIZE, Block, Counting, Plain, batches, fresh

SIZES = 2
aten = torch.ops.aten


def mesh():
    """Return a mesh of both ranks."""
    return init_device_mesh("cpu", (SIZES,), mesh_dim_names=("dp",))


def own(count=3):
    """Return batches of this rank alone."""
    return [batch * (dist.get_rank() + 1) for batch in batches(count)]


def whole(tensor):
    """Return all of a tensor that may be one of several parts."""
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def train(model, given=None):
    """
    Take a step for each batch.

    Returns:
        Outputs and gradients; the names of the operators of each backward, with how often each
        was called.
    """
    found, counts = [], []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in given or own():
        output = model(batch)
        loss = (output * torch.linspace(-1, 2, output.numel()).view_as(output)).sum()
        with Counting() as mode:
            loss.backward()
        found.append(whole(output).clone())
        found += [whole(p.grad).clone() for p in model.parameters()]
        counts.append(mode.counts)
        optimizer.step()
        optimizer.zero_grad()
    return found, counts


def applied(model, engine):
    """Put checkpoints on the blocks of a model, if there is an engine."""
    if engine is not None:
        engine.apply(model, "layers.*")
    return model


def sharded(engine=None):
    """Return a model that is sharded, with the checkpoint put on before, if there is one."""
    model = applied(fresh(Plain), engine)
    for block in model.layers:
        fully_shard(block, mesh=mesh())
    return fully_shard(model, mesh=mesh())


def fsdp(engine, *, before=True):
    """Train with FSDP, with the checkpoint put on before or after."""
    return train(sharded(engine) if before else applied(sharded(), engine))


def ddp(engine, *, before=True):
    """Train with DDP."""
    model = fresh(Plain)
    if before:
        return train(DistributedDataParallel(applied(model, engine)))
    return train(applied(DistributedDataParallel(model), engine))


class Pair(nn.Module):
    """Two pairs of products, each of which tensor parallelism ends with a collective."""

    def __init__(self):
        super().__init__()
        self.first, self.second = Block(), Block()

    def forward(self, x):
        """Run."""
        return self.second(self.first(x))


def divided():
    """Return a model of such blocks whose products are divided among the ranks."""
    model = fresh(Plain, 3, Pair)
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    for block in model.layers:
        for part in (block.first, block.second):
            parallelize_module(part, mesh(), plan)
    return model


def tensor_parallel(engine):
    """Train that."""
    return train(applied(divided(), engine), batches(3))


class Summing(nn.Module):
    """A block with a collective between two products, as tensor parallel code writes it."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, x):
        """Run."""
        h = funcol.all_reduce(self.up(x).sin().detach(), "sum", dist.group.WORLD)
        return x + self.down(self.up(x).tanh() * h).tanh()


def collective(engine):
    """Train a model of such blocks."""
    return train(applied(fresh(Plain, 3, Summing), engine))


class InPlaceSum(nn.Module):
    """The same with the collective that works in place."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, x):
        """Run."""
        h = self.up(x).sin().detach()
        dist.all_reduce(h)
        return x + self.down(self.up(x).tanh() * h).tanh()


def in_place(engine):
    """Train a model of such blocks."""
    return train(applied(fresh(Plain, 3, InPlaceSum), engine))


def shared_plan():
    """Follow the plan of rank 0 on both ranks; return the plan of each, and what training gives."""
    text = [SelectiveCheckpoint(budget=0.8).plan(fresh(Plain, 3, Summing), batches()[0]).to_json()]
    if dist.get_rank():
        text = [None]
    dist.broadcast_object_list(text)
    return text[0], collective(SelectiveCheckpoint(plan=Plan.from_json(text[0])))


class Waiting(TorchDispatchMode):
    """Make operators of one name slow on one rank."""

    def __init__(self, name, rank):
        super().__init__()
        self.name, self.slow = name, dist.get_rank() == rank

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if self.slow and self.name in str(func):
            time.sleep(0.002)
        return func(*args, **(kwargs or {}))


def first_step(make, given):
    """Train with a budget where ranks measure other times; return what each block keeps."""
    model, engine = make(), SelectiveCheckpoint(budget=0.7)
    engine.apply(model, "layers.*")
    with Waiting("addmm" if dist.get_rank() else "tanh", dist.get_rank()):
        found = train(model, given)
    plan = engine._planner.current
    return [plan.actions(name) for name in plan.blocks], plan.measured, found


def plan_of(make):
    """Return what the plan of a model that is parallel already keeps in each block."""
    engine = SelectiveCheckpoint(budget=0.8)
    plan = engine.plan(make(), batches()[0], blocks="layers.*")
    return [plan.actions(name) for name in plan.blocks]


SAVES = {
    "nothing": SelectiveCheckpoint,
    "products": lambda: SelectiveCheckpoint(policies.save(aten.mm, aten.addmm)),
    "collectives": lambda: SelectiveCheckpoint(
        policies.collectives() | policies.save(aten.gelu, aten.tanh)
    ),
    "everything": lambda: SelectiveCheckpoint(policies.none()),
    "budget": lambda: SelectiveCheckpoint(budget=0.8, roofline=CARD),
}
KINDS = {
    "fsdp": fsdp,
    "fsdp after": partial(fsdp, before=False),
    "ddp": ddp,
    "ddp after": partial(ddp, before=False),
    "tensor parallel": tensor_parallel,
    "collective": collective,
    "in place": in_place,
}
CASES = {
    "fsdp": ("nothing", "products", "budget"),
    "fsdp after": ("products",),
    "ddp": ("nothing", "products", "budget"),
    "ddp after": ("products",),
    "tensor parallel": tuple(SAVES),
    "collective": tuple(SAVES),
    "in place": ("nothing", "everything"),
}
TASKS = {
    "plan of fsdp": partial(plan_of, sharded),
    "plan of tensor parallel": partial(plan_of, divided),
    **{(kind, None): partial(KINDS[kind], None) for kind in CASES},
    **{
        (kind, saves): lambda kind=kind, saves=saves: KINDS[kind](SAVES[saves]())
        for kind, several in CASES.items()
        for saves in several
    },
    "shared plan": shared_plan,
    "ranks that wait": lambda: first_step(partial(fresh, Plain, 3, Summing), batches(3)),
    "ranks that do not": lambda: first_step(sharded, batches(3)),
    "ranks with a DTensor": lambda: first_step(divided, batches(3)),
}


def run(rank, folder):
    """Join the world, and leave in a file what each kind of training gives, or what it raises."""
    torch.set_num_threads(1)
    # What is said of rules and views has tests of its own.
    warnings.simplefilter("ignore")
    results = {}
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(str(Path(folder) / "store"), SIZES),
        rank=rank,
        world_size=SIZES,
        timeout=timedelta(seconds=40),
    )
    try:
        for name, task in TASKS.items():
            try:
                results[name] = task()
            except Exception:
                results[name] = traceback.format_exc()
    finally:
        torch.save(results, Path(folder) / f"{rank}.pt")
        dist.destroy_process_group()
