"""Async generators: stepped, closed, dropped, cancelled."""

import asyncio
import gc
import warnings

import pytest
from stepping_subjects import FAR, NEAR, variable

from ctxcarry import carry_context


def test_async_generator_send_throw_return(seen, set_all):
    """`asend`, `athrow` and `aclose` reach the body under its context."""
    found = []

    @carry_context
    async def body():
        try:
            got = yield seen()
            try:
                yield got, seen()
            except ValueError as error:
                yield str(error), seen()
        finally:
            await asyncio.sleep(0)
            found.append(seen())

    async def main():
        set_all("near")
        generator = body()
        set_all("far")
        steps = [await generator.asend(None), await generator.asend("sent")]
        steps.append(await generator.athrow(ValueError("mine")))
        await generator.aclose()
        with pytest.raises(StopAsyncIteration):
            await generator.__anext__()
        return steps, seen()

    assert ([NEAR, ("sent", NEAR), ("mine", NEAR)], FAR) == asyncio.run(main())
    assert [NEAR] == found


def test_async_generator_keeps_what_it_sets(seen, set_all):
    """What the body sets is its own, and does not reach the consumer (trap 4)."""

    @carry_context
    async def body():
        for number in range(3):
            set_all(number)
            await asyncio.sleep(0)
            yield seen()

    async def main():
        set_all("near")
        return [(found, seen()) async for found in body()]

    assert [((n, n), NEAR) for n in range(3)] == asyncio.run(main())


def test_async_generator_closed_by_another_task(seen, set_all):
    """Closed from another task, Tokens of the body still work and nothing leaks (traps 3, 4)."""
    found = []

    @carry_context
    async def body():
        token = variable.set("mine")
        try:
            yield variable.get()
        finally:
            found.append(seen())
            variable.reset(token)
            found.append(seen())

    async def main():
        set_all("near")
        generator = body()
        first = await asyncio.ensure_future(generator.__anext__())
        await asyncio.ensure_future(generator.aclose())
        return first, seen()

    assert ("mine", NEAR) == asyncio.run(main())
    assert [("mine", "near"), NEAR] == found


def test_async_generator_that_is_dropped(seen, set_all):
    """An async generator that is dropped half-way is finished by the loop, under its context."""
    found = []

    @carry_context
    async def body():
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0)
            found.append(seen())

    async def main():
        set_all("near")
        generator = body()
        set_all("far")
        async for _ in generator:
            break
        del generator, _
        gc.collect()
        for _ in range(5):
            await asyncio.sleep(0)

    asyncio.run(main())
    assert [NEAR] == found


def test_async_generator_left_to_the_end_of_the_loop(seen, set_all):
    """What is left when the loop ends is finished under its context, without complaints."""
    found, complaints, kept = [], [], []

    @carry_context
    async def body():
        try:
            yield 1
        finally:
            await asyncio.sleep(0)
            found.append(seen())

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda _, c: complaints.append(c))
        set_all("near")
        kept.append(body())
        set_all("far")
        await kept[0].__anext__()

    asyncio.run(main())
    assert [] == complaints
    assert [NEAR] == found


def test_async_generator_exception(seen, set_all):
    """An exception of the body comes out as itself, and the generator is finished."""

    @carry_context
    async def body():
        yield 1
        raise ValueError("mine")

    async def main():
        set_all("near")
        generator = body()
        await generator.__anext__()
        with pytest.raises(ValueError, match="mine"):
            await generator.__anext__()
        return [value async for value in generator], seen()

    assert ([], NEAR) == asyncio.run(main())


def test_async_generator_cancelled(seen, set_all):
    """Cancelling the consumer reaches the body under its context."""
    found = []

    @carry_context
    async def body():
        try:
            await asyncio.Event().wait()
            yield 1
        except asyncio.CancelledError:
            found.append(seen())
            raise

    async def consume(generator):
        async for _ in generator:
            pass

    async def main():
        set_all("near")
        task = asyncio.ensure_future(consume(body()))
        set_all("far")
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert [NEAR] == found


def test_async_generator_never_started():
    """An async generator that is never started, or closed before, warns of nothing."""

    @carry_context
    async def body():
        yield 1

    async def main():
        body()
        await body().aclose()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(main())
        gc.collect()
    assert [] == [str(w.message) for w in caught]
