"""The words divided over the ranks of a process group: who has which, and one result of all."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ctxcarry import process_groups

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = (
    "ambient_name",
    "gather",
    "known_start",
    "reduce_sum",
    "resolve",
    "shard_start",
    "total_words",
)


def ambient_name() -> str:
    """Return the name of the ambient ``tp`` group, or "" if there is none."""
    return process_groups.current("tp").group_name if "tp" in process_groups.roles() else ""


def resolve(name: str) -> dist.ProcessGroup:
    """Return the group of this name."""
    found: dist.ProcessGroup = import_module(
        "torch.distributed.distributed_c10d"
    )._resolve_process_group(name)
    return found


_known: Any = WeakTensorKeyDictionary()


def known_start(name: str, given: int | None, weight: Tensor) -> int:
    """
    Return what `shard_start` says, which is asked once for each weight.

    Kept with the weight, which ranks have in step with one another, and not with its
    size: of two heads, one may have the same size on this rank and not on another.
    """
    group, words = resolve(name), weight.shape[0]
    known = _known.get(weight)
    if known is None or known[0] is not group or known[1:3] != (given, words):
        known = _known[weight] = (group, given, words, shard_start(name, given, words))
    start: int = known[3]
    return start


def shard_start(name: str, given: int | None, words: int) -> int:
    """
    Return the first word of this rank, for which all ranks must ask at the same time.

    Args:
        name: Of the group.
        given: The first word of this rank as its caller knows it, or None: then the
            shards follow one another in the order of ranks.
        words: Number of words of this rank.

    Raises:
        ValueError: On every rank, when the shards overlap or leave words out.
    """
    group = resolve(name)
    told: list[Any] = [None] * group.size()
    dist.all_gather_object(told, (given, words), group=group)
    if any(start is None for start, _ in told):
        if any(start is not None for start, _ in told):
            _refuse(told, "vocab_start is given on some ranks and not on others")
        return sum(count for _, count in told[: group.rank()])
    expected = 0
    for start, count in sorted(told):
        if start != expected:
            holders = "two ranks" if start < expected else "no rank"
            _refuse(told, f"word {min(start, expected)} is on {holders}")
        expected = start + count
    assert given is not None
    return given


def _refuse(told: list[Any], why: str) -> None:
    shards = "; ".join(
        f"rank {rank}: {count} words from {'?' if start is None else start}"
        for rank, (start, count) in enumerate(told)
    )
    msg = f"the shards of the vocabulary do not add up, {why}. Given: {shards}"
    raise ValueError(msg)


def gather(packed: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return ``packed`` of all ranks, in their order, along a new first dimension."""
    rows, columns = packed.shape
    everyone = packed.new_empty((group.size() * rows, columns))
    # Its name from torch 2.13 on, which warns of the older one.
    collective: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    collective(everyone, packed.contiguous(), group=group)
    return everyone.view(group.size(), rows, columns)


def reduce_sum(total: Tensor, group: dist.ProcessGroup) -> Callable[[], object]:
    """Start to add up `total` over the ranks in place; what is returned waits for it."""
    work = dist.all_reduce(total, group=group, async_op=True)
    return work.wait if work is not None else lambda: None


def total_words(name: str, words: int, device: torch.device) -> int:
    """Return the number of words of all ranks, who must all ask."""
    total = torch.tensor(words, device=device)
    dist.all_reduce(total, group=resolve(name))
    return int(total)
