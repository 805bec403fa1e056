"""What instrumented pools carry."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from install_subjects import TIMEOUT, look, variable

import ctxcarry
from ctxcarry import Registry, install, suppress, uninstall


def test_keyword_arguments_may_have_any_name():
    """No keyword argument of a task collides with one of ours (trap 12)."""
    install("executor")
    variable.set("near")
    arguments = {name: name.upper() for name in ("fn", "func", "self", "args", "snapshot")}
    with ThreadPoolExecutor(1) as pool:
        assert arguments == pool.submit(lambda **k: k, **arguments).result(TIMEOUT)
        with pytest.raises(TypeError):
            pool.submit()


def test_pools_made_before(default_local):
    """Pools that exist already carry too, with all that the default registry has."""
    with ThreadPoolExecutor(1) as pool:
        install("executor")
        default_local.value = "near"
        assert "near" == pool.submit(lambda: default_local.value).result(TIMEOUT)


def test_subclasses():
    """A subclass carries when its own method calls that of its base."""

    class Named(ThreadPoolExecutor):
        def submit(self, fn, /, *args, **kwargs):
            return super().submit(fn, *args, **kwargs)

    install("executor")
    variable.set("near")
    with Named(1) as pool:
        assert "near" == pool.submit(look).result(TIMEOUT)
        assert "near" == next(pool.map(look, [0]))


def test_policies():
    """`suppress` holds for instrumented pools."""
    install("executor")
    variable.set("near")
    with ThreadPoolExecutor(1) as pool, suppress():
        assert "default" == pool.submit(look).result(TIMEOUT)
        assert "default" == next(pool.map(look, [0]))


def test_map_captures_at_the_call():
    """An instrumented `map` carries the context of its call."""
    install("executor")
    variable.set("near")
    with ThreadPoolExecutor(1) as pool:
        results = pool.map(look, (n for n in range(3)))
        variable.set("later")
        assert ["near"] * 3 == list(results)


def test_one_capture_for_each_hand_over():
    """Neither a patch over a patch nor `map` over `submit` captures twice."""
    calls = []

    class Counting:
        name = "test.counting"

        def capture(self):
            if threading.current_thread() is threading.main_thread():
                calls.append(1)
            return ctxcarry.MISSING

        def apply(self, state):
            pass

        def undo(self, token):
            pass

    ctxcarry.register(Counting())
    install("executor")
    try:
        with ThreadPoolExecutor(1) as plain, ctxcarry.executor(1) as ours:
            wrapped = ctxcarry.wrap_executor(plain)
            for pool in (plain, ours, wrapped):
                calls.clear()
                pool.submit(int).result(TIMEOUT)
                assert [1] == calls
                calls.clear()
                assert [0, 1] == list(pool.map(int, range(2)))
                assert [1] == calls
    finally:
        ctxcarry.unregister("test.counting")


def test_executor_with_its_own_registry(registry, local, default_local):
    """An instrumented plain pool beneath it does not change what a carrying pool carries."""
    install("executor")
    variable.set("near")
    local.value = default_local.value = "near"

    def seen(*_):
        return look(), getattr(local, "value", None), getattr(default_local, "value", None)

    cases = {
        "own": ({"registry": registry}, ("near", "near", None)),
        "empty": ({"registry": Registry()}, ("default", None, None)),
        "nothing": ({"policy": suppress()}, ("default", None, None)),
    }
    for name, (options, expected) in cases.items():
        with ctxcarry.executor(1, **options) as pool:
            assert (name, expected) == (name, pool.submit(seen).result(TIMEOUT))
            assert (name, expected) == (name, next(pool.map(seen, [0])))


def test_tasks_queued_before_uninstall(occupied):
    """What was submitted while installed is carried, though it runs later."""
    install("executor")
    variable.set("near")
    with ThreadPoolExecutor(1) as pool:
        with occupied(pool):
            future = pool.submit(look)
            uninstall("executor")
        assert "near" == future.result(TIMEOUT)
