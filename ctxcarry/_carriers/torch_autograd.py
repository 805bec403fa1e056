"""What torch's autograd keeps for each thread: saved-tensor hooks, its own threads on or off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ctxcarry._carrier import MISSING, CarrierBase, shorten
from ctxcarry._carriers._flag import SettableFlagCarrier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ctxcarry._carrier import Carrier

__all__ = ("MultithreadingCarrier", "SavedTensorsHooksCarrier", "carriers", "unavailable")

_autograd = torch._C._autograd


def carriers() -> Iterator[tuple[Carrier, tuple[str, ...]]]:
    """Yield each carrier that this torch has what it needs for."""
    lacking = unavailable()
    for cls in (SavedTensorsHooksCarrier, MultithreadingCarrier):
        if cls.name not in lacking:
            yield cls(), ()


def unavailable() -> dict[str, str]:
    """Return what this torch lacks, each with the reason."""
    needed: dict[str, tuple[Any, tuple[str, ...]]] = {
        SavedTensorsHooksCarrier.name: (
            _autograd,
            (
                "_push_saved_tensors_default_hooks",
                "_pop_saved_tensors_default_hooks",
                "_top_saved_tensors_default_hooks",
                "_saved_tensors_hooks_get_disabled_error_message",
            ),
        ),
        MultithreadingCarrier.name: (
            torch._C,
            ("_is_multithreading_enabled", "_set_multithreading_enabled"),
        ),
    }
    return {
        name: f"torch {torch.__version__} has no {', '.join(missing)}"
        for name, (module, names) in needed.items()
        if (missing := [n for n in names if not hasattr(module, n)])
    }


class SavedTensorsHooksCarrier(CarrierBase):
    """
    The innermost ``saved_tensors_hooks``, and whether hooks are disabled (pytorch#63623).

    Torch uses only the innermost pair, so that it is all there is to carry.
    """

    name = "torch.saved_tensors_hooks"
    captures_anew = True

    def __init__(self) -> None:
        top = _autograd._top_saved_tensors_default_hooks
        disabled = _autograd._saved_tensors_hooks_get_disabled_error_message

        def capture() -> object:
            # Ignoring the tracing flag: under it torch itself hides the hooks.
            hooks, message = top(False), disabled()
            return MISSING if hooks is None and message is None else (hooks, message)

        self.capture = capture

    def apply(self, state: object) -> object:
        """Replace the hooks on this thread by the pair of `state`, or by none."""
        before = self.peek()
        self.undo(self.token_for(state))
        return before

    def peek(self) -> object:
        """Return all pairs of hooks, the outermost first, and the message of `disable`."""
        message = _autograd._saved_tensors_hooks_get_disabled_error_message()
        _allow(None)
        pairs = []
        while (pair := _autograd._top_saved_tensors_default_hooks(False)) is not None:
            pairs.append(pair)
            _autograd._pop_saved_tensors_default_hooks()
        pairs.reverse()
        _push(pairs, message)
        return pairs, message

    def token_for(self, state: object) -> object:
        """Return what `peek` returns where `state` is current."""
        hooks, message = state if isinstance(state, tuple) else (None, None)
        return [] if hooks is None else [hooks], message

    def undo(self, token: Any) -> None:
        """Bring back the hooks that were there."""
        _allow(None)
        while _autograd._top_saved_tensors_default_hooks(False) is not None:
            _autograd._pop_saved_tensors_default_hooks()
        _push(*token)

    def describe(self, state: object) -> str:
        """Name the pack and unpack functions, or the message with which hooks are disabled."""
        if not isinstance(state, tuple):
            return "not set"
        hooks, message = state
        return shorten(hooks) if message is None else f"disabled: {message}"


class MultithreadingCarrier(SettableFlagCarrier):
    """``torch.autograd.set_multithreading_enabled``, which is thread-local."""

    name = "torch.multithreading"
    default = True

    def __init__(self) -> None:
        super().__init__(torch._C._is_multithreading_enabled, torch._C._set_multithreading_enabled)


def _push(pairs: list[Any], message: str | None) -> None:
    for pair in pairs:
        _autograd._push_saved_tensors_default_hooks(*pair)
    _allow(message)


def _allow(message: str | None) -> None:
    """Enable hooks, or disable them with `message`."""
    if message is None:
        _autograd._saved_tensors_hooks_enable()
    else:
        _autograd._saved_tensors_hooks_disable(message, False)
