"""The carriers of frameworks: registered when their framework is imported, before or after us."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from ctxcarry._imports import when_imported
from ctxcarry._tell import tell
from ctxcarry.errors import CtxCarryError

if TYPE_CHECKING:
    from ctxcarry._registry import Registry

__all__ = ("CATALOG", "ENGINES_OWN", "KNOWN", "follow_imports", "import_framework_of")

# The module whose import makes the contexts exist, the file of their carriers, their names.
CATALOG: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    ("torch", "torch", ("torch.inference_mode", "torch.grad_mode", "torch.autocast")),
    (
        "torch",
        "torch_modes",
        ("torch.default_device", "torch.function_modes", "torch.dispatch_modes"),
    ),
    ("torch", "torch_autograd", ("torch.saved_tensors_hooks", "torch.multithreading")),
    ("torch", "torch_cuda", ("torch.cuda_device", "torch.cuda_stream")),
    ("torch.distributed.device_mesh", "device_mesh", ("torch.device_mesh",)),
    ("torch.distributed._dist2", "torch_process_group", ("torch.process_group",)),
    ("ctxcarry.process_groups", "process_groups", ("process_groups",)),
    ("triton", "triton", ("triton.allocator", "triton.profile_allocator")),
    ("spmd_types", "spmd_types", ("spmd_types.state",)),
    ("torchtitan.distributed.spmd_types", "torchtitan", ("torchtitan.mesh",)),
)

ENGINES_OWN: Final = frozenset(
    {
        "torch.grad_mode",
        "torch.inference_mode",
        "torch.autocast",
        "torch.dispatch_modes",
        "torch.saved_tensors_hooks",
        "torch.multithreading",
        "torch.cuda_device",
        "torch.cuda_stream",
    }
)
"""What the autograd engine sets for each node itself, and a checkpoint for its recompute."""

KNOWN: Final = frozenset(name for _, _, names in CATALOG for name in names)


def follow_imports(registry: Registry) -> None:
    """Register the catalog's carriers with `registry` now or when their frameworks come."""
    for module, file, names in CATALOG:

        def load(file: str = f"ctxcarry._carriers.{file}", names: tuple[str, ...] = names) -> None:
            _load(registry, file, names)

        when_imported(module, load)


def import_framework_of(name: str) -> bool:
    """Import the framework that the context `name` belongs to; say whether it is there."""
    for module, _, names in CATALOG:
        if name in names:
            try:
                import_module(module)
            except ImportError:
                return False
            return True
    return False


def _load(registry: Registry, file: str, names: tuple[str, ...]) -> None:
    """Register what `file` offers. Nothing here may break the import of a framework."""
    lacking: dict[str, str] = {}
    try:
        source = import_module(file)
        lacking.update(source.unavailable())
        for carrier, after in source.carriers():
            try:
                registry.register(carrier, after=after)
            except (CtxCarryError, ValueError) as error:
                lacking[carrier.name] = f"{type(error).__name__}: {error}"
                _tell(carrier.name, error)
    except Exception as error:  # noqa: BLE001 - told, and kept for doctor and for whoever asks
        rest = [n for n in names if n not in lacking and registry.get(n) is None]
        lacking.update(dict.fromkeys(rest, f"{type(error).__name__}: {error}"))
        _tell(", ".join(rest), error)
    for name, reason in lacking.items():
        if registry.get(name) is not None:  # somebody's own carrier took the name
            continue
        registry.mark_unavailable(name, reason)


def _tell(names: str, error: Exception) -> None:
    tell(f"{names} cannot be carried: {error!r}. `ctxcarry doctor` tells more")
