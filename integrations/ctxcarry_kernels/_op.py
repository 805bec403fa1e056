"""
The operators ``ctxcarry_kernels::forward`` and ``backward``, for whoever traces or intercepts.

They are what ``torch.compile``, export, and dispatch modes (a selective checkpoint's
policy, say) see. Where nobody looks, `ctxcarry_kernels._function` does without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ctxcarry_kernels import _compute
from ctxcarry_kernels._settings import Settings

if TYPE_CHECKING:
    from ctxcarry_kernels._results import Results

__all__ = ("apply", "differentiate")

_TENSORS = "Tensor hidden, Tensor weight, Tensor? bias, Tensor labels"
_NUMBERS = (
    "float temperature, float softcap, int ignore, int first, str group, bool with_entropy, "
    "SymInt kept, bool skip_rows"
)
_RESULTS = "Tensor logp, Tensor entropy, Tensor lse, Tensor x, Tensor e, Tensor top"


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
    return _compute.forward(hidden, weight, bias, labels, Settings(*numbers))


@_forward.register_fake
def _fake_forward(hidden: Tensor, *others: Any) -> Results:
    return _compute.empty_results(hidden, Settings(*others[3:]))


@torch.library.custom_op(
    "ctxcarry_kernels::backward",
    mutates_args=(),
    schema=(
        f"({_TENSORS}, {_RESULTS}, Tensor dlogp, Tensor? dentropy, bool[] needed, {_NUMBERS})"
        " -> (Tensor, Tensor, Tensor)"
    ),
)
def _backward(*args: Any) -> tuple[Tensor, ...]:
    made = _compute.backward(args[:10], args[10:12], args[12], Settings(*args[13:]), consume=False)
    return _some(made, args[0])


@_backward.register_fake
def _fake_backward(*args: Any) -> tuple[Tensor, ...]:
    made = (torch.empty_like(t) if n else None for t, n in zip(args[:3], args[12]))
    return _some(made, args[0])


def _some(gradients: Any, like: Tensor) -> tuple[Tensor, ...]:
    """Return something for each: an operator has no optional results."""
    return tuple(like.new_empty(0) if gradient is None else gradient for gradient in gradients)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
    ctx.save_for_backward(*inputs[:4], *output)
    ctx.numbers = inputs[4:]
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[2:])


def _differentiate(ctx: Any, dlogp: Tensor | None, dentropy: Tensor | None, *_: Any) -> Any:
    gradients = differentiate(ctx, dlogp, dentropy, Settings(*ctx.numbers))
    return *gradients, None, *((None,) * len(ctx.numbers))


def differentiate(
    ctx: Any, dlogp: Tensor | None, dentropy: Tensor | None, s: Settings
) -> tuple[Tensor | None, ...]:
    """
    Return the gradients of hidden, weight and bias, by the operator.

    Args:
        ctx: With hidden, weight, bias, labels and all results saved.
        dlogp: Gradient of the logprob, or None.
        dentropy: Gradient of the entropy, or None.
        s: The numbers of the call.
    """
    todo = _compute.asked(ctx, dlogp, dentropy, s)
    if todo is None:
        return None, None, None
    tensors, gradients, needed = todo
    made = torch.ops.ctxcarry_kernels.backward(*tensors, *gradients, needed, *s)
    return tuple(gradient if n else None for gradient, n in zip(made, needed))


def _no_second_derivative(*_: Any) -> Any:
    msg = (
        "linear_cross_entropy has no second derivative: its backward was run with "
        "create_graph=True, and that graph is now differentiated. Use the plain formula, "
        "log_softmax(hidden @ weight.T), for the tokens that need it"
    )
    raise RuntimeError(msg)


_forward.register_autograd(_differentiate, setup_context=_keep)
_backward.register_autograd(_no_second_derivative)
