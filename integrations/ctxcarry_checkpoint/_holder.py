"""What autograd has in place of a tensor that it keeps, and the arguments of a block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from ctxcarry_checkpoint._kept import version_of
from ctxcarry_checkpoint._private import detached, detached_each, never_compiled
from ctxcarry_checkpoint.errors import CheckpointMutationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ctxcarry_checkpoint._frame import Frame
    from ctxcarry_checkpoint._private import Hooks

__all__ = ("Holder", "Inputs", "let_go_of_nodes", "unpacked")

_LEAVES = frozenset({torch.Tensor, torch.nn.Parameter, bool, float, int, str, type(None)})
"""What surely has no tensors within."""


class Holder:
    """
    Stands for one tensor that autograd keeps.

    Without a constructor, which would be a frame more for each: `Frame` sets all of it.

    Attributes:
        value: The tensor, what the hooks around the checkpoint made of it, or None while
            it is to be made again.
    """

    __slots__ = ("__weakref__", "_frame", "_hooks", "_made", "_version", "value")

    value: Any
    _frame: Frame
    _hooks: Hooks | None
    _made: bool
    _version: int | None

    def hold(self, tensor: torch.Tensor, hooks: Hooks) -> None:
        """Hold what the hooks around the checkpoint make of a tensor."""
        self._hooks = hooks
        self.value = hooks.pack(detached(tensor) if tensor.requires_grad else tensor)

    def fill(self, tensor: torch.Tensor) -> None:
        """Hold a tensor, also with its node: until `let_go_of_nodes`."""
        self._hooks = None
        # Before the value, for who looks at both from another thread.
        self._version = version_of(tensor)
        self.value = tensor

    def get(self) -> torch.Tensor:
        """
        Return the tensor.

        Raises:
            CheckpointMutationError: If it is from outside of the block and was changed.
        """
        value = self.value
        self._frame.used()
        if value is not None and self._hooks is not None:
            tensor: torch.Tensor = self._hooks.unpack(value)
            return tensor
        if value is not None and version_of(value) != self._version:
            if not self._made:
                raise _changed(value, "a tensor that the backward of a checkpoint needs")
            self.value = value = None
        if value is None:
            value = self._frame.fill(self)
            if version_of(value) != self._version:
                what = "a tensor that autograd keeps, and that the block itself writes to later"
                raise _changed(value, what)
        return value  # type: ignore[no-any-return]


@never_compiled
def unpacked(holder: Holder) -> torch.Tensor:
    """Return the tensor, as `Holder.get` does: a frame less where that has nothing to do."""
    value = holder.value
    if value is not None and holder._hooks is None and holder._frame.quiet:
        version = holder._version
        if version is None or version == value._version:
            return value  # type: ignore[no-any-return]
    return holder.get()


def let_go_of_nodes(holders: list[Holder]) -> None:
    """
    Have holders hold their tensors without a graph: it may hold them, for good.

    For many at once, when no mode sees it any more. They are not asked for their nodes: where
    a view was written to, autograd then calls views again.
    """
    found = [h for h in holders if h._hooks is None and h.value is not None]
    found = [h for h in found if h.value.requires_grad]
    if found:
        for holder, tensor in zip(found, detached_each([h.value for h in found])):
            holder.value = tensor


class Inputs:
    """
    The arguments of a block, for the forward and for recomputes.

    Args:
        args: Positional arguments.
        kwargs: Keyword arguments.
        hooks: The hooks around the checkpoint: its tensors are kept by them.
    """

    def __init__(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], hooks: Hooks | None
    ) -> None:
        self._given: tuple[tuple[Any, ...], dict[str, Any]] | None = (args, dict(kwargs))
        leaves: list[Any]
        self._spec: Any = None
        if kwargs or not _LEAVES.issuperset(map(type, args)):
            leaves, self._spec = tree_flatten(self._given)
        else:
            leaves = list(args)
        self._leaves = leaves
        self._versions = [
            version_of(leaf) if isinstance(leaf, torch.Tensor) else None for leaf in leaves
        ]
        self._keep: torch.Tensor | None = None
        self._at: list[int] = []
        if hooks is None:
            return
        self._at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        if self._at:
            # Autograd keeps them by the hooks, and gives back each with its graph.
            empty = torch.empty(0, requires_grad=True)
            self._keep = _Keep.apply(empty, *(leaves[i] for i in self._at))  # type: ignore[no-untyped-call]
            for i in self._at:
                leaves[i] = None

    def given(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments for the forward."""
        assert self._given is not None
        return self._given

    def leaves(self) -> tuple[Any, ...]:
        """Return what is in the arguments, for the forward."""
        assert self._given is not None
        return self._given[0] if self._spec is None else tuple(tree_leaves(self._given))

    def let_go(self) -> None:
        """Forget what only the forward needs."""
        self._given = None

    def again(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """
        Return the arguments for a recompute.

        Raises:
            CheckpointMutationError: If one was changed since.
        """
        leaves = list(self._leaves)
        if self._keep is not None:
            assert self._keep.grad_fn is not None
            for i, tensor in zip(self._at, self._keep.grad_fn.saved_tensors):  # type: ignore[attr-defined]
                leaves[i] = tensor
        else:
            for number, (leaf, version) in enumerate(zip(leaves, self._versions)):
                if isinstance(leaf, torch.Tensor) and version_of(leaf) != version:
                    raise _changed(leaf, f"argument {number} of a checkpointed block")
        if self._spec is None:
            return tuple(leaves), {}
        args, kwargs = tree_unflatten(leaves, self._spec)
        return args, kwargs


class _Keep(torch.autograd.Function):
    """Keep tensors as autograd keeps them."""

    @staticmethod
    def forward(ctx: Any, empty: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*tensors)
        return empty.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        del ctx, grads
        msg = "nothing is to be derived by what a checkpoint keeps its arguments with"
        raise AssertionError(msg)


def _changed(tensor: torch.Tensor, what: str) -> CheckpointMutationError:
    kind = str(tensor.dtype).removeprefix("torch.")
    msg = (
        f"{what}, {list(tensor.shape)} {kind}, was changed in place between forward and "
        "backward, so that the recompute would start from other values. Change a copy of it, "
        "or change it after the backward."
    )
    return CheckpointMutationError(msg)
