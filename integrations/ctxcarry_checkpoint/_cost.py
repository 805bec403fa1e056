"""How long an operator takes, from its flops and the bytes it moves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from ctxcarry_checkpoint._roofline import Roofline
from ctxcarry_checkpoint._schema import is_collective, written

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ("Estimator", "Roofline", "estimate", "flops_of")

# What torch has no formula for: other names of the attention, and other products.
_ATTENTION = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_fused_attention_overrideable",
    "_scaled_dot_product_attention_math",
    "_scaled_dot_product_attention_math_for_mps",
    "_cudnn_attention_forward",
)
_PRODUCTS = ("_grouped_mm", "_scaled_grouped_mm", "_int_mm", "mv", "linear", "_scaled_mm_v2")
# They read as much of their first argument as they return, wherever that lies in it.
_PICKING = (
    "embedding",
    "gather",
    "index",
    "index_select",
    "take",
    "take_along_dim",
    "_unsafe_index",
)
# They take memory and leave in it what it held.
_EMPTY = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")


class Estimator:
    """
    Call operators, and tell what they should take.

    Args:
        roofline: What the device can do, or None for that of the first operator.

    Attributes:
        roofline: What it can do; None as long as nothing has run.
    """

    def __init__(self, roofline: Roofline | None = None) -> None:
        self.roofline = roofline

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call an operator, and return its result."""
        return func(*args, **kwargs)

    def ms(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> float:
        """Return the milliseconds that an operator takes."""
        if self.roofline is None:
            self.roofline = Roofline.of(_device_of(args, output))
        return estimate(func, args, kwargs, output, self.roofline)


def estimate(
    op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any, roofline: Roofline
) -> float:
    """
    Return the milliseconds that an operator takes, without measuring anything.

    Args:
        op: The overload, or a higher-order operator.
        args: Positional arguments: real tensors, fake ones, or a DTensor, of which the part
            of this rank counts.
        kwargs: Keyword arguments.
        output: What it returned.
        roofline: What the device can do.

    Returns:
        The longer of the time for its flops and the time for its bytes, and the time of a
        launch; 0 for a view, and for memory that is taken but not written.
    """
    args, kwargs, output = tree_map(_local, (args, dict(kwargs), output))
    inputs, results = _tensors((args, kwargs)), _tensors(output)
    packet = getattr(op, "_overloadpacket", op)
    name = getattr(packet, "__name__", "")
    if name in _EMPTY or _is_view(op, args, kwargs, inputs, results):
        return 0.0
    nbytes = sum(_nbytes(tensor) for tensor in inputs)
    if name in _PICKING and inputs:
        picked = sum(_nbytes(tensor) for tensor in results)
        nbytes += min(0, picked - _nbytes(inputs[0]))
    nbytes += sum(_nbytes(tensor) for tensor in results)
    if is_collective(op):
        seconds = nbytes / roofline.link_bytes
    elif len({tensor.device.type for tensor in (*inputs, *results)} - {"meta"}) > 1:
        seconds = nbytes / 2 / roofline.host_bytes
    else:
        flops = flops_of(op, args, kwargs, output)
        seconds = nbytes / roofline.memory_bytes
        if flops:
            seconds = max(seconds, flops / roofline.rate(_dtype(inputs)))
    return (seconds + roofline.launch) * 1e3


def flops_of(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> float:
    """
    Return the floating-point operations of a call, 0 where there is no formula for it.

    Formulas are those of ``torch.utils.flop_counter``, so that one that is registered there
    for an operator of one's own counts here too.
    """
    packet = getattr(op, "_overloadpacket", op)
    name = getattr(packet, "__name__", "")
    formula = flop_registry.get(packet)
    if name in _ATTENTION or name.startswith("_scaled_dot_product_"):
        # Torch 2.11's own formula refuses keys with fewer heads than queries.
        flops = _attention_flops(*(tuple(tensor.shape) for tensor in args[:3]))
    elif formula is not None:
        flops = float(formula(*args, **kwargs, out_val=output))
    elif name in _PRODUCTS:
        flops = 2.0 * args[0].numel() * _columns(name, args[1])
    else:
        return 0.0
    if "attention" in name and _is_causal(op, args, kwargs):
        # Kernels leave out the pieces above the diagonal.
        flops /= 2
    return flops


def _attention_flops(query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...]) -> float:
    *batch, rows, features = query
    return 2.0 * math.prod(batch) * rows * key[-2] * (features + value[-1])


def _columns(name: str, weight: torch.Tensor) -> int:
    if weight.dim() == 1:
        return 1
    return int(weight.shape[0 if name == "linear" else -1])


def _is_causal(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    if "is_causal" in kwargs:
        return bool(kwargs["is_causal"])
    schema = getattr(op, "_schema", None)
    names = [argument.name for argument in schema.arguments] if schema is not None else []
    at = names.index("is_causal") if "is_causal" in names else len(args)
    return at < len(args) and bool(args[at])


def _is_view(
    op: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    inputs: list[torch.Tensor],
    results: list[torch.Tensor],
) -> bool:
    if not results or written(op, args, kwargs):
        return False
    given = {_memory(tensor) for tensor in inputs} - {None}
    return all(_memory(tensor) in given for tensor in results)


def _memory(tensor: torch.Tensor) -> int | None:
    if tensor.layout is not torch.strided:
        return None
    return int(tensor.untyped_storage()._cdata)


def _nbytes(tensor: torch.Tensor) -> int:
    """Return the bytes that are moved to read or write a tensor once."""
    if tensor.layout is not torch.strided:
        return int(tensor._nnz() if tensor.is_sparse else tensor.numel()) * tensor.element_size()
    # What was expanded is in memory only once.
    sizes = [size for size, stride in zip(tensor.shape, tensor.stride()) if stride]
    return math.prod(sizes) * tensor.element_size()


def _dtype(inputs: list[torch.Tensor]) -> torch.dtype:
    """Return the type that the product is taken in, that of the largest argument."""
    return max(inputs, key=lambda tensor: tensor.numel()).dtype


def _tensors(tree: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for leaf in tree_leaves(tree):
        if isinstance(leaf, torch.Tensor):
            found += _inner(leaf)
    return found


def _inner(tensor: torch.Tensor) -> list[torch.Tensor]:
    if not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()  # type: ignore[no-untyped-call,unused-ignore]
    return [each for name in names for each in _inner(getattr(tensor, name))]


def _local(leaf: Any) -> Any:
    """Return the part of this rank of a tensor that is spread over several."""
    distributed = getattr(leaf, "_local_tensor", None)
    return distributed if isinstance(distributed, torch.Tensor) else leaf


def _device_of(args: tuple[Any, ...], output: Any) -> torch.device:
    for each in (output, *args):
        if isinstance(each, torch.Tensor):
            return each.device
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
