"""Stepped objects look like what they are."""

import types

import pytest

from ctxcarry import carry_context


def test_objects_look_like_what_they_are():
    """The objects are of the builtin kinds, and named after the function."""

    @carry_context
    def generate():
        yield

    @carry_context
    async def compute():
        pass

    @carry_context
    async def stream():
        yield

    coroutine = compute()
    for made, kind in (
        (generate(), types.GeneratorType),
        (coroutine, types.CoroutineType),
        (stream(), types.AsyncGeneratorType),
    ):
        assert kind is type(made)
        assert made.__name__ in {"generate", "compute", "stream"}
        assert made.__qualname__.startswith("test_objects_look_like_what_they_are")
    coroutine.close()


def test_generator_is_told_apart_while_it_runs():
    """A generator that steps itself is a ValueError, as a plain one."""

    @carry_context
    def body():
        yield next(generator)

    generator = body()
    with pytest.raises(ValueError, match="already executing"):
        next(generator)
