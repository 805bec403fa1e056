"""What callers pass, checked, and made into what the operators take."""

from __future__ import annotations

import math
import operator
import os
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ctxcarry_kernels import _group
from ctxcarry_kernels._path import has_whole_rows, why_never_fused
from ctxcarry_kernels._plan import kept_words, scratch
from ctxcarry_kernels._settings import Settings

if TYPE_CHECKING:
    from typing import Literal

    from torch.distributed import ProcessGroup

__all__ = ("check_numbers", "check_tensors", "settings", "under_autocast")

_TYPES = (torch.bfloat16, torch.float16, torch.float32)
_CHECK = "CTXCARRY_CHECK_LABELS"


def check_tensors(hidden: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None) -> None:
    """
    Refuse tensors that do not belong together.

    Raises:
        TypeError: For something else than tensors, or types that do not match.
        ValueError: For shapes or devices that do not match.
    """
    given = {"hidden": hidden, "weight": weight, "labels": labels, "bias": bias}
    for name, tensor in given.items():
        if not isinstance(tensor, Tensor) and not (name == "bias" and tensor is None):
            msg = f"{name} must be a tensor, not {type(tensor).__name__}"
            raise TypeError(msg)
    if hidden.dtype not in _TYPES or weight.dtype is not hidden.dtype:
        msg = (
            "hidden and weight must both be bfloat16, float16 or float32; given "
            f"{hidden.dtype} and {weight.dtype}. Cast one of them, or use torch.autocast"
        )
        raise TypeError(msg)
    if labels.dtype not in {torch.int64, torch.int32}:
        msg = f"labels must be int64 or int32, not {labels.dtype}"
        raise TypeError(msg)
    if hidden.dim() < 1 or weight.dim() != 2 or weight.shape[1] != hidden.shape[-1]:  # noqa: PLR2004
        msg = (
            "hidden must be [..., H] and weight [V, H]; given "
            f"{list(hidden.shape)} and {list(weight.shape)}"
        )
        raise ValueError(msg)
    if labels.shape != hidden.shape[:-1]:
        msg = f"labels must be {list(hidden.shape[:-1])}, as hidden is; given {list(labels.shape)}"
        raise ValueError(msg)
    if weight.shape[0] == 0 or weight.shape[1] == 0:
        msg = f"weight must have at least one word and one feature; given {list(weight.shape)}"
        raise ValueError(msg)
    if bias is not None and (bias.shape != weight.shape[:1] or not bias.is_floating_point()):
        msg = (
            f"bias must be floating point and {list(weight.shape[:1])}, one for each word; given "
            f"{bias.dtype} and {list(bias.shape)}"
        )
        raise ValueError(msg)
    devices = {name: str(t.device) for name, t in given.items() if t is not None}
    if len(set(devices.values())) > 1:
        msg = f"all tensors must be on one device; given {devices}"
        raise ValueError(msg)


def check_numbers(temperature: float, softcap: float | None, reduction: str) -> None:
    """
    Refuse numbers that make no distribution.

    Raises:
        ValueError: With what was given and what is expected.
    """
    # Not `isfinite`: a number that is traced has none. NaN is not between anything.
    if not 0 < temperature < math.inf:
        msg = f"temperature must be finite and above 0; given {temperature}"
        raise ValueError(msg)
    if softcap is not None and not 0 < softcap < math.inf:
        msg = f"softcap must be finite and above 0, or None for none; given {softcap}"
        raise ValueError(msg)
    if reduction not in {"none", "sum", "mean"}:
        msg = f'reduction must be "none", "sum" or "mean"; given {reduction!r}'
        raise ValueError(msg)


def settings(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    head: Tensor,
    *,
    temperature: float,
    softcap: float | None,
    ignore_index: int,
    process_group: ProcessGroup | Literal[False] | None,
    vocab_start: int | None,
    memory_budget: float | None,
    deterministic: bool | None,
    return_entropy: bool,
) -> Settings:
    """
    Return what the operators take, for hidden [N, H].

    `head` is the weight as the caller has it, which is the same object from call to call.
    """
    words = weight.shape[0]
    group = _group_name(process_group)
    first = _first_word(group, vocab_start, head)
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    if os.environ.get(_CHECK, "0") != "0" and not torch.compiler.is_compiling():
        _check_labels(labels, ignore_index, first, words, group)
    needs_gradient = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    budget = _budget(memory_budget, hidden)
    kept = 0
    # With a cap E does not tell the logit well enough; without gradients nobody asks for it.
    fits = softcap is None and has_whole_rows(hidden)
    if needs_gradient and fits and _keeps(hidden.device, hidden.dtype):
        kept = kept_words(hidden.shape[0], words, hidden.element_size(), budget)
    return Settings(
        temperature=float(temperature),
        softcap=float(softcap or 0.0),
        ignore=int(ignore_index),
        first=first,
        group=group,
        entropy=return_entropy,
        kept=kept,
        skip_rows=not deterministic,
    )


def under_autocast(
    hidden: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the tensors in the type of the autocast region, if there is one, as a linear layer."""
    kind = hidden.device.type if isinstance(hidden, Tensor) else "cpu"
    # Compiled for a real device, which has it; not every torch can trace the question.
    if not (torch.compiler.is_compiling() or torch.amp.is_autocast_available(kind)):
        return hidden, weight, bias
    if not torch.is_autocast_enabled(kind):
        return hidden, weight, bias
    dtype = torch.get_autocast_dtype(kind)
    return hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator,unused-ignore]
def _keeps(device: torch.device, dtype: torch.dtype) -> bool:
    return why_never_fused(device, dtype) is None


def _group_name(group: ProcessGroup | Literal[False] | None) -> str:
    if group is False:
        return ""
    name = _ambient_name() if group is None else group.group_name
    return name if name and _size(name) > 1 else ""


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator,unused-ignore]
def _ambient_name() -> str:
    return _group.ambient_name()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator,unused-ignore]
def _size(name: str) -> int:
    return _group.resolve(name).size()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator,unused-ignore]
def _traced_start(name: str, given: int | None, words: int) -> int:
    return _group.shard_start(name, given, words)


def _first_word(group: str, given: int | None, weight: Tensor) -> int:
    if not group:
        return 0 if given is None else int(given)
    if torch.compiler.is_compiling():
        start: int = _traced_start(group, given, operator.index(weight.shape[0]))
        return start
    return _group.known_start(group, given, weight)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator,unused-ignore]
def _free_memory(index: int | None) -> int:
    free: int = torch.cuda.mem_get_info(index)[0]
    return free


def _budget(given: float | None, hidden: Tensor) -> int:
    if given is None:
        return scratch(hidden.shape[0], hidden.shape[1])
    if isinstance(given, bool) or not 0 <= given < math.inf:
        msg = (
            "memory_budget must be a number of bytes, a fraction of the free memory between 0 and "
            f"1, or None; given {given!r}"
        )
        raise ValueError(msg)
    if isinstance(given, float) and given < 1:
        return int(given * _free_memory(hidden.device.index)) if hidden.is_cuda else 0
    return int(given)


def _check_labels(labels: Tensor, ignore: int, first: int, words: int, group: str) -> None:
    """Raise ValueError for a label that no rank has; waits for the device."""
    end = first + words
    if group:
        end = _group.total_words(group, words, labels.device)
        first = 0
    wrong = labels[(labels != ignore) & ((labels < first) | (labels >= end))]
    if wrong.numel():
        some = sorted(set(wrong.tolist()))[:8]
        msg = f"labels must be from {first} to {end - 1}, or ignore_index {ignore}; given {some}"
        raise ValueError(msg)
