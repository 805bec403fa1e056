"""Blocks in the shape of Llama's, and what a step needs."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("LLAMA_8B", "SMALL", "TINY", "Model", "Size", "Step")


class Size(NamedTuple):
    """How large a model is."""

    hidden: int
    heads: int
    kv_heads: int
    inner: int
    tokens: int
    layers: int

    def __str__(self) -> str:
        return (
            f"{self.layers} blocks, D={self.hidden} heads={self.heads}/{self.kv_heads} "
            f"FF={self.inner} S={self.tokens}"
        )


LLAMA_8B = Size(4096, 32, 8, 14336, 8192, 4)
SMALL = Size(512, 8, 2, 1536, 1024, 2)
TINY = Size(32, 4, 2, 64, 16, 4)


class Norm(nn.Module):
    """A norm of operators that torch sees one by one."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """Scale each row."""
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return scaled.to(x.dtype) * self.weight


class Block(nn.Module):
    """Attention and a gated MLP."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads, self.kv_heads = size.heads, size.kv_heads
        narrow = size.hidden // size.heads * size.kv_heads
        self.attention_norm, self.ffn_norm = Norm(size.hidden), Norm(size.hidden)
        self.wq = nn.Linear(size.hidden, size.hidden, bias=False)
        self.wk = nn.Linear(size.hidden, narrow, bias=False)
        self.wv = nn.Linear(size.hidden, narrow, bias=False)
        self.wo = nn.Linear(size.hidden, size.hidden, bias=False)
        self.w1 = nn.Linear(size.hidden, size.inner, bias=False)
        self.w2 = nn.Linear(size.inner, size.hidden, bias=False)
        self.w3 = nn.Linear(size.hidden, size.inner, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Go through the block."""
        h = self.attention_norm(x)
        q = _turned(_split(self.wq(h), self.heads), cos, sin)
        k = _turned(_split(self.wk(h), self.kv_heads), cos, sin)
        v = _split(self.wv(h), self.kv_heads)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.wo(mixed.transpose(1, 2).flatten(2))
        h = self.ffn_norm(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h))


def _split(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def _as_it_is(block: Block, *args: Tensor) -> Tensor:
    return block(*args)


class Model(nn.Module):
    """
    Blocks one after the other.

    Attributes:
        call: Calls one of them.
    """

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(size) for _ in range(size.layers))
        angles = torch.arange(size.tokens)[:, None] * 1e4 ** -torch.linspace(
            0, 1, size.hidden // size.heads // 2
        )
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        self.call: Callable[..., Any] = _as_it_is

    def forward(self, x: Tensor) -> Tensor:
        """Go through all blocks."""
        for block in self.layers:
            x = self.call(block, x, self.cos, self.sin)
        return x

    def twin(self) -> Model:
        """Return another model with the same parameters and gradients."""
        shared = [*self.parameters(), *self.buffers()]
        return copy.deepcopy(self, {id(tensor): tensor for tensor in shared})


class Step:
    """
    A forward and backward, whose gradients go into memory that is there.

    Args:
        size: How large the model is.
        device: "cuda" or "cpu".
        dtype: Of everything.
    """

    def __init__(self, size: Size, device: str, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        with torch.device(device):
            self.model = Model(size).to(dtype)
            self.x = torch.randn(1, size.tokens, size.hidden, dtype=dtype, requires_grad=True)
            self.dy = torch.randn(1, size.tokens, size.hidden, dtype=dtype)
        for tensor in (self.x, *self.model.parameters()):
            tensor.grad = torch.zeros_like(tensor)

    def run(self, model: Model) -> None:
        """Run one with a twin of the model."""
        model(self.x).backward(self.dy)

    def gradients(self, model: Model) -> list[Tensor]:
        """Return the gradients of one, which are overwritten by the next."""
        found = [tensor.grad for tensor in (self.x, *self.model.parameters())]
        for gradient in found:
            gradient.zero_()
        self.run(model)
        return found
