"""What several tests of @carry_context use."""

from contextvars import ContextVar

from ctxcarry import carry_context

TIMEOUT = 30
variable = ContextVar("variable", default="default")


class Holder:
    """Decorated methods of every kind; pickled as instances and by their methods."""

    value = 6

    @carry_context
    def method(self, *args):
        """Return all there is."""
        return self.value, args, variable.get()

    @carry_context
    @classmethod
    def outer_class(cls, *args):
        return cls.__name__, args, variable.get()

    @classmethod
    @carry_context
    def inner_class(cls, *args):
        return cls.__name__, args, variable.get()

    @carry_context
    @staticmethod
    def outer_static(*args):
        return "static", args, variable.get()

    @staticmethod
    @carry_context
    def inner_static(*args):
        return "static", args, variable.get()

    @carry_context
    async def coroutine(self):
        return self.value, variable.get()

    @carry_context
    def generator(self):
        yield self.value, variable.get()

    def __eq__(self, other):
        return type(other) is Holder

    __hash__ = None


def look(*_, **__):
    """Say what is set here."""
    return variable.get()
