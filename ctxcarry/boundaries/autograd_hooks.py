"""
Hooks that autograd calls: on tensors, nodes and modules, after accumulation, on unpacking.

They are wrapped where Python registers them. A hook on a node written in C++ goes
through ``torch.autograd.Function._register_hook`` too, and so do those of modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import Function
from torch.autograd.graph import saved_tensors_hooks

from ctxcarry.boundaries._autograd_tls import lacking
from ctxcarry.boundaries._boundary import Boundary
from ctxcarry.boundaries._patch import Patch
from ctxcarry.boundaries._under import under_backward

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("boundary",)


def _on_tensor(original: Callable[..., Any]) -> Callable[..., Any]:
    def register(self: torch.Tensor, hook: Any) -> Any:
        return original(self, under_backward(hook) if boundary.everything else hook)

    return register


def _on_node(original: Callable[..., Any]) -> Callable[..., Any]:
    def register(backward_hooks: Any, hook: Any) -> Any:
        return original(backward_hooks, under_backward(hook) if boundary.everything else hook)

    return register


def _on_unpacking(original: Callable[..., Any]) -> Callable[..., Any]:
    def __init__(self: Any, pack_hook: Any, unpack_hook: Any) -> None:  # noqa: N807
        # The compiler recognises hooks that it may inline by their class.
        if boundary.everything and not isinstance(unpack_hook, torch.fx.GraphModule):
            unpack_hook = under_backward(unpack_hook)
        original(self, pack_hook, unpack_hook)

    return __init__


def _patches() -> tuple[Patch, ...]:
    owner = next(cls for cls in Function.__mro__ if "_register_hook" in vars(cls))
    return (
        Patch(torch.Tensor, "register_hook", _on_tensor),
        Patch(torch.Tensor, "register_post_accumulate_grad_hook", _on_tensor),
        Patch(owner, "_register_hook", _on_node),
        Patch(saved_tensors_hooks, "__init__", _on_unpacking),
    )


boundary = Boundary(_patches, for_decorated=False, lacking=lacking)
