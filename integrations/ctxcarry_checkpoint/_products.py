"""Groups of operators that policies name, and what is known of their arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ctxcarry_checkpoint._match import Names, name_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from ctxcarry_checkpoint._ops import Call

__all__ = (
    "ATTENTION",
    "COLLECTIVES",
    "DEVICE_TO_HOST",
    "MATMULS",
    "SizeTest",
    "is_device_to_host",
    "sizes_of",
)

# Names and not operators, since not every torch has all of them.
_SECOND_ARGUMENT = (
    "_grouped_mm",
    "_int_mm",
    "_scaled_grouped_mm",
    "_scaled_grouped_mm_v2",
    "_scaled_mm",
    "_scaled_mm_v2",
    "bmm",
    "linear",
    "mm",
)
_THIRD_ARGUMENT = ("_addmm_activation", "addbmm", "addmm", "baddbmm")

MATMULS = Names(packets=frozenset(f"aten.{name}" for name in (*_SECOND_ARGUMENT, *_THIRD_ARGUMENT)))
"""Products of matrices."""

ATTENTION = Names(
    exact=frozenset({"flex_attention"}),
    packets=frozenset(
        {
            "aten._cudnn_attention_forward",
            "aten._efficient_attention_forward",
            "aten._flash_attention_forward",
            "aten._flash_attention_forward_no_dropout_inplace",
            "aten.scaled_dot_product_attention",
            "torch_attn._varlen_attn",
        }
    ),
    globs=("aten._scaled_dot_product_*",),
)
"""Attention: what torch's is made of, flex attention, and that over sequences of any length."""

COLLECTIVES = Names(
    packets=frozenset({"_dtensor.shard_dim_alltoall"}),
    globs=(
        "_c10d_functional.*",
        "_c10d_functional_autograd.*",
        "c10d.*",
        "deepep.*",
        "hybridep.*",
    ),
)
"""What ranks exchange, waiting for it included."""

DEVICE_TO_HOST = Names(
    packets=frozenset({"aten._local_scalar_dense", "aten._to_copy", "aten.copy_"})
)
"""What may bring something from a device to the CPU."""


def sizes_of(call: Call) -> tuple[int, int, int] | None:
    """
    Return the sizes of a product of matrices.

    Args:
        call: A call of one of `MATMULS`; of batches and groups, one has the sizes.

    Returns:
        The rows, the inner size and the columns, or None for what is no product.
    """
    _, _, packet = name_of(call.op).rpartition(".")[0].rpartition(".")
    at = 2 if packet in _THIRD_ARGUMENT else 1
    if len(call.args) <= at:
        return None
    left, right = call.args[at - 1], call.args[at]
    if right.dim() < 2:  # noqa: PLR2004  (linear takes a vector too)
        return None
    inner, columns = right.shape[-2:]
    if packet == "linear":
        inner, columns = columns, inner
    rows = left.shape[-2] if left.dim() > 1 else 1
    return rows, inner, columns


def is_device_to_host(call: Call) -> bool:
    """Say whether a call of one of `DEVICE_TO_HOST` brings something to the CPU."""
    name = name_of(call.op)
    if name.startswith("aten._local_scalar_dense"):
        return not _is_on_host(call.args[0])
    if name.startswith("aten.copy_"):
        target, source = call.args[:2]
    else:
        target, source = call.output, call.args[0]
    return _is_on_host(target) and not _is_on_host(source)


def _is_on_host(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu"


@dataclass(frozen=True)
class SizeTest:
    """
    A test of a product by its sizes.

    Attributes:
        shapes: Inner size and columns of those that pass.
        when: Takes rows, inner size and columns, and says whether they pass.
    """

    shapes: frozenset[tuple[int, int]]
    when: Callable[[int, int, int], bool] | None = None

    def __call__(self, call: Call) -> bool:
        sizes = sizes_of(call)
        if sizes is None:
            return False
        return sizes[1:] in self.shapes or (self.when is not None and bool(self.when(*sizes)))
