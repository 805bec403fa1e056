"""Functions wrapped by and bound to a snapshot."""

import asyncio
import copy
import functools
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from snapshot_subjects import TIMEOUT, plain

import ctxcarry
from ctxcarry import Registry


def test_wrap_with_nothing_to_carry_returns_the_function():
    """With an empty plan the callable comes back unwrapped."""
    assert len is Registry().capture().wrap(len)
    with ctxcarry.suppress():
        assert len is ctxcarry.bind(len)
        assert len is ctxcarry.capture().wrap(len)


def test_bind_captures_now(default_local):
    """`bind` takes the context of the call to `bind`, for as many calls as wanted."""
    plain.set("near")
    default_local.value = "near"
    bound = ctxcarry.bind(lambda: (plain.get(), default_local.value))
    plain.set("far")
    default_local.value = "far"
    assert [("near", "near")] * 2 == [bound(), bound()]


def documented(first, *, second: int = 2) -> str:
    """Say something."""
    return f"{first} {second}"


class Shape:
    """Something with a method."""

    def area(self, factor: int = 1) -> int:
        """Return the area."""
        return 6 * factor


@pytest.mark.parametrize(
    "fn",
    [documented, Shape().area, Shape, functools.partial(documented, 1)],
    ids=lambda f: type(f).__name__,
)
def test_wrap_keeps_the_looks(fn, registry):
    """Signature and documentation of what was wrapped are still there."""
    wrapped = registry.capture().wrap(fn)
    assert inspect.signature(fn) == inspect.signature(wrapped)
    assert fn.__doc__ == wrapped.__doc__
    assert inspect.getdoc(fn) == inspect.getdoc(wrapped)


@pytest.mark.parametrize(
    "fn", [documented, Shape().area, Shape, len], ids=lambda f: type(f).__name__
)
def test_wrap_keeps_the_names(fn, registry):
    """Name, qualified name and module of what was wrapped are still there."""
    wrapped = registry.capture().wrap(fn)
    assert fn.__name__ == wrapped.__name__
    assert fn.__qualname__ == wrapped.__qualname__
    assert fn.__module__ == wrapped.__module__
    assert fn == wrapped.__wrapped__


def test_wrap_keeps_own_attributes(registry):
    """Attributes that somebody put on the function can be read."""

    def fn():
        return 1

    fn.marker = "mine"
    wrapped = registry.capture().wrap(fn)
    assert ("mine", 1) == (wrapped.marker, wrapped())
    with pytest.raises(AttributeError):
        wrapped.nothing  # noqa: B018 - the access is the test


def test_wrap_does_not_change_the_function(registry):
    """The function itself is as it was."""
    plain.set("near")
    wrapped = registry.capture().wrap(plain.get)
    plain.set("far")
    assert ("near", "far") == (wrapped(), plain.get())


@pytest.mark.parametrize(
    ("kind", "asks"),
    [
        ("async def fn(x): return x", inspect.iscoroutinefunction),
        ("async def fn(x): return x", asyncio.iscoroutinefunction),
        ("def fn(x): yield x", inspect.isgeneratorfunction),
        ("async def fn(x): yield x", inspect.isasyncgenfunction),
    ],
)
@pytest.mark.filterwarnings("ignore:'asyncio.iscoroutinefunction':DeprecationWarning")
def test_wrapped_kinds_are_recognised(kind, asks, registry):
    """What is wrapped is still recognised as the kind of function that it is."""
    names = {}
    exec(kind, names)  # noqa: S102 - the sources are above
    wrapped = registry.capture().wrap(names["fn"])
    assert asks(wrapped)
    assert inspect.signature(names["fn"]) == inspect.signature(wrapped)
    assert "fn" == wrapped.__name__


@pytest.mark.parametrize("wrong", [None, 3, "len"])
def test_wrap_of_what_cannot_be_called(wrong, registry):
    """What is no callable is a TypeError at once."""
    with pytest.raises(TypeError, match="callable"):
        registry.capture().wrap(wrong)


def test_bound_copies_and_shows(registry):
    """A bound callable can be copied, and its repr shows what is bound."""
    plain.set("near")
    wrapped = registry.capture().wrap(documented)
    assert "1 2" == copy.copy(wrapped)(1)
    assert "documented" in repr(wrapped)
    assert "contextvars" in repr(wrapped)


def test_bound_in_plain_threads(registry, local):
    """One bound callable works on several threads of a plain pool at once."""
    plain.set("near")
    local.value = "near"
    together = threading.Barrier(4)

    def look():
        together.wait(TIMEOUT)
        return plain.get(), local.value

    bound = registry.capture().wrap(look)
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(bound) for _ in range(4)]
        assert [("near", "near")] * 4 == [future.result(TIMEOUT) for future in futures]
