"""Probe of spmd_types: the current mesh, and whether types are checked."""

from __future__ import annotations

from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ctxcarry.diagnose.probes._probe import Probe
from ctxcarry.diagnose.probes.torch_groups import fake_mesh, told_mesh

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ("state",)


@contextmanager
def state() -> Iterator[Probe]:
    """Probe ``set_current_mesh`` and ``typecheck`` together."""
    # Not `import`: what these modules re-export is hidden from a type checker.
    spmd_types, checker = import_module("spmd_types"), import_module("spmd_types.checker")

    def read() -> object:
        return spmd_types.current_mesh(), spmd_types.is_type_checking()

    with fake_mesh() as mesh:

        @contextmanager
        def checking() -> Iterator[None]:
            with spmd_types.set_current_mesh(mesh), checker.typecheck():
                yield

        yield Probe(checking, read, tell=_told)


def _told(seen: Any) -> object:
    mesh, checking = seen
    return told_mesh(mesh), checking
