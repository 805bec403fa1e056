"""
The same as the operator for plain tensors that nobody traces or intercepts.

An operator written in Python costs the host some 0.2 ms per call, as much as half of
a small forward. And here it is known when E may be overwritten by the gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ctxcarry_kernels import _compute, _op

if TYPE_CHECKING:
    from collections.abc import Callable

    from ctxcarry_kernels._settings import Settings

__all__ = ("apply",)

_PLAIN = {Tensor, nn.Parameter, type(None)}
_transforms: Any = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)
_dispatch_modes: Any = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 1)


def apply(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, s: Settings
) -> tuple[Tensor, Tensor]:
    """Return logprob and entropy, fp32 [N]; differentiable once."""
    if torch.compiler.is_compiling() or not _plain(hidden, weight, bias, labels):
        return _op.apply(hidden, weight, bias, labels, s)
    logp, entropy = _apply(hidden, weight, bias, labels, s)
    return logp, entropy


def _plain(*tensors: Tensor | None) -> bool:
    """Say whether these are plain tensors and nobody intercepts what is done with them."""
    if _dispatch_modes() or _transforms():
        return False
    return all(type(tensor) in _PLAIN for tensor in tensors)


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, s: Settings
    ) -> tuple[Tensor, Tensor]:
        results = _compute.forward(hidden, weight, bias, labels, s)
        ctx.save_for_backward(hidden, weight, bias, labels, *results)
        ctx.settings = s
        ctx.set_materialize_grads(False)
        return results[0], results[1]

    @staticmethod
    def backward(ctx: Any, dlogp: Tensor | None, dentropy: Tensor | None) -> Any:
        s = ctx.settings
        if not _compute.may_consume():
            return *_op.differentiate(ctx, dlogp, dentropy, s), None, None
        todo = _compute.asked(ctx, dlogp, dentropy, s)
        if todo is None:
            return None, None, None, None, None
        return *_compute.backward(*todo, s, consume=True), None, None


_apply: Callable[..., tuple[Tensor, Tensor]] = _Function.apply
