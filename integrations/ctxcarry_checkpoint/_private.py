"""What torch keeps behind private names, each with a check whether this torch has it."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch.utils import checkpoint as torch_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import ParamSpec

    P = ParamSpec("P")

T = TypeVar("T")

__all__ = (
    "IGNORED",
    "Hooks",
    "alias",
    "default_hooks",
    "detached",
    "detached_each",
    "direct",
    "keeps_graph",
    "lacking",
    "never_compiled",
    "sleep_on_cuda",
    "throw_on_data_pointer",
    "without_dynamo",
)

IGNORED: frozenset[Any] = frozenset(
    getattr(torch_checkpoint, "SAC_IGNORED_OPS", None)
    or {torch.ops.aten.detach.default, torch.ops.prim.device.default}
)
"""Operators that a checkpoint itself calls, in other numbers in forward and recompute."""

_keeps_graph: Callable[[], bool] | None = getattr(
    torch._C._autograd, "_get_current_graph_task_keep_graph", None
)
_top_hooks: Callable[[bool], Any] | None = getattr(
    torch._C._autograd, "_top_saved_tensors_default_hooks", None
)
_throw: Callable[[torch.Tensor], None] | None = getattr(
    torch._C, "_set_throw_on_mutable_data_ptr", None
)


@functools.cache
def lacking() -> str | None:
    """Return what this torch lacks of what a checkpoint needs, or None."""
    names = {
        "torch._C._autograd._get_current_graph_task_keep_graph": _keeps_graph,
        "torch._C._autograd._top_saved_tensors_default_hooks": _top_hooks,
        "torch._C._set_throw_on_mutable_data_ptr": _throw,
    }
    missing = [name for name, found in names.items() if found is None]
    return f"torch {torch.__version__} has no {', '.join(missing)}" if missing else None


class Hooks(NamedTuple):
    """The saved-tensor hooks around a checkpoint."""

    pack: Callable[[torch.Tensor], Any]
    unpack: Callable[[Any], torch.Tensor]


def default_hooks() -> Hooks | None:
    """Return the innermost saved-tensor hooks of this thread, or None."""
    assert _top_hooks is not None
    found = _top_hooks(False)
    return None if found is None else Hooks(*found[:2])


def keeps_graph() -> bool:
    """Say whether the backward pass that runs here keeps its graph for another one."""
    assert _keeps_graph is not None
    if torch._C._current_graph_task_id() == -1:
        # Not in a pass at all: somebody looks at a saved tensor, who may do so again.
        return True
    return _keeps_graph()


def throw_on_data_pointer(tensor: torch.Tensor) -> None:
    """Have an error raised where anybody asks for the address of the memory of `tensor`."""
    assert _throw is not None
    _throw(tensor)


def sleep_on_cuda(cycles: int) -> None:
    """Have the current stream of a CUDA device do nothing for some cycles, if torch can say so."""
    sleep = getattr(torch.cuda, "_sleep", None)
    if sleep is not None:
        sleep(cycles)


def direct(func: Any) -> Callable[..., Any]:
    """Return what calls an operator, past the method that only passes all on to it."""
    if type(func) is not torch._ops.OpOverload:
        return func  # type: ignore[no-any-return]
    return getattr(func, "_op", func)


def detached(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same memory without a graph, past all dispatch modes where that is right."""
    if type(tensor) is not torch.Tensor:
        return tensor.detach()
    with torch._C._DisableTorchDispatch():
        return tensor.detach()


def detached_each(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return what `detached` returns, of several tensors for the price of one."""
    with torch._C._DisableTorchDispatch():
        found = [t.detach() if type(t) is torch.Tensor else t for t in tensors]
    return [new.detach() if new is old else new for new, old in zip(found, tensors)]


def without_dynamo(function: Callable[P, T]) -> Callable[P, T]:
    """
    Return a function whose calls no compiler looks into.

    Dispatch modes usually have that around each operator. It matters only on a thread that
    runs a part of a compiled function which could not be compiled.
    """
    apart: Callable[P, T] = torch._disable_dynamo(function)  # type: ignore[attr-defined,unused-ignore]

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if _compiles_here():
            return apart(*args, **kwargs)
        return function(*args, **kwargs)

    return call


def never_compiled(function: Callable[P, T]) -> Callable[P, T]:
    """
    Return a function that no compiler looks into, nor into what it calls.

    Where torch can be told so of its code, that takes no time at each call.
    """
    frames: Any = torch._C._dynamo.eval_frame
    code = getattr(function, "__code__", None)
    names = "set_code_exec_strategy", "_FrameExecStrategy", "_FrameAction"
    if code is None or not all(hasattr(frames, name) for name in names):
        return without_dynamo(function)
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))
    return function


def _compiles_here() -> bool:
    if "torch._dynamo" not in sys.modules:
        return False
    asked = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", None)
    return asked is None or asked() is not None


def alias(tensor: torch.Tensor) -> torch.Tensor:
    """
    Return the same memory as another tensor, without a graph, sharing its version counter.

    Below autograd a plain ``detach()`` has a version counter of its own, which would not
    tell that the memory was written to.
    """
    with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False):
        return tensor.detach()
