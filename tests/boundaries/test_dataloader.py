"""``torch.utils.data.DataLoader``: worker processes and the pin-memory thread."""

from __future__ import annotations

import queue
import threading

import pytest

pytest.importorskip("torch")

import torch
import torch.utils.data
from torch.utils.data._utils import pin_memory

import ctxcarry

TIMEOUT = 60


def state():
    """Return what a worker has of contexts that can travel."""
    return (
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch._C._is_multithreading_enabled(),
    )


class Dataset(torch.utils.data.Dataset):
    """Tells the state in which an item is fetched, and what the user's init function left."""

    initialised = ()

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return (*state(), Dataset.initialised)


def as_it_is(item):
    """Keep an item from being made a list."""
    return item


def initialise(worker_id):
    """Note where the user's own init function ran, and in which state."""
    Dataset.initialised = (worker_id, *state())


def load(method, workers=1, **kwargs):
    """Return what the items of a loader tell."""
    loader = torch.utils.data.DataLoader(
        Dataset(),
        batch_size=None,
        collate_fn=as_it_is,
        num_workers=workers,
        multiprocessing_context=method if workers else None,
        timeout=TIMEOUT if workers else 0,
        **kwargs,
    )
    return list(loader)


@pytest.fixture
def setting():
    """Set grad mode, autocast and whether autograd uses threads."""
    with (
        torch.no_grad(),
        torch.autocast("cpu", torch.bfloat16),
        torch.autograd.set_multithreading_enabled(False),
    ):
        yield


PLAIN, CARRIED = (True, False, True), (False, True, False)


def test_spawned_worker_loses_the_context(setting):
    """Without ctxcarry a spawned worker has nothing of the context."""
    assert [(*PLAIN, ())] * 2 == load("spawn")


def test_spawned_worker_carries_by_init_function(setting):
    """With `worker_init_fn` it has the context of this moment, and so has the user's own."""
    items = load("spawn", worker_init_fn=ctxcarry.worker_init_fn(initialise))
    assert [(*CARRIED, (0, *CARRIED))] * 2 == items


def test_spawned_worker_carries_when_installed(setting):
    """With the boundary installed it has the context of whoever iterates."""
    ctxcarry.install("dataloader")
    items = load("spawn", worker_init_fn=initialise)
    assert [(*CARRIED, (0, *CARRIED))] * 2 == items


def test_forked_worker_has_the_context_of_the_init_function():
    """A forked worker has the context in which the init function was made, not of the fork."""
    with torch.no_grad(), torch.autograd.set_multithreading_enabled(False):
        init = ctxcarry.worker_init_fn(initialise)
    expected = False, False, False
    assert [(*expected, (0, *expected))] * 2 == load("fork", worker_init_fn=init)


def test_forked_worker_carries_when_installed(setting):
    """A forked worker has the context of whoever iterates, once and not in layers."""
    ctxcarry.install("dataloader")
    items = load("fork", workers=2, worker_init_fn=initialise)
    assert [(*CARRIED, (i, *CARRIED)) for i in range(2)] == items


def test_loader_keeps_the_users_init_function(setting):
    """Iterating does not change the loader, so that it can be iterated and pickled again."""
    ctxcarry.install("dataloader")
    loader = torch.utils.data.DataLoader(
        Dataset(), num_workers=1, batch_size=None, worker_init_fn=initialise, timeout=TIMEOUT
    )
    found = [len(list(loader)), loader.worker_init_fn]
    assert [2, initialise] == found


def test_each_iteration_takes_a_snapshot_of_its_own():
    """A loader iterated twice has the context of each time."""
    ctxcarry.install("dataloader")
    loader = torch.utils.data.DataLoader(
        Dataset(), num_workers=1, batch_size=None, multiprocessing_context="fork", timeout=TIMEOUT
    )
    with torch.no_grad():
        first = next(iter(loader))
    assert (False, True) == (first[0], next(iter(loader))[0])


def test_no_workers_is_as_inline(setting):
    """With num_workers=0 nothing is carried, since nothing moves."""
    ctxcarry.install("dataloader")
    assert [(*CARRIED, ())] * 2 == load(None, 0)


def test_context_that_cannot_travel_does_not_break_iteration(local):
    """With a context that cannot travel the loader still works, and says so at most."""
    ctxcarry.install("dataloader")
    local.value = threading.Lock()
    try:
        with torch.no_grad(), pytest.warns(ctxcarry.CtxCarryWarning, match=r"test\.local"):
            items = load("fork")
    finally:
        del local.value
    assert [(False, False, True, ())] * 2 == items


def test_init_function_says_what_cannot_travel(local):
    """Made explicitly, the init function raises on request, naming the context."""
    local.value = threading.Lock()
    try:
        with pytest.raises(ctxcarry.NotPortableError, match=r"test\.local"):
            ctxcarry.worker_init_fn(not_portable="raise")
    finally:
        del local.value


# The pin-memory thread: torch's own loop, with what needs an accelerator replaced


@pytest.fixture
def pinned(monkeypatch, seen):
    """Return a function that runs torch's own loop in a thread and returns what it saw."""
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: None)
    monkeypatch.setattr(pin_memory, "pin_memory", lambda data, device: seen())

    def run():
        threads = torch.get_num_threads()
        todo, results, done = queue.Queue(), queue.Queue(), threading.Event()
        thread = threading.Thread(
            target=pin_memory._pin_memory_loop, args=(todo, results, 0, done, None), daemon=True
        )
        thread.start()
        todo.put((0, "data"))
        try:
            return results.get(timeout=TIMEOUT)[1]
        finally:
            done.set()
            todo.put((1, "end"))
            thread.join(TIMEOUT)
            torch.set_num_threads(threads)

    return run


@pytest.mark.parametrize("boundaries", [("dataloader",), ("dataloader", "thread"), ("thread",)])
def test_pin_memory_thread_carries(boundaries, pinned, ambient):
    """The loop that pins memory runs in the context of who starts it, until uninstall."""
    ctxcarry.install(*boundaries)
    with ambient("mine"):
        assert ("mine", "mine") == pinned()
        ctxcarry.uninstall(*boundaries)
        assert ("unset", "unset") == pinned()
