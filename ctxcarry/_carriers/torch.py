"""Torch's thread-local state: grad mode, inference mode, autocast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ctxcarry._carrier import MISSING, UNCHANGED, CarrierBase
from ctxcarry._carriers._flag import FlagCarrier, SettableFlagCarrier
from ctxcarry._wire import boolean
from ctxcarry.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ctxcarry._carrier import Carrier

__all__ = ("AutocastCarrier", "GradModeCarrier", "InferenceModeCarrier", "carriers", "unavailable")


def carriers() -> Iterator[tuple[Carrier, tuple[str, ...]]]:
    """Yield each carrier with the names that it comes after."""
    lacking = unavailable()
    # Entering inference mode switches grad mode off.
    for cls, after in (
        (InferenceModeCarrier, ()),
        (GradModeCarrier, ("torch.inference_mode",)),
        (AutocastCarrier, ()),
    ):
        if cls.name not in lacking:
            yield cls(), after


def unavailable() -> dict[str, str]:
    """Return what this torch lacks, each with the reason."""
    lacking = {name: [n for n in names if not _has(n)] for name, names in _NEEDED.items()}
    return {
        name: f"torch {torch.__version__} has no {', '.join(missing)}"
        for name, missing in lacking.items()
        if missing
    }


class GradModeCarrier(SettableFlagCarrier):
    """Whether autograd records, as set by ``torch.no_grad`` and its like."""

    name = "torch.grad_mode"
    default = True

    def __init__(self) -> None:
        super().__init__(torch.is_grad_enabled, torch._C._set_grad_enabled)


class InferenceModeCarrier(FlagCarrier):
    """``torch.inference_mode``, with the dispatch keys that it changes."""

    name = "torch.inference_mode"
    default = False

    def __init__(self) -> None:
        self.capture = torch.is_inference_mode_enabled
        self.swap = _InferenceSwap()

    def apply(self, state: object) -> object:
        """Enter inference mode, or leave it for `MISSING`."""
        wanted = self.wanted(state)
        if torch.is_inference_mode_enabled() is wanted:
            return UNCHANGED
        guard: Any = torch._C._InferenceMode(wanted)
        guard.__enter__()
        return guard

    def undo(self, token: Any) -> None:
        """Leave what `apply` entered."""
        token.__exit__(None, None, None)


class _InferenceSwap:
    """
    Inference mode for a body that pauses: a guard around each step.

    Torch has no setter, only a guard, which keeps all dispatch keys of its
    thread and brings them back as a whole when it ends. One that outlived the
    step would wipe out what its thread has entered since; one that ended on
    another thread would do so there.
    """

    def begin(self, enabled: bool) -> Any:  # noqa: FBT001 - a captured state
        """Enter a guard, whatever the mode is outside."""
        return self.resume((enabled, False))

    def resume(self, inside: tuple[bool, bool]) -> Any:
        """Enter a guard, with forward-mode AD as the body left it in inference mode."""
        enabled, forward_inside = inside
        # The guard sets these three too, and they are others' to carry or leave.
        grad, forward = torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled()
        threads = torch._C._is_multithreading_enabled()
        guard: Any = torch._C._InferenceMode(enabled)
        guard.__enter__()
        torch._C._set_grad_enabled(grad)
        torch._C._set_fwd_grad_enabled(forward_inside if enabled else forward)
        torch._C._set_multithreading_enabled(threads)
        return guard

    def pause(self, guard: Any) -> tuple[bool, bool]:
        """End the guard; return the mode that the body leaves."""
        inside = torch.is_inference_mode_enabled(), torch._C._is_fwd_grad_enabled()
        guard.__exit__(None, None, None)
        return inside


class AutocastCarrier(CarrierBase):
    """
    Autocast for every device type: enabled, dtype, weight cache and nesting.

    Read as a whole only inside a region of ``torch.autocast`` (enabled or not)
    or while it is enabled otherwise, since all of it takes 2 µs. So what
    ``torch.set_autocast_dtype`` and ``torch.set_autocast_cache_enabled`` set
    outside of any region stays on the thread that set it.
    """

    name = "torch.autocast"
    captures_anew = True

    def __init__(self) -> None:
        # Asking for an unknown device type is an error that differs by version.
        available = torch.amp.autocast_mode.is_autocast_available
        self._types = tuple(t for t in _DEVICE_TYPES if available(t))
        dtypes = [(t, torch.get_autocast_dtype(t)) for t in self._types]
        self._default = (0, True, tuple((t, False, dtype) for t, dtype in dtypes))
        types = self._types
        any_enabled = getattr(torch._C, "_is_any_autocast_enabled", None) or (
            lambda: any(torch.is_autocast_enabled(t) for t in types)
        )
        increment, decrement = torch.autocast_increment_nesting, torch.autocast_decrement_nesting
        caches = torch.is_autocast_cache_enabled

        def capture() -> object:
            # Torch has no getter for the nesting; a step up and down gives it.
            increment()
            nesting = decrement()
            if not nesting and not any_enabled():
                return MISSING
            enabled, dtype = torch.is_autocast_enabled, torch.get_autocast_dtype
            return nesting, caches(), tuple((t, enabled(t), dtype(t)) for t in types)

        self.capture = capture

    def apply(self, state: object) -> object:
        """Make autocast as in `state`, or off everywhere for `MISSING`."""
        before = self.capture()
        if before == state:
            return UNCHANGED
        self.undo(state)
        return before

    def peek(self) -> object:
        """Return all of it."""
        return self.capture()

    def token_for(self, state: object) -> object:
        """Return `state`: it holds nothing that could be changed."""
        return state

    def undo(self, token: object) -> None:
        """Bring autocast back; leaving the outermost region drops its weight cache."""
        nesting, caches, types = token if isinstance(token, tuple) else self._default
        left = torch.autocast_increment_nesting() - 1
        for _ in range(left + 1, nesting):
            torch.autocast_increment_nesting()
        for _ in range(nesting, left + 1):
            torch.autocast_decrement_nesting()
        if nesting == 0 and left > 0:
            # As autocast.__exit__ does: the copies go stale with the next optimizer step.
            torch.clear_autocast_cache()
        for device_type, enabled, dtype in types:
            torch.set_autocast_enabled(device_type, enabled)
            torch.set_autocast_dtype(device_type, dtype)
        torch.set_autocast_cache_enabled(caches)

    def dump(self, state: Any) -> object:
        """Return nesting, cache flag, and by device type what is not the default."""
        nesting, caches, types = state
        changed = {
            t: [enabled, str(dtype).removeprefix("torch.")]
            for (t, enabled, dtype), default in zip(types, self._default[2])
            if (t, enabled, dtype) != default
        }
        return [nesting, caches, changed]

    def load(self, payload: Any) -> object:
        """Return the state with torch's dtypes."""
        if not isinstance(payload, list) or len(payload) != 3:  # noqa: PLR2004
            msg = "it is not a list of nesting, cache flag and device types"
            raise WireError(msg)
        nesting, caches, changed = payload
        if (
            type(nesting) is not int
            or not 0 <= nesting <= _DEEPEST
            or not isinstance(changed, dict)
        ):
            msg = f"{nesting!r} and {changed!r} are not a depth of nesting and a map"
            raise WireError(msg)
        types = {t: (enabled, dtype) for t, enabled, dtype in self._default[2]}
        for device_type, entry in changed.items():
            if not isinstance(entry, list) or len(entry) != 2:  # noqa: PLR2004
                msg = f"{entry!r} is not a list of a flag and a dtype"
                raise WireError(msg)
            if device_type in types:
                types[device_type] = boolean(entry[0]), _dtype(entry[1])
        return nesting, boolean(caches), tuple((t, *values) for t, values in types.items())

    def describe(self, state: object) -> str:
        """Name the device types and dtypes."""
        if not isinstance(state, tuple):
            return "off"
        nesting, caches, types = state
        on = [f"{t} {str(d).removeprefix('torch.')}" for t, enabled, d in types if enabled]
        cache = "on" if caches else "off"
        return f"{', '.join(on) or 'off'}; nesting {nesting}; weight cache {cache}"


_DEEPEST = 1000


def _dtype(name: str) -> torch.dtype:
    # Not getattr: torch imports modules of its own for names that it lacks.
    dtype = vars(torch).get(name) if isinstance(name, str) else None
    if not isinstance(dtype, torch.dtype):
        msg = f"torch has no dtype {name!r}"
        raise WireError(msg)
    return dtype


_DEVICE_TYPES = ("cpu", "cuda", "xpu", "mps", "hpu", "mtia", "maia", "xla", "ipu", "privateuseone")

_NEEDED = {
    "torch.inference_mode": (
        "is_inference_mode_enabled",
        "_C._InferenceMode",
        "_C._is_fwd_grad_enabled",
        "_C._set_fwd_grad_enabled",
        "_C._is_multithreading_enabled",
        "_C._set_multithreading_enabled",
    ),
    "torch.grad_mode": ("is_grad_enabled", "_C._set_grad_enabled"),
    "torch.autocast": (
        "autocast_decrement_nesting",
        "autocast_increment_nesting",
        "clear_autocast_cache",
        "get_autocast_dtype",
        "is_autocast_cache_enabled",
        "is_autocast_enabled",
        "set_autocast_cache_enabled",
        "set_autocast_dtype",
        "set_autocast_enabled",
        "amp.autocast_mode.is_autocast_available",
    ),
}


def _has(path: str) -> bool:
    found: object = torch
    for part in path.split("."):
        found = getattr(found, part, None)
    return found is not None
