"""What several tests of doctor use."""

import threading
from contextlib import contextmanager

from ctxcarry.diagnose.boundaries import BOUNDARIES

ALL_BOUNDARIES = {
    "executor",
    "wrap_executor",
    "bind",
    "carry_context",
    "install",
    "Thread",
    "Timer",
    "thread_pool",
    "asyncio",
    "to_thread",
    "process",
    "torch.futures",
    "autograd",
    "hook",
    "recompute",
    "context_fn",
}

# A checkpoint brings the default device of its forward back itself.
KEPT_BY_CHECKPOINT = {("torch.default_device", "recompute"), ("torch.default_device", "context_fn")}

# Starting another process takes longer than all the rest.
NEAR = tuple(b for b in BOUNDARIES if not b.far)

# Starting a Ray takes longer still.
WITHOUT_RAY = tuple(b for b in BOUNDARIES if b.needs != "ray")


class Slot:
    """A carrier of one attribute of a threading.local, whose parts tests break."""

    name = "test.slot"

    def __init__(self):
        self.local = threading.local()

    def read(self):
        """Return what this thread sees."""
        return getattr(self.local, "value", "unset")

    @contextmanager
    def set(self):
        """Set the slot of this thread."""
        self.local.value = "set"
        try:
            yield
        finally:
            self.local.value = "unset"

    def capture(self):
        """Capture as a carrier should."""
        return self.read()

    def apply(self, state):
        """Apply as a carrier should."""
        before, self.local.value = self.read(), state
        return before

    def undo(self, token):
        """Undo as a carrier should."""
        self.local.value = token


def row(matrix, name):
    """Return the row of the carrier called `name`."""
    return next(r for r in matrix.rows if r.carrier == name)


def is_owned(row, boundary):
    """Say whether the cell tells that the context is torch's own there, and why."""
    cell = row.cells.get(boundary)
    return cell is not None and cell.carried == "torch's own" and bool(cell.reason)
