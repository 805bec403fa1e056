"""
What keeps the compiler of ``torch.compile`` away from a function of ours.

The only file that touches this part of torch. `torch.compiler.disable` does the same,
but imports the whole compiler, into every process that runs a backward pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("leave_to_interpreter",)


def leave_to_interpreter(fn: Callable[..., Any], *, whole: bool = False) -> None:
    """
    Have `fn` never compiled.

    Where this torch has no way to say so, the compiler finds out for itself, warns,
    and leaves the function to the interpreter.

    Args:
        fn: A function of ours.
        whole: Whether what it calls is not compiled either.
    """
    frames: Any = getattr(torch._C._dynamo, "eval_frame", None)
    needed = ("set_code_exec_strategy", "_FrameExecStrategy", "_FrameAction")
    if all(hasattr(frames, name) for name in needed):
        action = frames._FrameAction
        within = action.SKIP if whole else action.DEFAULT
        frames.set_code_exec_strategy(fn.__code__, frames._FrameExecStrategy(action.SKIP, within))
