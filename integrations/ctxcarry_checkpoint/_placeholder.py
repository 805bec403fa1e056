"""A tensor without memory, in place of a result that nobody needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch

from ctxcarry_checkpoint._private import throw_on_data_pointer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from typing_extensions import Self

__all__ = ("NeededError", "Placeholder")


class NeededError(RuntimeError):
    """Something that was not made again is needed after all."""


class Placeholder(torch.Tensor):
    """
    What an operator "returns" that a recompute leaves out.

    It has size, type and device. Whoever asks for what it holds gets an error, also a
    kernel that torch does not see, which asks for its address.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(
        cls: type[Self],
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
    ) -> Self:
        made: Self = torch.Tensor._make_wrapper_subclass(
            cls, shape, strides=stride, dtype=dtype, device=device
        )
        throw_on_data_pointer(made)
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        del tensor_contents
        return f"Placeholder(shape={tuple(self.shape)}, dtype={self.dtype}, device={self.device})"

    @classmethod
    def like(cls, tensor: torch.Tensor) -> Placeholder:
        """Return one with the size, type and device of a tensor."""
        return cls(tensor.shape, tensor.stride(), tensor.dtype, tensor.device)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> NoReturn:
        del types, args, kwargs
        msg = f"{func} reads a result that a recompute has left out"
        raise NeededError(msg)
