"""Several blocks in one budget, against trying each combination."""

import itertools
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("hypothesis")
pytest.importorskip("scipy")

from ctxcarry_checkpoint import _kinds, _solver, _whole
from ctxcarry_checkpoint._budget import BudgetError
from ctxcarry_checkpoint._whole import (
    Block,
    Share,
    allot,
    kinds_of,
    peak_of,
    range_of,
    refined,
    tradeoffs,
)
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from _graphs import blocks, op


def cost_of(shares):
    """Return the milliseconds of all blocks."""
    return sum(share.count * share.choice.cost for share in shares)


def combinations(kinds):
    """Return what each combination of choices takes: bytes and milliseconds."""
    each = [kind for kind in kinds for _ in kind.names]
    for chosen in itertools.product(*(kind.front for kind in each)):
        shares = [Share(kind, choice, 1) for kind, choice in zip(each, chosen)]
        yield peak_of(shares), cost_of(shares)


@st.composite
def models(draw):
    """Draw up to three blocks, some of which may be the same."""
    kinds = draw(st.lists(blocks(most=5), min_size=1, max_size=2))
    picked = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=3))
    return [Block(str(at), tuple(ops)) for at, ops in enumerate(picked)]


@settings(max_examples=60, deadline=None)
@given(models(), st.integers(0, 40))
def test_no_combination_is_better(model, budget):
    """No combination of the choices of each block that fits takes less time."""
    kinds = kinds_of(model, points=4)
    fitting = [ms for nbytes, ms in combinations(kinds) if nbytes <= budget]
    least, most = range_of(kinds)
    assert least == min(nbytes for nbytes, _ in combinations(kinds))
    if not fitting:
        with pytest.raises(BudgetError) as caught:
            allot(kinds, budget)
        assert (caught.value.smallest, caught.value.largest) == (least, most)
        return
    shares = allot(kinds, budget)
    assert sum(share.count for share in shares) == len(model)
    assert peak_of(shares) <= budget
    assert cost_of(shares) == pytest.approx(min(fitting), rel=1e-3)
    better = refined(shares, budget)
    assert peak_of(better) <= budget
    assert cost_of(better) <= cost_of(shares)


@settings(max_examples=60, deadline=None)
@given(models(), st.integers(0, 40))
def test_without_the_optimizer(model, budget):
    """Upgrading block by block keeps the budget, and finds something where anything fits."""
    kinds = kinds_of(model, points=4)
    least, _ = range_of(kinds)
    if budget < least:
        return
    shares = _whole._greedy(kinds, budget)
    assert sum(share.count for share in shares) == len(model)
    assert peak_of(shares) <= budget


def chain(length, first=1.0):
    """Return a block of so many operators, each of which needs the one before."""
    return tuple(
        op(at, *range(max(at - 1, 0), at), ms=first + at % 5, nbytes=64 + 8 * at, packed=at % 3 > 0)
        for at in range(length)
    )


def test_blocks_that_run_the_same_are_solved_once(monkeypatch):
    """How long they took does not tell blocks apart, what they run does."""
    solved = []
    monkeypatch.setattr(
        _kinds, "front", lambda ops, points, **given: solved.append(ops) or _solver.front(ops, 3)
    )
    model = [
        Block("a", chain(6)),
        Block("b", chain(7)),
        Block("c", chain(6, first=1.01), aliases=("d", "e")),
        Block("f", chain(6), frozenset({5})),
    ]
    kinds = kinds_of(model)
    assert [kind.names for kind in kinds] == [("a", "c", "d", "e"), ("b",), ("f",)]
    assert len(solved) == 3


def test_the_working_set():
    """What is packed is made again together; what lies between lives for an operator."""
    ops = (
        op(0, nbytes=100),
        op(1, 0, nbytes=10, packed=True),
        op(2, 1, nbytes=30),
        op(3, 2, nbytes=1, packed=True),
    )
    (kind,) = kinds_of([Block("a", ops)])
    program = kind.program
    assert kind.working(program.choice({})) == 11 + 100
    assert kind.working(program.choice({1: 1})) == 1 + 30
    assert kind.working(program.choice({1: 1, 3: 1})) == 0
    # What is offloaded comes back for the backward.
    assert kind.working(program.choice({1: 2, 3: 1})) == 10


@pytest.mark.parametrize("different", [1, 80])
def test_eighty_blocks(different):
    """Many blocks are no trouble, all the same or each of its own."""
    model = [Block(f"layers.{at}", chain(12, first=1 + (at % different) / 97)) for at in range(80)]
    # Solved apart, since what they run is the same.
    parts = [model] if different == 1 else [[block] for block in model]
    kinds = [kind for part in parts for kind in kinds_of(part, points=5)]
    assert len(kinds) == different
    least, most = range_of(kinds)
    budget = (least + most) // 2
    shares = allot(kinds, budget)
    assert peak_of(shares) <= budget
    assert peak_of(shares) > 0.9 * budget
    assert cost_of(shares) <= cost_of(_whole._greedy(kinds, budget))


def test_nothing_found_in_time(monkeypatch):
    """Without an answer of the optimizer blocks are upgraded one by one."""
    kinds = kinds_of([Block("a", chain(6)), Block("b", chain(7))])
    budget = sum(range_of(kinds)) // 2
    monkeypatch.setattr(_whole._Knapsack, "solve", lambda *_: [])
    assert allot(kinds, budget) == _whole._greedy(kinds, budget)


def test_fractions_of_the_optimizer(monkeypatch):
    """What the optimizer takes for fitting, and is not, is not taken."""
    kinds = kinds_of([Block("a", chain(6)), Block("b", chain(7))])
    too_much = [Share(kind, kind.front[-1], 1) for kind in kinds]
    monkeypatch.setattr(_whole._Knapsack, "solve", lambda *_: too_much)
    budget = sum(range_of(kinds)) // 2
    assert peak_of(allot(kinds, budget)) <= budget


def test_the_tradeoffs():
    """They end where nothing runs again."""
    kinds = kinds_of([Block("a", chain(6)), Block("b", chain(7))])
    found = tradeoffs(kinds)
    assert found[0][0] >= range_of(kinds)[0]
    assert found[-1] == (range_of(kinds)[1], 0)
