"""
Process groups by their role, as ambient context.

    with process_groups.use(tp=tp_group, dp=dp_group):
        process_groups.current("tp")

Layers that need a group ask for its role instead of having it passed through.
The groups follow the work to other threads as ContextVars do, and to other
processes by name and global ranks: there they are looked up, never created.
"""

from __future__ import annotations

from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING

from ctxcarry._carrier import MISSING
from ctxcarry._undo import leak

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from types import TracebackType

    from torch.distributed import ProcessGroup

__all__ = ("current", "roles", "use")

# One variable for all roles, holding a mapping that is never changed: a variable
# made for each role would stay in every Context that ever saw it.
variable: ContextVar[Mapping[str, ProcessGroup]] = ContextVar(
    "ctxcarry.process_groups", default=MappingProxyType({})
)


class _Use:
    """
    What `use` returns.

    Not made with a Token, which cannot be reset in another Context, where a
    generator or a task may leave the block.
    """

    def __init__(self, groups: dict[str, ProcessGroup]) -> None:
        self._groups = groups
        self._entered: list[tuple[Mapping[str, ProcessGroup], Mapping[str, ProcessGroup]]] = []

    def __enter__(self) -> None:
        outer = variable.get()
        inner = MappingProxyType({**outer, **self._groups})
        self._entered.append((inner, outer))
        variable.set(inner)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        inner, outer = self._entered.pop()
        if variable.get() is inner:
            variable.set(outer)
            return
        roles = ", ".join(f"{role}=..." for role in self._groups)
        msg = (
            f"process_groups.use({roles}) is left where it was not entered: in another thread or "
            "task, or out of order. Enter and leave it in one place, with a `with` statement"
        )
        leak(msg, exc)


def use(**groups: ProcessGroup) -> AbstractContextManager[None]:
    """
    Make `groups` current by role inside a ``with`` block, over those of outer blocks.

    Args:
        **groups: A ``torch.distributed`` process group for each role, such as
            ``tp=`` or ``dp=``.

    Raises:
        TypeError: If a group is None (this rank may not be in it) or no group.
    """
    for role, group in groups.items():
        if group is None or not hasattr(group, "size") or not hasattr(group, "rank"):
            msg = (
                f"process_groups.use({role}=...) takes a torch.distributed process group, not "
                f"{group!r}; a rank outside a group leaves the role out"
            )
            raise TypeError(msg)
    return _Use(groups)


def current(role: str, default: object = MISSING) -> ProcessGroup:
    """
    Return the group that is current for `role`.

    Args:
        role: A name that was given to `use`.
        default: Returned when there is none; without it that is an error.

    Raises:
        LookupError: If no group is current for `role`.
    """
    groups = variable.get()
    group = groups.get(role, default)
    if group is MISSING:
        msg = (
            f"no process group is current for {role!r}. Current: {', '.join(groups) or 'none'}. "
            f"Enter `with ctxcarry.process_groups.use({role}=group):`, and carry it to where the "
            "work runs"
        )
        raise LookupError(msg)
    return group  # type: ignore[return-value]


def roles() -> tuple[str, ...]:
    """Return the roles for which a group is current."""
    return tuple(variable.get())
