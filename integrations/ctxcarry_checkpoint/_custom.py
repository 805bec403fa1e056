"""Policies that are functions of the user's, in the style of torch's selective checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.utils import checkpoint as torch_checkpoint

from ctxcarry_checkpoint._ops import Action
from ctxcarry_checkpoint._policy import Policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from ctxcarry_checkpoint._ops import Call
    from ctxcarry_checkpoint._policy import Decider

__all__ = ("Custom", "CustomContext", "PerForward", "label_of")

_TORCH_POLICY: type[Any] | None = getattr(torch_checkpoint, "CheckpointPolicy", None)


@dataclass(frozen=True)
class CustomContext:
    """
    What a function gets besides the call, under the names that torch has for it.

    Attributes:
        op_output: What the operator returned.
        is_recompute: False, since a recompute asks nobody: it does what the forward decided.
    """

    op_output: Any
    is_recompute: bool = False


@dataclass(frozen=True, repr=False, eq=False)
class Custom(Policy):
    """
    A function that decides about every call.

    Attributes:
        function: Takes a `CustomContext`, the overload, and the arguments of the call.
    """

    function: Callable[..., Any]

    @property
    def static(self) -> bool:
        """False: it may read whatever it likes."""
        return False

    def decide(self, call: Call) -> Action:
        """
        Return what the function says.

        Raises:
            TypeError: If it says nothing that stands for an action.
        """
        context = CustomContext(call.output)
        said = self.function(context, call.op, *call.args, **call.kwargs)
        action = _action_of(said)
        if action is None:
            msg = (
                f"the policy {label_of(self.function)} returned {said!r}, a "
                f"{type(said).__name__}, for {call.op}; it may return a CheckpointPolicy of "
                "torch's, an Action, or True to save and False to recompute"
            )
            raise TypeError(msg)
        return action

    def __repr__(self) -> str:
        return f"custom({label_of(self.function)})"


@dataclass(frozen=True, repr=False, eq=False)
class PerForward(Policy):
    """
    A function that makes a function for each forward, which may count.

    Attributes:
        make: Returns what a `Custom` takes.
    """

    make: Callable[[], Callable[..., Any]]

    @property
    def static(self) -> bool:
        """False: what it makes may read whatever it likes."""
        return False

    def start(self) -> Decider:
        """
        Return a new one.

        Raises:
            TypeError: If what it makes cannot be called.
        """
        made = self.make()
        if not callable(made):
            msg = (
                f"{label_of(self.make)} is called once for each forward and returns a policy "
                f"function; it returned {made!r}. Use custom({label_of(self.make)}) if it is "
                "the policy itself"
            )
            raise TypeError(msg)
        return Custom(made)

    def __repr__(self) -> str:
        return f"per_forward({label_of(self.make)})"


def label_of(function: Any) -> str:
    """Return the name of a function, that of the inner one of a partial."""
    inner = getattr(function, "func", function)
    return getattr(inner, "__qualname__", None) or type(inner).__qualname__


def _action_of(said: object) -> Action | None:
    if isinstance(said, Action):
        return said
    if isinstance(said, bool):
        return Action.SAVE if said else Action.RECOMPUTE
    if _TORCH_POLICY is not None and isinstance(said, _TORCH_POLICY):
        # By name, since those that offload are new in torch 2.11.
        kind = said.name.partition("_")[2]
        known = {"SAVE": Action.SAVE, "RECOMPUTE": Action.RECOMPUTE, "CPU_OFFLOAD": Action.OFFLOAD}
        return known.get(kind)
    return None
