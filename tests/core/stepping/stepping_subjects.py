"""What several tests of coroutines and generators use."""

from contextvars import ContextVar

TIMEOUT = 30
variable = ContextVar("variable", default="default")
NEAR, FAR = ("near", "near"), ("far", "far")
