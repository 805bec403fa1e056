"""What the modes for a forward and for its recompute have in common."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from ctxcarry_checkpoint._private import never_compiled

__all__ = ("BlockMode",)


class BlockMode(TorchDispatchMode):  # type: ignore[no-untyped-call,unused-ignore]
    """A dispatch mode around a block, which adds as little as it can to each operator."""

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)  # type: ignore[no-untyped-call,unused-ignore]
        if "__torch_dispatch__" in cls.__dict__:
            # Torch 2.11 compiles it where it runs what is compiled within the block.
            cls.__torch_dispatch__ = never_compiled(cls.__torch_dispatch__)  # type: ignore[method-assign]

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call,unused-ignore]

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let what is compiled within the block run as it is."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Not by a call around each operator."""
        return False
