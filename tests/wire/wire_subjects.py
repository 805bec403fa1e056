"""What the tests of the wire format send: importable, so that it has an address."""

import contextvars
import threading

LOCAL = threading.local()
VARIABLE = contextvars.ContextVar("wire.variable", default="unset")
TEN = [contextvars.ContextVar(f"wire.v{i}") for i in range(10)]
V0, V1, V2, V3, V4, V5, V6, V7, V8, V9 = TEN


def allocate(size, alignment, stream):
    """Be an allocator of Triton's that has an import path."""
    raise NotImplementedError


def allocate_profile(size, alignment, stream):
    """Be another one."""
    raise NotImplementedError


class Point:
    """A value that JSON has no word for."""

    def __init__(self, x):
        self.x = x

    def __eq__(self, other):
        return type(other) is Point and self.x == other.x

    __hash__ = None
