"""The default registry, with the standard library's contexts and those of the catalog."""

from __future__ import annotations

from ctxcarry._carriers.context_vars import ContextVarsCarrier
from ctxcarry._catalog import KNOWN, follow_imports
from ctxcarry._registry import Registry

__all__ = ("default_registry", "load_entry_points", "registry")

registry = Registry(known=KNOWN)
registry.register(ContextVarsCarrier())
follow_imports(registry)


def default_registry() -> Registry:
    """Return the registry of this process, which stands for that of any other."""
    return registry


def load_entry_points() -> tuple[str, ...]:
    """
    Register the carriers that installed packages offer.

    A package offers one with an entry point in the group ``ctxcarry.carriers``
    that names a carrier, or a function that returns one. Nothing scans for them
    but this function and the command line.

    Returns:
        The names registered now. A carrier that is registered already is left.

    Raises:
        CarrierError: If an entry point cannot be loaded, naming it.
    """
    from importlib.metadata import entry_points  # noqa: PLC0415 - takes longer than all of ctxcarry

    from ctxcarry.errors import CarrierError  # noqa: PLC0415

    names: list[str] = []
    for point in entry_points(group="ctxcarry.carriers"):
        try:
            loaded = point.load()
            carrier = (
                loaded if hasattr(loaded, "capture") and not isinstance(loaded, type) else loaded()
            )
            if carrier.name not in {present.name for present in registry.carriers()}:
                registry.register(carrier)
                names.append(carrier.name)
        except Exception as cause:
            raise CarrierError(point.name, "load", f"{type(cause).__name__}: {cause}") from cause
    return tuple(names)
