"""What several tests of the registry use."""

import threading

from ctxcarry import MISSING


class Slot:
    """A carrier from scratch: one value of each thread."""

    def __init__(self, name):
        self.name = name
        self.local = threading.local()

    def capture(self):
        return getattr(self.local, "value", MISSING)

    def apply(self, state):
        before = self.capture()
        self.assign(state)
        return before

    def undo(self, token):
        self.assign(token)

    def assign(self, value):
        if value is not MISSING:
            self.local.value = value
        elif hasattr(self.local, "value"):
            del self.local.value


def names(registry):
    """Return the names of the carriers in order."""
    return [carrier.name for carrier in registry.carriers()]
