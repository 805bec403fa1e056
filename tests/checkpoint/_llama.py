"""A transformer block of the size of Llama 8B, recorded without memory."""

from __future__ import annotations

import functools

import torch
from ctxcarry_checkpoint._cost import Estimator, Roofline
from ctxcarry_checkpoint._record import Recorder
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import scaled_dot_product_attention, silu
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import SAC_IGNORED_OPS

RATED = torch.float32, torch.bfloat16
HEADS, KV_HEADS = 32, 8
LIKE_H100 = Roofline("like H100", dict.fromkeys(RATED, 600e12), 2.8e12, 5e10, 4e11, 4e-6)
Linear = functools.partial(nn.Linear, bias=False, dtype=torch.bfloat16)


class Norm(nn.Module):
    """RMSNorm in fp32."""

    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features, dtype=torch.bfloat16))

    def forward(self, x):
        """Normalize."""
        square = x.float().pow(2).mean(-1, keepdim=True)
        scaled = x.float() * torch.rsqrt(square + 1e-5)
        return scaled.to(x.dtype) * self.weight


class Layer(nn.Module):
    """Attention with fewer keys than queries, and a gated MLP."""

    def __init__(self, features, hidden):
        super().__init__()
        self.norm1, self.norm2 = Norm(features), Norm(features)
        narrow = features // HEADS * KV_HEADS
        self.q, self.k, self.v = (Linear(features, n) for n in (features, narrow, narrow))
        self.o = Linear(features, features)
        self.w1, self.w3 = Linear(features, hidden), Linear(features, hidden)
        self.w2 = Linear(hidden, features)

    def forward(self, x, cos, sin):
        """Run."""
        batch, rows, features = x.shape
        h = self.norm1(x)
        q, k, v = (
            linear(h).view(batch, rows, -1, features // HEADS).transpose(1, 2)
            for linear in (self.q, self.k, self.v)
        )
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in (k, v))
        attended = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(attended.transpose(1, 2).reshape(batch, rows, features))
        h = self.norm2(x)
        return x + self.w2(silu(self.w1(h)) * self.w3(h))


def turned(x, cos, sin):
    """Apply rotary positions."""
    left, right = x.chunk(2, -1)
    return torch.cat([left * cos - right * sin, left * sin + right * cos], -1)


class Recording(TorchDispatchMode):
    """Record what runs, with its time by a roofline."""

    def __init__(self, roofline):
        super().__init__()
        self.recorder = Recorder(Estimator(roofline))
        self.kept = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        if func not in SAC_IGNORED_OPS:
            self.recorder.add(func, args, kwargs or {}, output)
            # Memory that is let go would be given out again.
            self.kept.append(output)
        return output

    def pack(self, tensor):
        """Note what autograd keeps."""
        self.recorder.pack(tensor)
        return tensor


def record(roofline=LIKE_H100, rows=8192, features=4096, hidden=14336):
    """Return the operators of a block in bf16, and those whose result it returns."""
    with FakeTensorMode():
        layer = Layer(features, hidden)
        x = torch.empty(1, rows, features, dtype=torch.bfloat16, requires_grad=True)
        cos, sin = torch.empty(2, rows, features // HEADS // 2, dtype=torch.bfloat16)
        hooks = torch.autograd.graph.saved_tensors_hooks
        with Recording(roofline) as mode, hooks(mode.pack, lambda tensor: tensor):
            y = layer(x, cos, sin)
        return tuple(mode.recorder.ops), mode.recorder.owners_of([y])
