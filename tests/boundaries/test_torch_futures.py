"""``torch.futures.Future``: callbacks run in the context of whoever added them."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("torch")

import torch

import ctxcarry

TIMEOUT = 30
SET, UNSET = ("mine", "mine"), ("unset", "unset")


def complete(future, value=1):
    """Complete `future` in another thread, whose end is awaited."""
    thread = threading.Thread(target=future.set_result, args=(value,))
    thread.start()
    thread.join(TIMEOUT)


def with_then(future, fn):
    """Add `fn` by `then`; return a function that gives its result."""
    return future.then(fn).wait


def with_done_callback(future, fn):
    """Add `fn` by `add_done_callback`; return a function that gives its result."""
    found = []
    wrapped = fn if hasattr(fn, "bind") else (lambda f: found.append(fn(f)))
    if wrapped is fn:
        inner = fn.__wrapped__
        wrapped = ctxcarry.carry_context(lambda f: found.append(inner(f)))
    future.add_done_callback(wrapped)
    return lambda: found[0]


WAYS = [with_then, with_done_callback]


@pytest.mark.parametrize("way", WAYS)
def test_plain_callback_loses_the_context(way, seen, ambient):
    """Without ctxcarry a callback has the context of the thread that completes the future."""
    future = torch.futures.Future()
    with ambient("mine"):
        result = way(future, seen)
        complete(future)
    assert UNSET == result()


@pytest.mark.parametrize("way", WAYS)
def test_installed_callback_carries(way, seen, ambient):
    """With the boundary installed a callback has the context of whoever added it."""
    ctxcarry.install("torch.futures")
    future, plain = torch.futures.Future(), torch.futures.Future()
    with ambient("mine"):
        result = way(future, seen)
        ctxcarry.uninstall("torch.futures")
        plain_result = way(plain, seen)
    complete(future)
    complete(plain)
    assert (SET, UNSET) == (result(), plain_result())


@pytest.mark.parametrize("way", WAYS)
def test_decorated_callback_is_carried(way, seen, ambient):
    """A decorated callback carries without install."""
    future = torch.futures.Future()
    with ambient("mine"):
        result = way(future, ctxcarry.carry_context(seen))
    complete(future)
    assert SET == result()


@pytest.mark.parametrize("way", WAYS)
def test_callback_of_a_completed_future(way, seen, ambient):
    """A callback added late runs at once, in the context of whoever adds it."""
    ctxcarry.install("torch.futures")
    future = torch.futures.Future()
    future.set_result(1)
    with ambient("mine"):
        assert SET == way(future, seen)()


def test_chain_has_the_context_of_each_link(seen, ambient):
    """Each link of a chain has the context in which it was added, and the value of the former."""
    ctxcarry.install("torch.futures")
    future = torch.futures.Future()
    with ambient("one"):
        first = future.then(lambda f: (f.value(), seen()))
    with ambient("two"):
        second = first.then(lambda f: (f.value(), seen()))
    complete(future, 7)
    assert ((7, ("one", "one")), ("two", "two")) == second.wait()


def test_grad_mode_is_that_of_who_added_the_callback():
    """A callback that computes records its graph as whoever added it would."""
    ctxcarry.install("torch.futures")
    weight = torch.ones(1, requires_grad=True)
    future = torch.futures.Future()
    with torch.no_grad():
        without = future.then(lambda f: (f.value() * weight).requires_grad)
    recording = future.then(lambda f: (f.value() * weight).requires_grad)
    complete(future)
    assert (False, True) == (without.wait(), recording.wait())


def test_exception_of_a_callback_is_as_plain(ambient):
    """An exception in `then` is raised where its result is awaited."""
    ctxcarry.install("torch.futures")
    future = torch.futures.Future()

    def fail(_):
        raise KeyError("theirs")

    with ambient("mine"):
        result = future.then(fail)
    complete(future)
    with pytest.raises(Exception, match="theirs"):
        result.wait()
