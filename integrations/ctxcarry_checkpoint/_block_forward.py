"""The forward of one block of a model, under a checkpoint."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from ctxcarry.boundaries.recompute import is_traced
from ctxcarry_checkpoint._compiled import checkpoint_compiled

if TYPE_CHECKING:
    from torch import nn

    from ctxcarry_checkpoint._selective import SelectiveCheckpoint

__all__ = ("BlockForward", "is_on", "put_on", "take_off")


class BlockForward:
    """
    In place of ``module.forward``: calls the module's own under a checkpoint.

    On the module itself and not around it, so that names, hooks and ``state_dict`` stay. A
    copy of the module has a copy of this, for itself and the same engine.

    Args:
        module: The block.
        name: Its name in the model.
        engine: What knows the policy of each block.
    """

    def __init__(self, module: nn.Module, name: str, engine: SelectiveCheckpoint) -> None:
        self.module = module
        self.name = name
        self.engine = engine
        self.slot = engine.slot_of(name)
        self.before = module.__dict__.get("forward")
        # Its signature and documentation stay those of the module's own.
        functools.update_wrapper(self, module.forward, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the block."""
        engine = self.engine
        if is_traced():
            if not self.slot.recomputes:
                return self.own(*args, **kwargs)
            return checkpoint_compiled(
                self.own,
                args,
                kwargs,
                self.slot.policy,
                preserve_rng_state=engine.preserve_rng_state,
            )
        if not torch.is_grad_enabled():
            return self.own(*args, **kwargs)
        return engine.call(self.name, self.module, self.own, args, kwargs)

    def own(self, *args: Any, **kwargs: Any) -> Any:
        """Call what the module does without a checkpoint."""
        if self.before is not None:
            return self.before(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)


def is_on(module: nn.Module, engine: SelectiveCheckpoint) -> bool:
    """Say whether a module is called under a checkpoint of an engine."""
    there = module.__dict__.get("forward")
    return isinstance(there, BlockForward) and there.engine is engine


def put_on(module: nn.Module, name: str, engine: SelectiveCheckpoint) -> None:
    """
    Have a module called under a checkpoint.

    Raises:
        ValueError: If it already is.
    """
    there = module.__dict__.get("forward")
    if isinstance(there, BlockForward):
        msg = (
            f"the block {name!r} already has a checkpoint"
            + (" of this engine" if there.engine is engine else " of another engine")
            + "; take it off with .remove(model) first"
        )
        raise ValueError(msg)  # noqa: TRY004 - the model is wrong, not a type
    module.forward = BlockForward(module, name, engine)


def take_off(module: nn.Module, engine: SelectiveCheckpoint) -> bool:
    """Take the checkpoint of an engine off a module; say whether it had one."""
    if not is_on(module, engine):
        return False
    there: Any = module.forward
    if there.before is None:
        del module.forward
    else:
        module.forward = there.before
    return True
