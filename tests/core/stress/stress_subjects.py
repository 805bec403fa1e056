"""What the tests of many tasks and of any nesting use."""

import threading
from contextvars import ContextVar

from ctxcarry import ContextVarCarrier, Registry, ThreadLocalCarrier, ValueCarrier

TIMEOUT = 120

variable = ContextVar("variable", default=None)
named = ContextVar("named", default=None)


class Cell(threading.local):
    """One value of each thread behind a getter and a setter."""

    now = None


class World:
    """Contexts of each kind, which all hold one identity at a time."""

    def __init__(self, contextvars_carrier):
        self.local, self.cell = threading.local(), Cell()
        self.registry = Registry()
        self.registry.register(contextvars_carrier)
        self.registry.register(ThreadLocalCarrier(self.local, name="local"))
        self.registry.register(
            ValueCarrier(
                "cell",
                lambda: self.cell.now,
                lambda value: setattr(self.cell, "now", value),
                default=None,
            )
        )
        self.registry.register(ContextVarCarrier(named))

    def become(self, identity):
        variable.set(identity)
        named.set(identity)
        self.local.value, self.local.stack = identity, [identity]
        self.cell.now = identity

    def check(self, identity):
        """Fail unless everything here is that of `identity`."""
        assert identity is variable.get()
        assert identity is named.get()
        assert identity is getattr(self.local, "value", None)
        assert ([identity] if identity else None) == getattr(self.local, "stack", None)
        assert identity is self.cell.now

    def clear(self):
        self.local.__dict__.clear()
        self.cell.now = None
