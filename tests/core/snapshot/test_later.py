"""Functions whose body runs later."""

import asyncio
import functools

import pytest
from snapshot_subjects import plain


def test_run_steps_a_generator_function(registry, local):
    """The body of a generator function runs under the snapshot, not its call only (trap 5)."""
    plain.set("near")
    local.value = "near"
    snapshot = registry.capture()
    plain.set("far")
    local.value = "far"

    def look():
        for _ in range(2):
            yield plain.get(), local.value

    generator = snapshot.run(look)
    assert [("near", "near")] * 2 == list(generator)
    assert ("far", "far") == (plain.get(), local.value)


def test_run_steps_a_coroutine_function(registry, local):
    """The body of a coroutine function runs under the snapshot (trap 5)."""
    plain.set("near")
    local.value = "near"
    snapshot = registry.capture()
    plain.set("far")
    local.value = "far"

    async def look():
        await asyncio.sleep(0)
        return plain.get(), local.value

    async def main():
        return await snapshot.run(look), (plain.get(), local.value)

    assert (("near", "near"), ("far", "far")) == asyncio.run(main())


def test_run_steps_an_async_generator_function(registry, local):
    """The body of an async generator function runs under the snapshot (trap 5)."""
    plain.set("near")
    local.value = "near"
    snapshot = registry.capture()
    plain.set("far")
    local.value = "far"

    async def look():
        for _ in range(2):
            await asyncio.sleep(0)
            yield plain.get(), local.value

    async def main():
        return [(seen, plain.get()) async for seen in snapshot.run(look)]

    assert [(("near", "near"), "far")] * 2 == asyncio.run(main())


class Callables:
    """Methods and a call whose body runs later."""

    def generator(self):
        yield plain.get()

    async def coroutine(self):
        return plain.get()

    async def __call__(self):
        return plain.get()


@pytest.mark.parametrize("method", ["run", "wrap"])
def test_bodies_behind_methods_partials_and_calls(method, registry):
    """Methods, partials and callable objects are recognised too."""
    plain.set("near")
    snapshot = registry.capture()
    plain.set("far")
    things = Callables()

    def call(fn):
        return snapshot.wrap(fn)() if method == "wrap" else snapshot.run(fn)

    assert ["near"] == list(call(things.generator))
    assert ["near"] == list(call(functools.partial(Callables.generator, things)))
    assert "near" == asyncio.run(call(things.coroutine))
    assert "near" == asyncio.run(call(functools.partial(functools.partial(things.coroutine))))
    assert "near" == asyncio.run(call(things))


def test_generator_that_was_made_before_is_returned_as_it_is(registry):
    """A function that returns somebody's generator returns that very generator."""
    generator = (number for number in range(3))
    assert generator is registry.capture().run(lambda: generator)
    generator.close()
