"""
Carry ambient context to wherever work moves.

Code that trains models keeps its setting in ambient context: Triton's scratch
allocator, the SPMD mesh, grad mode, autocast. `ctxcarry` takes a snapshot where
work is handed over and restores it where the work runs.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING

from ctxcarry._api import bind, capture, carriers, policy, register, suppress, unregister
from ctxcarry._carrier import MISSING, UNCHANGED, Carrier
from ctxcarry._carriers.context_vars import ContextVarCarrier
from ctxcarry._carriers.contextvars_extras import ContextVarsRegistryCarrier
from ctxcarry._carriers.thread_local import ThreadLocalCarrier
from ctxcarry._carriers.value import ValueCarrier
from ctxcarry._decorate import carry_context
from ctxcarry._default import load_entry_points, registry
from ctxcarry._registry import Registry
from ctxcarry._snapshot import Snapshot
from ctxcarry.boundaries._install import install, installed, uninstall
from ctxcarry.boundaries.executor import executor
from ctxcarry.boundaries.thread import Thread, Timer
from ctxcarry.errors import (
    CarrierError,
    ContextMismatchError,
    CtxCarryError,
    CtxCarryWarning,
    DuplicateCarrierError,
    LeakError,
    NotPortableError,
    UnknownCarrierError,
    WireError,
)

if TYPE_CHECKING:
    from ctxcarry import autograd as autograd
    from ctxcarry import process_groups as process_groups
    from ctxcarry import ray as ray
    from ctxcarry.boundaries.asyncio import run_in_executor, to_thread
    from ctxcarry.boundaries.dataloader import worker_init_fn
    from ctxcarry.boundaries.wrapped import wrap_executor

__version__ = "0.1.0"

__all__ = (
    "MISSING",
    "UNCHANGED",
    "Carrier",
    "CarrierError",
    "ContextMismatchError",
    "ContextVarCarrier",
    "ContextVarsRegistryCarrier",
    "CtxCarryError",
    "CtxCarryWarning",
    "DuplicateCarrierError",
    "LeakError",
    "NotPortableError",
    "Registry",
    "Snapshot",
    "Thread",
    "ThreadLocalCarrier",
    "Timer",
    "UnknownCarrierError",
    "ValueCarrier",
    "WireError",
    "bind",
    "capture",
    "carriers",
    "carry_context",
    "executor",
    "install",
    "installed",
    "load_entry_points",
    "policy",
    "register",
    "registry",
    "run_in_executor",
    "suppress",
    "to_thread",
    "uninstall",
    "unregister",
    "worker_init_fn",
    "wrap_executor",
)


# What needs wrapt, asyncio or torch waits until it is asked for.
_LAZY = {
    "run_in_executor": "ctxcarry.boundaries.asyncio",
    "to_thread": "ctxcarry.boundaries.asyncio",
    "worker_init_fn": "ctxcarry.boundaries.dataloader",
    "wrap_executor": "ctxcarry.boundaries.wrapped",
}


_SUBMODULES = frozenset({"autograd", "process_groups", "ray"})


def __getattr__(name: str) -> object:
    if name in _SUBMODULES:
        return _import_module(f"ctxcarry.{name}")
    if name in _LAZY:
        return getattr(_import_module(_LAZY[name]), name)
    msg = f"module 'ctxcarry' has no attribute {name!r}"
    raise AttributeError(msg)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
