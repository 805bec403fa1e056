"""What the tests hand over to other processes, importable there without importing torch."""

import contextvars
import os
import sys
from multiprocessing import Process

VARIABLE = contextvars.ContextVar("work.variable", default="unset")
OTHER = contextvars.ContextVar("work.other", default="unset")
IMPORTED = contextvars.ContextVar("work.imported", default="unset")
# With what the tests set, and with nothing set.
SET = ("there", False, ("cpu", True))
UNSET = ("unset", True, ("cpu", False))


def allocate(size, alignment, stream):
    """Be an allocator of Triton's."""
    raise NotImplementedError


def probe(*_):
    """Return what this process has of what the tests set."""
    import torch

    return VARIABLE.get(), torch.is_grad_enabled(), ("cpu", torch.is_autocast_enabled("cpu"))


def probe_allocator():
    """Return the name of the current allocator."""
    from triton.runtime import _allocation

    return getattr(_allocation._allocator.get(), "__qualname__", None)


def variable(*_):
    """Return the variable, without torch."""
    return VARIABLE.get()


def keyed(*args, **kwargs):
    """Return the arguments and the variable."""
    return args, kwargs, VARIABLE.get()


def both():
    """Return both variables."""
    return VARIABLE.get(), OTHER.get()


def imported():
    """Return the variable that the tests' __main__ imports."""
    return IMPORTED.get()


class OwnError(Exception):
    """An error with arguments of its own."""

    def __init__(self, code, text):
        super().__init__(code, text)
        self.code = code


def fail(code):
    """Raise an error that says what the variable is."""
    raise OwnError(code, VARIABLE.get())


def initialize(value):
    """Set the other variable for as long as this worker lives."""
    OTHER.set(value)


def patches():
    """Return what this process has patched, with the modules that are there to be patched."""
    found = []
    for module, cls, names in (
        ("concurrent.futures.process", "ProcessPoolExecutor", ("submit", "map")),
        ("concurrent.futures.thread", "ThreadPoolExecutor", ("submit",)),
        ("multiprocessing.process", "BaseProcess", ("start",)),
        ("multiprocessing.pool", "Pool", ("apply_async", "map", "imap", "starmap", "map_async")),
    ):
        holder = getattr(sys.modules.get(module), cls, None)
        if holder is not None:
            found += [f"{cls}.{n}" for n in names if hasattr(getattr(holder, n), "__wrapped__")]
    return found


def put(queue):
    """Put what `probe` returns."""
    queue.put(probe())


class OwnRun(Process):
    """A process with a run of its own."""

    def __init__(self, queue):
        super().__init__()
        self.queue = queue

    def run(self):
        self.queue.put((probe(), os.getpid() == self.pid))


class OwnRunAndTarget(Process):
    """A process whose own run does something before its target is called."""

    def __init__(self, queue, **kwargs):
        super().__init__(**kwargs)
        self.queue = queue

    def run(self):
        self.queue.put(variable())
        super().run()
