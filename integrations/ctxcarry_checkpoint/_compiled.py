"""A checkpoint that a compiler traces: torch's own, with the policy."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from ctxcarry_checkpoint._given import same_policy
from ctxcarry_checkpoint._ops import Action, Call

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("checkpoint_compiled",)


def checkpoint_compiled(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    policy: Any,
    *,
    preserve_rng_state: bool,
) -> Any:
    """
    Call a block within a graph that is traced.

    The compiler takes what the policy says as marks on its graph; there is no recompute to
    carry a context into.
    """
    return torch_checkpoint(
        fn,
        *args,
        use_reentrant=False,
        preserve_rng_state=preserve_rng_state,
        context_fn=functools.partial(_contexts, policy),
        **kwargs,
    )


def _contexts(policy: Any) -> Any:
    # Made of what was given here, which the compiler does not look into.
    decider = same_policy(policy).start()
    nth: dict[Any, int] = {}
    index = 0

    def decide(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        nonlocal index
        call = Call(op, index, nth.get(op, 0), args, kwargs, getattr(ctx, "op_output", None))
        index += 1
        nth[op] = call.nth + 1
        kept = decider.decide(call) in {Action.SAVE, Action.OFFLOAD}
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    make: Any = create_selective_checkpoint_contexts
    return make(decide)
