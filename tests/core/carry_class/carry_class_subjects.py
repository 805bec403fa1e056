"""What several tests of carried classes use."""

from contextvars import ContextVar

TIMEOUT = 30
variable = ContextVar("variable", default="default")
bare = ContextVar("bare")
BASE = ("base", "base", "base")
