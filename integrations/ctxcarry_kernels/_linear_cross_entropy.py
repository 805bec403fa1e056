"""Logprob and entropy of the next token, straight from the hidden states."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from ctxcarry_kernels import _arguments, _function

if TYPE_CHECKING:
    from typing import Literal

    from torch.distributed import ProcessGroup

__all__ = ("LinearCrossEntropy", "LinearCrossEntropyOutput", "linear_cross_entropy")


class LinearCrossEntropyOutput(NamedTuple):
    """
    What `linear_cross_entropy` returns.

    Attributes:
        logprobs: fp32, shaped as the labels, or a scalar with a reduction.
        entropy: The same, in nats; None where it was not asked for.
    """

    logprobs: Tensor
    entropy: Tensor | None


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    softcap: float | None = None,
    ignore_index: int = -100,
    reduction: Literal["none", "sum", "mean"] = "none",
    process_group: ProcessGroup | Literal[False] | None = None,
    vocab_start: int | None = None,
    memory_budget: float | None = None,
    deterministic: bool | None = None,
    return_entropy: bool = True,
) -> LinearCrossEntropyOutput:
    """
    Return logprob and entropy of ``softmax((hidden @ weight.T + bias) / temperature)``.

    Both are differentiable (once) and in fp32, from logits in fp32 that never exist as
    a whole: no memory of tokens times words is needed. On Hopper and newer GPUs with
    bf16 or fp16 a Triton kernel does it; on others, and in fp32, plain torch does,
    a block of tokens at a time.

    Works in any thread, whatever allocator and device context it has, under
    ``torch.compile(fullgraph=True)`` and in CUDA graphs. Under ``torch.autocast`` hidden,
    weight and bias are cast as for a linear layer, and their gradients come back in
    their own types.

    Args:
        hidden: Hidden states, [..., H]; bf16, fp16 or fp32.
        weight: Weight of the head, [V, H], of the same type; with a process group, the
            rows of this rank.
        labels: The token whose logprob is asked for, [...]; int64 or int32. A label that
            no word has gets a logprob of -inf; set ``CTXCARRY_CHECK_LABELS=1`` for a
            ValueError instead, for which the host waits.
        bias: [V], floating point; -inf rules a word out, unless there is a `softcap`,
            which comes after it.
        temperature: What logits are divided by, after `softcap`.
        softcap: c of ``c * tanh(logit / c)``.
        ignore_index: Label of tokens that are not asked for: their logprob and entropy
            are 0, and their gradient is 0 where their hidden state is finite.
        reduction: "none" for each token; "sum" or "mean" over those not ignored, of
            logprob and entropy alike.
        process_group: The group whose ranks each have a part of the words; None for the
            ambient ``process_groups.current("tp")`` if there is one, False for none.
            Every rank gets the whole result, and the whole gradient of hidden. Compiled
            code keeps the ambient group that it was compiled with.
        vocab_start: The first word of this rank; None if the shards follow one another
            in the order of ranks.
        memory_budget: How much the forward may keep for a cheaper backward: bytes, or a
            fraction (below 1) of the free memory. 0 has the backward make all logits
            again. None keeps what the backward would take as scratch in any case.
            All is kept with 2 bytes for each token and word.
        deterministic: Whether the gradient of a token must not even in its last bits
            depend on which others have none: rows without a gradient are not left out
            then. None follows ``torch.use_deterministic_algorithms``. The result is the
            same each time either way.
        return_entropy: Whether to make the entropy.

    Returns:
        Logprob and entropy, fp32.

    Raises:
        TypeError: For types that do not match.
        ValueError: For shapes, devices or numbers that do not match, or shards of the
            vocabulary that do not add up.
    """
    head = weight
    _arguments.check_numbers(temperature, softcap, reduction)
    hidden, weight, bias = _arguments.under_autocast(hidden, weight, bias)
    _arguments.check_tensors(hidden, weight, labels, bias)
    flat = hidden.reshape(-1, hidden.shape[-1]).contiguous()
    weight = weight.contiguous()
    flat_labels = labels.reshape(-1).contiguous()
    s = _arguments.settings(
        flat,
        weight,
        flat_labels,
        head,
        temperature=temperature,
        softcap=softcap,
        ignore_index=ignore_index,
        process_group=process_group,
        vocab_start=vocab_start,
        memory_budget=memory_budget,
        deterministic=deterministic,
        return_entropy=return_entropy,
    )
    if bias is not None:
        bias = bias.contiguous()
    logprobs, entropy = _function.apply(flat, weight, bias, flat_labels, s)
    if reduction == "none":
        logprobs, entropy = logprobs.reshape(labels.shape), entropy.reshape(labels.shape)
    else:
        logprobs, entropy = logprobs.sum(), entropy.sum() if return_entropy else entropy
        if reduction == "mean":
            count = (flat_labels != ignore_index).sum().clamp(min=1)
            logprobs, entropy = logprobs / count, entropy / count if return_entropy else entropy
    return LinearCrossEntropyOutput(logprobs, entropy if return_entropy else None)


class LinearCrossEntropy(nn.Module):
    """
    `linear_cross_entropy` with a weight of its own.

    Args:
        hidden_size: H.
        vocab_size: V, or this rank's part of it.
        bias: Whether there is a bias.
        device: Where the parameters are.
        dtype: Their type.
        **options: The other arguments of `linear_cross_entropy`.
    """

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        *,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: object,
    ) -> None:
        super().__init__()
        head = nn.Linear(hidden_size, vocab_size, bias=bias, device=device, dtype=dtype)
        self.weight = head.weight
        self.bias = head.bias
        self.options = options

    def forward(self, hidden: Tensor, labels: Tensor) -> LinearCrossEntropyOutput:
        """Return logprob and entropy for hidden [..., H] and labels [...]."""
        return linear_cross_entropy(hidden, self.weight, labels, bias=self.bias, **self.options)  # type: ignore[arg-type]

    def extra_repr(self) -> str:
        """Return the sizes and options."""
        options = "".join(f", {name}={value}" for name, value in self.options.items())
        return (
            f"{self.weight.shape[1]}, {self.weight.shape[0]}, bias={self.bias is not None}{options}"
        )
