"""Fixtures of the tests of carried classes."""

import asyncio
import sys
from pathlib import Path

import pytest

from ctxcarry import carry_context

sys.path.insert(0, str(Path(__file__).parent))

from carry_class_subjects import bare, variable


@pytest.fixture
def made(in_thread):
    """Return a function that makes an instance on another thread, whose context then ends."""
    return in_thread


@pytest.fixture
def worker_class(default_local):  # noqa: C901 - a method of every kind
    """Return a decorated class that sets contexts in its ``__init__``."""

    @carry_context
    class Worker:
        """Do some work."""

        def __init__(self, value="base"):
            """Set everything to `value`."""
            variable.set(value)
            bare.set(value)
            default_local.value = value

        def seen(self, *args, **kwargs):
            """Say what is set."""
            found = variable.get(), bare.get(None), getattr(default_local, "value", None)
            return (*found, args, kwargs) if args or kwargs else found

        def set(self, value):
            variable.set(value)
            default_local.value = value

        def fail(self):
            raise ValueError("mine")

        def unset(self):
            del default_local.value

        async def coroutine(self):
            await asyncio.sleep(0)
            return self.seen()

        def generator(self):
            for _ in range(2):
                yield self.seen()

        async def stream(self):
            for _ in range(2):
                await asyncio.sleep(0)
                yield self.seen()

        @staticmethod
        def static():
            return variable.get()

        @classmethod
        def of_class(cls):
            return cls, variable.get()

        @property
        def prop(self):
            return "prop"

        def __call__(self):
            return variable.get()

        def __enter__(self):
            return variable.get()

        def __exit__(self, *_):
            return None

    return Worker


@pytest.fixture
def here(default_local):
    """Return a function that says what is set here."""
    return lambda: (variable.get(), bare.get(None), getattr(default_local, "value", None))
