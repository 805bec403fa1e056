"""What holds for grad mode, inference mode and autocast alike."""

from __future__ import annotations

import pytest
import torch
from torch_states_subjects import AMBIENT, ON_CPU, TORCH, entered

import ctxcarry

WAYS = {
    "run": lambda snapshot, fn: lambda: snapshot.run(fn),
    "wrap": lambda snapshot, fn: snapshot.wrap(fn),
    "active": lambda snapshot, fn: lambda: _in_block(snapshot, fn),
    "over nothing": lambda snapshot, fn: snapshot.over(ctxcarry.capture()).wrap(fn),
}


def _in_block(snapshot, fn):
    with snapshot.active():
        return fn()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ambient", AMBIENT)
def test_worker_is_in_the_state_of_the_capture(ambient, way, worker, state):
    """A worker thread is in the very state that the capturing thread was in."""
    with entered(AMBIENT[ambient]):
        expected = state()
        bound = ctxcarry.capture()
    bound = WAYS[way](bound, state)
    assert expected == worker.submit(bound).result()


@pytest.mark.parametrize("way", ["run", "wrap", "active"])
@pytest.mark.parametrize("ambient", AMBIENT)
@pytest.mark.parametrize("around", ["no_grad", "inference_mode", "several device types"])
def test_state_of_the_worker_gives_way_and_comes_back(ambient, around, way, worker, state):
    """What is set where the work runs is replaced by the snapshot and is back afterwards."""
    with entered(AMBIENT[ambient]):
        expected = state()
        snapshot = ctxcarry.capture()

    def work():
        with entered(AMBIENT[around]):
            before = state()
            inside = WAYS[way](snapshot, state)()
            return before, inside, state()

    before, inside, after = worker.submit(work).result()
    keys = {"grad", "inference", "autocast", "autocast cache", "autocast nesting"}
    # The dtype of a device type that is off says nothing about the work.
    dtypes = {t: d for t, d in expected["autocast dtypes"].items() if expected["autocast"][t]}
    assert {k: expected[k] for k in keys} == {k: inside[k] for k in keys}
    assert dtypes == {t: inside["autocast dtypes"][t] for t in dtypes}
    assert before == after


@pytest.mark.parametrize("name", TORCH)
@pytest.mark.parametrize("ambient", AMBIENT)
def test_each_carrier_keeps_its_contract_by_itself(ambient, name, worker):
    """A carrier applies what it captured, unsets its context for MISSING, and undoes both."""
    carrier = {carrier.name: carrier for carrier in ctxcarry.carriers()}[name]
    with entered(AMBIENT[ambient]):
        captured = carrier.capture()

    def undo(token):
        if token is not ctxcarry.UNCHANGED:
            carrier.undo(token)
        return carrier.capture()

    def work():
        found = [carrier.capture()]
        tokens = [carrier.apply(captured)]
        found.append(carrier.capture())
        tokens.append(carrier.apply(ctxcarry.MISSING))
        found.append(carrier.capture())
        return [*found, undo(tokens.pop()), undo(tokens.pop())]

    before, applied, unset, again, after = worker.submit(work).result()
    assert (captured, captured) == (applied, again)
    assert (before, before) == (unset, after)


@pytest.mark.parametrize("ambient", AMBIENT)
def test_task_that_raises_leaves_its_thread_as_it_was(ambient, carrying, state):
    """The worker thread is as before after a task that raised, too."""

    def fail():
        raise KeyError(state()["grad"])

    before = carrying.submit(state).result()
    with entered(AMBIENT[ambient]):
        grad = torch.is_grad_enabled()
        with pytest.raises(KeyError) as caught:
            carrying.submit(fail).result()
    assert grad == caught.value.args[0]
    assert before == carrying.submit(state).result()


@pytest.mark.parametrize("ambient", ["bfloat16", "inference_mode", "autocast in inference_mode"])
def test_activating_twice_is_as_once(ambient, worker, state):
    """A snapshot within the same snapshot changes nothing, and leaving it changes nothing."""
    with entered(AMBIENT[ambient]):
        expected = state()
        snapshot = ctxcarry.capture()

    def work():
        with snapshot.active():
            inner = snapshot.run(state)
            with snapshot.active():
                innermost = state()
            return inner, innermost, state()

    assert (expected, expected, expected) == worker.submit(work).result()


def test_equal_snapshot_does_not_touch_autocast(monkeypatch):
    """Activating a snapshot that equals what is active calls none of autocast's setters."""
    calls = []
    with torch.autocast(*ON_CPU):
        snapshot = ctxcarry.capture()
        with monkeypatch.context() as patched:
            for name in ("enabled", "dtype", "cache_enabled"):
                original = getattr(torch, f"set_autocast_{name}")

                def setter(*args, original=original, name=name):
                    calls.append(name)
                    original(*args)

                patched.setattr(torch, f"set_autocast_{name}", setter)
            snapshot.run(int)
    assert [] == calls
