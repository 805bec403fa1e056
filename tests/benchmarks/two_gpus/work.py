"""What a pass goes through on the devices, and how long it takes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

__all__ = ("Graph", "checkpointed", "native", "on_gpus", "step", "two_gpus")


class Graph(NamedTuple):
    """What a pass goes through: a function that makes the ends, and what gets gradients."""

    name: str
    forward: Callable[[], list[torch.Tensor]]
    leaves: list[torch.Tensor]


def checkpointed(given: argparse.Namespace) -> Graph:
    """Return checkpointed blocks of linear layers on each device, one device after the other."""

    def block(**like: Any) -> nn.Module:
        layers = (nn.Linear(given.width, given.width, **like) for _ in range(given.layers))
        return nn.Sequential(*layers)

    models, inputs = [], []
    for device in given.devices:
        like = {"device": device, "dtype": given.dtype}
        models.append(nn.ModuleList(block(**like) for _ in range(given.blocks)))
        inputs.append(torch.randn(given.tokens, given.width, **like))
    leaves = [weight for model in models for weight in model.parameters()]
    for weight in leaves:  # so that values keep their size through all layers
        nn.init.normal_(weight, std=given.width**-0.5)

    def forward() -> list[torch.Tensor]:
        ends = []
        for model, x in zip(models, inputs):
            for layers in model:
                x = checkpoint(layers, x, use_reentrant=False)  # noqa: PLW2901
            ends.append(x.sum())
        return ends

    name = f"{given.blocks} checkpointed blocks of {given.layers} linear layers of {given.width}"
    return Graph(f"{name}, {given.tokens} tokens", forward, leaves)


def native(given: argparse.Namespace) -> Graph:
    """Return chains of small nodes written in C++, one on each device."""
    width = given.native_width
    leaves = []  # orthogonal, so that gradients do not vanish
    for device in given.devices:
        weight = torch.empty(width, width, device=device)
        leaves.append(nn.init.orthogonal_(weight).requires_grad_())

    def forward() -> list[torch.Tensor]:
        ends = []
        for weight in leaves:
            x = torch.ones_like(weight)
            for _ in range(given.nodes):
                x = torch.tanh(x @ weight)
            ends.append(x.sum())
        return ends

    return Graph(f"{given.nodes} of matmul and tanh of {width}", forward, leaves)


def step(graph: Graph, devices: Sequence[torch.device]) -> tuple[float, float]:
    """Return how many milliseconds a forward and its backward take."""
    for leaf in graph.leaves:
        leaf.grad = None
    synchronize(devices)
    start = time.perf_counter()
    ends = graph.forward()
    synchronize(devices)
    between = time.perf_counter()
    torch.autograd.backward(ends)
    synchronize(devices)
    return (between - start) * 1e3, (time.perf_counter() - between) * 1e3


def synchronize(devices: Sequence[torch.device]) -> None:
    """Wait for all devices."""
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def on_gpus(devices: Sequence[torch.device]) -> bool:
    """Say whether these are CUDA devices."""
    return all(device.type == "cuda" for device in devices)


def two_gpus(devices: Sequence[torch.device]) -> bool:
    """Say whether these are different CUDA devices."""
    return on_gpus(devices) and len(set(devices)) == len(devices)
