"""TorchTitan's meshes. The only file that touches ``torchtitan.distributed.spmd_types``."""

from __future__ import annotations

import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ctxcarry._carrier import MISSING
from ctxcarry._carriers.thread_local import ThreadLocalCarrier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ctxcarry._carrier import Carrier

__all__ = ("TitanMeshCarrier", "carriers", "unavailable")

_MODULE, _LOCAL = "torchtitan.distributed.spmd_types", "_MESH_TLS"
_FIELDS = ("dense_mesh", "sparse_mesh", "mesh_stack")


def carriers() -> Iterator[tuple[Carrier, tuple[str, ...]]]:
    """Yield the carrier, where TorchTitan has what it needs."""
    if not unavailable():
        yield TitanMeshCarrier(getattr(import_module(_MODULE), _LOCAL)), ("spmd_types.state",)


def unavailable() -> dict[str, str]:
    """Return why the meshes cannot be carried, if they cannot."""
    if isinstance(getattr(import_module(_MODULE), _LOCAL, None), threading.local):
        return {}
    return {TitanMeshCarrier.name: f"{_MODULE}.{_LOCAL} is no threading.local in this TorchTitan"}


class TitanMeshCarrier(ThreadLocalCarrier):
    """
    The registered dense and sparse mesh, and the stack of current ones.

    Without them ``spmd_mesh_size("tp")`` is 1, without an error.
    """

    name = "torchtitan.mesh"

    def __init__(self, local: threading.local) -> None:
        super().__init__(local, name=self.name, fields=_FIELDS)
        capture_all = super().capture

        def capture() -> object:
            # Most threads have nothing here, and this runs for every task. Asking
            # for the current mesh leaves an empty stack.
            fields = local.__dict__
            return capture_all() if fields and any(fields.values()) else MISSING

        self.capture = capture  # type: ignore[method-assign]

    pickles = False

    def dump(self, state: Any) -> object:
        """Return each mesh by its ranks and the names of its dimensions."""
        from ctxcarry._carriers._groups import dump_mesh  # noqa: PLC0415 - for processes only

        def named(mesh: Any) -> Any:
            return None if mesh is None else dump_mesh(mesh)

        return {
            key: [named(mesh) for mesh in value] if isinstance(value, list) else named(value)
            for key, value in state.items()
        }

    def load(self, payload: Any) -> object:
        """Return the meshes of this process that are like them."""
        from ctxcarry._carriers._groups import find_mesh  # noqa: PLC0415

        def found(mesh: Any) -> Any:
            return None if mesh is None else find_mesh(self.name, mesh)

        fields = super().load(payload)
        if not isinstance(fields, dict):
            return fields
        return {
            key: [found(mesh) for mesh in value] if isinstance(value, list) else found(value)
            for key, value in fields.items()
        }

    def describe(self, state: object) -> str:
        """Name the dimensions of each mesh."""
        if not isinstance(state, dict):
            return "not set"
        meshes = {key: state.get(key) for key in ("dense_mesh", "sparse_mesh")}
        stack = state.get("mesh_stack") or [None]
        meshes["current"] = stack[-1]
        return (
            ", ".join(
                f"{key} {mesh.mesh_dim_names}" for key, mesh in meshes.items() if mesh is not None
            )
            or "no mesh"
        )
