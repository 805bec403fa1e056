"""What all boundaries that can be patched have in common."""

from __future__ import annotations

from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any

from ctxcarry._bind import Carried
from ctxcarry._capture import capture_with
from ctxcarry._default import registry
from ctxcarry._policy import policy_of
from ctxcarry._proxy import CarriedFunction
from ctxcarry._tell import tell
from ctxcarry.boundaries._handed import is_handed

if TYPE_CHECKING:
    from collections.abc import Callable

    from ctxcarry._snapshot import Snapshot
    from ctxcarry.boundaries._patch import Patch

__all__ = ("Boundary", "is_decorated")


class Boundary:
    """
    A place where work moves, and the patches that make it carry.

    Args:
        for_decorated: Whether callables are handed over here at all.
        patches: Called once, when the boundary is first used; returns the
            patches. Their replacements ask `snapshot_for` what to hand over.
        lacking: Returns why the boundary cannot be patched here, or None.

    Attributes:
        decorated: Whether callables under `ctxcarry.carry_context` are carried.
        everything: Whether every callable is.
    """

    def __init__(
        self,
        patches: Callable[[], tuple[Patch, ...]],
        *,
        for_decorated: bool = True,
        lacking: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._make = patches
        self.lacking = lacking
        self._for_decorated = for_decorated
        self._patches: tuple[Patch, ...] | None = None
        self.decorated = False
        self.everything = False

    def use(self, *, decorated: bool, everything: bool) -> None:
        """Say whom the boundary serves; put the patches on or take them off accordingly."""
        self.decorated, self.everything = decorated and self._for_decorated, everything
        if self.decorated or everything:
            if self._patches is None:
                reason = self.lacking()
                if reason is not None:
                    tell(f"a boundary cannot be installed: {reason}")
                self._patches = self._make() if reason is None else ()
            for patch in self._patches:
                patch.put_on()
        else:
            for patch in self._patches or ():
                patch.take_off()

    def snapshot_for(self, fn: Callable[..., Any]) -> Snapshot | None:
        """Take the snapshot to hand `fn` over with; None when it is not ours to carry."""
        decorated = is_decorated(fn)
        if not self.everything and not (decorated and self.decorated):
            return None
        if type(fn) is Carried or is_handed(fn):
            return None
        if type(fn) is partial and any(type(argument) is Carried for argument in fn.args):
            return None  # asyncio.to_thread has put `Context.run` around it
        plan = registry.plan(policy_of(fn) if decorated else None)
        return None if plan.empty else capture_with(plan)

    def bound(self, fn: Any) -> Any:
        """Return `fn` bound to the snapshot to hand it over with, or as it is."""
        if not callable(fn):
            return fn
        snapshot = self.snapshot_for(fn)
        return fn if snapshot is None else Carried(snapshot, fn)


def is_decorated(fn: Any) -> bool:
    """Say whether `fn` is under `ctxcarry.carry_context`, or a partial or method of one that is."""
    while type(fn) is partial:
        fn = fn.func
    if type(fn) is MethodType:
        fn = fn.__func__
    return isinstance(fn, CarriedFunction)
