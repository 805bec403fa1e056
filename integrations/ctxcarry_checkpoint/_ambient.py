"""What torch's own state was in the forward: random numbers and autocast."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch.utils.checkpoint import get_device_states, set_device_states

__all__ = ("Ambient", "clear_autocast_cache")


class Ambient:
    """
    The state of the generators and of autocast, as it was when this was made.

    Grad mode is not here, since a recompute has it on, nor what carriers bring along.

    Args:
        leaves: What is in the arguments of the checkpoint: the generators of their devices
            count.
        preserve_rng_state: Whether random numbers are to be the same again.
    """

    __slots__ = ("_autocast", "_cpu_state", "_device_states", "_device_type", "_devices")

    def __init__(self, leaves: tuple[Any, ...], *, preserve_rng_state: bool) -> None:
        self._device_type = _device_type(leaves)
        self._cpu_state: torch.Tensor | None = None
        self._devices: list[int] = []
        self._device_states: list[torch.Tensor] = []
        if preserve_rng_state:
            self._cpu_state = torch.get_rng_state()
            if self._device_type is not None and _initialized(self._device_type):
                self._devices, self._device_states = get_device_states(*leaves)
                if not self._devices:
                    self._devices, self._device_states = _current_state(self._device_type)
        self._autocast = [_autocast_of(kind) for kind in self._kinds()]

    @property
    def casts(self) -> bool:
        """Say whether autocast is on."""
        return any(state["enabled"] for state in self._autocast)

    def _kinds(self) -> list[str]:
        kinds = [kind for kind in (self._device_type, "cpu") if kind is not None]
        return [kind for kind in kinds if torch.amp.is_autocast_available(kind)]

    def again(self) -> _Again:
        """Bring it back for a recompute; the generators go on afterwards where they were."""
        return _Again(self)


class _Again:
    """Enters only what is needed: a recompute on the CPU without autocast is short."""

    __slots__ = ("_ambient", "_cpu_state", "_stack")

    def __init__(self, ambient: Ambient) -> None:
        self._ambient = ambient
        self._cpu_state: torch.Tensor | None = None
        self._stack: ExitStack | None = None

    def __enter__(self) -> None:
        ambient = self._ambient
        others = [each for each in ambient._autocast if each != _autocast_of(each["device_type"])]
        if ambient._devices or others:
            with ExitStack() as stack:
                if ambient._devices:
                    kind = ambient._device_type or "cuda"
                    fork = torch.random.fork_rng(devices=ambient._devices, device_type=kind)
                    stack.enter_context(fork)
                    set_device_states(ambient._devices, ambient._device_states, device_type=kind)
                for state in others:
                    stack.enter_context(torch.autocast(**state))
                self._stack = stack.pop_all()
        if ambient._cpu_state is not None:
            self._cpu_state = torch.get_rng_state()
            torch.set_rng_state(ambient._cpu_state)
        clear_autocast_cache()

    def __exit__(self, *_: object) -> None:
        # What is cast in here has a graph that nobody else may use.
        clear_autocast_cache()
        if self._cpu_state is not None:
            torch.set_rng_state(self._cpu_state)
        if self._stack is not None:
            self._stack.close()


def clear_autocast_cache() -> None:
    """
    Forget which weights were cast already.

    Else a block casts a weight that an earlier block has cast only in its recompute, and
    is not the same again (pytorch#193338).
    """
    torch.clear_autocast_cache()


def _autocast_of(kind: str) -> dict[str, Any]:
    return {
        "device_type": kind,
        "enabled": torch.is_autocast_enabled(kind),
        "dtype": torch.get_autocast_dtype(kind),
        "cache_enabled": torch.is_autocast_cache_enabled(),
    }


def _device_type(leaves: tuple[Any, ...]) -> str | None:
    """Return the type of the first device that is not the CPU, or of the one in use."""
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and leaf.device.type not in {"cpu", "meta"}:
            return leaf.device.type
    ready: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call,unused-ignore]
    return "cuda" if ready else None


def _current_state(kind: str) -> tuple[list[int], list[torch.Tensor]]:
    module = torch.get_device_module(kind)
    return [module.current_device()], [module.get_rng_state()]


def _initialized(kind: str) -> bool:
    module = getattr(torch, kind, None)
    return module is not None and bool(getattr(module, "_initialized", False))
