"""Regions: which are open where."""

import asyncio
import contextvars
import inspect
import threading

import pytest

pytest.importorskip("torch")
pytest.importorskip("hypothesis")

import torch
from ctxcarry_checkpoint._region import current, region
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture(autouse=True)
def _all_are_closed():
    """Check that each test closes its regions."""
    assert current() == ()
    yield
    assert current() == ()


def test_nested():
    """Regions within each other are open together, the innermost last."""
    with region("a"):
        with region("b"):
            assert current() == ("a", "b")
        assert current() == ("a",)


@given(st.lists(st.sampled_from("abc"), max_size=12))
def test_any_nesting(names):
    """However the same regions nest, each exit closes the one that was entered last."""
    regions = {name: region(name) for name in "abc"}

    def enter(at):
        assert current() == tuple(names[:at])
        if at < len(names):
            with regions[names[at]]:
                enter(at + 1)
            assert current() == tuple(names[:at])

    enter(0)


def test_closed_by_an_error():
    """An error closes the region that it leaves."""
    with pytest.raises(KeyError), region("a"):
        raise KeyError
    assert current() == ()


def test_decorator():
    """A function is in the region while it runs, and keeps name, arguments and result."""

    @region("a")
    def run(x, *, y):
        """Say what is open."""
        return x, y, current()

    assert run(1, y=2) == (1, 2, ("a",))
    assert (run.__name__, run.__doc__) == ("run", "Say what is open.")


def test_coroutines():
    """Each of several tasks that wait for each other has its own regions."""

    @region("outer")
    async def run(name, entered, other):
        with region(name):
            entered.set()
            await other.wait()
            return current()

    async def both():
        a, b = asyncio.Event(), asyncio.Event()
        return await asyncio.gather(run("a", a, b), run("b", b, a))

    assert inspect.iscoroutinefunction(run)
    assert asyncio.run(both()) == [("outer", "a"), ("outer", "b")]


def test_threads():
    """The same region is open on one thread and not on another, until that enters it."""
    found = []
    shared = region("a")

    def run():
        found.append(current())
        with shared:
            found.append(current())

    with shared:
        thread = threading.Thread(target=contextvars.Context().run, args=(run,))
        thread.start()
        thread.join()
        assert current() == ("a",)
    assert found == [(), ("a",)]


def test_generator_that_is_left_later():
    """A generator that ends within a region of its caller closes its own region."""

    def steps():
        with region("generator"):
            yield

    generator = steps()
    next(generator)
    with region("caller"):
        assert list(generator) == []
        assert current() == ("caller",)


def test_left_in_another_context():
    """Leaving where the region is not open is no error, and closes nothing else."""
    opened = region("a")
    context = contextvars.copy_context()
    context.run(opened.__enter__)
    with region("b"):
        opened.__exit__(None, None, None)
        assert current() == ("b",)
    assert context.run(current) == ("a",)


def test_generator_functions():
    """A decorated generator would leave its caller in the region, so it is refused."""

    def generator():
        yield

    async def async_generator():
        yield

    for function in (generator, async_generator):
        with pytest.raises(TypeError, match=r"generator .*between yields"):
            region("a")(function)


def test_names():
    """A name is text, and a decorator without one says how it is written."""
    with pytest.raises(TypeError, match=r'written @region\("name"\)'):
        region(test_names)
    with pytest.raises(TypeError, match="given 3"):
        region(3)
    with pytest.raises(ValueError, match="not empty"):
        region("")


def test_compiled():
    """A compiled function has regions without breaking its graph."""

    @region("b")
    def inner(x):
        return x.cos()

    def run(x):
        with region("a"):
            return inner(x.sin())

    x = torch.ones(2)
    assert torch.equal(torch.compile(run, backend="eager", fullgraph=True)(x), run(x))
