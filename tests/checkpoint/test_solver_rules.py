"""Each rule of what may be kept, and what runs again for it."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("hypothesis")
pytest.importorskip("scipy")

from ctxcarry_checkpoint._evaluate import evaluate
from ctxcarry_checkpoint._ops import Action
from ctxcarry_checkpoint._solver import solve

sys.path.insert(0, str(Path(__file__).parent))
from _graphs import op

SAVE, OFFLOAD = Action.SAVE, Action.OFFLOAD


def test_what_nobody_needs_is_skipped():
    """Only what leads to something packed runs again."""
    ops = [op(0), op(1, 0, packed=True), op(2, 0)]
    assert evaluate(ops, {}).reruns == {0, 1}
    assert evaluate(ops, {1: SAVE}).reruns == set()
    # A plain knapsack would keep one of the two that cost most, which nobody needs.
    ops[0].ms, ops[2].ms = 5, 9
    assert solve(ops, 4).actions == {1: SAVE}


def test_a_cheap_result_spares_what_led_to_it():
    """What is kept spares its parents too, if nobody else needs them."""
    ops = [op(0, ms=9, nbytes=100), op(1, 0, ms=1, nbytes=4, packed=True)]
    choice = solve(ops, 50)
    assert (choice.actions, choice.ms, choice.nbytes) == ({1: SAVE}, 0, 4)


def test_in_place():
    """What works in place is kept with the owner, in its last state."""
    ops = [
        op(0, packed=True),
        op(1, 0, owner=0, nbytes=0, ms=2, savable=False),
        op(2, 1, packed=True),
    ]
    assert solve(ops, 4).actions == {0: SAVE}
    assert solve(ops, 4).reruns == {2}
    assert evaluate(ops, {1: SAVE}).actions == {0: SAVE}
    assert evaluate(ops, {}).reruns == {0, 1, 2}


def test_a_reader_of_an_earlier_state():
    """A result that is changed later is not kept while a reader of what it was runs again."""
    ops = [
        op(0, ms=5, packed=True),
        op(1, 0, packed=True),
        op(2, 0, owner=0, nbytes=0, savable=False),
    ]
    assert evaluate(ops, {0: SAVE}).actions == {}
    assert evaluate(ops, {0: SAVE, 1: SAVE}).actions == {0: SAVE, 1: SAVE}
    # Keeping the first alone would be best, and is not possible.
    assert solve(ops, 4).actions == {1: SAVE}
    assert solve(ops, 8).ms == 0


def test_random_numbers():
    """A random operator that runs again has all before it run again, kept or not."""
    ops = [
        op(0, random=True, packed=True, ms=2),
        op(1, random=True, ms=3),
        op(2, random=True, packed=True, ms=4),
    ]
    assert evaluate(ops, {0: SAVE}).reruns == {0, 1, 2}
    assert evaluate(ops, {0: SAVE}).ms == 9
    assert evaluate(ops, {2: SAVE}).reruns == {0}
    assert solve(ops, 4).actions == {2: SAVE}


def test_random_numbers_in_place():
    """A kept result that is drawn in place is drawn again on other memory, no further."""
    ops = [
        op(0, packed=True, ms=1),
        op(1, 0, owner=0, random=True, nbytes=0, ms=2, savable=False),
        op(2, 1, owner=0, nbytes=0, ms=4, savable=False),
        op(3, random=True, packed=True, ms=8),
    ]
    found = evaluate(ops, {0: SAVE})
    assert (found.reruns, found.ms) == ({0, 1, 3}, 11)


def test_effects():
    """A collective runs again unless it is kept, needed or not."""
    ops = [op(0, ms=3), op(1, 0, effect=True), op(2, packed=True, ms=2)]
    assert evaluate(ops, {2: SAVE}).reruns == {0, 1}
    assert solve(ops, 4).actions == {1: SAVE}


def test_what_is_never_kept():
    """Results from no tensor, and what is not savable, run again where they are needed."""
    ops = [op(0, factory=True), op(1, savable=False), op(2, 0, 1, packed=True)]
    actions = dict.fromkeys((0, 1), SAVE)
    assert evaluate(ops, actions).actions == {}
    assert evaluate(ops, actions).reruns == {0, 1, 2}
    assert solve(ops, 100).actions == {2: SAVE}


def test_views_and_numbers():
    """Views and numbers take nothing, and are not chosen."""
    ops = [
        op(0, ms=5),
        op(1, 0, scalar=True, ms=1, nbytes=0),
        op(2, 0, view=True, ms=0, nbytes=0),
        op(3, 1, packed=True),
    ]
    assert evaluate(ops, {1: SAVE, 2: SAVE}).actions == {}
    # The number is there, so that what it was read from need not be.
    assert evaluate(ops, {}).reruns == {3}


def test_what_is_held_anyway():
    """A result that somebody holds is kept for nothing, and stays on the device."""
    ops = [op(0, packed=True, ms=5), op(1, 0, packed=True)]
    choice = solve(ops, 0, held={0})
    assert (choice.actions, choice.nbytes, choice.ms) == ({0: SAVE}, 0, 1)
    assert evaluate(ops, {0: OFFLOAD}, held={0}).actions == {0: SAVE}


def test_offloading():
    """A result is offloaded where that takes less time than making it again."""
    ops = [op(0, packed=True, ms=5), op(1, packed=True, ms=1), op(2, packed=True, ms=9)]
    choice = solve(ops, 4, offload_ms=lambda nbytes: nbytes / 2)
    assert choice.actions == {0: OFFLOAD, 2: SAVE}
    assert (choice.nbytes, choice.offloaded) == (4, 4)
    assert (choice.ms, choice.transfer_ms, choice.cost) == (1, 2, 3)


def test_bytes_that_spare_nothing_are_not_kept():
    """Of two choices that take as long the one with fewer bytes is taken."""
    ops = [op(0, packed=True, ms=0), op(1, packed=True), op(2, 1, ms=0, packed=True)]
    assert solve(ops, 100).nbytes == 4
