"""Taking the patches off again, in any order and with the patches of others."""

from __future__ import annotations

import functools
import threading

import pytest

import ctxcarry

TIMEOUT = 30
SET, UNSET = ("mine", "mine"), ("unset", "unset")


def result_of(work, results):
    """Run `work` in a thread and return the one result that it left."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(TIMEOUT)
    return results.pop()


def test_uninstall_under_a_patch_of_another(work, results, ambient):
    """With another's patch on top the boundary falls silent, and both can be taken off."""
    original = threading.Thread.start
    ctxcarry.install("thread")
    ours = threading.Thread.start

    @functools.wraps(ours)
    def theirs(self):
        return ours(self)

    threading.Thread.start = theirs
    try:
        ctxcarry.uninstall("thread")
        with ambient("mine"):
            assert UNSET == result_of(work, results)
            ctxcarry.install("thread")
            assert SET == result_of(work, results)
    finally:
        threading.Thread.start = ours
        ctxcarry.uninstall("thread")
    assert original is threading.Thread.start


def test_uninstall_gives_back_the_start_of_threads():
    """After decoration and after install of everything, uninstall leaves no patch on Thread."""
    original = threading.Thread.start
    ctxcarry.carry_context(lambda: None)
    ctxcarry.uninstall()
    assert original is threading.Thread.start
    ctxcarry.install()
    ctxcarry.uninstall()
    assert original is threading.Thread.start


@pytest.mark.parametrize("first", ["thread", "dataloader"])
def test_uninstall_one_after_the_other(first, work, results, ambient):
    """Two boundaries that patch one function are taken off in either order, for good."""
    original = threading.Thread.start
    ctxcarry.install("thread", "dataloader")
    ctxcarry.uninstall(first)
    with ambient("mine"):
        expected = UNSET if first == "thread" else SET
        assert expected == result_of(work, results)
    ctxcarry.uninstall({"thread": "dataloader", "dataloader": "thread"}[first])
    with ambient("mine"):
        assert UNSET == result_of(work, results)
    assert original is threading.Thread.start
