"""Carried classes in pools, and methods of every kind."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context

from carry_class_subjects import BASE, TIMEOUT, bare, variable

import ctxcarry
from ctxcarry import carry_context


def test_methods_in_a_carrying_pool(worker_class, made, default_local):
    """In a carrying pool the submitter is the caller."""
    worker = made(worker_class)
    with ctxcarry.executor(1) as pool:
        assert BASE == pool.submit(worker.seen).result(TIMEOUT)
        variable.set("caller")
        assert ("caller", "base", "base") == pool.submit(worker.seen).result(TIMEOUT)


def test_made_in_a_pool(worker_class):
    """An instance made by a task has the base that the task's ``__init__`` set."""
    with ctxcarry.executor(1) as pool, ThreadPoolExecutor(1) as plain:
        for each in (pool, plain):
            assert BASE == each.submit(worker_class).result(TIMEOUT).seen()


def test_coroutine_method(worker_class, made, here):
    """An async method sees the caller's values and then the base, at each step."""
    worker = made(worker_class)

    async def main():
        variable.set("caller")
        coroutine = worker.coroutine()
        variable.set("later")
        return await coroutine, here()

    assert (("caller", "base", "base"), ("later", None, None)) == asyncio.run(main())


def test_generator_method(worker_class, made, here):
    """A generator method sees the caller's values and then the base, at each step."""
    worker = made(worker_class)
    variable.set("caller")
    generator = worker.generator()
    variable.set("later")
    assert [("caller", "base", "base")] * 2 == list(generator)
    assert ("later", None, None) == here()


def test_async_generator_method(worker_class, made):
    """An async generator method does too."""
    worker = made(worker_class)

    async def main():
        variable.set("caller")
        return [found async for found in worker.stream()]

    assert [("caller", "base", "base")] * 2 == asyncio.run(main())


def test_concurrent_coroutine_methods(worker_class, made):
    """Coroutines of one instance, gathered, see each its caller."""
    worker = made(worker_class)

    async def call(number):
        variable.set(number)
        return await worker.coroutine()

    async def main():
        return await asyncio.gather(*(call(n) for n in range(3)))

    assert [(n, "base", "base") for n in range(3)] == asyncio.run(main())


def test_special_methods(worker_class, made):
    """`__call__` and the context manager methods see the base too."""
    worker = made(worker_class)
    assert "base" == worker()
    with worker as entered:
        assert "base" == entered
    assert "default" == variable.get()


def test_iterators(made):  # noqa: C901 - a method of every kind
    """`__iter__` and `__next__`, and their async kin, see the base."""

    @carry_context
    class Stream:
        def __init__(self):
            variable.set("base")
            self.left = 2

        def __iter__(self):
            return self

        def __next__(self):
            self.left -= 1
            if self.left < 0:
                raise StopIteration
            return variable.get()

        def __aiter__(self):
            return self

        async def __anext__(self):
            self.left -= 1
            if self.left < 0:
                raise StopAsyncIteration
            return variable.get()

        async def __aenter__(self):
            return variable.get()

        async def __aexit__(self, *_):
            return None

    assert ["base", "base"] == list(made(Stream))

    async def main():
        async with made(Stream) as entered:
            return entered, [found async for found in made(Stream)]

    assert ("base", ["base", "base"]) == asyncio.run(main())


def test_other_attributes_are_left_alone(worker_class, made):
    """Static and class methods, properties and constants are as they were."""
    worker = made(worker_class)
    assert "default" == worker.static() == worker_class.static()
    assert (worker_class, "default") == worker.of_class() == worker_class.of_class()
    assert "prop" == worker.prop


def test_decorated_method_of_a_decorated_class(default_local, made):
    """A method that is decorated too is handed over with its submitter's context, over the base."""

    @carry_context
    class Worker:
        def __init__(self):
            bare.set("base")

        @carry_context
        def seen(self):
            return variable.get(), bare.get(None)

    worker = made(Worker)
    variable.set("near")
    assert ("near", "base") == worker.seen()
    with ThreadPoolExecutor(1) as pool:
        assert ("near", "base") == pool.submit(worker.seen).result(TIMEOUT)


def test_method_called_on_the_class(worker_class, made):
    """A method taken from the class sees the base of the instance it is given."""
    assert BASE == worker_class.seen(made(worker_class))


def test_method_called_within_init(default_local):
    """Within ``__init__`` there is no base yet, and methods just run."""

    @carry_context
    class Worker:
        def __init__(self):
            self.first = self.seen()
            variable.set("base")
            self.second = self.seen()

        def seen(self):
            return variable.get()

    worker = Context().run(Worker)
    assert ("default", "base", "base") == (worker.first, worker.second, worker.seen())
