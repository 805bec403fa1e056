"""Sizes and tensors to measure with, and what the results must be."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ctxcarry_kernels._plan import padded, tiles

__all__ = ("DEFAULT_SIZES", "Expected", "Inputs", "Size", "make", "reference")


class Size(NamedTuple):
    """
    How much there is to do.

    Attributes:
        tokens: N.
        hidden: H.
        words: V.
    """

    tokens: int
    hidden: int
    words: int

    @classmethod
    def parse(cls, text: str) -> Size:
        """
        Read "N,H,V".

        Raises:
            ValueError: If it is something else.
        """
        try:
            size = cls(*(int(part) for part in text.split(",")))
        except (TypeError, ValueError):
            size = None
        if size is None or min(size) < 1:
            msg = (
                f"{text!r} is not N,H,V: tokens, hidden size and words, three whole numbers "
                "above 0, such as 8192,4096,128256"
            )
            raise ValueError(msg)
        return size

    @property
    def all_of_e(self) -> int:
        """Return the bytes with which the forward keeps everything."""
        return self.tokens * (padded(self.words) * 2 + tiles(self.words) * 4)

    def __str__(self) -> str:
        return f"N={self.tokens} H={self.hidden} V={self.words}"


DEFAULT_SIZES = (Size(8192, 4096, 128256), Size(2048, 2048, 32768), Size(32768, 3584, 152064))


class Inputs(NamedTuple):
    """
    What a candidate is given.

    Attributes:
        hidden: bf16 [N, H].
        weight: bf16 [V, H].
        labels: int64 [N].
        dlogprobs: fp32 [N], the gradient of the logprobs.
        dentropy: fp32 [N], that of the entropy.
    """

    hidden: Tensor
    weight: Tensor
    labels: Tensor
    dlogprobs: Tensor
    dentropy: Tensor

    @property
    def size(self) -> Size:
        """Return how much there is to do."""
        n, h = self.hidden.shape
        return Size(n, h, self.weight.shape[0])

    def half_masked(self) -> Inputs:
        """Return the same, without a gradient for each second token."""
        dlogprobs, dentropy = self.dlogprobs.clone(), self.dentropy.clone()
        dlogprobs[::2] = 0
        dentropy[::2] = 0
        return self._replace(dlogprobs=dlogprobs, dentropy=dentropy)


class Expected(NamedTuple):
    """What the results must be, fp32 from fp64."""

    logprobs: Tensor
    entropy: Tensor
    dhidden: Tensor
    dweight: Tensor


def make(size: Size, device: str, seed: int = 0) -> Inputs:
    """Return random inputs, with logits of a standard deviation of 1.5."""
    generator = torch.Generator(device).manual_seed(seed)
    n, h, v = size

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, generator=generator)

    hidden = normal(n, h).bfloat16()
    weight = (normal(v, h) * (1.5 / h**0.5)).bfloat16()
    labels = torch.randint(0, v, (n,), device=device, generator=generator)
    return Inputs(
        hidden.requires_grad_(), weight.requires_grad_(), labels, normal(n) / n, normal(n) / n
    )


@torch.no_grad()
def reference(inputs: Inputs, block: int = 512) -> Expected:
    """Return logprob, entropy and gradients from fp64, a block of tokens at a time."""
    weight = inputs.weight.double()
    n = inputs.hidden.shape[0]
    dhidden = torch.empty_like(inputs.hidden, dtype=torch.float32)
    dweight = torch.zeros_like(weight)
    logprobs = dhidden.new_empty(n)
    entropy = dhidden.new_empty(n)
    for start in range(0, n, block):
        rows = slice(start, start + block)
        hidden = inputs.hidden[rows].double()
        label = inputs.labels[rows, None]
        back, back_entropy = inputs.dlogprobs[rows, None], inputs.dentropy[rows, None]
        logp = torch.log_softmax(hidden @ weight.t(), -1)
        p = logp.exp()
        of_rows = -(p * logp).sum(-1, keepdim=True)
        logprobs[rows] = logp.gather(1, label)[:, 0].float()
        entropy[rows] = of_rows[:, 0].float()
        # In the memory of logp: -p * (back + back_entropy * (logp + entropy)).
        d = logp.add_(of_rows).mul_(back_entropy).add_(back).mul_(p).neg_()
        d.scatter_add_(1, label, back.double())
        dhidden[rows] = (d @ weight).float()
        dweight.addmm_(d.t(), hidden)
    return Expected(logprobs, entropy, dhidden, dweight.float())
