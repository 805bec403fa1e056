"""
Case 30 (Automodel#2761, NeMo-RL#1676): a recompute may not use the attention of its forward.

The flags behind ``sdpa_kernel`` are those of the whole process. So they are not
carried without being asked for: a thread that set them would set them for all others.
"""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("torch")

import torch
from torch.backends.cuda import enable_flash_sdp, flash_sdp_enabled
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

import ctxcarry

NAME = "sdpa.flash"


@pytest.fixture(autouse=True)
def _flag():
    """Check that the flag is on before and after."""
    assert flash_sdp_enabled()
    yield
    assert flash_sdp_enabled()


@pytest.fixture
def register():
    """Give a function that registers a carrier of the flag, and unregister it in the end."""

    def register(**options):
        carrier = ctxcarry.ValueCarrier(NAME, flash_sdp_enabled, enable_flash_sdp, **options)
        ctxcarry.register(carrier)

    yield register
    ctxcarry.unregister(NAME)


@pytest.fixture(params=["install", "context_fn", "reentrant"])
def arguments(request):
    """Give the arguments for a checkpoint whose recompute is carried, in each way."""
    if request.param == "context_fn":
        yield {"use_reentrant": False, "context_fn": ctxcarry.autograd.context_fn()}
        return
    ctxcarry.install("autograd")
    try:
        yield {"use_reentrant": request.param == "reentrant"}
    finally:
        ctxcarry.uninstall("autograd")


def flags(**arguments):
    """Return whether the forward and the recompute may use flash attention."""
    seen = []

    def block(x):
        seen.append(flash_sdp_enabled())
        return x.sin()

    with sdpa_kernel(SDPBackend.MATH):
        y = checkpoint(block, torch.ones(2, requires_grad=True), **arguments)
    y.sum().backward()
    return seen


def in_a_thread(fn):
    """Return what `fn` returns on another thread."""
    found = []
    thread = threading.Thread(target=lambda: found.append(fn()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_fault(use_reentrant):
    """The forward may not, and the recompute may."""
    assert [False, True] == flags(use_reentrant=use_reentrant)


def test_the_flag_is_of_the_process():
    """What one thread sets, all threads have."""
    with sdpa_kernel(SDPBackend.MATH):
        assert not in_a_thread(flash_sdp_enabled)


def test_not_carried_unasked(arguments):
    """Without a carrier, carrying does not change it."""
    assert [False, True] == flags(**arguments)


def test_cure(arguments, register):
    """With a carrier of what belongs to the process, the recompute may do what its forward may."""
    register(process_wide=True)
    assert [False, False] == flags(**arguments)


@pytest.mark.parametrize(("options", "expected"), [({"process_wide": True}, True), ({}, False)])
def test_threads_are_left_alone(register, options, expected):
    """Such a carrier sets nothing in threads, where one of a thread's own value would."""
    register(**options)
    with sdpa_kernel(SDPBackend.MATH):
        bound = ctxcarry.bind(flash_sdp_enabled)
    assert expected == in_a_thread(bound)
