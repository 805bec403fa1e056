"""
What the rows of the correctness table share: ways to compute, problems, and the right answer.

In a process with ``TRITON_INTERPRET=1`` the ways are those of the Triton kernels, on a
machine with a CUDA device they are on that, and elsewhere they are plain torch.
"""

import os
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from ctxcarry_kernels import linear_cross_entropy
from ctxcarry_kernels._path import why_not_fused

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
ON_CUDA = torch.cuda.is_available() and not INTERPRETED
DEVICE = "cuda" if ON_CUDA else "cpu"
HOPPER = ON_CUDA and torch.cuda.get_device_capability() >= (9, 0)
SHORT = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


class Way(NamedTuple):
    """A type of the tensors, and how much the forward keeps: none, some or all of E."""

    dtype: torch.dtype
    keep: str

    def __str__(self):
        return f"{DEVICE}-{SHORT[self.dtype]}-{self.keep}"

    @property
    def fused(self):
        """Say whether the Triton kernels are to serve this."""
        return INTERPRETED or (HOPPER and self.dtype is not torch.float32)

    def budget(self, tokens):
        """Return the bytes to keep, some of E being one tile of words."""
        one = tokens * (256 * self.dtype.itemsize + 4)
        return {"none": 0, "some": one, "all": 1 << 40}[self.keep]


fp32, fp16, bf16 = SHORT
if INTERPRETED:  # which is wrong with bf16
    WAYS = [Way(fp32, "some"), Way(fp16, "none"), Way(fp16, "all")]
    EVERY_WAY = [Way(dtype, keep) for dtype in (fp32, fp16) for keep in ("none", "some", "all")]
elif ON_CUDA:
    WAYS = [Way(bf16, "some"), Way(fp16, "none"), Way(bf16, "all"), Way(fp32, "all")]
    EVERY_WAY = [Way(dtype, keep) for dtype in SHORT for keep in ("none", "some", "all")]
else:
    WAYS = EVERY_WAY = [Way(dtype, "all") for dtype in SHORT]


class Outcome(NamedTuple):
    """What a call and its backward give, None for a gradient that there is not."""

    logprobs: Any
    entropy: Any
    dhidden: Any = None
    dweight: Any = None
    dbias: Any = None
    largest: float = 1.0  # logit over the temperature


@dataclass
class Problem:
    """The tensors of one call, with gradients for what it returns; None for no gradient."""

    way: Way
    hidden: Any
    weight: Any
    labels: Any
    bias: Any
    dlogp: Any
    dentropy: Any
    served: bool = True  # by the kernels, where the way is theirs

    def leaves(self):
        """Return hidden, weight and bias to differentiate by."""
        given = (self.hidden, self.weight, self.bias)
        return [None if t is None else t.detach().requires_grad_() for t in given]

    def call(self, hidden, weight, bias, **options):
        """Return logprob and entropy of these leaves."""
        flat = hidden.reshape(-1, hidden.shape[-1]).contiguous()
        why = why_not_fused(flat, weight.contiguous())
        assert (why is None) == (self.way.fused and self.served), why
        options.setdefault("memory_budget", self.way.budget(flat.shape[0]))
        return linear_cross_entropy(hidden, weight, self.labels, bias=bias, **options)

    def run(self, **options):
        """Return what the library gives."""
        leaves = self.leaves()
        out = self.call(*leaves, **options)
        pairs = [(o, g) for o, g in zip(out, (self.dlogp, self.dentropy)) if g is not None]
        torch.autograd.backward(*zip(*pairs))
        grads = [None if leaf is None else leaf.grad for leaf in leaves]
        return Outcome(out.logprobs.detach(), out.entropy, *grads)

    def expected(self, *, temperature=1.0, softcap=None, ignore_index=-100, **_):
        """Return the plain formula's answer, in fp64 from the same inputs."""
        hidden, weight, bias = [
            None if t is None else t.detach().double().requires_grad_()
            for t in (self.hidden, self.weight, self.bias)
        ]
        z = hidden @ weight.t()
        z = z if bias is None else z + bias
        z = z if softcap is None else softcap * torch.tanh(z / softcap)
        z = z / temperature
        log = torch.log_softmax(z, -1)
        # A word that is ruled out adds nothing to the entropy.
        entropy = -(log.exp() * log.masked_fill(log == -torch.inf, 0.0)).sum(-1)
        labels = self.labels.long()
        known = (labels >= 0) & (labels < weight.shape[0])
        picked = log.gather(-1, torch.where(known, labels, 0)[..., None])[..., 0]
        ignored = labels == ignore_index
        logp = torch.where(known, picked, -torch.logsumexp(z, -1)).masked_fill(ignored, 0.0)
        entropy = entropy.masked_fill(ignored, 0.0)
        loss = sum(
            (value * gradient.double()).sum()
            for value, gradient in ((logp, self.dlogp), (entropy, self.dentropy))
            if gradient is not None
        )
        loss.backward()
        grads = [None if t is None else t.grad for t in (hidden, weight, bias)]
        finite = z.detach()[z.detach().isfinite()]
        logp = torch.where(known | ignored, logp, -torch.inf)
        return Outcome(logp.detach(), entropy.detach(), *grads, largest=finite.abs().max().item())


def problem(way, n=9, h=40, v=600, *, bias=False, seed=0):
    """Return a problem whose logits are of the size of 1; three tiles of words by default."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    hidden, weight = normal(n, h).to(DEVICE, way.dtype), normal(v, h).div(h**0.5)
    labels = torch.randint(0, v, (n,), generator=generator).to(DEVICE)
    bias = normal(v).to(DEVICE, way.dtype) if bias else None
    gradients = normal(n).to(DEVICE), normal(n).to(DEVICE)
    return Problem(way, hidden, weight.to(DEVICE, way.dtype), labels, bias, *gradients)


def check_values(got, want):
    """Check logprob and entropy, in fp32, against the right answer."""
    for mine, right in zip(got[:2], want[:2]):
        assert mine.dtype is torch.float32
        assert mine.shape == right.shape
        finite = right.isfinite()
        assert torch.equal(mine[~finite].double(), right[~finite])
        error = (mine.double() - right)[finite].abs().max().item() if finite.any() else 0.0
        assert error <= 1e-5 * max(1.0, want.largest)


def check_gradient(mine, right, dtype):
    """Check one gradient as a whole, in direction, and row by row."""
    assert mine.dtype is dtype
    assert mine.shape == right.shape
    mine = mine.double()
    bound = 1e-5 if dtype is torch.float32 else 5e-3
    error = (mine - right).norm().item()
    assert error <= bound * right.norm().item()
    rows = (mine - right).reshape(-1, right.shape[-1]).norm(dim=1)
    assert rows.max() <= 3 * bound * right.reshape(-1, right.shape[-1]).norm(dim=1).max()
    if right.norm() > 0:
        assert torch.cosine_similarity(mine.flatten(), right.flatten(), dim=0) >= 0.99999


def check(problem, **options):
    """Check values and gradients of one call; return them."""
    got, want = problem.run(**options), problem.expected(**options)
    check_values(got, want)
    for mine, right in zip(got[2:5], want[2:5]):
        if right is not None:
            check_gradient(mine, right, problem.way.dtype)
    return got
