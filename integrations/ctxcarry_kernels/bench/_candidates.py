"""What is measured: our kernel with one budget after another, and the peers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ctxcarry_kernels import linear_cross_entropy
from ctxcarry_kernels._plan import kept_words, scratch
from ctxcarry_kernels.bench._peers import PEERS, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from ctxcarry_kernels.bench._inputs import Inputs, Size

    Call = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor | None]]

__all__ = ("DEFAULT_BUDGETS", "Candidate", "check_budget", "load_peers", "ours")

DEFAULT_BUDGETS = ("0", "default", "all")
_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_AMOUNT = re.compile(r"(\d+)|(\d+(?:\.\d+)?) ?(KiB|MiB|GiB)")


@dataclass(frozen=True)
class Candidate:
    """
    One way to have logprob and entropy.

    Attributes:
        name: What its row is called.
        call: From hidden, weight and labels to logprob and entropy, or None with `error`.
        ours: Whether it is ours.
        error: Why it cannot be measured, or "".
    """

    name: str
    call: Call | None
    ours: bool = False
    error: str = ""

    def forward(self, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
        """Make logprob and entropy."""
        assert self.call is not None
        return self.call(inputs.hidden, inputs.weight, inputs.labels)

    def forward_backward(self, inputs: Inputs) -> tuple[Tensor, ...]:
        """Make them, and the gradients of hidden and weight."""
        return self.backward(inputs, *self.forward(inputs))

    def backward(
        self, inputs: Inputs, logprobs: Tensor, entropy: Tensor | None
    ) -> tuple[Tensor, ...]:
        """Make the gradients of hidden and weight."""
        outputs, gradients = [logprobs], [inputs.dlogprobs.to(logprobs.dtype)]
        if entropy is not None:
            outputs.append(entropy)
            gradients.append(inputs.dentropy.to(entropy.dtype))
        return torch.autograd.grad(outputs, [inputs.hidden, inputs.weight], gradients)


def check_budget(text: str) -> None:
    """
    Refuse what is no budget.

    Raises:
        ValueError: With what is expected.
    """
    if text not in {"default", "all"} and not _AMOUNT.fullmatch(text):
        msg = (
            f'{text!r} is no budget: bytes, with KiB, MiB or GiB if you like, "default" or "all", '
            "such as 0 or 2.3GiB"
        )
        raise ValueError(msg)


def ours(size: Size, budgets: Sequence[str]) -> list[Candidate]:
    """Return our kernel with each budget; of budgets that come to the same, the first."""
    found: dict[int, Candidate] = {}
    for text in budgets:
        budget = _bytes(text, size)
        room = scratch(size.tokens, size.hidden) if budget is None else budget
        kept = kept_words(size.tokens, size.words, 2, room)
        candidate = Candidate(f"ctxcarry, {_name(text, room)}", _our_call(budget), ours=True)
        found.setdefault(kept, candidate)
    return list(found.values())


def load_peers() -> list[Candidate]:
    """Return every peer; one that does not load says why."""
    loaded = []
    for name, load in PEERS.items():
        try:
            loaded.append(Candidate(name, load()))
        except UnavailableError as error:
            loaded.append(Candidate(name, None, error=str(error)))
        except Exception as error:  # noqa: BLE001 - whatever a foreign package raises
            loaded.append(Candidate(name, None, error=f"{type(error).__name__}: {error}"))
    return loaded


def _our_call(budget: int | None) -> Call:
    def call(hidden: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, Tensor | None]:
        return linear_cross_entropy(
            hidden, weight, labels, memory_budget=budget, process_group=False
        )

    return call


def _bytes(text: str, size: Size) -> int | None:
    if text == "default":
        return None
    if text == "all":
        return size.all_of_e
    match = _AMOUNT.fullmatch(text)
    assert match is not None
    number, unit = match[1] or match[2], match[3] or ""
    return int(float(number) * _UNITS[unit])


def _name(text: str, room: int) -> str:
    if text in {"default", "all"}:
        return (
            f"{text} ({room / (1 << 30):.1f} GiB)" if room >> 30 else f"{text} ({room >> 20} MiB)"
        )
    return f"budget {text}"
