"""`install` and `uninstall`: zero-code instrumentation of the boundaries."""

from __future__ import annotations

import threading
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from ctxcarry._imports import when_imported

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ctxcarry.boundaries._boundary import Boundary

__all__ = ("install", "installed", "serve_decorated", "uninstall")


class _Entry(NamedTuple):
    """
    A boundary that can be installed.

    Attributes:
        file: Its file in this package.
        waits_for: The module that must be imported before it can be patched.
    """

    file: str
    waits_for: str


_BOUNDARIES = {
    "executor": (_Entry("submit", "concurrent.futures.thread"),),
    "thread": (_Entry("threads", "threading"),),
    "thread_pool": (_Entry("thread_pool", "multiprocessing.pool"),),
    "asyncio": (_Entry("asyncio", "asyncio"),),
    "process": (
        _Entry("process", "multiprocessing.process"),
        _Entry("process_pool", "multiprocessing.pool"),
        _Entry("process_submit", "concurrent.futures.process"),
    ),
    "joblib": (_Entry("joblib", "joblib"),),
    "dataloader": (_Entry("dataloader", "torch.utils.data"),),
    "torch.futures": (_Entry("torch_futures", "torch.futures"),),
    "autograd": (
        _Entry("autograd_engine", "torch.autograd"),
        _Entry("autograd_function", "torch.autograd"),
        _Entry("autograd_hooks", "torch.autograd.graph"),
        _Entry("autograd_ddp", "torch.nn.parallel.distributed"),
        _Entry("recompute", "torch.utils.checkpoint"),
    ),
    "ray": (_Entry("ray_calls", "ray"),),
}
_lock = threading.RLock()
_chosen: set[str] = set()
_decorated = False


def install(*boundaries: str) -> None:
    """
    Make boundaries carry without a change to the code that uses them.

    Idempotent, and undone by `uninstall` in any order with the patches of
    others. A boundary of a library that is not imported yet is installed when
    it is.

    Args:
        *boundaries: ``"executor"`` (every ``ThreadPoolExecutor``), ``"thread"``
            (every ``Thread`` and ``Timer``), ``"thread_pool"``, ``"asyncio"``,
            ``"process"``, ``"joblib"``, ``"dataloader"``, ``"torch.futures"``,
            ``"autograd"`` (backward passes, their hooks and recompute), ``"ray"``
            (tasks and actors, and the workers of a ``ray.init`` from here on); all
            unless given.

    Raises:
        ValueError: If a boundary is unknown.
    """
    names = boundaries or tuple(_BOUNDARIES)
    _check(names)
    with _lock:
        _chosen.update(names)
        for name in names:
            _refresh_when_imported(name)


def uninstall(*boundaries: str) -> None:
    """
    Take back what `install` did.

    Args:
        *boundaries: Names as for `install`; functions under
            `ctxcarry.carry_context` stay carried. Without any, everything is
            taken back, what `carry_context` patched included.

    Raises:
        ValueError: If a boundary is unknown.
    """
    global _decorated  # noqa: PLW0603 - one switch for the process
    _check(boundaries)
    with _lock:
        _chosen.difference_update(boundaries or tuple(_BOUNDARIES))
        if not boundaries:
            _decorated = False
        # Twice: two boundaries may patch one function, and the upper patch goes first.
        for _ in range(2):
            for name in _BOUNDARIES:
                _refresh(name)


def installed() -> tuple[str, ...]:
    """Return the names of the boundaries that are installed."""
    return tuple(name for name in _BOUNDARIES if name in _chosen)


def serve_decorated() -> None:
    """Put on the patches that callables under `ctxcarry.carry_context` need."""
    global _decorated  # noqa: PLW0603
    with _lock:
        if not _decorated:
            _decorated = True
            for name in _BOUNDARIES:
                _refresh_when_imported(name)


_loaded: dict[_Entry, Boundary] = {}
_awaited: set[_Entry] = set()


def _refresh_when_imported(name: str) -> None:
    """Have the boundary serve whom it is to serve, once there is something to patch."""
    for entry in _BOUNDARIES[name]:
        if entry not in _awaited:
            _awaited.add(entry)
            # A module that its package imports for itself comes before the package is whole.
            package = entry.waits_for.partition(".")[0]
            load = partial(when_imported, package, partial(_load, name, entry))
            when_imported(entry.waits_for, load)
    _refresh(name)


def _load(name: str, entry: _Entry) -> None:
    source = import_module(f"ctxcarry.boundaries.{entry.file}")
    with _lock:
        _loaded[entry] = source.boundary
        _refresh(name)


def _refresh(name: str) -> None:
    for entry in _BOUNDARIES[name]:
        if entry in _loaded:
            _loaded[entry].use(decorated=_decorated, everything=name in _chosen)


def _check(names: Iterable[str]) -> None:
    for name in names:
        if name not in _BOUNDARIES:
            from difflib import get_close_matches  # noqa: PLC0415 - only to tell of a mistake

            close = get_close_matches(name, _BOUNDARIES, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            msg = f"no boundary is named {name!r}.{hint} Available: {', '.join(_BOUNDARIES)}"
            raise ValueError(msg)
