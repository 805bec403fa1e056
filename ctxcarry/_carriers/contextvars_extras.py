"""Carry a registry of contextvars-extras under a name of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ctxcarry._carriers.context_vars import VariablesCarrier

if TYPE_CHECKING:
    from contextvars import ContextVar

__all__ = ("ContextVarsRegistryCarrier",)


class ContextVarsRegistryCarrier(VariablesCarrier):
    """
    Carry the variables of a ``contextvars_extras.ContextVarsRegistry``.

    Unset variables come back as unset. (The library's own
    ``restore_context_vars_registry`` leaves a sentinel in them, which a plain
    ``ContextVar.get`` then returns.)

    Args:
        registry: An instance of the registry, or the class.
        name: Name of the carrier; ``"contextvars_extras:<class name>"`` unless given.

    Raises:
        TypeError: If `registry` is something else.
    """

    def __init__(self, registry: Any, name: str | None = None) -> None:
        # Imported here: it takes longer than all of ctxcarry.
        from contextvars_extras import ContextVarsRegistry  # noqa: PLC0415

        cls: Any = registry if isinstance(registry, type) else type(registry)
        if not issubclass(cls, ContextVarsRegistry) or cls is ContextVarsRegistry:
            msg = (
                "ContextVarsRegistryCarrier carries a subclass of "
                f"contextvars_extras.ContextVarsRegistry or an instance of one, not {registry!r}"
            )
            raise TypeError(msg)

        def variables() -> tuple[ContextVar[Any], ...]:
            # The registry adds variables as attributes are assigned.
            return tuple(d.context_var for d in cls._registry_var_descriptors.values())

        super().__init__(f"contextvars_extras:{cls.__name__}" if name is None else name, variables)
        self.registry = cls
