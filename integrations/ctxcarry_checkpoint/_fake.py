"""Run a model without memory, only to see what it calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.func import functional_call
from torch.utils._pytree import tree_map_only

if TYPE_CHECKING:
    from torch import nn

__all__ = ("arguments", "run_fake", "run_real")


def arguments(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and the keyword arguments that example inputs stand for."""
    if isinstance(example_inputs, dict):
        return (), dict(example_inputs)
    if isinstance(example_inputs, (list, tuple)):
        return tuple(example_inputs), {}
    return (example_inputs,), {}


def run_fake(model: nn.Module, example_inputs: Any) -> None:
    """
    Call a model with tensors that have sizes and no memory.

    Where what it calls depends on values, as the experts of a mixture do, it is called with
    the real tensors instead.

    Raises:
        ValueError: If it depends on values, and is on the ``meta`` device.
    """
    args, kwargs = arguments(example_inputs)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with torch.enable_grad(), mode:
            tensors: dict[str, Any] = dict(model.named_parameters(remove_duplicate=False))
            tensors |= dict(model.named_buffers(remove_duplicate=False))
            fake: dict[str, torch.Tensor] = {
                name: mode.from_tensor(tensor) for name, tensor in tensors.items()
            }
            fake_args, fake_kwargs = tree_map_only(torch.Tensor, mode.from_tensor, (args, kwargs))
            functional_call(model, fake, fake_args, fake_kwargs, tie_weights=False)
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        if any(parameter.is_meta for parameter in model.parameters()):
            msg = (
                f"{type(model).__name__} calls {error.func}, whose result depends on values, and "
                "its parameters are on the meta device, without any. Make the plan once it has "
                "its parameters, or have the first step recorded instead"
            )
            raise ValueError(msg) from error
        run_real(model, example_inputs)


def run_real(model: nn.Module, example_inputs: Any) -> None:
    """
    Call a model with real tensors, and leave its buffers and random numbers as they are.

    Raises:
        ValueError: If it is on the ``meta`` device.
    """
    if any(parameter.is_meta for parameter in model.parameters()):
        msg = (
            f"{type(model).__name__} has parameters on the meta device, without values, so that "
            "nothing can be measured. Make the plan once it has its parameters"
        )
        raise ValueError(msg)
    args, kwargs = arguments(example_inputs)
    named = model.named_buffers(remove_duplicate=False)
    buffers = {name: buffer.clone() for name, buffer in named}
    devices = sorted({p.device.index for p in model.parameters() if p.is_cuda})
    # Neither the generators nor statistics are to know of it.
    with torch.enable_grad(), torch.random.fork_rng(devices):
        functional_call(model, buffers, args, kwargs, tie_weights=False)
