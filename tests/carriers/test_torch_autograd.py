"""Saved-tensor hooks and autograd's own threads of real torch in other threads."""

from __future__ import annotations

from contextlib import closing, contextmanager

import pytest
import torch
from torch.autograd.graph import disable_saved_tensors_hooks, save_on_cpu, saved_tensors_hooks

import ctxcarry

DISABLED = "not here"


class Hooks:
    """Hooks that note where they are called."""

    def __init__(self, name="hooks"):
        self.name, self.notes = name, []

    def pack(self, tensor):
        self.notes.append(f"pack {self.name}")
        return tensor

    def unpack(self, tensor):
        self.notes.append(f"unpack {self.name}")
        return tensor

    def __call__(self):
        return saved_tensors_hooks(self.pack, self.unpack)


@pytest.fixture
def hooks():
    """Return a pair of hooks."""
    return Hooks()


def top():
    """Return the innermost pair of hooks of this thread, and the message that disables them."""
    autograd = torch._C._autograd
    return (
        autograd._top_saved_tensors_default_hooks(False),
        autograd._saved_tensors_hooks_get_disabled_error_message(),
    )


@contextmanager
def disabled_over_hooks():
    """Disable hooks although there are some, as torch's own transforms do."""
    autograd = torch._C._autograd
    autograd._saved_tensors_hooks_disable(DISABLED, False)
    try:
        yield
    finally:
        autograd._saved_tensors_hooks_enable()


def forward():
    """Compute something that saves a tensor."""
    return torch.ones(2, requires_grad=True).exp()


@pytest.fixture(autouse=True)
def _no_hooks_are_left():
    """Check that a test leaves no hooks on the main thread."""
    yield
    left = top()
    while top()[0] is not None:
        torch._C._autograd._pop_saved_tensors_default_hooks()
    assert (None, None) == left
    assert torch._C._is_multithreading_enabled() is True


def test_hooks_are_lost_in_a_plain_pool(hooks, worker):
    """Without ctxcarry what the worker saves passes no hooks, which is the fault."""
    with hooks():
        worker.submit(forward).result().sum().backward()
    assert [] == hooks.notes


def test_hooks_are_carried(hooks, carrying):
    """What a task saves is packed by the submitter's hooks, and unpacked where it is used."""
    with hooks():
        result = carrying.submit(forward).result()
    assert ["pack hooks"] == hooks.notes
    result.sum().backward()
    assert ["pack hooks", "unpack hooks"] == hooks.notes
    carrying.submit(forward).result()
    assert (None, None) == carrying.submit(top).result()
    assert ["pack hooks", "unpack hooks"] == hooks.notes


def test_backward_within_the_task(hooks, carrying):
    """Forward and backward in one task pack and unpack as inline."""

    def work():
        forward().sum().backward()

    with hooks():
        carrying.submit(work).result()
    assert ["pack hooks", "unpack hooks"] == hooks.notes


def test_innermost_hooks_are_used_as_inline(carrying):
    """Of nested hooks only the innermost is used in the task, as inline."""
    outer, inner = Hooks("outer"), Hooks("inner")
    with outer(), inner():
        forward()
        inline = inner.notes + outer.notes
        inner.notes.clear()
        carrying.submit(forward).result()
    assert ["pack inner"] == inline
    assert inline == inner.notes + outer.notes


def test_hooks_of_the_task_lie_over_the_carried_ones(hooks, carrying):
    """A task may enter hooks of its own, and has the carried ones again after."""
    own = Hooks("own")

    def work():
        with own():
            forward()
        forward()

    with hooks():
        carrying.submit(work).result()
    assert (["pack own"], ["pack hooks"]) == (own.notes, hooks.notes)


def test_save_on_cpu_is_carried(carrying):
    """Torch's own pair of hooks works in a task, and the gradients are right."""
    x = torch.full((2,), 2.0, requires_grad=True)
    with save_on_cpu():
        y = carrying.submit((x * x).sum).result()
    y.backward()
    assert torch.equal(torch.full((2,), 4.0), x.grad)


def test_disabling_is_carried(hooks, carrying):
    """Where hooks are disabled a task may not enter any, with the same message."""

    def work():
        with hooks():
            return forward()

    with disable_saved_tensors_hooks(DISABLED):
        future = carrying.submit(work)
        with pytest.raises(RuntimeError, match=DISABLED):
            future.result()
    assert (None, None) == carrying.submit(top).result()
    assert carrying.submit(work).result().requires_grad is True
    assert ["pack hooks"] == hooks.notes


def test_task_that_disables_hooks_does_not_leave_them_disabled(hooks, carrying):
    """Hooks that a task disables are enabled in the next task."""

    def careless():
        torch._C._autograd._saved_tensors_hooks_disable(DISABLED)

    carrying.submit(careless).result()
    with hooks():
        carrying.submit(forward).result()
    assert ["pack hooks"] == hooks.notes


def test_task_that_leaves_hooks_does_not_keep_them(hooks, carrying):
    """Hooks that a task leaves on, or an error leaves on, are gone in the next task."""

    def careless():
        torch._C._autograd._push_saved_tensors_default_hooks(hooks.pack, hooks.unpack)
        raise KeyError

    with pytest.raises(KeyError):
        carrying.submit(careless).result()
    assert (None, None) == carrying.submit(top).result()


def test_no_hooks_is_a_state_too(hooks, worker):
    """A task handed over without hooks has none in a worker with hooks, which keeps its own."""
    other = Hooks("other")
    bound = ctxcarry.bind(top)

    def work():
        with hooks(), other():
            found = bound()
            forward()
        with hooks(), disabled_over_hooks():
            return found, bound(), top()[1]

    found = worker.submit(work).result()
    assert ((None, None), (None, None), DISABLED) == found
    assert ["pack other"] == other.notes


def test_hooks_disabled_over_hooks_are_carried_as_they_are(hooks, worker):
    """Disabled hooks that are there are carried as both, and the worker's own come back."""
    own = Hooks("own")
    with hooks(), disabled_over_hooks():
        here = top()
        bound = ctxcarry.bind(top)

    def work():
        with own():
            return bound(), top()[1], forward() is not None

    assert (here, None, True) == worker.submit(work).result()
    assert ["pack own"] == own.notes


def test_generator_holding_hooks_moves_to_another_thread(hooks, worker):
    """A carried generator has its hooks on whichever thread resumes it, and they go with it."""

    @ctxcarry.carry_context
    def generate():
        with hooks():
            yield forward()
            yield forward()
        yield forward()

    generator = generate()
    with closing(generator):
        next(generator)
        assert ((None, None), 1) == (top(), len(hooks.notes))
        worker.submit(next, generator).result()
        assert ((None, None), 2) == (worker.submit(top).result(), len(hooks.notes))
        next(generator)
        assert 2 == len(hooks.notes)


def test_suppressed_hooks_stay_behind(hooks, carrying):
    """Suppressed hooks are not used by the task."""
    with hooks(), ctxcarry.suppress("torch.saved_tensors_hooks"):
        carrying.submit(forward).result()
    assert [] == hooks.notes


def test_multithreading_is_lost_in_a_plain_pool(worker):
    """Without ctxcarry the worker uses autograd's threads although its submitter may not."""
    with torch.autograd.set_multithreading_enabled(False):
        assert worker.submit(torch._C._is_multithreading_enabled).result() is True


def test_multithreading_is_carried(carrying):
    """A task may use autograd's threads just as its submitter may, the next one as its own."""
    enabled = torch._C._is_multithreading_enabled
    with torch.autograd.set_multithreading_enabled(False):
        assert carrying.submit(enabled).result() is False
    assert carrying.submit(enabled).result() is True


def test_enabled_multithreading_reaches_a_worker_without(worker):
    """A task handed over with it enabled has it in a worker where it is off, and only there."""
    enabled = torch._C._is_multithreading_enabled
    bound = ctxcarry.bind(enabled)

    def work():
        with torch.autograd.set_multithreading_enabled(False):
            return bound(), enabled()

    assert (True, False) == worker.submit(work).result()
