"""Small models of several blocks, and steps of training them."""

from __future__ import annotations

import torch
from blocks import Llama
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = (
    "AGAIN",
    "NAMES",
    "Block",
    "Counting",
    "Model",
    "Plain",
    "batches",
    "fresh",
    "ran_again",
    "same",
    "steps",
)

SIZE = 16
NAMES = ("layers.0", "layers.1", "layers.2")
AGAIN = 6
"""Products that a recompute of a block of `Model` needs: all but the last of the seven."""


class Block(nn.Module):
    """Two products with something between them."""

    def __init__(self, size=SIZE, hidden=32):
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.up, self.down = nn.Linear(size, hidden), nn.Linear(hidden, size)

    def forward(self, x, *, scale=1.0):
        """Run."""
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x)))) * scale


class Plain(nn.Module):
    """Blocks of that kind between two layers."""

    def __init__(self, count=3, block=Block, size=SIZE):
        super().__init__()
        self.first = nn.Linear(size, size)
        self.layers = nn.ModuleList(block() for _ in range(count))
        self.last = nn.Linear(size, 4)

    def forward(self, x):
        """Run."""
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


class Model(Plain):
    """The same of blocks with attention."""

    def __init__(self, count=3):
        super().__init__(count, Llama)


class Counting(TorchDispatchMode):
    """Count the operators that are called."""

    def __init__(self):
        super().__init__()
        self.counts = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[str(func)] = self.counts.get(str(func), 0) + 1
        return func(*args, **(kwargs or {}))

    def of(self, *parts):
        """Return how many calls had one of these in their name."""
        return sum(n for name, n in self.counts.items() if any(p in name for p in parts))


def fresh(kind=Model, *args):
    """Return a model with the same parameters each time."""
    torch.manual_seed(1)
    return kind(*args)


def steps(model, batches, *, call=None):
    """
    Train a model, one step for each batch.

    Args:
        model: The model, changed by the steps.
        batches: What it is called with.
        call: What to call instead of the model.

    Returns:
        Of each step the output and the gradients, the parameters at the end.
    """
    found = []
    torch.manual_seed(5)
    for batch in batches:
        output = (call or model)(batch)
        (output * torch.linspace(-1, 2, output.numel()).view_as(output)).sum().backward()
        found.append(output.detach().clone())
        with torch.no_grad():
            for parameter in model.parameters():
                found.append(parameter.grad.clone())
                parameter.sub_(0.01 * parameter.grad)
                parameter.grad = None
    return [*found, *(p.detach().clone() for p in model.parameters())]


def batches(count=3, rows=5, size=SIZE):
    """Return different inputs for each step."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(2, rows, size, generator=generator) for _ in range(count)]


def same(one, other):
    """Say whether two lists of tensors are equal, bit by bit."""
    return len(one) == len(other) > 0 and all(torch.equal(a, b) for a, b in zip(one, other))


def ran_again(model, batch=None):
    """Return how many products more than without a checkpoint the backward of a step runs."""
    counts = []
    for each in (model, fresh(type(model))):
        loss = each(batches(1)[0] if batch is None else batch).sum()
        with Counting() as mode:
            loss.backward()
        each.zero_grad()
        counts.append(mode.of("mm"))
    return counts[0] - counts[1]
