"""Plans for a budget of a model's blocks, and what its steps keep and run again."""

from __future__ import annotations

import torch
from _models import NAMES, SIZE, Counting, Plain, fresh
from ctxcarry_checkpoint import SelectiveCheckpoint
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ("CARD", "EXAMPLE", "Live", "followed", "held", "planned", "products_again")

EXAMPLE = torch.empty(2, 5, SIZE)
# Estimated times are the same on each machine and in each run.
CARD = "H100"


def planned(budget, example=EXAMPLE, *, kind=Plain, **options):
    """Return a plan that is made of example inputs."""
    engine = SelectiveCheckpoint(budget=budget, **options)
    return engine.plan(fresh(kind), example, blocks="layers.*")


def followed(engine):
    """Return the plan that an engine follows."""
    return engine._planner.current


def products_again(model, batch):
    """Return how many products the backward of a step runs again."""
    counts = []
    for each in (model, fresh(type(model))):
        loss = each(batch).sum()
        with Counting() as mode:
            loss.backward()
        each.zero_grad()
        counts.append(mode.of("mm"))
    return counts[0] - counts[1]


class Live(TorchDispatchMode):
    """Note the memory that is taken while the blocks of a model run."""

    def __init__(self, model, names=NAMES):
        super().__init__()
        self.found = {}
        self.within = 0
        # Which an operator may be asked to return.
        self.before = {t.untyped_storage()._cdata for t in model.parameters()}
        self.hooks = []
        for name in names:
            block = model.get_submodule(name)
            self.hooks += [
                block.register_forward_pre_hook(lambda *_: self.enter(1)),
                block.register_forward_hook(lambda *_: self.enter(-1)),
            ]

    def enter(self, step):
        self.within += step

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        for tensor in args if self.within else ():
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self.found:
                    self.before.add(storage._cdata)
        for tensor in output if isinstance(output, (list, tuple)) else [output]:
            if self.within and isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self.before:
                    self.found[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        return output

    def nbytes(self):
        """Return the bytes that are still there."""
        return sum(nbytes for ref, nbytes in self.found.values() if not ref.expired())


def held(model, batch, names=NAMES):
    """Return the bytes of what blocks made that are there between forward and backward."""
    mode = Live(model, names)
    with mode:
        loss = model(batch).sum()
    found = mode.nbytes()
    loss.backward()
    model.zero_grad()
    for hook in mode.hooks:
        hook.remove()
    return found
