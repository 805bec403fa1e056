"""Running under a snapshot."""

import functools
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import pytest
from snapshot_subjects import TIMEOUT, Counting, defaulted, plain

from ctxcarry import MISSING, Registry


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
