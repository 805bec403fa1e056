"""Fused kernels that keep to the context of the thread they are called in."""

from ctxcarry_kernels._linear_cross_entropy import (
    LinearCrossEntropy,
    LinearCrossEntropyOutput,
    linear_cross_entropy,
)

__all__ = ("LinearCrossEntropy", "LinearCrossEntropyOutput", "linear_cross_entropy")
