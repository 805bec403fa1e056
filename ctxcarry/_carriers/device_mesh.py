"""The ``with device_mesh:`` stack of torch. The only file that touches ``_mesh_resources``."""

from __future__ import annotations

import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ctxcarry._carrier import MISSING, UNCHANGED, CarrierBase
from ctxcarry._constant import these
from ctxcarry._states import same_state
from ctxcarry.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ctxcarry._carrier import Carrier

__all__ = ("DeviceMeshCarrier", "carriers", "unavailable")

_MODULE, _LOCAL, _FIELD = "torch.distributed.device_mesh", "_mesh_resources", "mesh_stack"


def carriers() -> Iterator[tuple[Carrier, tuple[str, ...]]]:
    """Yield the carrier, where torch has what it needs."""
    if not unavailable():
        yield DeviceMeshCarrier(getattr(import_module(_MODULE), _LOCAL)), ()


def unavailable() -> dict[str, str]:
    """Return why the stack cannot be carried, if it cannot."""
    local = getattr(import_module(_MODULE), _LOCAL, None)
    if isinstance(local, threading.local) and isinstance(getattr(local, _FIELD, None), list):
        return {}
    return {
        DeviceMeshCarrier.name: f"{_MODULE}.{_LOCAL} is no threading.local with a list {_FIELD!r} "
        "in this torch, or torch.distributed is not built in"
    }


class DeviceMeshCarrier(CarrierBase):
    """The stack that ``with device_mesh:`` pushes to (pytorch#159014)."""

    name = "torch.device_mesh"
    captures_anew = True

    def __init__(self, local: Any) -> None:
        self._local = local

        def capture() -> object:
            stack = local.mesh_stack
            return tuple(stack) if stack else MISSING

        # A closure, since this runs for every task: `self._local` would cost a third more.
        self.capture = capture

    def apply(self, state: object) -> object:
        """Give this thread a stack of its own with these meshes; return the former."""
        before: list[Any] = self._local.mesh_stack
        meshes = state if isinstance(state, tuple) else ()
        if same_state(tuple(before), meshes):
            return UNCHANGED
        self._local.mesh_stack = list(meshes)
        return before

    def peek(self) -> object:
        """Return the stack itself."""
        return self._local.mesh_stack

    def token_for(self, state: object) -> object:
        """Return a stack of its own with these meshes."""
        return list(state) if isinstance(state, tuple) else []

    def undo(self, token: object) -> None:
        """Put the former stack back."""
        self._local.mesh_stack = token

    def dump(self, state: Any) -> object:
        """Return each mesh by its ranks and the names of its dimensions."""
        from ctxcarry._carriers._groups import dump_mesh  # noqa: PLC0415 - for processes only

        return [dump_mesh(mesh) for mesh in state]

    def load(self, payload: Any) -> object:
        """Return the meshes of this process that are like them."""
        from ctxcarry._carriers._groups import find_mesh  # noqa: PLC0415

        if not isinstance(payload, list) or not payload:
            msg = f"{payload!r} is not a list of meshes"
            raise WireError(msg)
        return tuple(find_mesh(self.name, mesh) for mesh in payload)

    def dumps_alike(self, state: Any) -> Callable[[Any], bool]:
        """Say whether the same meshes are on the stack."""
        return these(state)

    def loads_again(self, payload: Any, state: Any) -> Callable[[], object]:  # noqa: ARG002
        """Return the same meshes, as long as they are there in this world."""
        from ctxcarry._carriers._groups import meshes_again  # noqa: PLC0415

        return meshes_again(self.name, payload)

    def describe(self, state: object) -> str:
        """Name the dimensions of the innermost mesh."""
        if not isinstance(state, tuple):
            return "not set"
        mesh = state[-1]
        return (
            f"{mesh.mesh_dim_names or 'unnamed'} of shape {tuple(mesh.shape)}, depth {len(state)}"
        )
