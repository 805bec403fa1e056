"""What a stepped body sees and sets: active at each resume, gone at each pause."""

import asyncio
import contextlib
from contextvars import ContextVar

import pytest
from stepping_subjects import FAR, NEAR, variable

import ctxcarry
from ctxcarry import carry_context

bare = ContextVar("bare")


def deliver(kind, fn):
    """Return `fn` so that calling it gives something stepped, in one of three ways."""
    if kind == "decorated":
        return carry_context(fn)
    if kind == "bound":
        return ctxcarry.bind(fn)
    return lambda *args, **kwargs: ctxcarry.capture().run(fn, *args, **kwargs)


WAYS = ["decorated", "bound", "run"]


@pytest.mark.parametrize("way", WAYS)
def test_generator_sees_the_context_of_the_call(way, seen, set_all):
    """Each step sees what was set at the call; between the steps nothing of it is here."""

    def body():
        for _ in range(3):
            yield seen()

    set_all("near")
    generator = deliver(way, body)()
    set_all("far")
    for _ in range(3):
        assert NEAR == next(generator)
        assert FAR == seen()
    assert [] == list(generator)
    assert FAR == seen()


@pytest.mark.parametrize("way", WAYS)
def test_coroutine_sees_the_context_of_the_call(way, seen, set_all):
    """Each step of a coroutine sees what was set at the call, and others do not."""

    async def body():
        found = []
        for _ in range(3):
            found.append(seen())
            await asyncio.sleep(0)
        return found

    async def main():
        set_all("near")
        coroutine = deliver(way, body)()
        set_all("far")
        task = asyncio.ensure_future(coroutine)
        between = []
        while not task.done():
            await asyncio.sleep(0)
            between.append(seen())
        return task.result(), set(between)

    assert ([NEAR] * 3, {FAR}) == asyncio.run(main())


@pytest.mark.parametrize("way", WAYS)
def test_async_generator_sees_the_context_of_the_call(way, seen, set_all):
    """Each step of an async generator sees what was set at the call, and its consumer does not."""

    async def body():
        for _ in range(3):
            await asyncio.sleep(0)
            yield seen()

    async def main():
        set_all("near")
        generator = deliver(way, body)()
        set_all("far")
        return [(found, seen()) async for found in generator]

    assert [(NEAR, FAR)] * 3 == asyncio.run(main())


def test_call_captures_and_not_the_first_step(seen, set_all):
    """What is set between the call and the first step is not seen."""
    set_all("near")
    generator = carry_context(lambda: (yield seen()))()
    set_all("far")
    assert NEAR == next(generator)


def test_unset_is_seen_as_unset(seen, set_all, default_local):
    """What was not set at the call is not set in the body."""

    @carry_context
    def body():
        yield bare.get(None), hasattr(default_local, "value")

    generator = body()
    bare.set("far")
    set_all("far")
    assert (None, False) == next(generator)


def test_excluded_contexts_are_those_of_the_step(seen, set_all):
    """What is not carried is, at each step, as it is where the step is made."""
    set_all("near")
    no_variables = carry_context(exclude="contextvars")(lambda: (yield from forever(seen)))()
    no_local = carry_context(exclude="test.local")(lambda: (yield from forever(seen)))()
    set_all("one")
    assert [("one", "near"), ("near", "one")] == [next(no_variables), next(no_local)]
    set_all("two")
    assert [("two", "near"), ("near", "two")] == [next(no_variables), next(no_local)]


def forever(fn):
    """Yield what `fn` returns, without end."""
    while True:
        yield fn()


def test_generator_keeps_what_it_sets(seen, set_all):
    """What the body sets across a pause is there at the resume, and not in between."""

    @carry_context
    def body():
        set_all("mine")
        yield seen()
        yield seen()
        set_all("more")
        yield seen()

    set_all("near")
    generator = body()
    set_all("far")
    found = []
    for _ in range(3):
        found.append(next(generator))
        assert FAR == seen()
    assert [("mine", "mine"), ("mine", "mine"), ("more", "more")] == found


def test_generator_keeps_what_it_unsets(seen, set_all, default_local):
    """What the body deletes stays deleted for it, and is there outside."""

    @carry_context
    def body():
        del default_local.value
        yield
        yield hasattr(default_local, "value")

    set_all("near")
    generator = body()
    next(generator)
    assert "near" == default_local.value
    assert next(generator) is False
    assert "near" == default_local.value


def test_with_block_across_a_pause(default_local):
    """A block that the body holds across pauses is undone when it ends, in the body only."""

    @contextlib.contextmanager
    def setting(value):
        before = default_local.value
        default_local.value = value
        try:
            yield
        finally:
            default_local.value = before

    @carry_context
    def body():
        found = []
        with setting("inside"):
            yield
            found.append(default_local.value)
            yield
        found.append(default_local.value)
        yield found

    default_local.value = "near"
    generator = body()
    default_local.value = "far"
    next(generator)
    assert "far" == default_local.value
    next(generator)
    assert "far" == default_local.value
    assert ["inside", "near"] == next(generator)
    assert "far" == default_local.value


def test_outside_may_change_between_the_steps(seen, set_all):
    """What others set between the steps is there for them after the next one."""

    @carry_context
    def body():
        set_all("mine")
        while True:
            yield seen()

    set_all("near")
    generator = body()
    for value in ("one", "two", "three"):
        set_all(value)
        assert ("mine", "mine") == next(generator)
        assert (value, value) == seen()


def test_outside_keeps_its_very_objects(default_local):
    """A container that others hold is the very one that is set after a step as before it."""

    @carry_context
    def body():
        while True:
            default_local.stack.append("body")
            yield list(default_local.stack)

    default_local.stack = mine = ["mine"]
    generator = body()
    for number in range(1, 4):
        assert ["mine", *["body"] * number] == next(generator)
        assert mine is default_local.stack
        assert ["mine"] == mine
    generator.close()
    assert mine is default_local.stack


def test_two_generators_interleaved(seen, set_all):
    """Generators that take turns on one thread do not see one another."""

    @carry_context
    def body(name):
        for number in range(3):
            found = seen()
            set_all(f"{name}{number}")
            yield found

    set_all("a")
    a = body("a")
    set_all("b")
    b = body("b")
    set_all("far")
    found = [(next(a), next(b)) for _ in range(3)]
    assert [
        (("a", "a"), ("b", "b")),
        (("a0", "a0"), ("b0", "b0")),
        (("a1", "a1"), ("b1", "b1")),
    ] == found
    assert FAR == seen()


def test_gathered_coroutines_interleaved(seen, set_all):
    """Coroutines gathered on one loop keep what they set to themselves."""

    @carry_context
    async def body(name):
        found = [seen()]
        for number in range(5):
            set_all(f"{name}{number}")
            await asyncio.sleep(0)
            found.append(seen())
        return found

    async def main():
        coroutines = []
        for name in "abcd":
            set_all(name)
            coroutines.append(body(name))
        set_all("far")
        results = await asyncio.gather(*coroutines)
        return results, seen()

    expected = [[(n, n), *((f"{n}{i}", f"{n}{i}") for i in range(5))] for n in "abcd"]
    assert (expected, FAR) == asyncio.run(main())


def test_nested_coroutines(seen, set_all):
    """A carried coroutine that awaits another one gets its own context back."""

    @carry_context
    async def inner():
        found = seen()
        set_all("inner")
        await asyncio.sleep(0)
        return found, seen()

    @carry_context
    async def outer():
        set_all("outer")
        found = await inner()
        return found, seen()

    async def main():
        set_all("near")
        return await outer(), seen()

    outer_seen = ("outer", "outer")
    assert (((outer_seen, ("inner", "inner")), outer_seen), NEAR) == asyncio.run(main())


def test_nested_generators(seen, set_all):
    """`yield from` a carried generator gives the outer one its own context back."""

    @carry_context
    def inner():
        set_all("inner")
        yield seen()
        return seen()

    @carry_context
    def outer():
        set_all("outer")
        result = yield from inner()
        yield result, seen()

    set_all("near")
    assert [("inner", "inner"), (("inner", "inner"), ("outer", "outer"))] == list(outer())
    assert NEAR == seen()


def test_tasks_started_in_the_body(seen, set_all):
    """A task that the body starts has the ContextVars of the body."""

    @carry_context
    async def body():
        variable.set("body")
        return await asyncio.ensure_future(child())

    async def child():
        return variable.get()

    async def main():
        set_all("near")
        return await body(), variable.get()

    assert ("body", "near") == asyncio.run(main())
