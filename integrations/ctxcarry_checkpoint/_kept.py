"""Results that are kept: on their device, in the memory of the CPU, or as the user's hooks say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ctxcarry_checkpoint._offload import Offloaded
from ctxcarry_checkpoint._private import alias

if TYPE_CHECKING:
    from ctxcarry_checkpoint._private import Hooks

__all__ = ("LostError", "Tensors", "prefetch", "version_of")


class LostError(Exception):
    """What was kept has been written to since."""


def version_of(tensor: torch.Tensor) -> int | None:
    """Return how often a tensor was written to, or None if that is not counted."""
    return None if tensor.is_inference() else tensor._version


class _Held:
    """One tensor."""

    __slots__ = ("tensor", "version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = alias(tensor)
        self.version = version_of(tensor)

    def get(self) -> torch.Tensor:
        """
        Return it as a tensor of its own, which may get a graph.

        To be called below autograd: there, a detached tensor has a version counter of its
        own, so that what works in place on it is not taken for a change of what is kept.
        """
        if version_of(self.tensor) != self.version:
            raise LostError
        return self.tensor.detach()


class _Packed:
    """One tensor that the saved-tensor hooks around the checkpoint have packed."""

    __slots__ = ("hooks", "packed", "ready")

    def __init__(self, tensor: torch.Tensor, hooks: Hooks) -> None:
        self.hooks = hooks
        self.packed = hooks.pack(alias(tensor))
        self.ready: torch.Tensor | None = None

    def prefetch(self) -> None:
        """
        Unpack it.

        Not where it is asked for, which is below autograd: a hook may run what autograd has to
        see, as a checkpoint around this one does.
        """
        self.ready = self.hooks.unpack(self.packed)

    def get(self) -> torch.Tensor:
        """Return it."""
        ready = self.ready
        assert ready is not None
        self.ready = None
        return ready.detach()


class Tensors:
    """
    The result of an operator: a tensor, or some in a list or tuple, and what is none.

    Args:
        output: The result.
        hooks: Saved-tensor hooks around the checkpoint, which see what is kept
            (pytorch#190581).
        settled: Whether nothing in the block writes to it any more. Else `settle` is to be
            called at the end of the block.
        offload: Whether it is to be kept in the memory of the CPU.
    """

    __slots__ = ("_hooks", "_offload", "_tree")

    def __init__(
        self, output: Any, hooks: Hooks | None, *, offload: bool, settled: bool = True
    ) -> None:
        self._hooks = hooks
        self._offload = offload
        if settled:
            self._tree = _mapped(self._put, output)
        else:
            self._tree = _mapped(_Held, output)

    def settle(self) -> None:
        """Take it as it is now."""

        def settled(held: Any) -> Any:
            if not isinstance(held, _Held):
                return held
            if self._hooks is None and not self._offload:
                return _Held(held.tensor)
            return self._put(held.tensor)

        self._tree = _mapped(settled, self._tree, leaf=_Held)

    def get(self) -> Any:
        """
        Return the result.

        Raises:
            LostError: If it was written to since.
        """
        return _mapped(lambda held: held.get(), self._tree, leaf=(_Held, _Packed, Offloaded))

    def held(self) -> list[torch.Tensor]:
        """Return the tensors that are kept where they are."""
        found: list[torch.Tensor] = []
        _mapped(lambda held: found.append(held.tensor), self._tree, leaf=_Held)
        return found

    def prefetch(self) -> None:
        """Begin to bring back what is in the memory of the CPU, and what hooks have packed."""
        _mapped(lambda held: held.prefetch(), self._tree, leaf=(Offloaded, _Packed))

    def _put(self, tensor: torch.Tensor) -> Any:
        if self._offload and tensor.device.type != "cpu":
            return Offloaded(alias(tensor))
        return _Held(tensor) if self._hooks is None else _Packed(tensor, self._hooks)


def prefetch(kept: dict[int, Tensors]) -> None:
    """Begin to bring back all that is not where it was made, in the order of its use."""
    for index in sorted(kept):
        kept[index].prefetch()


def _mapped(change: Any, tree: Any, leaf: Any = torch.Tensor) -> Any:
    if isinstance(tree, leaf):
        return change(tree)
    if isinstance(tree, (list, tuple)):
        made = [_mapped(change, each, leaf) for each in tree]
        return made if isinstance(tree, list) else tuple(made)
    return tree
