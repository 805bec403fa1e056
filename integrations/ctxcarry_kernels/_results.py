"""What passes between the two halves of an operator, whichever path makes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ("Gradients", "Needed", "Results")

Results: TypeAlias = "tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]"
"""
Logprob, entropy, logarithm of the sum (to the base 2) and x of the label, fp32 [N] each;
E [N, kept] and the fp32 [tiles, N] that E is relative to.
"""

Gradients: TypeAlias = "tuple[Tensor | None, Tensor | None, Tensor | None]"
"""Of hidden, weight and bias."""


class Needed(NamedTuple):
    """Which gradients are asked for."""

    hidden: bool
    weight: bool
    bias: bool
