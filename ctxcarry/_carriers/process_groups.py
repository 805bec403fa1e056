"""Carry the groups of `ctxcarry.process_groups`."""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any

from ctxcarry._carrier import GONE
from ctxcarry._carriers.context_vars import ContextVarCarrier
from ctxcarry._constant import these
from ctxcarry.errors import NotPortableError, WireError
from ctxcarry.process_groups import variable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
        groups = _groups()
        return {role: groups.dump_group(group) for role, group in state.items()}

    def load(self, payload: Any) -> Any:
        """Return the groups of this process that have these names and ranks."""
        groups = _groups()
        if not isinstance(payload, dict):
            msg = f"{payload!r} is not a map of roles"
            raise WireError(msg)
        return MappingProxyType(
            {role: groups.find_group(f"{self.name}: {role}", g) for role, g in payload.items()}
        )

    def dumps_alike(self, state: Any) -> Callable[[Any], bool]:
        """Say whether the roles have the same groups."""
        roles, are_these = tuple(state), these(state.values())
        return lambda other: tuple(other) == roles and are_these(other.values())

    def loads_again(self, payload: Any, state: Any) -> Callable[[], object] | None:
        """Return the same groups, as long as they go by their names."""
        again = _groups().groups_again
        names = [payload[role]["name"] for role in state]
        found, roles = again(names, state.values()), tuple(state)
        if found is None:
            return None

        def load() -> object:
            groups = found()
            return GONE if groups is GONE else MappingProxyType(dict(zip(roles, groups)))

        return load

    def describe(self, state: Any) -> str:
        """Name the roles and sizes."""
        if not isinstance(state, MappingProxyType) or not state:
            return "not set"
        return ", ".join(f"{role} of {group.size()} ranks" for role, group in state.items())


def _groups() -> ModuleType:
    # Imported here: threads need nothing of torch.distributed.
    try:
        return import_module("ctxcarry._carriers._groups")
    except ImportError as cause:
        msg = f"torch.distributed cannot be imported: {cause}"
        raise NotPortableError(msg) from cause
