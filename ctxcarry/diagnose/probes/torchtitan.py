"""Probe of TorchTitan: the current mesh of its spmd_types backend."""

from __future__ import annotations

from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from ctxcarry.diagnose.probes._probe import Probe
from ctxcarry.diagnose.probes.torch_groups import fake_mesh, told_mesh

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ("mesh",)


@contextmanager
def mesh() -> Iterator[Probe]:
    """Probe ``current_spmd_mesh`` under ``set_current_spmd_mesh``."""
    titan = import_module("torchtitan.distributed.spmd_types")
    utils = import_module("torchtitan.distributed.utils")
    # Other backends have no such mesh.
    backend = utils.get_spmd_backend()
    with fake_mesh() as made:
        utils.set_spmd_backend("spmd_types")
        try:
            yield Probe(
                lambda: titan.set_current_spmd_mesh(made), titan.current_spmd_mesh, tell=told_mesh
            )
        finally:
            utils.set_spmd_backend(backend)
