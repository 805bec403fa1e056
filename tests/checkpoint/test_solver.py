"""The solver against trying each choice."""

import sys
import warnings
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("hypothesis")
pytest.importorskip("scipy")

from ctxcarry_checkpoint import _solver
from ctxcarry_checkpoint._budget import BudgetError
from ctxcarry_checkpoint._evaluate import Program, evaluate
from ctxcarry_checkpoint._greedy import fit, greedy, trim
from ctxcarry_checkpoint._liveness import live
from ctxcarry_checkpoint._ops import Action
from ctxcarry_checkpoint._rows import Rows
from ctxcarry_checkpoint._solver import everything, front, solve
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from _graphs import best, blocks, op

budgets = st.integers(0, 20)


def held_of(data, ops):
    """Draw which results somebody holds."""
    return data.draw(st.sets(st.sampled_from([op.index for op in ops]), max_size=2))


@pytest.fixture
def without_scipy(monkeypatch):
    """Have scipy not found."""
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    _solver.optimizer.cache_clear()
    yield
    _solver.optimizer.cache_clear()


@settings(max_examples=150, deadline=None)
@given(blocks(), budgets, st.data())
def test_nothing_is_better(ops, budget, data):
    """No choice at all that fits takes less time, and what is said of the choice is true."""
    held = held_of(data, ops)
    choice = solve(ops, budget, held=held)
    assert choice.exact
    assert choice.nbytes <= budget
    assert choice.offloaded == 0
    assert choice.ms == pytest.approx(best(ops, budget, held), abs=1e-4)
    found = evaluate(ops, choice.actions, held)
    assert found.actions == choice.actions
    assert found[:4] == (choice.reruns, choice.ms, choice.nbytes, 0)


@settings(max_examples=60, deadline=None)
@given(blocks(most=5), budgets, st.floats(0, 2))
def test_nothing_is_better_with_offloading(ops, budget, factor):
    """Offloading is a third choice for each result, which takes no bytes but time."""

    def transfer(nbytes):
        return factor * nbytes

    choice = solve(ops, budget, offload_ms=transfer)
    assert choice.nbytes <= budget
    assert choice.cost == pytest.approx(best(ops, budget, transfer=transfer), abs=1e-4)
    assert choice.cost <= solve(ops, budget).cost + 1e-4


@settings(max_examples=150, deadline=None)
@given(blocks(drawing_in_place=False), st.data())
def test_what_runs_again_is_what_the_engine_runs(ops, data):
    """The evaluation and the engine agree on what is kept and what is called again."""
    keep = data.draw(st.sets(st.sampled_from([op.index for op in ops])))
    found = evaluate(ops, dict.fromkeys(keep, Action.SAVE))
    engine = live(ops, keep)
    assert set(found.actions) == {first for first in engine.saved if first in Program(ops).nodes}
    assert found.reruns == engine.reruns


@settings(max_examples=100, deadline=None)
@given(blocks(most=9), budgets, st.data())
def test_one_by_one(ops, budget, data):
    """Choosing one by one keeps the budget, and is no worse than keeping nothing."""
    held = held_of(data, ops)
    program = Program(ops, held)
    kept = greedy(program, budget)
    found = program.evaluate(kept)
    assert found.actions == kept
    assert found.nbytes <= budget
    assert found.ms <= program.evaluate({}).ms
    moved = greedy(program, budget, lambda nbytes: nbytes / 2)
    assert program.evaluate(moved).nbytes <= budget
    cost = program.evaluate(moved).ms + program.transfer_ms(moved, lambda nbytes: nbytes / 2)
    assert cost <= program.evaluate({}).ms + 1e-9


@settings(max_examples=60, deadline=None)
@given(blocks(), budgets)
def test_cutting_down(ops, budget):
    """A choice is cut down to a budget, and what spares nothing is let go."""
    program = Program(ops)
    all_kept = dict.fromkeys(program.nodes, Action.SAVE)
    assert program.evaluate(fit(program, all_kept, budget)).nbytes <= budget
    trimmed = trim(program, all_kept)
    assert program.evaluate(trimmed).ms <= program.evaluate(all_kept).ms + 1e-9
    for first in trimmed:
        fewer = {each: action for each, action in trimmed.items() if each != first}
        assert program.evaluate(fewer).ms > program.evaluate(trimmed).ms


@settings(max_examples=50, deadline=None)
@given(blocks())
def test_the_front(ops):
    """It goes from the fewest bytes to keeping all that helps, and each point is the best."""
    found = front(ops, points=6)
    assert 1 <= len(found) <= 6
    assert found[0].nbytes == 0
    assert found[-1].ms == pytest.approx(everything(ops).ms)
    for left, right in pairwise(found):
        assert left.nbytes < right.nbytes
        assert left.cost > right.cost
    for choice in found:
        assert choice.ms == pytest.approx(best(ops, choice.nbytes), abs=1e-4)


def test_a_negative_budget():
    """It is refused with what would do."""
    ops = [op(0, packed=True, nbytes=7)]
    with pytest.raises(BudgetError) as caught:
        solve(ops, -1)
    assert (caught.value.smallest, caught.value.largest) == (0, 7)


def test_an_empty_block():
    """There is nothing to choose where nothing runs."""
    assert solve([], 10).actions == {}
    assert [choice.nbytes for choice in front([])] == [0]


def test_without_scipy(without_scipy):
    """One warning names the extra, and choices are made one by one, which is said of them."""
    ops = [op(0, packed=True), op(1, 0, packed=True, ms=3)]
    with pytest.warns(RuntimeWarning, match=r'pip install "ctxcarry\[checkpoint\]"'):
        choice = solve(ops, 4)
    assert not choice.exact
    assert choice.actions == {1: Action.SAVE}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert solve(ops, 8).actions == {0: Action.SAVE, 1: Action.SAVE}


@pytest.mark.parametrize("values", [None, [0, 1, 1, 0]])
def test_out_of_time(monkeypatch, values):
    """Where the time passes, the best so far is compared with choosing one by one."""
    ops = [op(0, packed=True), op(1, 0, packed=True, ms=3)]
    monkeypatch.setattr(Rows, "solve", lambda *_, **__: (False, values))
    choice = solve(ops, 4)
    assert not choice.exact
    assert choice.actions == {1: Action.SAVE}


def test_a_time_limit_that_passes_at_once():
    """Whatever the optimizer had by then, the choice keeps the budget."""
    ops = [op(at, *range(max(at - 3, 0), at), packed=True, nbytes=at % 7 + 1) for at in range(60)]
    choice = solve(ops, 90, time_limit=0)
    assert choice.nbytes <= 90
    assert choice.ms < solve(ops, 0).ms


def test_fractions_of_the_optimizer(monkeypatch):
    """What the optimizer takes for fitting, and is not, is cut down."""
    ops = [op(0, packed=True), op(1, 0, packed=True, ms=3)]
    monkeypatch.setattr(Rows, "solve", lambda *_, **__: (True, [1, 0, 1, 0]))
    choice = solve(ops, 7)
    assert not choice.exact
    assert choice.actions == {1: Action.SAVE}
