"""What several tests of policies use."""

import threading
from contextvars import ContextVar, copy_context

from ctxcarry import ContextVarCarrier, ThreadLocalCarrier, ValueCarrier

free = ContextVar("free")
free_default = ContextVar("free_default", default="default")
named = ContextVar("named")
named_default = ContextVar("named_default", default="default")


class Cell(threading.local):
    """One value of each thread behind a getter and a setter."""

    now = "unset"


class Scene:
    """Contexts of every kind under a registry of their own."""

    def __init__(self, registry):
        self.registry = registry
        self.a, self.b, self.cell = threading.local(), threading.local(), Cell()
        registry.register(ThreadLocalCarrier(self.a, name="a"))
        registry.register(ThreadLocalCarrier(self.b, name="b"))
        registry.register(
            ValueCarrier(
                "cell",
                lambda: self.cell.now,
                lambda value: setattr(self.cell, "now", value),
                default="unset",
            )
        )
        registry.register(ContextVarCarrier(named))
        registry.register(ContextVarCarrier(named_default))

    def set_all(self, value):
        self.a.value = self.b.value = self.cell.now = value
        for variable in (free, free_default, named, named_default):
            variable.set(value)

    def seen(self):
        found = {
            "a": getattr(self.a, "value", None),
            "b": getattr(self.b, "value", None),
            "cell": {"unset": None}.get(self.cell.now, self.cell.now),
        }
        for variable in (free, named):
            found[variable.name] = variable.get(None)
        for variable in (free_default, named_default):
            found[variable.name] = {"default": None}.get(variable.get(), variable.get())
            # Cleared and unset variables are unset, and do not merely show their default.
        found["in context"] = sorted(
            v.name for v in (free, free_default, named, named_default) if v in copy_context()
        )
        return found

    def run(self, which):
        """Capture ``near`` under the policy, and look under the snapshot where ``far`` is set."""
        self.set_all("near")
        with which:
            snapshot = self.registry.capture()
        self.set_all("far")
        seen = snapshot.run(self.seen)
        assert expected("far") == self.seen()
        return seen


FREE = ("free", "free_default")
NAMED = ("named", "named_default")
EVERYTHING = ("a", "b", "cell", *FREE, *NAMED)


def expected(default, **others):
    """Return what is seen when all contexts show `default`, but for `others`."""
    found = dict.fromkeys(EVERYTHING, default) | others
    found["in context"] = sorted(n for n in (*FREE, *NAMED) if found[n] is not None)
    return found
