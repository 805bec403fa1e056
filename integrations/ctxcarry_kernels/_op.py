"""
The operators ``ctxcarry_kernels::forward`` and ``backward``, as torch and its compiler see them.

Which path serves a call is decided here, and what is kept is freed here: E is overwritten
by the gradient where nobody can ask for it again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ctxcarry_kernels import _eager
from ctxcarry_kernels._path import fused_for
from ctxcarry_kernels._plan import padded, tiles
from ctxcarry_kernels._results import Gradients, Needed, Results
from ctxcarry_kernels._settings import Settings

__all__ = ("apply",)

_NUMBERS = (
    "float temperature, float softcap, int ignore, int first, str group, bool with_entropy, "
    "SymInt kept, bool skip_rows"
)
_TENSORS = "Tensor hidden, Tensor weight, Tensor? bias, Tensor labels"


def apply(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, s: Settings
) -> tuple[Tensor, Tensor]:
    """Return logprob and entropy, fp32 [N]; differentiable once."""
    logp, entropy, *_ = torch.ops.ctxcarry_kernels.forward(hidden, weight, bias, labels, *s)
    return logp, entropy


@torch.library.custom_op(
    "ctxcarry_kernels::forward",
    mutates_args=(),
    schema=f"({_TENSORS}, {_NUMBERS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _forward(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, *numbers: Any
) -> Results:
    s = Settings(*numbers)
    if hidden.shape[0] == 0:
        return _empty(hidden, s)
    fused = fused_for(hidden, weight)
    path: Any = _eager if fused is None else fused
    results: Results = path.forward(hidden, weight, bias, labels, s)
    return results


@_forward.register_fake
def _empty_forward(hidden: Tensor, *others: Any) -> Results:
    return _empty(hidden, Settings(*others[3:]))


def _empty(hidden: Tensor, s: Settings) -> Results:
    n = hidden.shape[0]
    rows = [hidden.new_empty((n,), dtype=torch.float32) for _ in range(4)]
    e = hidden.new_empty((n, padded(s.kept)))[:, : s.kept]
    top = hidden.new_empty((tiles(s.kept), n), dtype=torch.float32)
    return rows[0], rows[1], rows[2], rows[3], e, top


_BACKWARD_TENSORS = (
    f"{_TENSORS}, Tensor logp, Tensor entropy, Tensor lse, Tensor x, Tensor e, Tensor top, "
    "Tensor dlogp, Tensor? dentropy"
)


@torch.library.custom_op(
    "ctxcarry_kernels::backward",
    mutates_args=(),
    schema=f"({_BACKWARD_TENSORS}, bool[] needed, {_NUMBERS}) -> (Tensor, Tensor, Tensor)",
)
def _backward(*args: Any) -> tuple[Tensor, ...]:
    return _some(_gradients(*args, consume=False), args[0])


@_backward.register_fake
def _empty_backward(*args: Any) -> tuple[Tensor, ...]:
    inputs = (args[0], args[1], args[2])
    return _some(
        tuple(torch.empty_like(t) if n else None for t, n in zip(inputs, args[12])), args[0]
    )


def _some(gradients: Any, like: Tensor) -> tuple[Tensor, ...]:
    """Return something for each: an operator has no optional results."""
    return tuple(like.new_empty(0) if gradient is None else gradient for gradient in gradients)


def _gradients(*args: Any, consume: bool) -> Gradients:
    hidden, weight, bias, labels = args[:4]
    results, gradients, needed = args[4:10], args[10:12], Needed(*args[12])
    s = Settings(*args[13:])
    if hidden.shape[0] == 0:
        zeros = (torch.zeros_like(t) if n else None for t, n in zip((hidden, weight, bias), needed))
        return tuple(zeros)  # type: ignore[return-value]
    fused = fused_for(hidden, weight)
    if fused is None:
        return _eager.backward(hidden, weight, bias, labels, results, gradients, s, needed)
    made: Gradients = fused.backward(
        hidden, weight, bias, labels, results, gradients, s, needed, consume=consume
    )
    return made


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
    ctx.save_for_backward(*inputs[:4], *output)
    ctx.numbers = inputs[4:]
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[2:])


def _differentiate(ctx: Any, dlogp: Tensor | None, dentropy: Tensor | None, *_: Any) -> Any:
    s = Settings(*ctx.numbers)
    no_more = (None,) * len(ctx.numbers)
    if dlogp is None and (dentropy is None or not s.entropy):
        return None, None, None, None, *no_more
    tensors = ctx.saved_tensors
    hidden, _, bias, _ = tensors[:4]
    dlogp = _plain(dlogp, hidden)
    if dentropy is not None:
        dentropy = _plain(dentropy, hidden) if s.entropy else None
    needed = list(ctx.needs_input_grad[:3])
    needed[2] = needed[2] and bias is not None
    args = (*tensors, dlogp, dentropy, needed, *ctx.numbers)
    # A tensor that is traced, or a graph that is kept, may be asked for again.
    if type(tensors[8]) is Tensor and not torch.is_grad_enabled() and not _graph_is_kept():
        return *_gradients(*args, consume=True), None, *no_more
    made = torch.ops.ctxcarry_kernels.backward(*args)
    return *(t if n else None for t, n in zip(made, needed)), None, *no_more


def _plain(gradient: Tensor | None, hidden: Tensor) -> Tensor:
    """Return a gradient as fp32 and contiguous; what was not asked for is 0."""
    if gradient is None:
        return hidden.new_zeros((hidden.shape[0],), dtype=torch.float32)
    return gradient.float().contiguous()


def _graph_is_kept() -> bool:
    """Say whether this pass was started with ``retain_graph=True``, or this torch cannot tell."""
    ask = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return ask is None or bool(ask())


def _no_second_derivative(*_: Any) -> Any:
    msg = (
        "linear_cross_entropy has no second derivative: its backward was run with "
        "create_graph=True, and that graph is now differentiated. Use the plain formula, "
        "log_softmax(hidden @ weight.T), for the tokens that need it"
    )
    raise RuntimeError(msg)


_forward.register_autograd(_differentiate, setup_context=_keep)
_backward.register_autograd(_no_second_derivative)
