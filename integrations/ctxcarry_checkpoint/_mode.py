"""What the modes for a forward and for its recompute have in common."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ("BlockMode",)


class BlockMode(TorchDispatchMode):  # type: ignore[no-untyped-call,unused-ignore]
    """A dispatch mode around a block, which adds as little as it can to each operator."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call,unused-ignore]

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let what is compiled within the block run as it is."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Not for each operator: `ctxcarry_checkpoint._frame` does so around the block."""
        return False
