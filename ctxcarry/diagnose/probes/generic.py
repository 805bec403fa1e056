"""Probes of what needs no framework: ContextVars, roles, and the carriers for your own."""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import TYPE_CHECKING, Any

import ctxcarry
from ctxcarry.diagnose.probes._probe import Probe
from ctxcarry.diagnose.probes.torch_groups import fake_mesh, told_group

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ctxcarry import Carrier

__all__ = (
    "context_var_carrier",
    "context_vars_registry_carrier",
    "contextvars",
    "process_groups",
    "thread_local_carrier",
    "value_carrier",
)


@contextmanager
def contextvars() -> Iterator[Probe]:
    """Probe a ContextVar that no other carrier knows, in a module where a process finds it."""
    variable = ContextVar("ctxcarry.doctor", default="default")
    module = ModuleType("_ctxcarry_doctor")
    vars(module)["variable"] = variable
    sys.modules[module.__name__] = module
    try:
        yield Probe(lambda: _set(variable), variable.get)
    finally:
        del sys.modules[module.__name__]


@contextmanager
def process_groups() -> Iterator[Probe]:
    """Probe ``ctxcarry.process_groups``, without torch with what passes for a group."""
    # Imported here: the import registers its carrier.
    from ctxcarry import process_groups as ambient  # noqa: PLC0415

    with ExitStack() as stack:
        group: Any = _Group()
        stays: str | None = "there is no torch here, and so no group"
        if sys.modules.get("torch") is not None:
            group, stays = stack.enter_context(fake_mesh()).get_group(), None
        yield Probe(
            lambda: ambient.use(doctor=group),
            lambda: ambient.current("doctor", None),
            tell=told_group,
            stays=stays,
        )


class _Group:
    """What `process_groups.use` asks of a group."""

    group_name = "doctor"

    def size(self) -> int:
        return 2

    def rank(self) -> int:
        return 0


@contextmanager
def context_var_carrier() -> Iterator[Probe]:
    """Probe a ContextVar with a carrier of its own."""
    variable = ContextVar("ctxcarry.doctor", default="default")
    with _registered(ctxcarry.ContextVarCarrier(variable, "ContextVarCarrier")):
        yield Probe(lambda: _set(variable), variable.get, alone=True)


@contextmanager
def thread_local_carrier() -> Iterator[Probe]:
    """Probe a list in a ``threading.local``, which its owner changes in place."""
    local = threading.local()

    @contextmanager
    def pushed() -> Iterator[None]:
        local.stack = ["set"]
        try:
            yield
        finally:
            del local.stack

    with _registered(ctxcarry.ThreadLocalCarrier(local, name="ThreadLocalCarrier")):
        yield Probe(pushed, lambda: tuple(getattr(local, "stack", ())))


@contextmanager
def value_carrier() -> Iterator[Probe]:
    """Probe a value that a getter and a setter keep for each thread."""
    local = threading.local()

    def read() -> object:
        return getattr(local, "value", "default")

    def write(value: object) -> None:
        local.value = value

    @contextmanager
    def written() -> Iterator[None]:
        write("set")
        try:
            yield
        finally:
            write("default")

    with _registered(ctxcarry.ValueCarrier("ValueCarrier", read, write, default="default")):
        yield Probe(written, read)


@contextmanager
def context_vars_registry_carrier() -> Iterator[Probe]:
    """Probe a registry of contextvars-extras."""
    # Imported here: it takes longer than all of ctxcarry.
    from contextvars_extras import ContextVarsRegistry  # noqa: PLC0415

    class Current(ContextVarsRegistry):  # type: ignore[misc]  # the library has no types
        value: str = "default"

    current = Current()
    carrier = ctxcarry.ContextVarsRegistryCarrier(current, "ContextVarsRegistryCarrier")
    with _registered(carrier):
        yield Probe(lambda: current(value="set"), lambda: current.value, alone=True)


@contextmanager
def _set(variable: ContextVar[str]) -> Iterator[None]:
    token = variable.set("set")
    try:
        yield
    finally:
        variable.reset(token)


@contextmanager
def _registered(carrier: Carrier) -> Iterator[None]:
    ctxcarry.register(carrier)
    try:
        yield
    finally:
        ctxcarry.unregister(carrier.name)
