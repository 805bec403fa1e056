"""
The path for every other device and type: plain torch, a block of tokens at a time.

Logits are in fp32 here as well, and exist for one block of tokens only.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ctxcarry_kernels import _group
from ctxcarry_kernels._gemm import add_product, product
from ctxcarry_kernels._settings import LOG2_E

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ctxcarry_kernels._results import Gradients, Needed, Results
    from ctxcarry_kernels._settings import Settings

__all__ = ("backward", "forward")

_BLOCK = 256 << 20  # bytes of the logits of a block of tokens


def forward(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, s: Settings
) -> Results:
    """Return logprob and entropy of each token, and what the backward needs."""
    n = hidden.shape[0]
    packed = hidden.new_empty((4, n), dtype=torch.float32)
    for block in _blocks(n, weight.shape[0]):
        x = _logits(hidden[block], weight, bias, s).mul_(s.scale)
        word, mine = _words(labels[block], weight.shape[0], s)
        top = x.amax(1).clamp(min=-1e38)
        packed[3, block] = x.gather(1, word[:, None])[:, 0].masked_fill_(~mine, -math.inf)
        x -= top[:, None]
        e = x.exp2()
        packed[0, block] = top
        packed[1, block] = e.sum(1)
        if s.entropy:
            # A word that is ruled out: 0 times -inf.
            packed[2, block] = (x * e).masked_fill_(e == 0, 0.0).sum(1)
    parts = _group.gather(packed, _group.resolve(s.group)) if s.group else packed[None]
    logp, entropy, lse, x = _combined(parts, labels, s)
    return logp, entropy, lse, x, hidden.new_empty((n, 0)), packed.new_empty((0, n))


def backward(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    results: Results,
    gradients: tuple[Tensor, Tensor | None],
    s: Settings,
    needed: Needed,
) -> Gradients:
    """Return the gradients of hidden, weight and bias, None for those not needed."""
    n, v = hidden.shape[0], weight.shape[0]
    kept = labels != s.ignore
    dlogp = gradients[0].masked_fill(~kept, 0.0)
    dentropy = None if gradients[1] is None else gradients[1].masked_fill(~kept, 0.0)
    dhidden = hidden.new_empty(hidden.shape, dtype=torch.float32) if needed.hidden else None
    dweight: Tensor | None = None
    dbias = hidden.new_zeros(v, dtype=torch.float32) if needed.bias else None
    for block in _blocks(n, v):
        part = dlogp[block], None if dentropy is None else dentropy[block]
        rows = tuple(result[block] for result in results[:4])
        d = _gradient(hidden[block], weight, bias, labels[block], rows, part, s)
        if dbias is not None:
            dbias += d.sum(0)
        d = d.to(weight.dtype)
        if dhidden is not None:
            dhidden[block] = product(d, weight)
        if needed.weight:
            dweight = add_product(dweight, d.t(), hidden[block])
    if dhidden is not None and s.group:
        _group.reduce_sum(dhidden, _group.resolve(s.group))()
    return (
        None if dhidden is None else dhidden.to(hidden.dtype),
        None if dweight is None else dweight.to(weight.dtype),
        None if dbias is None or bias is None else dbias.to(bias.dtype),
    )


def _gradient(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    results: tuple[Tensor, ...],
    gradients: tuple[Tensor, Tensor | None],
    s: Settings,
) -> Tensor:
    """Return the gradient of the logits of a block, fp32 [tokens, V]."""
    logp, entropy, lse, _ = results
    dlogp, dentropy = gradients
    z = _logits(hidden, weight, bias, s)
    log = (z * s.scale - lse[:, None]) / LOG2_E
    p = log.exp()
    word, mine = _words(labels, weight.shape[0], s)
    log.scatter_(
        1, word[:, None], torch.where(mine, logp, log.gather(1, word[:, None])[:, 0])[:, None]
    )
    back = dlogp[:, None]
    if dentropy is not None:
        back = back + dentropy[:, None] * (log + entropy[:, None])
    d = (p * back).neg_().masked_fill_(p == 0, 0.0)
    d.scatter_add_(1, word[:, None], torch.where(mine, dlogp, 0.0)[:, None])
    d /= s.temperature
    if s.softcap:
        d *= 1.0 - (z / s.softcap).square_()
    return d


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, s: Settings) -> Tensor:
    z = product(hidden, weight.t())
    if bias is not None:
        z += bias
    return torch.tanh_(z.div_(s.softcap)).mul_(s.softcap) if s.softcap else z


def _words(labels: Tensor, v: int, s: Settings) -> tuple[Tensor, Tensor]:
    """Return the column of each label, and whether it is one of this rank's."""
    word = labels.long() - s.first
    mine = (word >= 0) & (word < v) & (labels != s.ignore)
    return torch.where(mine, word, 0), mine


def _combined(parts: Tensor, labels: Tensor, s: Settings) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return logprob, entropy, lse (base 2) and x of the statistics [ranks, 4, N]."""
    tops, sums, xsums, xs = parts.unbind(1)
    top = tops.amax(0)
    down = tops - top
    factor = down.exp2()
    total = (sums * factor).sum(0)
    lse = top + total.log2()
    x = xs.amax(0)
    ignored = labels == s.ignore
    # What is certain has, by the last bit of x, more than all of the probability.
    logp = ((x - lse) / LOG2_E).clamp_(max=0.0).masked_fill_(ignored, 0.0)
    if not s.entropy:
        return logp, torch.empty_like(logp), lse, x
    xtotal = ((xsums + down * sums) * factor).masked_fill_(factor == 0, 0.0).sum(0)
    entropy = (total.log2() - xtotal / total) / LOG2_E
    entropy = entropy.clamp_(min=0.0).masked_fill_(ignored, 0.0)
    return logp, entropy, lse, x


def _blocks(n: int, v: int) -> Iterator[slice]:
    step = max(1, _BLOCK // (4 * max(v, 1)))
    for start in range(0, n, step):
        yield slice(start, min(start + step, n))
