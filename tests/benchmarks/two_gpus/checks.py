"""Whether recomputes see what they should, and gradients agree."""

from __future__ import annotations

import contextvars
from contextlib import contextmanager, suppress
from importlib import import_module
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import checkpoint

from .ways import CARRIED, PLAIN, WAYS
from .work import step, two_gpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .ways import Way
    from .work import Graph

__all__ = ("check_gradients", "check_recompute")

LARGEST_ERROR = 1e-2


def mesh_to_find(mesh: Any) -> tuple[Callable[[], Any], Callable[[], object]]:
    """Return what sets the mesh for a block, and what reads it; a ContextVar without spmd_types."""
    with suppress(ImportError):
        spmd = import_module("spmd_types")
        return lambda: spmd.set_current_mesh(mesh), spmd.current_mesh_names
    variable = contextvars.ContextVar[object]("mesh", default=None)

    @contextmanager
    def setting() -> Iterator[None]:
        token = variable.set("set")
        yield
        variable.reset(token)

    return setting, variable.get


def recomputed(way: Way, mesh: Any, devices: Sequence[torch.device]) -> Iterator[dict[str, Any]]:
    """Yield for each device what its forward had set, and what its recompute saw and where."""
    setting, read = mesh_to_find(mesh)
    notes: list[list[tuple[int, object]]] = [[] for _ in devices]

    def block(x: torch.Tensor, noted: list[tuple[int, object]]) -> torch.Tensor:
        # Torch ends the process if a recompute raises on the thread of a device.
        noted.append((get_ident(), read()))
        return x.sin().exp()

    with way.entered():
        with setting():
            leaves = [torch.ones(4, device=device, requires_grad=True) for device in devices]
            pairs = zip(leaves, notes)
            ends = [checkpoint(block, *pair, use_reentrant=False).sum() for pair in pairs]
        torch.autograd.backward(ends)
    for device, noted in zip(devices, notes):
        (_, had), *again = noted
        thread, saw = again[0] if again else (0, "nothing: it did not run")
        yield {"device": device, "way": way.name, "had": had, "saw": saw, "thread": thread}


def check_recompute(mesh: Any, devices: Sequence[torch.device]) -> tuple[list[dict], list[str]]:
    """Return what recomputes see, without and with us, and what is wrong about it."""
    told, wrong = [], []
    for way in (PLAIN, CARRIED):
        found = list(recomputed(way, mesh, devices))
        for each in found:
            on_caller = each["thread"] == get_ident()
            if way is CARRIED and (each["had"] is None or each["saw"] != each["had"]):
                wrong.append(f"the recompute does not see what its forward had: {each}")
            if each["device"].type == "cuda" and on_caller:
                wrong.append(f"the recompute ran on the thread that called backward(): {each}")
            shown = {key: str(each[key]) for key in ("device", "way", "had", "saw")}
            told.append({**shown, "thread": "the caller's" if on_caller else "another"})
        if two_gpus(devices) and len({each["thread"] for each in found}) < len(devices):
            wrong.append(f"the devices do not have a thread each: {found}")
    return told, wrong


def check_gradients(graph: Graph, devices: Sequence[torch.device]) -> list[str]:
    """Return the ways in which a pass has other gradients than in plain torch."""
    wrong = []
    expected: list[torch.Tensor] = []
    for way in WAYS:
        with way.entered():
            step(graph, devices)
        found = [leaf.grad.double() for leaf in graph.leaves]
        expected = expected or found
        off = max(float((x - y).norm() / y.norm()) for x, y in zip(found, expected))
        if not off <= LARGEST_ERROR:  # NaN included
            wrong.append(
                f"{graph.name}, {way.name}: gradients off by {off} of those of plain torch"
            )
    return wrong
