"""What several of the executor's tests use."""

from contextvars import ContextVar, copy_context

TIMEOUT = 30
variable = ContextVar("variable", default="default")
bare = ContextVar("bare")


def look():
    """Say what is set here."""
    return variable.get()


def look_at_worker(local):
    """Return a function: all that is set on the thread that calls it."""

    def look():
        found = {v.name: value for v, value in copy_context().items() if v in (variable, bare)}
        return found | vars(local)

    return look


def failing(fn):
    """Return `fn` so that it fails in the end."""

    def fail():
        fn()
        raise ValueError("mine")

    return fail
