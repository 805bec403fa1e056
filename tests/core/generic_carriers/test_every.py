"""What holds for every generic carrier."""

import ctypes
import gc
import threading
from contextvars import ContextVar

import pytest

import ctxcarry
from ctxcarry import MISSING, ContextVarCarrier, ThreadLocalCarrier, ValueCarrier


def test_one_snapshot_spans_all_kinds(registry, local, in_thread):
    """ContextVars, a threading.local, and native state arrive together (feature 7)."""
    variable = ContextVar("variable", default="default")
    registry.register(ValueCarrier("errno", ctypes.get_errno, ctypes.set_errno, default=0))
    variable.set("near")
    local.stack = ["near"]
    ctypes.set_errno(7)
    try:
        snapshot = registry.capture()
    finally:
        ctypes.set_errno(0)

    def look():
        return variable.get(), getattr(local, "stack", None), ctypes.get_errno()

    def elsewhere():
        return look(), snapshot.run(look), look()

    nothing = ("default", None, 0)
    assert (nothing, ("near", ["near"], 7), nothing) == in_thread(elsewhere)


def test_no_contextvar_is_made_on_the_way(registry, local):
    """A ContextVar's value stays in its Context for ever, so none is created (trap 15)."""
    variable = ContextVar("variable")
    variable.set(1)
    local.value = 1

    def use():
        snapshot = registry.capture()
        snapshot.run(int)
        snapshot.wrap(int)()
        with snapshot.active(), ctxcarry.suppress("local"):
            registry.capture().run(int)
        with ctxcarry.executor(1, registry=registry) as pool:
            pool.submit(int).result(30)

    def count():
        gc.collect()
        return sum(type(thing) is ContextVar for thing in gc.get_objects())

    use()
    before = count()
    for _ in range(5):
        use()
    assert before == count()


@pytest.mark.parametrize(
    ("carrier", "state", "words"),
    [
        (ContextVarCarrier(ContextVar("v")), MISSING, "not set"),
        (ContextVarCarrier(ContextVar("v")), None, "None"),
        (ValueCarrier("v", int, print), "a  \n b" * 50, "…"),
        (ThreadLocalCarrier(threading.local(), name="l"), {"a": 1}, "{'a': 1}"),
    ],
)
def test_describe_is_one_short_line(carrier, state, words):
    """A description is one line of at most 80 characters, and "not set" is not None."""
    text = carrier.describe(state)
    assert words in text
    assert len(text) <= 80
    assert "\n" not in text
    assert carrier.name in repr(carrier)
