"""The cases of words divided over ranks: inputs that all ranks make alike, and plain formulas."""

from dataclasses import dataclass, field
from typing import Any

import torch

N, H = 60, 64
WORDS = (300, 77, 135)


@dataclass(frozen=True)
class Case:
    """
    One call on each rank of a group.

    Attributes:
        words: How many words each rank of the group has.
        starts: The first word of each rank where it is told, else None.
        group: "world" (three ranks), "pair" (ranks 1 and 2) or "alone".
        ambient: Whether the group is the ambient one instead of an argument.
        needs: Which of hidden and weight need a gradient.
        labels: What is done to the labels.
        bias: Whether there is one.
        dtype: Of hidden, weight and bias.
        options: Other arguments.
    """

    words: tuple[int, ...] = WORDS
    starts: tuple[int, ...] | None = None
    group: str = "world"
    ambient: bool = False
    needs: str = "hidden weight"
    labels: str = "any"
    bias: bool = False
    dtype: torch.dtype = torch.float32
    options: dict[str, Any] = field(default_factory=dict)

    def part(self, rank):
        """Return the words of a rank as a slice."""
        first = sum(self.words[:rank]) if self.starts is None else self.starts[rank]
        return slice(first, first + self.words[rank])


SHAPED = {"temperature": 0.7, "softcap": 5.0}
PAIR = (300, 77)

EAGER = {
    "three ranks": Case(),
    # What two of the ranks have is of the size that they had before.
    "another head": Case((300, 78, 135)),
    "pair": Case(PAIR, group="pair", ambient=True),
    "ambient": Case(ambient=True),
    "other order": Case(starts=(212, 135, 0)),
    "told in order": Case(PAIR, starts=(0, 300), group="pair"),
    "bf16": Case(dtype=torch.bfloat16),
    "shaped": Case(bias=True, options=SHAPED),
    "no label on two": Case(labels="first shard"),
    "ignored": Case(labels="ignored"),
    "word ignored": Case(labels="any", options={"ignore_index": 310}),
    "out of range": Case(labels="out of range"),
    "hidden": Case(needs="hidden"),
    "weight": Case(needs="weight"),
    "int32": Case(PAIR, group="pair", labels="int32"),
    "mean": Case(PAIR, group="pair", labels="ignored", options={"reduction": "mean"}),
    "alone": Case((512,), group="alone"),
}
FUSED = {
    "three ranks": Case(),
    "pair": Case(PAIR, group="pair", ambient=True),
    "other order": Case(starts=(212, 135, 0), ambient=True),
    "fp16": Case(dtype=torch.float16),
    "recompute": Case(dtype=torch.float16, options={"memory_budget": 0}),
    "some kept": Case((600, 77), group="pair", options={"memory_budget": 130_000}),
    "shaped": Case(bias=True, options=SHAPED),
    "bias": Case(PAIR, group="pair", bias=True),
    "no label on two": Case(labels="first shard"),
    "ignored": Case(PAIR, group="pair", labels="ignored"),
    "out of range": Case(PAIR, group="pair", labels="out of range"),
    "hidden": Case(PAIR, group="pair", needs="hidden"),
    "weight": Case(PAIR, group="pair", needs="weight"),
    "alone": Case((300,), group="alone"),
}
CASES = {"eager": EAGER, "fused": FUSED}


def inputs(case):
    """Return hidden, all of weight and bias, labels and the gradients from above."""
    make = torch.Generator().manual_seed(7)
    v = sum(case.words)
    hidden = torch.randn(N, H, generator=make)
    weight = torch.randn(v, H, generator=make) * (2 / H**0.5)
    bias = torch.randn(v, generator=make) if case.bias else None
    most = 135 if case.labels == "first shard" else v
    labels = torch.randint(0, most, (N,), generator=make)
    labels[:4] = torch.tensor([0, min(299, most - 1), most - 1, min(300, most - 1)])
    if case.labels == "ignored":
        labels[::3] = -100
    if case.labels == "out of range":
        labels[::5], labels[1::5] = v, -7
    if case.labels == "int32":
        labels = labels.int()
    count = 1 if "reduction" in case.options else N
    dlogp, dentropy = torch.randn(2, count, generator=make).unbind(0)
    if count == 1:
        dlogp, dentropy = dlogp[0], dentropy[0]
    tensors = [None if t is None else t.to(case.dtype) for t in (hidden, weight, bias)]
    return *tensors, labels, (dlogp, dentropy)


def plain(case):
    """Return what is right, by the plain formula in fp64: results, and gradients."""
    hidden, weight, bias, labels, gradients = inputs(case)
    hidden, weight = (t.double().requires_grad_() for t in (hidden, weight))
    z = hidden @ weight.T
    if bias is not None:
        bias = bias.double().requires_grad_()
        z = z + bias
    cap = case.options.get("softcap")
    z = (cap * torch.tanh(z / cap) if cap else z) / case.options.get("temperature", 1.0)
    log = torch.log_softmax(z, 1)
    kept = labels != case.options.get("ignore_index", -100)
    nobody = kept & ((labels < 0) | (labels >= weight.shape[0]))
    word = torch.where(kept & ~nobody, labels.long(), 0)
    at = log.gather(1, word[:, None])[:, 0]
    # What is not a word has a probability of 0, whose gradient is that of the others' sum.
    at = torch.where(nobody, -torch.logsumexp(z, 1), at)
    logp, entropy = torch.where(kept, at, 0.0), torch.where(kept, -(log * log.exp()).sum(1), 0.0)
    if "reduction" in case.options:
        logp, entropy = logp.sum() / kept.sum(), entropy.sum() / kept.sum()
    torch.autograd.backward((logp, entropy), [g.double() for g in gradients])
    logp = torch.where(nobody, -torch.inf, logp.detach()) if logp.dim() else logp.detach()
    return {
        "logprobs": logp,
        "entropy": entropy.detach(),
        "hidden": hidden.grad,
        "weight": weight.grad,
        "bias": None if bias is None else bias.grad,
    }
