"""Torch's own current process group. The only file that touches ``torch.distributed._dist2``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import ref

from torch._C import _distributed_c10d as c10d

from ctxcarry._carrier import GONE, MISSING, CarrierBase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ctxcarry._carrier import Carrier

__all__ = ("ProcessGroupCarrier", "carriers", "unavailable")


def carriers() -> Iterator[tuple[Carrier, tuple[str, ...]]]:
    """Yield the carrier, where torch has what it needs."""
    if not unavailable():
        yield ProcessGroupCarrier(), ()


def unavailable() -> dict[str, str]:
    """Return why the group cannot be carried, if it cannot."""
    missing = [n for n in ("_current_process_group", "_set_process_group") if not hasattr(c10d, n)]
    if not missing:
        return {}
    reason = f"this torch has no {', '.join(missing)}: it came with torch.distributed._dist2"
    return {ProcessGroupCarrier.name: reason}


class ProcessGroupCarrier(CarrierBase):
    """The group of ``torch.distributed._dist2.process_group``, thread-local in C++."""

    name = "torch.process_group"
    default = None

    def __init__(self) -> None:
        self.capture = c10d._current_process_group
        self.put = c10d._set_process_group

    def apply(self, state: object) -> object:
        """Make the group current, or none for `MISSING`."""
        before = c10d._current_process_group()
        group: Any = None if state is MISSING else state
        c10d._set_process_group(group)
        return before

    def undo(self, token: Any) -> None:
        """Make the former group current."""
        c10d._set_process_group(token)

    def dump(self, state: Any) -> object:
        """Return the group's name and global ranks."""
        from ctxcarry._carriers._groups import dump_group  # noqa: PLC0415 - for processes only

        return dump_group(state)

    def load(self, payload: Any) -> object:
        """Return the group of this process that has them."""
        from ctxcarry._carriers._groups import find_group  # noqa: PLC0415

        return find_group(self.name, payload)

    def dumps_alike(self, state: Any) -> Callable[[object], bool]:
        """Say whether it is the same group."""
        reference = ref(state)
        return lambda other: other is reference()

    def loads_again(self, payload: Any, state: Any) -> Callable[[], object] | None:
        """Return the same group, as long as it goes by its name."""
        from ctxcarry._carriers._groups import groups_again  # noqa: PLC0415

        found = groups_again([payload["name"]], [state])
        if found is None:
            return None

        def load() -> object:
            groups = found()
            return GONE if groups is GONE else groups[0]

        return load

    def describe(self, state: object) -> str:
        """Name the group and its size."""
        if state is None or state is MISSING:
            return "not set"
        return f"{getattr(state, 'group_name', '')} of {state.size()} ranks"  # type: ignore[attr-defined]
