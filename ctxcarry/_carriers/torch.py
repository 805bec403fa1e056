"""Torch's thread-local state: grad mode, inference mode, autocast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ctxcarry._carrier import MISSING, UNCHANGED, CarrierBase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ctxcarry._carrier import Carrier

__all__ = ("AutocastCarrier", "GradModeCarrier", "InferenceModeCarrier", "carriers", "unavailable")


def carriers() -> Iterator[tuple[Carrier, tuple[str, ...]]]:
    """Yield each carrier with the names that it comes after."""
    yield InferenceModeCarrier(), ()
    # Entering inference mode switches grad mode off.
    yield GradModeCarrier(), ("torch.inference_mode",)
    yield AutocastCarrier(), ()


def unavailable() -> dict[str, str]:
    """Return what this torch lacks: nothing, in the versions supported."""
    return {}


class GradModeCarrier(CarrierBase):
    """Whether autograd records, as set by ``torch.no_grad`` and its like."""

    name = "torch.grad_mode"
    default = True

    def __init__(self) -> None:
        # C functions, called for every task: methods around them would double the cost.
        self.capture = torch.is_grad_enabled
        self.put = torch._C._set_grad_enabled

    def apply(self, state: object) -> object:
        """Set grad mode; `MISSING` means enabled."""
        wanted = state is not False
        if torch.is_grad_enabled() is wanted:
            return UNCHANGED
        torch._C._set_grad_enabled(wanted)
        return not wanted

    def undo(self, token: object) -> None:
        """Set grad mode back."""
        torch._C._set_grad_enabled(bool(token))

    def dump(self, state: object) -> object:
        """Return the bool."""
        return state

    def load(self, payload: object) -> object:
        """Return the bool."""
        return payload is True

    def describe(self, state: object) -> str:
        """Say whether grad mode is enabled."""
        return "disabled" if state is False else "enabled"


class InferenceModeCarrier(CarrierBase):
    """``torch.inference_mode``, with the dispatch keys that it changes."""

    name = "torch.inference_mode"
    default = False

    def __init__(self) -> None:
        self.capture = torch.is_inference_mode_enabled

    def apply(self, state: object) -> object:
        """Enter inference mode, or leave it for `MISSING`."""
        wanted = state is True
        if torch.is_inference_mode_enabled() is wanted:
            return UNCHANGED
        guard = torch.inference_mode(wanted)
        guard.__enter__()
        return guard

    def undo(self, token: object) -> None:
        """Leave what `apply` entered."""
        assert isinstance(token, torch.inference_mode)
        token.__exit__(None, None, None)

    def dump(self, state: object) -> object:
        """Return the bool."""
        return state

    def load(self, payload: object) -> object:
        """Return the bool."""
        return payload is True

    def describe(self, state: object) -> str:
        """Say whether inference mode is enabled."""
        return "enabled" if state is True else "disabled"


class AutocastCarrier(CarrierBase):
    """
    Autocast for every device type: enabled, dtype, weight cache and nesting.

    Read as a whole only while autocast is enabled for some device, since all of
    it takes 2 µs. So a dtype set by ``torch.set_autocast_dtype`` while autocast
    is off everywhere stays where it was set.
    """

    name = "torch.autocast"
    default = MISSING

    def __init__(self) -> None:
        # Asking for an unknown device type is an error that differs by version.
        self._device_types = tuple(
            t for t in _DEVICE_TYPES if torch.amp.autocast_mode.is_autocast_available(t)
        )
        device_types = self._device_types
        any_enabled = getattr(torch._C, "_is_any_autocast_enabled", None) or (
            lambda: any(torch.is_autocast_enabled(t) for t in device_types)
        )

        def capture() -> object:
            if not any_enabled():
                return MISSING
            enabled = [t for t in device_types if torch.is_autocast_enabled(t)]
            dtypes = tuple((t, torch.get_autocast_dtype(t)) for t in enabled)
            return _nesting(), torch.is_autocast_cache_enabled(), dtypes

        self.capture = capture

    def apply(self, state: object) -> object:
        """Make autocast as in `state`, or off everywhere for `MISSING`."""
        nesting, cache, enabled = state if isinstance(state, tuple) else (0, None, ())
        before = self._full(types=[t for t, _ in enabled])
        now_enabled = dict(enabled)
        for device_type, was_enabled, _ in before[2]:
            if device_type in now_enabled:
                torch.set_autocast_dtype(device_type, now_enabled[device_type])
            if was_enabled is not (device_type in now_enabled):
                torch.set_autocast_enabled(device_type, not was_enabled)
        if cache is not None:
            torch.set_autocast_cache_enabled(cache)
        _set_nesting(nesting)
        return before

    def undo(self, token: Any) -> None:
        """Bring autocast back; leaving the outermost region drops its weight cache."""
        nesting, cache, types = token
        left_nesting = _nesting()
        _set_nesting(nesting)
        if nesting == 0 and left_nesting > 0:
            # As autocast.__exit__ does: the copies go stale with the next optimizer step.
            torch.clear_autocast_cache()
        for device_type, enabled, dtype in types:
            torch.set_autocast_enabled(device_type, enabled)
            torch.set_autocast_dtype(device_type, dtype)
        torch.set_autocast_cache_enabled(cache)

    def dump(self, state: Any) -> object:
        """Return nesting, cache flag, and the dtypes by name."""
        nesting, cache, enabled = state
        return [nesting, cache, {t: str(dtype).removeprefix("torch.") for t, dtype in enabled}]

    def load(self, payload: Any) -> object:
        """Return the state with torch's dtypes."""
        nesting, cache, enabled = payload
        dtypes = tuple((t, getattr(torch, dtype)) for t, dtype in enabled.items())
        return int(nesting), bool(cache), dtypes

    def describe(self, state: object) -> str:
        """Name the device types and dtypes."""
        if not isinstance(state, tuple):
            return "off"
        nesting, cache, enabled = state
        on = ", ".join(f"{t} {str(dtype).removeprefix('torch.')}" for t, dtype in enabled)
        return f"{on}; nesting {nesting}; weight cache {'on' if cache else 'off'}"

    def _full(self, types: list[str]) -> tuple[int, bool, list[tuple[str, bool, Any]]]:
        """Return nesting, cache flag and the state of `types` and of all that is enabled."""
        touched = [
            (t, torch.is_autocast_enabled(t), torch.get_autocast_dtype(t))
            for t in self._device_types
            if t in types or torch.is_autocast_enabled(t)
        ]
        return _nesting(), torch.is_autocast_cache_enabled(), touched


_DEVICE_TYPES = ("cpu", "cuda", "xpu", "mps", "hpu", "mtia", "maia", "xla", "ipu", "privateuseone")


def _nesting() -> int:
    # Torch has no getter; a pair of steps up and down gives the depth.
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return depth


def _set_nesting(depth: int) -> None:
    now = _nesting()
    for _ in range(now, depth):
        torch.autocast_increment_nesting()
    for _ in range(depth, now):
        torch.autocast_decrement_nesting()
