"""The carriers of frameworks: registered when their framework is imported, before or after us."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Final

from ctxcarry._imports import when_imported
from ctxcarry.errors import CtxCarryWarning

if TYPE_CHECKING:
    from ctxcarry._registry import Registry

__all__ = ("CATALOG", "KNOWN", "follow_imports")

CATALOG: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    # the module whose import makes the contexts exist: (its carriers' file, their names)
    "torch": (
        "ctxcarry._carriers.torch",
        ("torch.inference_mode", "torch.grad_mode", "torch.autocast"),
    ),
    "torch.distributed.device_mesh": ("ctxcarry._carriers.device_mesh", ("torch.device_mesh",)),
    "triton": ("ctxcarry._carriers.triton", ("triton.allocator", "triton.profile_allocator")),
    "spmd_types": ("ctxcarry._carriers.spmd_types", ("spmd_types.state",)),
}

KNOWN: Final = frozenset(name for _, names in CATALOG.values() for name in names)


def follow_imports(registry: Registry) -> None:
    """Register the catalog's carriers with `registry` now or when their frameworks come."""
    for module, (file, names) in CATALOG.items():

        def load(file: str = file, names: tuple[str, ...] = names) -> None:
            _load(registry, file, names)

        when_imported(module, load)


def _load(registry: Registry, file: str, names: tuple[str, ...]) -> None:
    try:
        source = import_module(file)
        for carrier, after in source.carriers():
            registry.register(carrier, after=after)
        lacking: dict[str, str] = source.unavailable()
    except Exception as error:  # noqa: BLE001 - must not break `import torch`; told, and kept for doctor
        lacking = dict.fromkeys(names, f"{type(error).__name__}: {error}")
        present = {carrier.name for carrier in registry.carriers()}
        lacking = {name: reason for name, reason in lacking.items() if name not in present}
        warnings.warn(
            f"{', '.join(lacking)} cannot be carried: {error!r}. `ctxcarry doctor` tells more",
            CtxCarryWarning,
            stacklevel=2,
        )
    for name, reason in lacking.items():
        registry.mark_unavailable(name, reason)
