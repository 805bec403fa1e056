"""Calls one after the other: each has what is set when it is made, whatever the last one had."""

import threading

import pytest
import ray
import ray.actor
import ray_work as work

import ctxcarry

pytestmark = pytest.mark.usefixtures("cluster")

TIMES = 4  # enough for whatever is kept from call to call to be in use


@pytest.fixture(params=["task", "method"])
def call(request, made):
    """Return a function that calls what returns the variable, and changes it if it is a list."""

    def read_and_append():
        value = work.VARIABLE.get()
        found = repr(value)
        if isinstance(value, list):
            value.append("by a call")
        return found

    class Reader:
        def read(self):
            return read_and_append()

    if request.param == "task":
        task = ctxcarry.ray.remote(read_and_append)
        return lambda: ray.get(task.remote())
    actor = made(ctxcarry.ray.remote(Reader))
    return lambda: ray.get(actor.read.remote())


def test_the_same_again(call, variable_set):
    """What stays set arrives each time, and nothing of it stays behind."""
    for value in ("there", "elsewhere"):
        with variable_set(value):
            assert [repr(value)] * TIMES == [call() for _ in range(TIMES)]
        assert ["'unset'"] * TIMES == [call() for _ in range(TIMES)]


def test_a_value_changed_in_place(call, variable_set):
    """A list arrives as it is at each call, and not as another call has left it over there."""
    value = ["first"]
    with variable_set(value):
        assert ["['first']"] * TIMES == [call() for _ in range(TIMES)]
        value.append("second")
        assert ["['first', 'second']"] * TIMES == [call() for _ in range(TIMES)]


def test_equal_values_of_other_types(call, variable_set):
    """A value is not taken for one that is equal."""
    for value in (1, True, 1.0):
        with variable_set(value):
            assert [repr(value)] * TIMES == [call() for _ in range(TIMES)]


def test_threads(call):
    """Threads that call by turns have each their own."""
    found = {}
    barrier = threading.Barrier(2)

    def run(name):
        work.VARIABLE.set(name)
        found[name] = []
        for _ in range(TIMES):
            barrier.wait()
            found[name].append(call())

    threads = [threading.Thread(target=run, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {"one": ["'one'"] * TIMES, "two": ["'two'"] * TIMES} == found


def test_a_policy(call, variable_set):
    """A policy that is entered between calls holds for those inside of it."""
    with variable_set():
        assert ["'there'"] * TIMES == [call() for _ in range(TIMES)]
        with ctxcarry.suppress("contextvars"):
            assert ["'unset'"] * TIMES == [call() for _ in range(TIMES)]
        assert ["'there'"] * TIMES == [call() for _ in range(TIMES)]


def test_nothing_set_adds_no_argument(call, monkeypatch):
    """A call under no contexts has the arguments that it was given, and no other."""
    given = []
    signature = ray.actor.signature
    original = signature.validate_args

    def validate_args(parameters, args, kwargs):
        given.append((args, kwargs))
        return original(parameters, args, kwargs)

    monkeypatch.setattr(signature, "validate_args", validate_args)
    assert "'unset'" == call()
    assert [] == [arguments for _, *arguments in given if any(arguments)]
