"""What one call asks for, apart from its tensors."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ("LOG2_E", "Settings")

LOG2_E = 1.4426950408889634


class Settings(NamedTuple):
    """
    The numbers of one call.

    Attributes:
        temperature: What the logits are divided by, after `softcap`.
        softcap: c of ``c * tanh(logit / c)``, or 0 for none.
        ignore: The label of tokens without a logprob.
        first: The word that the first row of the weight stands for.
        group: The name of the process group that the words are divided over, or "".
        entropy: Whether the entropy is asked for.
        kept: For how many words the forward keeps E.
        skip_rows: Whether the backward may leave out rows without a gradient.
    """

    temperature: float
    softcap: float
    ignore: int
    first: int
    group: str
    entropy: bool
    kept: int
    skip_rows: bool

    @property
    def scale(self) -> float:
        """From a logit to its x: over the temperature, and to the base 2."""
        return LOG2_E / self.temperature
