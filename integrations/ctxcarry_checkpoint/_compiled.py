"""A checkpoint that a compiler traces: torch's own, with the policy; and blocks apart from it."""

from __future__ import annotations

import functools
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from ctxcarry_checkpoint._given import same_policy
from ctxcarry_checkpoint._ops import Action, Call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

__all__ = ("checkpoint_compiled", "compiled_around", "uncompiled")


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


def compiled_around(model: nn.Module, is_block: Callable[[nn.Module], bool]) -> list[nn.Module]:
    """Return the modules that are compiled, and are blocks or have some within."""
    return [
        module
        for module in model.modules()
        if (_is_wrapper(module) or getattr(module, "_compiled_call_impl", None) is not None)
        and any(map(is_block, module.modules()))
    ]


@contextmanager
def uncompiled(modules: list[nn.Module]) -> Iterator[None]:
    """Call modules as they are, and not what was compiled of them."""
    with ExitStack() as undo:
        for module in modules:
            # Not by ``setattr``, which the wrapper of a compiled module gives to what it wraps.
            there = module.__dict__
            if _is_wrapper(module):
                undo.callback(there.__setitem__, "forward", there["forward"])
                there["forward"] = module._modules["_orig_mod"]
            else:
                undo.callback(there.__setitem__, "_compiled_call_impl", module._compiled_call_impl)
                there["_compiled_call_impl"] = None
        yield


def _is_wrapper(module: nn.Module) -> bool:
    return "_orig_mod" in module._modules and "forward" in module.__dict__
