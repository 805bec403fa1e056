"""What the tests call through Ray: importable in its workers, and without torch."""

import contextvars
import os
import threading
from pathlib import Path

VARIABLE = contextvars.ContextVar("ray_work.variable", default="unset")
OTHER = contextvars.ContextVar("ray_work.other", default="unset")
LOCAL = threading.local()
# With what the tests set, and with nothing set.
SET = ("there", False)
UNSET = ("unset", True)


class OwnError(Exception):
    """An error with arguments of its own."""

    def __init__(self, code, text):
        super().__init__(code, text)
        self.code = code


def read(*_):
    """Return the variable."""
    return VARIABLE.get()


def both():
    """Return both variables."""
    return VARIABLE.get(), OTHER.get()


def probe(*_):
    """Return what this thread has of what the tests set."""
    import torch

    return VARIABLE.get(), torch.is_grad_enabled()


def here():
    """Return the variable and where it was read."""
    return VARIABLE.get(), os.getpid(), threading.get_ident()


def fail(code):
    """Raise an error that says what the variable is."""
    raise OwnError(code, VARIABLE.get())


def die_once(marker):
    """Return the variable; the first process that comes here dies without a word."""
    if not Path(marker).exists():
        Path(marker).touch()
        os._exit(1)
    return VARIABLE.get()


class Reader:
    """A class as users write them: what it has of the tests' contexts is for others to read."""

    def read(self):
        """Return the variable."""
        return VARIABLE.get()

    def set(self, value):
        """Set the variable on this thread."""
        VARIABLE.set(value)


class Based(Reader):
    """A class that sets something up when it is made."""

    def __init__(self, value="base"):
        self.found = VARIABLE.get()
        VARIABLE.set(value)
        self.made_on = threading.get_ident()

    def found_when_made(self):
        """Return what was set when this was made."""
        return self.found

    def elsewhere(self):
        """Return the variable, and whether this is another thread than that of ``__init__``."""
        return VARIABLE.get(), threading.get_ident() != self.made_on


class AsyncBased(Based):
    """The same with an event loop."""

    async def read(self):
        """Return the variable."""
        return VARIABLE.get()


class Grad:
    """A class that looks at grad mode as well."""

    def __init__(self):
        self.found = probe()

    def found_when_made(self):
        """Return what was set when this was made."""
        return self.found

    def probe(self):
        """Return what this thread has of what the tests set."""
        return probe()
