"""Snapshot: run, active, wrap, over and explain."""

import asyncio
import copy
import functools
import inspect
import pickle
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, ContextVar, copy_context

import pytest

import ctxcarry
from ctxcarry import (
    MISSING,
    CarrierError,
    ContextVarCarrier,
    LeakError,
    Registry,
    Snapshot,
    ThreadLocalCarrier,
    ValueCarrier,
)

TIMEOUT = 30

plain = ContextVar("plain")
defaulted = ContextVar("defaulted", default="default")


# ---------------------------------------------------------------- run


def test_run_returns_and_passes_arguments(registry):
    """`run` calls with the arguments given and returns what the function returns."""
    snapshot = registry.capture()
    assert ((1, 2), {"k": 3}) == snapshot.run(lambda *a, **k: (a, k), 1, 2, k=3)


@pytest.mark.parametrize("method", ["run", "wrap"])
def test_keyword_arguments_may_have_any_name(method, registry, local):
    """No keyword argument of the function collides with one of ours (trap 12)."""
    local.value = 1
    snapshot = registry.capture()
    names = [
        "fn",
        "func",
        "self",
        "args",
        "kwargs",
        "snapshot",
        "plan",
        "states",
        "instance",
        "name",
    ]
    arguments = {name: name.upper() for name in names}

    def take(*args, **kwargs):
        return args, kwargs

    call = snapshot.wrap(take) if method == "wrap" else functools.partial(snapshot.run, take)
    assert ((1,), arguments) == call(1, **arguments)


def test_run_carries_and_gives_back(registry, local):
    """Inside everything is as captured, afterwards everything is as before."""
    plain.set("near")
    local.value = "near"
    snapshot = registry.capture()
    plain.set("far")
    local.value = "far"
    assert ("near", "near") == snapshot.run(lambda: (plain.get(), local.value))
    assert ("far", "far") == (plain.get(), local.value)


def test_run_raises_what_the_function_raises(registry, local):
    """An exception passes through untouched, and everything is as before."""
    local.value = "near"
    snapshot = registry.capture()
    local.value = "far"
    error = ValueError("mine")

    def fail():
        raise error

    with pytest.raises(ValueError, match="mine") as caught:
        snapshot.run(fail)
    assert error is caught.value
    assert not getattr(error, "__notes__", [])
    assert error.__context__ is None
    assert "far" == local.value


def test_run_in_another_thread(registry, local, in_thread):
    """A snapshot of one thread is active in another, which is as before afterwards."""
    plain.set("near")
    local.value = "near"
    snapshot = registry.capture()

    def look():
        return plain.get(None), getattr(local, "value", None)

    assert ((None, None), ("near", "near"), (None, None)) == in_thread(
        lambda: (look(), snapshot.run(look), look())
    )


def test_unset_is_really_unset(registry, local):
    """What was not set is not set: a LookupError, not a stand-in."""
    snapshot = registry.capture()
    plain.set("far")
    defaulted.set("far")
    local.value = "far"

    def look():
        with pytest.raises(LookupError):
            plain.get()
        with pytest.raises(AttributeError):
            local.value  # noqa: B018 - the access is the test
        assert plain not in copy_context()
        return defaulted.get()

    assert "default" == snapshot.run(look)
    assert ("far", "far", "far") == (plain.get(), defaulted.get(), local.value)


def test_none_is_a_value(registry, local):
    """None is carried as None, over a value and over nothing."""
    plain.set(None)
    local.value = None
    snapshot = registry.capture()
    plain.set("far")
    local.value = "far"
    assert (None, None) == snapshot.run(lambda: (plain.get("unset"), local.value))
    del local.value
    assert {"value": None} == snapshot.run(lambda: dict(vars(local)))


def test_contextvars_set_inside_stay_inside(registry):
    """ContextVars that the function sets are its own, each time anew."""
    plain.set(0)
    snapshot = registry.capture()

    def count():
        plain.set(plain.get() + 1)
        return plain.get()

    assert [1, 1] == [snapshot.run(count), snapshot.run(count)]
    assert 0 == plain.get()


def test_run_nested_in_itself(registry, local):
    """A snapshot may run under itself, which one Context may not (trap 1)."""
    plain.set("near")
    local.value = "near"
    snapshot = registry.capture()

    def deeper(depth):
        plain.set(depth)
        local.value = depth
        inside = snapshot.run(deeper, depth - 1) if depth else ("near", "near")
        assert (depth, depth) == (plain.get(), local.value)
        snapshot.run(lambda: None)
        return snapshot.run(lambda: (plain.get(), local.value)) if depth else inside

    assert ("near", "near") == snapshot.run(deeper, 5)


def test_run_in_several_threads_at_once(registry, local):
    """Threads are inside one snapshot at the same moment, each with its own changes (trap 1)."""
    plain.set("near")
    local.stack = ["near"]
    snapshot = registry.capture()
    together = threading.Barrier(6)

    def work(number):
        seen = plain.get(), list(local.stack)
        plain.set(number)
        local.stack.append(number)
        together.wait(TIMEOUT)
        mine = plain.get(), list(local.stack)
        together.wait(TIMEOUT)
        return seen, mine

    with ThreadPoolExecutor(6) as pool:
        futures = [pool.submit(snapshot.run, work, n) for n in range(6)]
        results = [future.result(TIMEOUT) for future in futures]
    assert [(("near", ["near"]), (n, ["near", n])) for n in range(6)] == results


def test_snapshot_does_not_change_under_use(registry, local):
    """Neither the owner nor any run changes what the snapshot holds (feature 5)."""
    local.stack, local.table = [1], {"k": 1}
    snapshot = registry.capture()
    local.stack.append("owner")
    local.table.clear()

    def work():
        seen = list(local.stack), dict(local.table)
        local.stack.append("work")
        local.table["work"] = 1
        local.added = 1
        return seen, hasattr(local, "added")

    for _ in range(3):
        assert ((([1], {"k": 1})), True) == snapshot.run(work)
    assert ([1, "owner"], {}) == (local.stack, local.table)
    assert not hasattr(local, "added")


def test_snapshot_takes_no_attributes(registry):
    """A snapshot has no room for changes from outside."""
    with pytest.raises(AttributeError):
        registry.capture().extra = 1


def test_pickling_loses_nothing_silently(registry):
    """A Context cannot be pickled: a snapshot refuses, or carries the values (trap 14)."""
    plain.set("near")
    try:
        data = pickle.dumps(registry.capture())
    except (TypeError, pickle.PicklingError):
        return
    plain.set("far")
    assert "near" == pickle.loads(data).run(plain.get)  # noqa: S301


class Counting:
    """A carrier that counts its calls."""

    name = "counting"

    def __init__(self):
        self.value = MISSING
        self.calls = []

    def capture(self):
        return self.value

    def apply(self, state):
        self.calls.append("apply")
        before, self.value = self.value, state
        return before

    def undo(self, token):
        self.calls.append("undo")
        self.value = token


@pytest.mark.parametrize("value", [MISSING, None, "near", (1, 2)], ids=repr)
def test_snapshot_of_what_is_active_costs_nothing(value):
    """A context that already is as captured is neither applied nor undone."""
    registry = Registry()
    carrier = registry.register(Counting())
    carrier.value = value
    snapshot = registry.capture()
    assert value is snapshot.run(carrier.capture)
    with snapshot.active():
        assert value is carrier.value
    assert [] == carrier.calls


# ---------------------------------------------------------------- functions whose body runs later


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


# ---------------------------------------------------------------- wrap and bind


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


# ---------------------------------------------------------------- active


def test_active_carries_and_gives_back(registry, local):
    """In the block everything is as captured, afterwards everything is as before."""
    plain.set("near")
    local.value = "near"
    snapshot = registry.capture()
    plain.set("far")
    local.value = "far"
    with snapshot.active() as entered:
        assert ("near", "near") == (plain.get(), local.value)
        assert snapshot is entered
    assert ("far", "far") == (plain.get(), local.value)


def test_active_over_nothing(registry, local, in_thread):
    """Where nothing was set nothing is set after the block."""
    plain.set("near")
    local.value = "near"
    snapshot = registry.capture()

    def elsewhere():
        with snapshot.active():
            seen = plain.get(), local.value
        return seen, plain in copy_context(), vars(local)

    assert (("near", "near"), False, {}) == in_thread(elsewhere)


def test_active_unsets_what_it_can(registry, local):
    """A variable with a default shows it, a field is deleted, and both come back."""
    snapshot = registry.capture()
    defaulted.set("far")
    local.value = "far"
    with snapshot.active():
        assert "default" == defaulted.get()
        assert not hasattr(local, "value")
    assert ("far", "far") == (defaulted.get(), local.value)


def test_active_keeps_what_cannot_be_unset(registry):
    """A variable without default that the snapshot does not hold keeps its value, as documented."""
    snapshot = registry.capture()
    plain.set("far")
    with snapshot.active():
        assert "far" == plain.get()
    assert "far" == plain.get()


def test_active_refuses_to_unset_by_name_what_it_cannot(registry, local):
    """Asked by name to unset such a variable, the block is not entered and nothing is changed."""
    registry.register(ContextVarCarrier(plain))
    local.value = "near"
    with ctxcarry.policy(clear="plain"):
        snapshot = registry.capture()
    plain.set("far")
    defaulted.set("far")
    local.value = "far"
    with pytest.raises(CarrierError, match=r"snapshot\.run"), snapshot.active():
        pytest.fail("entered")
    assert ("far", "far", "far") == (plain.get(), defaulted.get(), local.value)


def test_active_gives_back_after_an_exception(registry, local):
    """An exception leaves the block untouched, and everything is as before."""
    plain.set("near")
    local.value = "near"
    snapshot = registry.capture()
    plain.set("far")
    local.value = "far"
    error = ValueError("mine")
    with pytest.raises(ValueError, match="mine") as caught, snapshot.active():
        raise error
    assert error is caught.value
    assert ("far", "far") == (plain.get(), local.value)


def test_active_gives_back_what_the_block_changed(registry, local):
    """What the block itself sets does not outlive it."""
    plain.set("near")
    local.value = "near"
    snapshot = registry.capture()
    plain.set("far")
    local.value = "far"
    with snapshot.active():
        plain.set("inside")
        local.value = "inside"
    assert ("far", "far") == (plain.get(), local.value)


def test_active_can_be_entered_again(registry, local):
    """One manager may be used one time after another."""
    local.value = "near"
    active = registry.capture().active()
    local.value = "far"
    for _ in range(3):
        with active:
            assert "near" == local.value
        assert "far" == local.value


def test_active_nested_in_itself(registry, local):
    """One manager may be entered inside itself; each level gives back its own."""
    plain.set("near")
    local.value = "near"
    active = registry.capture().active()
    plain.set("far")
    local.value = "far"
    with active:
        plain.set(1)
        local.value = 1
        with active:
            assert ("near", "near") == (plain.get(), local.value)
        assert (1, 1) == (plain.get(), local.value)
    assert ("far", "far") == (plain.get(), local.value)


def test_active_of_two_snapshots_nested(registry, local):
    """Snapshots nest in one another."""
    snapshots = []
    for value in ("one", "two"):
        plain.set(value)
        local.value = value
        snapshots.append(registry.capture())
    one, two = snapshots
    with one.active(), two.active(), one.active():
        assert ("one", "one") == (plain.get(), local.value)
    assert ("two", "two") == (plain.get(), local.value)


def test_active_in_several_threads_at_once(registry, local):
    """Threads are inside one manager at the same moment, and leave it in any order."""
    plain.set("near")
    local.value = "near"
    active = registry.capture().active()
    together = threading.Barrier(4)
    turns = [threading.Event() for _ in range(5)]
    turns[0].set()

    def work(number):
        plain.set(number)
        local.value = number
        with active:
            together.wait(TIMEOUT)
            seen = plain.get(), local.value
            assert turns[number].wait(TIMEOUT)
        turns[number + 1].set()
        return seen, plain.get(), local.value

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(work, n) for n in range(4)]
        results = [future.result(TIMEOUT) for future in futures]
    assert [(("near", "near"), n, n) for n in range(4)] == results


def test_active_shared_by_busy_threads(registry, local):
    """Many threads that enter and leave one manager all the time do not disturb one another."""
    local.value = "near"
    active = registry.capture().active()
    together = threading.Barrier(8)

    def work(number):
        local.value = number
        together.wait(TIMEOUT)
        for _ in range(2000):
            with active:
                if local.value != "near":
                    return local.value
            if local.value != number:
                return local.value
        return None

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            futures = [pool.submit(work, n) for n in range(8)]
            results = [future.result(2 * TIMEOUT) for future in futures]
    finally:
        sys.setswitchinterval(interval)
    assert [None] * 8 == results


@pytest.mark.parametrize("alive", [True, False], ids=["thread-alive", "thread-ended"])
def test_active_left_in_another_thread(alive, registry, local):
    """Leaving in another thread is a LeakError, also when the first has ended (trap 2)."""
    local.value = "near"
    snapshot = registry.capture()
    active = snapshot.active()
    entered, leave = threading.Event(), threading.Event()
    kept = []

    def enter():
        local.value = "A"
        active.__enter__()
        entered.set()
        if alive:
            assert leave.wait(TIMEOUT)
            kept.append(local.value)
            active.__exit__(None, None, None)
            kept.append(local.value)

    def elsewhere():
        local.value = "B"
        try:
            active.__exit__(None, None, None)
        except LeakError:
            kept.append(local.value)
        else:
            kept.append("not refused")

    first = threading.Thread(target=enter)
    first.start()
    assert entered.wait(TIMEOUT)
    if not alive:
        first.join(TIMEOUT)
    # The system gives the numbers of ended threads to new ones, so one try proves nothing.
    for _ in range(1 if alive else 8):
        second = threading.Thread(target=elsewhere)
        second.start()
        second.join(TIMEOUT)
    leave.set()
    first.join(TIMEOUT)
    assert (["B", "near", "A"] if alive else ["B"] * 8) == kept
    assert "near" == local.value


def test_active_left_without_being_entered(registry):
    """Leaving a block that was never entered is a LeakError."""
    with pytest.raises(LeakError, match="no thread"):
        registry.capture().active().__exit__(None, None, None)


def test_active_left_in_another_context(registry, local):
    """Left in another Context, the variables cannot be given back: a LeakError (trap 3)."""
    plain.set("near")
    local.value = "near"
    snapshot = registry.capture()
    plain.set("far")
    local.value = "far"
    active = snapshot.active()
    first, second = copy_context(), copy_context()
    first.run(active.__enter__)
    with pytest.raises(LeakError, match="plain"):
        second.run(active.__exit__, None, None, None)
    assert "far" == local.value
    assert ("near", "far") == (first[plain], second[plain])


def test_active_left_in_another_context_does_not_mask(registry):
    """The user's exception stays what the caller sees when the block is left in a wrong place."""
    plain.set("near")
    snapshot = registry.capture()
    plain.set("far")

    def body():
        with snapshot.active():
            yield

    generator = body()
    copy_context().run(next, generator)
    with pytest.raises(ValueError, match="mine") as caught:
        copy_context().run(generator.throw, ValueError("mine"))
    assert "plain" in "".join(getattr(caught.value, "__notes__", []))


def test_active_in_an_async_generator_closed_elsewhere(registry, local):
    """A block in an async generator that another task closes loses nothing (trap 4)."""
    plain.set("near")
    local.value = "near"
    snapshot = registry.capture()
    plain.set("far")
    local.value = "far"

    async def body():
        with snapshot.active():
            yield

    async def main():
        generator = body()
        await asyncio.ensure_future(generator.__anext__())
        during = plain.get()
        with pytest.raises(LeakError):
            await asyncio.ensure_future(generator.aclose())
        return during, plain.get(), local.value

    assert ("far", "far", "far") == asyncio.run(main())


# ---------------------------------------------------------------- over


def test_over_fills_what_is_missing(registry, local):
    """`over` takes from the base what the snapshot itself does not set."""
    plain.set("base")
    defaulted.set("base")
    local.value = "base"
    base = registry.capture()

    def near():
        plain.set("near")
        return registry.capture()

    del local.value
    snapshot = Context().run(near)
    assert ("near", "base", "base") == snapshot.over(base).run(
        lambda: (plain.get(), defaulted.get(), local.value)
    )
    assert ("near", "default", {}) == snapshot.run(
        lambda: (plain.get(), defaulted.get(), dict(vars(local)))
    )


def test_over_none_counts_as_set(registry, local):
    """None in the snapshot is a value and is not replaced from the base."""
    plain.set("base")
    local.value = "base"
    base = registry.capture()
    plain.set(None)
    local.value = None
    snapshot = registry.capture()
    assert (None, None) == snapshot.over(base).run(lambda: (plain.get(), local.value))


def test_over_respects_a_default():
    """A ValueCarrier's default counts as not set."""
    values = {"now": "unset"}
    registry = Registry()
    registry.register(
        ValueCarrier("v", lambda: values["now"], lambda v: values.update(now=v), default="unset")
    )
    snapshot = registry.capture()
    values["now"] = "base"
    base = registry.capture()
    values["now"] = "far"
    assert "base" == snapshot.over(base).run(lambda: values["now"])
    assert "far" == values["now"]


def test_over_does_not_undo_a_clear(registry, local):
    """What a policy cleared in the snapshot stays cleared over any base."""
    local.value = "base"
    plain.set("base")
    base = registry.capture()
    with ctxcarry.policy(clear=["local", "contextvars"]):
        snapshot = registry.capture()
    look = snapshot.over(base)
    assert ({}, None) == look.run(lambda: (dict(vars(local)), plain.get(None)))


def test_over_with_a_variable_of_its_own_name():
    """A ContextVar carried by name alone is taken from the base like any other context."""
    registry = Registry()
    registry.register(ContextVarCarrier(plain))
    snapshot = registry.capture()
    plain.set("base")
    base = registry.capture()
    plain.set("far")
    assert "base" == snapshot.over(base).run(plain.get)


# ---------------------------------------------------------------- explain


def test_explain_has_a_line_for_each_carrier(registry, local):
    """Captured, missing, skipped and cleared contexts are told apart, in order."""
    plain.set("near")
    local.value = "near"
    other = threading.local()
    registry.register(ThreadLocalCarrier(other, name="other"))
    registry.register(ThreadLocalCarrier(threading.local(), name="left"))
    registry.register(ThreadLocalCarrier(threading.local(), name="cleared"))
    registry.register(ContextVarCarrier(plain, name="app.plain"))
    with ctxcarry.policy(unchanged="left", clear="cleared"):
        text = registry.capture().explain()
    first, *lines = text.splitlines()
    assert "captured" in first
    assert ["contextvars", "local", "other", "left", "cleared", "app.plain"] == [
        line.split(":")[0].strip() for line in lines
    ]
    assert "captured" in lines[0]
    assert "'value': 'near'" in lines[1]
    assert "not set" in lines[2]
    assert "skipped" in lines[3]
    assert "cleared" in lines[4]
    assert "'near'" in lines[5]


def test_explain_counts_the_users_variables_only(registry):
    """With no variable set, nothing of ours is counted as one, policy or not."""
    assert "contextvars: nothing set" in registry.capture().explain()
    with ctxcarry.policy(propagate="contextvars"):
        inside = registry.capture().explain()
    assert "contextvars: nothing set" in inside
    assert "contextvars: nothing set" in registry.capture().explain()
    assert "<Snapshot of nothing>" == repr(registry.capture())


def test_explain_says_where(registry, monkeypatch):
    """When origins are recorded, the place of the capture is told, and it is the user's."""
    from ctxcarry._capture import origins

    assert str(__file__) not in registry.capture().explain()
    monkeypatch.setattr(origins, "recorded", True)
    text = registry.capture().explain()
    assert re.search(rf"{re.escape(__file__)}:\d+ in test_explain_says_where", text)


def test_explain_uses_the_carriers_own_words():
    """A carrier's `describe` is used, and one without it is shown by its repr."""
    registry = Registry()
    registry.register(Counting()).value = "near"
    assert "counting: captured: 'near'" in registry.capture().explain()
    described = type("Described", (Counting,), {"describe": lambda self, state: f"<{state}>"})
    registry.unregister("counting")
    registry.register(described()).value = "near"
    assert "counting: captured: <near>" in registry.capture().explain()


def test_repr_names_what_is_set(registry, local):
    """The repr lists the contexts that are set."""
    assert "<Snapshot of nothing>" == repr(registry.capture())
    plain.set(1)
    local.value = 1
    assert "<Snapshot of contextvars, local>" == repr(registry.capture())
    assert isinstance(registry.capture(), Snapshot)
