"""Carry the groups of `ctxcarry.process_groups`."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ctxcarry._carriers.context_vars import ContextVarCarrier
from ctxcarry.process_groups import variable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ctxcarry._carrier import Carrier

__all__ = ("ProcessGroupsCarrier", "carriers", "unavailable")


def carriers() -> Iterator[tuple[Carrier, tuple[str, ...]]]:
    """Yield the carrier."""
    yield ProcessGroupsCarrier(variable, "process_groups"), ()


def unavailable() -> dict[str, str]:
    """Return what is lacking: nothing, the context is ctxcarry's own."""
    return {}


class ProcessGroupsCarrier(ContextVarCarrier):
    """Process groups by role; in another process found again by name and global ranks."""

    pickles = False

    def dump(self, state: Any) -> Any:
        """Return the name and ranks of the group of each role."""
        # Imported here: threads need nothing of torch.distributed.
        from ctxcarry._carriers._groups import dump_group  # noqa: PLC0415

        return {role: dump_group(group) for role, group in state.items()}

    def load(self, payload: Any) -> Any:
        """Return the groups of this process that have these names and ranks."""
        from ctxcarry._carriers._groups import find_group  # noqa: PLC0415

        return MappingProxyType(
            {role: find_group(f"{self.name}: {role}", named) for role, named in payload.items()}
        )

    def describe(self, state: Any) -> str:
        """Name the roles and sizes."""
        if not isinstance(state, MappingProxyType) or not state:
            return "not set"
        return ", ".join(f"{role} of {group.size()} ranks" for role, group in state.items())
