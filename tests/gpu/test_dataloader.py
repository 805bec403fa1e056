"""On a CUDA device: the thread that pins memory sees the context of whoever iterates."""

from contextvars import ContextVar

import pytest

torch = pytest.importorskip("torch")

import ctxcarry  # noqa: E402

variable = ContextVar("variable", default="unset")


class Batch:
    """A batch that pins itself, and notes where that is done."""

    def __init__(self, items):
        self.items = items
        self.seen = None

    def pin_memory(self):
        """Note what the pinning thread sees."""
        self.seen = variable.get()
        return self


def seen_by_the_pinning_thread():
    """Return what is set in the thread that pins memory."""
    loader = torch.utils.data.DataLoader(
        list(range(4)),
        batch_size=2,
        collate_fn=Batch,
        num_workers=1,
        pin_memory=True,
        multiprocessing_context="fork",
    )
    return {batch.seen for batch in loader}


def test_pin_memory_thread():
    """The pinning thread has nothing set by itself, and the iterating one's context with us."""
    variable.set("set")
    assert {"unset"} == seen_by_the_pinning_thread()
    ctxcarry.install("dataloader")
    try:
        assert {"set"} == seen_by_the_pinning_thread()
    finally:
        ctxcarry.uninstall()
