"""Shape and type of results, and their stand-ins."""

from __future__ import annotations

from typing import Any

import torch

from ctxcarry_checkpoint._placeholder import Placeholder

__all__ = ("brief", "layout", "stand_in", "tensors", "told")


def brief(output: Any) -> Any:
    """Return shape and type of a result, of each tensor if it has several."""
    if isinstance(output, torch.Tensor):
        return output.shape, output.dtype
    if isinstance(output, (list, tuple)):
        return tuple(brief(each) for each in output)
    return None


def layout(output: Any) -> Any:
    """Return the same with strides and device, as `stand_in` needs them."""
    if isinstance(output, torch.Tensor):
        return output.shape, output.dtype, output.stride(), output.device
    if isinstance(output, (list, tuple)):
        return [type(output), *(layout(each) for each in output)]
    return output


def stand_in(noted: Any) -> Any:
    """Return what has the given layout, without memory."""
    if isinstance(noted, tuple):
        shape, dtype, stride, device = noted
        return Placeholder(shape, stride, dtype, device)
    if isinstance(noted, list):
        kind, *parts = noted
        made = [stand_in(part) for part in parts]
        return made if kind is list else tuple(made)
    return noted


def tensors(output: Any) -> list[torch.Tensor]:
    """Return the tensors of a result."""
    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, (list, tuple)):
        return [tensor for each in output for tensor in tensors(each)]
    return []


def told(noted: Any) -> str:
    """Return what was noted, in words."""
    if noted is None:
        return "no tensor"
    if isinstance(noted, tuple) and noted and isinstance(noted[0], torch.Size):
        return f"{list(noted[0])} {str(noted[1]).removeprefix('torch.')}"
    return "(" + ", ".join(told(part) for part in noted) + ")"
