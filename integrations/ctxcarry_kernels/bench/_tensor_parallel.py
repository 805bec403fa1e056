"""The words divided over ranks: the same result as one rank, and how long it takes."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from ctxcarry_kernels import linear_cross_entropy
from ctxcarry_kernels.bench._candidates import Candidate
from ctxcarry_kernels.bench._inputs import Inputs, Size, make
from ctxcarry_kernels.bench._peers import UnavailableError, verl
from ctxcarry_kernels.bench._timing import free, milliseconds_together

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ("Check", "Parallel", "ParallelRow", "measure_parallel")

_CALLS = 10
_LOGPROB_LIMIT = 1e-4
_GRADIENT_LIMIT = 1e-2  # bf16 has 8 bits


@dataclass
class ParallelRow:
    """The times of one candidate on the slowest rank, or why there are none."""

    name: str
    ours: bool = False
    forward_ms: float | None = None
    forward_backward_ms: float | None = None
    error: str = ""
    rounds: dict[str, list[float]] = field(default_factory=dict)


@dataclass
class Check:
    """
    How far the ranks are from one that has all words.

    Attributes:
        name: How the words are divided.
        ok: Whether they agree, and all ranks have the same, to the bit.
        logprob_difference: Largest absolute difference of any rank.
        entropy_difference: The same.
        dhidden_difference: Relative; 1 where the ranks' sum is made twice.
        dweight_difference: Relative, of a rank's own words.
    """

    name: str
    ok: bool
    logprob_difference: float
    entropy_difference: float
    dhidden_difference: float
    dweight_difference: float


@dataclass
class Parallel:
    """What the ranks measured at one size."""

    size: Size
    ranks: int
    backend: str
    rows: list[ParallelRow]
    checks: list[Check]


def measure_parallel(size: Size, ranks: int, *, peers: bool, rounds: int) -> Parallel:
    """
    Start the ranks, and return what they measure.

    With a GPU for each rank they talk through NCCL, or else through gloo, on one GPU or
    on the CPU.

    Args:
        size: How much there is to do; each rank has its part of the words.
        ranks: Number of ranks.
        peers: Whether to measure verl's kernel, too.
        rounds: How often each has its turn.
    """
    with tempfile.TemporaryDirectory() as folder:
        arguments = (ranks, folder, tuple(size), peers, rounds)
        spawn(_rank, arguments, nprocs=ranks)  # type: ignore[no-untyped-call,unused-ignore]
        found = json.loads((Path(folder) / "found.json").read_text("utf-8"))
    return Parallel(
        size,
        ranks,
        found["backend"],
        [ParallelRow(**row) for row in found["rows"]],
        [Check(**check) for check in found["checks"]],
    )


def _rank(rank: int, ranks: int, folder: str, size: tuple[int, int, int], *rest: Any) -> None:
    peers, rounds = rest
    # The multicast of NVLink needs a set-up of the host that a benchmark must not rely on.
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    if sys.platform == "linux":
        # All ranks are here, and the name of the host may not be known.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    cards = torch.cuda.device_count()
    device = "cuda" if cards else "cpu"
    backend = "nccl" if cards >= ranks else "gloo"
    if cards:
        torch.cuda.set_device(rank % cards)
    else:
        torch.set_num_threads(max(1, torch.get_num_threads() // ranks))
    dist.init_process_group(
        backend,
        init_method=(Path(folder) / "store").as_uri(),
        rank=rank,
        world_size=ranks,
        device_id=torch.device("cuda", rank) if backend == "nccl" else None,
    )
    try:
        checks = [_check(name, words, device) for name, words in _divisions(ranks)]
        rows = _time_all(Size(*size), device, peers=peers, rounds=rounds)
        if rank == 0:
            found = {
                "backend": backend,
                "checks": [asdict(check) for check in checks],
                "rows": [asdict(row) for row in rows],
            }
            (Path(folder) / "found.json").write_text(json.dumps(found), "utf-8")
        dist.barrier()
    finally:
        dist.destroy_process_group()


def _divisions(ranks: int) -> list[tuple[str, list[int]]]:
    """Return how to divide words for a check: no count is on one rank twice."""
    uneven = [520 + 264 * rank for rank in range(ranks)]
    return [("even", [512] * ranks), ("uneven", uneven)]


def _check(name: str, words: list[int], device: str) -> Check:
    group = dist.group.WORLD
    rank = dist.get_rank()
    inputs = make(Size(300, 256, sum(words)), device)
    ends = torch.tensor(words, device=device).cumsum(0)
    # The first and the last word of each rank is a label of some token.
    inputs.labels[: len(words)] = ends - 1
    inputs.labels[len(words) : 2 * len(words)] = ends - torch.tensor(words, device=device)
    alone = Candidate("alone", lambda h, w, t: linear_cross_entropy(h, w, t, process_group=False))
    start = sum(words[:rank])
    part = slice(start, start + words[rank])
    mine = inputs._replace(weight=inputs.weight.detach()[part].clone().requires_grad_())
    together = Candidate(
        "together", lambda h, w, t: linear_cross_entropy(h, w, t, process_group=group)
    )
    expected, found = _results(alone, inputs), _results(together, mine)
    expected[3] = expected[3][part]
    differences = [_furthest(found[i], expected[i]) for i in (0, 1)]
    differences += [_relative(found[i], expected[i]) for i in (2, 3)]
    same = all(_same_everywhere(result) for result in found[:3])
    worst = torch.tensor([*differences, 0.0 if same else 1.0], device=device)
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    *of_all, differs = worst.tolist()
    limits = [_LOGPROB_LIMIT] * 2 + [_GRADIENT_LIMIT] * 2
    ok = not differs and all(each <= limit for each, limit in zip(of_all, limits))
    return Check(f"{name}: {', '.join(map(str, words))} words", ok, *of_all)


def _results(candidate: Candidate, inputs: Inputs) -> list[Tensor]:
    logprobs, entropy = candidate.forward(inputs)
    assert entropy is not None
    gradients = candidate.backward(inputs, logprobs, entropy)
    return [logprobs.detach(), entropy.detach(), *gradients]


def _furthest(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max())


def _relative(found: Tensor, expected: Tensor) -> float:
    return float((found.float() - expected.float()).norm() / expected.float().norm())


def _same_everywhere(result: Tensor) -> bool:
    first = result.clone()
    dist.broadcast(first, 0)
    return torch.equal(first, result)


def _time_all(size: Size, device: str, *, peers: bool, rounds: int) -> list[ParallelRow]:
    """Measure each candidate with an equal part of the words, which verl's kernel needs."""
    ranks = dist.get_world_size()
    inputs = make(size._replace(words=size.words // ranks), device)
    # Labels are of all words.
    generator = torch.Generator(device).manual_seed(1)
    every = size.words // ranks * ranks
    labels = torch.randint(0, every, (size.tokens,), device=device, generator=generator)
    inputs = inputs._replace(labels=labels)
    candidates = [_ours(0), _ours(None), *([_verl()] if peers else [])]
    product = ParallelRow(f"{'cuBLAS' if device == 'cuda' else 'torch.mm'}: one rank's logits")
    rows = [ParallelRow(c.name, c.ours, error=c.error) for c in candidates]
    hidden, weight = inputs.hidden.detach(), inputs.weight.detach()
    for _ in range(rounds):
        free(device)
        _record(product, "forward", partial(torch.mm, hidden, weight.t()), device)
        for candidate, row in zip(candidates, rows):
            if row.error:
                continue
            free(device)
            _record(row, "forward", partial(candidate.forward, inputs), device)
            _record(row, "forward_backward", partial(candidate.forward_backward, inputs), device)
    for row in (product, *rows):
        if not row.error:
            row.forward_ms = _median(row, "forward")
            row.forward_backward_ms = _median(row, "forward_backward")
    return [product, *rows]


def _ours(budget: int | None) -> Candidate:
    group = dist.group.WORLD

    def call(hidden: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, Tensor | None]:
        return linear_cross_entropy(
            hidden, weight, labels, process_group=group, memory_budget=budget
        )

    name = "default budget" if budget is None else f"budget {budget}"
    return Candidate(f"ctxcarry, {name}", call, ours=True)


def _verl() -> Candidate:
    # verl leaves the sum over ranks to its caller; ours makes it, so add it for verl.
    name = "verl Triton, dX summed"
    try:
        kernel = verl(dist.group.WORLD)
    except UnavailableError as error:
        return Candidate(name, None, error=str(error))
    except Exception as error:  # noqa: BLE001 - whatever a foreign package raises
        return Candidate(name, None, error=f"{type(error).__name__}: {error}")
    return _Summed(name, kernel)


class _Summed(Candidate):
    """One whose gradient of hidden is of a rank's own words only."""

    def backward(
        self, inputs: Inputs, logprobs: Tensor, entropy: Tensor | None
    ) -> tuple[Tensor, ...]:
        """Make the gradients, and add up that of hidden over the ranks."""
        dhidden, dweight = super().backward(inputs, logprobs, entropy)
        dist.all_reduce(dhidden)
        return dhidden, dweight


def _record(row: ParallelRow, name: str, run: Callable[[], object], device: str) -> None:
    try:
        took = milliseconds_together(run, device, _CALLS)
    except Exception as error:  # noqa: BLE001 - whatever a foreign kernel raises
        # On all ranks alike: they have the same shapes.
        row.error = f"{type(error).__name__}: {error}".split("\n", 1)[0][:300]
        return
    row.rounds.setdefault(name, []).append(took)


def _median(row: ParallelRow, name: str) -> float | None:
    times = sorted(row.rounds.get(name, ()))
    return times[len(times) // 2] if times else None
