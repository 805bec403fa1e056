"""
Case 21 (diffusers#4296, peft#3605, transformers#44940): init_empty_weights leaks.

Not ours: it replaces a function of ``nn.Module`` for the whole process, so that
there is no context of a thread to carry. Pinned, and carrying does not change it.
"""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("torch")
pytest.importorskip("accelerate")

import accelerate
import torch
from torch import nn

import ctxcarry

TIMEOUT = 30


@pytest.fixture(autouse=True)
def _module():
    """Put back what the leak leaves replaced."""
    original = nn.Module.register_parameter
    yield
    nn.Module.register_parameter = original


def device():
    """Return the device of a new layer's weight."""
    return nn.Linear(2, 2).weight.device.type


@pytest.mark.parametrize("make", [threading.Thread, ctxcarry.Thread])
def test_leak_is_of_the_process(make):
    """Two overlapping blocks leave the patch on, and other threads see it all the while."""
    first_in, second_in, first_out = threading.Event(), threading.Event(), threading.Event()

    def first():
        with accelerate.init_empty_weights():
            first_in.set()
            second_in.wait(TIMEOUT)
        first_out.set()

    def second():
        with accelerate.init_empty_weights():
            second_in.set()
            first_out.wait(TIMEOUT)

    threads = [make(target=first), make(target=second)]
    threads[0].start()
    assert first_in.wait(TIMEOUT)
    during = device()
    threads[1].start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert ("meta", "meta") == (during, device())


def test_carrying_does_not_change_it(way):
    """Work that is handed over inside the block builds on "meta" in any way, after it does not."""
    with accelerate.init_empty_weights():
        assert "meta" == way(device)
    assert "cpu" == way(device)


def test_torchs_own_device_block_is_carried_instead(way):
    """The remedy: a block of ``torch.device("meta")`` is of the thread, carried, and ends."""
    with torch.device("meta"):
        assert ("meta", "meta") == (device(), way(device))
    assert ("cpu", "cpu") == (device(), way(device))
