"""What several tests of snapshots use."""

from contextvars import ContextVar

from ctxcarry import MISSING

TIMEOUT = 30
plain = ContextVar("plain")
defaulted = ContextVar("defaulted", default="default")


class Counting:
    """A carrier that counts its calls."""

    name = "counting"

    def __init__(self):
        self.value = MISSING
        self.calls = []

    def capture(self):
        return self.value

    def apply(self, state):
        self.calls.append("apply")
        before, self.value = self.value, state
        return before

    def undo(self, token):
        self.calls.append("undo")
        self.value = token
