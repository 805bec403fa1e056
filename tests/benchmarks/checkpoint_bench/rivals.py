"""Checkpoints of torch's, with the rules that others choose by."""

from __future__ import annotations

import functools
import types
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from ctxcarry_checkpoint import Action, policies
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ctxcarry_checkpoint import Op

    from .model import Block

__all__ = ("by_titan", "chosen", "compiled", "full", "knapsack", "selective", "titan_rule")

# TorchTitan has no name for the attention of the CPU, which is to be treated as that of CUDA.
_ATTENTION_OF_CPU = "aten._scaled_dot_product_flash_attention_for_cpu.default"


def full(block: Block, *args: torch.Tensor) -> Any:
    """Call a block under torch's checkpoint."""
    return checkpoint(block, *args, use_reentrant=False)


def selective(saves: Callable[[], Callable[..., bool]]) -> Callable[..., Any]:
    """
    Return what calls a block under torch's selective checkpoint.

    Args:
        saves: Returns, for each forward and each recompute, what says of an operator and its
            arguments whether to save.
    """

    def contexts() -> Any:
        rules = {False: saves(), True: saves()}

        def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
            if rules[ctx.is_recompute](op, *args, **kwargs):
                return CheckpointPolicy.MUST_SAVE
            return CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(policy)

    return functools.partial(_under, contexts)


def _under(contexts: Callable[[], Any], block: Block, *args: torch.Tensor) -> Any:
    return checkpoint(block, *args, use_reentrant=False, context_fn=contexts)


def titan_rule() -> Callable[..., bool]:
    """Return the rule of TorchTitan 0.3's SelectiveAC: attention, and every second product."""
    ops = torch.ops.aten
    products = {ops.mm.default, ops.linear.default}
    always = {
        ops._scaled_dot_product_cudnn_attention.default,
        ops._scaled_dot_product_efficient_attention.default,
        ops._scaled_dot_product_flash_attention.default,
        ops._scaled_dot_product_flash_attention_for_cpu.default,
        ops._scaled_dot_product_fused_attention_overrideable.default,
        ops.addmm.default,
        ops.bmm.default,
    }
    count = 0

    def saves(op: Any, *_: Any, **__: Any) -> bool:
        nonlocal count
        if op in products:
            count += 1
            return count % 2 == 1
        return op in always

    return saves


def by_titan() -> policies.Policy:
    """Return the same rule, as a policy of ours."""
    return policies.save(_ATTENTION_OF_CPU) | policies.torchtitan()


def knapsack(ops: Sequence[Op], held: frozenset[int], budget: int) -> dict[tuple[str, int], Action]:
    """
    Return what a plain knapsack saves: the most time, as if all else had to run again.

    Args:
        ops: The operators of a block, with the times and bytes that ours goes by.
        held: Those whose results the model holds anyway.
        budget: Bytes that may be saved.
    """
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp

    can = [
        op
        for op in ops
        if op.savable and op.nbytes and op.owner is None and not op.view and op.index not in held
    ]
    sizes = np.array([op.nbytes for op in can], dtype=float)
    found = milp(
        -np.array([op.ms for op in can]),
        integrality=np.ones(len(can)),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(sizes[None] / max(budget, 1), 0, 1),
    )
    return {(op.name, op.nth): Action.SAVE for op, taken in zip(can, found.x.round()) if taken}


def chosen(saved: dict[tuple[str, int], Action]) -> Callable[[], Callable[..., bool]]:
    """Return a rule that saves what was chosen by name and number."""

    def rule() -> Callable[..., bool]:
        before: Counter[Any] = Counter()

        def saves(op: Any, *_: Any, **__: Any) -> bool:
            nth = before[op]
            before[op] += 1
            return (str(op), nth) in saved

        return saves

    return rule


def _call(block: Block, *args: torch.Tensor) -> Any:
    return block(*args)


def compiled(backend: str) -> Callable[..., Any]:
    """Return what calls a block compiled, apart from what was compiled before."""
    # The compiler keeps what it made with the code of a function: this has its own.
    code = _call.__code__.replace(co_name="_own_call")
    return torch.compile(types.FunctionType(code, globals()), backend=backend, fullgraph=True)
