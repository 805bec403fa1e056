"""What each of two ranks does: train in parallel, and note what hooks and recompute see."""

import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import partial

import spmd_types as spmd
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import ctxcarry

variable = contextvars.ContextVar("parallel", default="LOST")
ambient = threading.local()


@contextmanager
def scope(value, mesh=None):
    """Set the variable and the field of the ``threading.local``, and maybe a mesh."""
    token = variable.set(value)
    ambient.value = value
    try:
        with nullcontext() if mesh is None else spmd.set_current_mesh(mesh):
            yield
    finally:
        variable.reset(token)
        del ambient.value


def seen():
    """Return what this thread has."""
    mesh = spmd.current_mesh()
    axes = () if mesh is None else tuple(spmd.current_mesh_all_names())
    return variable.get(), getattr(ambient, "value", "LOST"), axes


def backward(loss):
    """
    Start the pass on another thread than the forward, and have it run on a third one.

    The engine moves a pass to a thread of its own when sixty others are under way, as
    it does any pass over tensors of a GPU.
    """

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

    threads = []

    def descend(depth):
        if depth:
            Deep.apply(torch.ones(1, requires_grad=True), depth).sum().backward()
        else:
            threads.append(threading.get_ident())
            loss.backward()

    def start():
        with scope("BACKWARD"):
            descend(61)

    loss.grad_fn.register_prehook(lambda _: threads.append(threading.get_ident()))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(start).result()
    assert len({*threads, threading.get_ident()}) == 3, threads


class Block(torch.nn.Module):
    """
    A layer that notes what its forward and its recompute see.

    Args:
        noted: Where to.
        **options: Of the checkpoint around it, if any.
    """

    def __init__(self, noted, **options):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2, bias=False)
        torch.nn.init.ones_(self.linear.weight)
        self.noted = noted
        self.options = options

    def compute(self, x):
        """Compute the layer."""
        self.noted.append(("block", *seen()))
        return self.linear(x).sin()

    def forward(self, x):
        """Compute the layer, under a checkpoint if there are options for one."""
        return checkpoint(self.compute, x, **self.options) if self.options else self.compute(x)


def train(wrap, **options):
    """
    Run a step of a block that `wrap` makes parallel.

    Returns:
        What was seen, and the gradient of the weight.
    """
    noted = []

    def note(what):
        return lambda *_: noted.append((what, *seen()))

    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    block = Block(noted, **options)
    model = wrap(block, mesh)
    block.linear.weight.register_hook(note("weight"))
    block.register_full_backward_hook(note("module"))
    with scope("FORWARD", mesh):
        y = model(torch.full((1, 2), dist.get_rank() + 1.0, requires_grad=True))
    y.register_hook(note("output"))
    backward(y.sum())
    grad = block.linear.weight.grad
    return noted, getattr(grad, "full_tensor", lambda: grad)().tolist()


def ddp(block, mesh):
    """Wrap `block` in DDP."""
    return DistributedDataParallel(block, device_mesh=mesh)


def fsdp(block, mesh):
    """Shard `block`."""
    return fully_shard(block, mesh=mesh)


def ddp_comm_hook(hook=lambda fn: fn):
    """Return what the communication hook of DDP sees, and the gradient that it makes."""
    noted = []

    def average(_, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        noted.append(seen())
        dist.all_reduce(bucket.buffer())
        future = torch.futures.Future()
        future.set_result(bucket.buffer() / 2)
        return future

    def wrap(block, mesh):
        model = ddp(block, mesh)
        model.register_comm_hook(None, hook(average))
        return model

    return noted, train(wrap)[1]


EXPLICIT = {"use_reentrant": False, "context_fn": ctxcarry.autograd.context_fn()}
TASKS = {
    "ddp": partial(train, ddp),
    "ddp checkpoint": partial(train, ddp, use_reentrant=False),
    "ddp reentrant": partial(train, ddp, use_reentrant=True),
    "ddp context_fn": partial(train, ddp, **EXPLICIT),
    "ddp comm_hook": ddp_comm_hook,
    "ddp carried comm_hook": lambda: ddp_comm_hook(ctxcarry.autograd.hook),
    "fsdp": partial(train, fsdp),
    "fsdp checkpoint": partial(train, fsdp, use_reentrant=False),
    "fsdp reentrant": partial(train, fsdp, use_reentrant=True),
    "fsdp context_fn": partial(train, fsdp, **EXPLICIT),
}


def run(rank, store, queue):
    """Join the world of two ranks, and put into the queue what each task returns."""
    try:
        dist.init_process_group(
            "gloo",
            store=dist.FileStore(store, 2),
            rank=rank,
            world_size=2,
            timeout=timedelta(seconds=60),
        )
        ctxcarry.register(ctxcarry.ThreadLocalCarrier("parallel:ambient", fields=("value",)))
        try:
            results = {}
            for installed in (False, True):
                if installed:
                    ctxcarry.install("autograd")
                results[installed] = {name: task() for name, task in TASKS.items()}
                ctxcarry.uninstall()
        finally:
            dist.destroy_process_group()
        queue.put((rank, results))
    except BaseException as error:
        queue.put((rank, repr(error)))
        raise
