"""Forward and backward on tensors as they are, by whichever path serves them."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ctxcarry_kernels import _eager
from ctxcarry_kernels._path import fused_for
from ctxcarry_kernels._plan import padded, tiles
from ctxcarry_kernels._results import Needed

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ctxcarry_kernels._results import Gradients, Results
    from ctxcarry_kernels._settings import Settings

__all__ = ("asked", "backward", "empty_results", "forward", "may_consume")


def forward(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, s: Settings
) -> Results:
    """Return logprob and entropy of each token, and what the backward needs."""
    if hidden.shape[0] == 0:
        return empty_results(hidden, s)
    fused = fused_for(hidden, weight)
    with _no_autocast(hidden):
        if fused is not None:
            made: Results = fused.forward(hidden, weight, bias, labels, s)
            return made
        results = _eager.forward(hidden, weight, bias, labels, s)
    if s.kept:  # what was planned for the kernels, and is not used
        return *results[:4], *empty_results(hidden, s)[4:]
    return results


def backward(
    tensors: tuple[Any, ...],
    gradients: tuple[Tensor, Tensor | None],
    needed: list[bool],
    s: Settings,
    *,
    consume: bool,
) -> Gradients:
    """
    Return the gradients of hidden, weight and bias, None for those not needed.

    Args:
        tensors: hidden, weight, bias, labels, and what `forward` returned.
        gradients: Of logprob and entropy, fp32 [N] each.
        needed: Which of the three are.
        s: As for `forward`.
        consume: Whether the results of `forward` may be overwritten.
    """
    hidden, weight, bias, labels, *results = tensors
    if hidden.shape[0] == 0:
        zeros = (torch.zeros_like(t) if n else None for t, n in zip(tensors, needed))
        return tuple(zeros)  # type: ignore[return-value]
    args = (hidden, weight, bias, labels, tuple(results), gradients, s, Needed(*needed))
    fused = fused_for(hidden, weight)
    with _no_autocast(hidden):
        if fused is None:
            return _eager.backward(*args)
        made: Gradients = fused.backward(*args, consume=consume)
        return made


def _no_autocast(hidden: Tensor) -> AbstractContextManager[object]:
    """Keep a region of the caller, which has had its casts, from casting within."""
    kind = hidden.device.type
    if torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()


def empty_results(hidden: Tensor, s: Settings) -> Results:
    """Return results of the right sizes, with nothing in them."""
    n = hidden.shape[0]
    rows = [hidden.new_empty((n,), dtype=torch.float32) for _ in range(4)]
    e = hidden.new_empty((n, padded(s.kept)))[:, : s.kept]
    top = hidden.new_empty((tiles(s.kept), n), dtype=torch.float32)
    return rows[0], rows[1], rows[2], rows[3], e, top


def asked(
    ctx: Any, dlogp: Tensor | None, dentropy: Tensor | None, s: Settings
) -> tuple[tuple[Any, ...], tuple[Tensor, Tensor | None], list[bool]] | None:
    """
    Return the first three arguments of `backward`, or None if there is nothing to do.

    Args:
        ctx: Of autograd, with hidden, weight, bias, labels and all results saved.
        dlogp: Gradient of the logprob, or None.
        dentropy: Gradient of the entropy, or None.
        s: The numbers of the call.
    """
    if not s.entropy:
        dentropy = None
    if dlogp is None and dentropy is None:
        return None
    tensors = ctx.saved_tensors
    hidden, _, bias = tensors[:3]
    needed = [*ctx.needs_input_grad[:2], ctx.needs_input_grad[2] and bias is not None]
    of_entropy = None if dentropy is None else _gradient(dentropy, hidden)
    return tensors, (_gradient(dlogp, hidden), of_entropy), needed


def _gradient(given: Tensor | None, hidden: Tensor) -> Tensor:
    """Return a gradient as fp32 [N], contiguous; where none came it is 0."""
    if given is None:
        return hidden.new_zeros((hidden.shape[0],), dtype=torch.float32)
    return given.float().contiguous()


def may_consume() -> bool:
    """
    Say whether nobody can ask for this pass again, so that E may be overwritten.

    Not with ``retain_graph=True``, or where this torch cannot tell.
    """
    keeps = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return keeps is not None and not keeps() and not torch.is_grad_enabled()
