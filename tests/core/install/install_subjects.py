"""What several tests of `install` and `uninstall` use."""

from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context

TIMEOUT = 30

variable = ContextVar("variable", default="default")


def look(*_):
    """Say what is set here."""
    return variable.get()


def submitted():
    """Return what a task of a plain pool sees when ``near`` is set here."""

    def near():
        variable.set("near")
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(look).result(TIMEOUT), next(pool.map(look, [0]))

    one, other = copy_context().run(near)
    assert one == other
    return one
