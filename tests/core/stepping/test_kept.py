"""What stepped objects keep alive, and until when."""

import asyncio
import inspect
import weakref
from contextvars import Context

import pytest
from stepping_subjects import variable

from ctxcarry import carry_context


class Big:
    """Something that should not be kept."""


@pytest.fixture
def heavy(default_local):
    """Return a function that calls another one where big objects are set, with weak references."""

    def heavy(fn, /, *args):
        def inside():
            bigs = Big(), Big()
            variable.set(bigs[0])
            default_local.value = bigs[1]
            return [weakref.ref(big) for big in bigs], fn(*args)

        try:
            return Context().run(inside)
        finally:
            del default_local.value

    return heavy


def test_finished_generator_keeps_nothing(heavy, is_collected):
    """A generator that has finished, or was closed, holds no context though it is kept."""
    for finish in (list, lambda g: (next(g), g.close())):
        references, generator = heavy(carry_context(lambda: (yield)))
        assert [False, False] == [r() is None for r in references]
        finish(generator)
        assert [True, True] == [is_collected(r) for r in references]
        assert inspect.GEN_CLOSED == inspect.getgeneratorstate(generator)


def test_paused_generator_that_is_dropped_keeps_nothing(heavy, is_collected):
    """A generator that is dropped lets go of its context."""
    references, generator = heavy(carry_context(lambda: (yield)))
    next(generator)
    del generator
    assert [True, True] == [is_collected(r) for r in references]


def test_exception_of_a_generator_keeps_nothing(heavy, is_collected):
    """An exception of a body that is kept does not keep the context (trap 8)."""

    @carry_context
    def body():
        yield
        raise ValueError("mine")

    references, generator = heavy(body)
    next(generator)
    try:
        next(generator)
    except ValueError as error:
        kept = error
    assert [True, True] == [is_collected(r) for r in references]
    assert "mine" == str(kept)


def test_exception_of_a_task_keeps_nothing(heavy, is_collected):
    """A failed task that is kept does not keep the context (trap 8)."""

    @carry_context
    async def body():
        await asyncio.sleep(0)
        raise ValueError("mine")

    async def main():
        references, coroutine = heavy(body)
        task = asyncio.ensure_future(coroutine)
        del coroutine
        await asyncio.wait([task])
        return references, task

    references, task = asyncio.run(main())
    assert [True, True] == [is_collected(r) for r in references]
    assert "mine" == str(task.exception())


def test_exception_of_an_async_generator_keeps_nothing(heavy, is_collected):
    """A failed async generator does not keep the context either."""

    @carry_context
    async def body():
        yield
        raise ValueError("mine")

    async def main():
        references, generator = heavy(body)
        await generator.__anext__()
        try:
            await generator.__anext__()
        except ValueError as error:
            return references, error

    references, kept = asyncio.run(main())
    assert [True, True] == [is_collected(r) for r in references]
    assert "mine" == str(kept)
