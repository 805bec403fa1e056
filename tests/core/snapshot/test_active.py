"""A snapshot that is active for a block."""

import asyncio
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import pytest
from snapshot_subjects import TIMEOUT, defaulted, plain

import ctxcarry
from ctxcarry import CarrierError, ContextVarCarrier, LeakError


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
