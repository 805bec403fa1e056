"""Plans: several blocks in one budget, reasons, report, picture and text."""

import io
import itertools
import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("hypothesis")
pytest.importorskip("scipy")

from ctxcarry_checkpoint._budget import BudgetError
from ctxcarry_checkpoint._ops import Action
from ctxcarry_checkpoint._plan import Plan, make_plan
from ctxcarry_checkpoint._whole import Block

sys.path.insert(0, str(Path(__file__).parent))
from _graphs import op

SAVE, OFFLOAD = Action.SAVE, Action.OFFLOAD
MIB = 1 << 20


def layer(scale=1):
    """Return the operators of a block in which each reason occurs."""
    return (
        op(0, name="aten.mm.default", ms=4, nbytes=8 * MIB * scale, packed=True),
        op(1, 0, name="aten.view.default", nbytes=0, ms=0, view=True, savable=False),
        op(2, 0, name="aten.silu.default", ms=1, nbytes=8 * MIB * scale, packed=True),
        op(3, name="aten.arange.default", ms=0.5, nbytes=MIB, factory=True, savable=False),
        op(4, 2, 3, name="aten.mul.Tensor", ms=1, nbytes=2 * MIB, packed=True, module="attn"),
        op(5, 4, name="aten.add_.Tensor", ms=1, nbytes=0, owner=4, savable=False),
        op(6, 5, name="aten.item.default", ms=0, nbytes=0, scalar=True),
        op(7, 5, name="aten.mm.default", nth=1, ms=6, nbytes=4 * MIB),
    )


def layers(count=4, **given):
    """Return blocks that run the same, of which the last result is held."""
    return [Block(f"layers.{at}", layer(), frozenset({7}), **given) for at in range(count)]


def least(blocks):
    """Return the smallest budget."""
    with pytest.raises(BudgetError) as caught:
        make_plan(blocks, 0)
    return caught.value.smallest


@pytest.fixture
def plan():
    """Return a plan that has to choose."""
    return make_plan(layers(), 48 * MIB, roofline="H100")


def test_totals(plan):
    """The sums are those of all blocks."""
    assert plan.blocks == ("layers.0", "layers.1", "layers.2", "layers.3")
    assert plan.budget == 48 * MIB
    assert plan.unchecked_bytes == 4 * (4 + 18) * MIB
    assert plan.forward_ms == 4 * 13.5
    # All that leads to what is packed, but not the last product.
    assert plan.full_ms == 4 * 7.5
    # What is held, and what one block makes again; the factory is all that lies between.
    assert plan.full_bytes == 4 * 4 * MIB + 18 * MIB + MIB
    assert plan.full_bytes <= plan.peak <= plan.budget
    assert 0 < plan.ms == plan.cost < plan.full_ms
    assert plan.kept_bytes < plan.peak
    assert plan.offloaded_bytes == 0


def test_blocks_that_recompute_more_come_first(plan):
    """By the time of their backward the blocks after them have let go of what they kept."""
    saved = [plan.group(name).choice.nbytes for name in plan.blocks]
    assert saved == sorted(saved)
    assert len(set(saved)) > 1


@pytest.mark.parametrize(
    ("budget", "nbytes"), [("60MiB", 60 * MIB), (0.5, 44 * MIB), (1.0, 88 * MIB), ("50%", 44 * MIB)]
)
def test_budgets(budget, nbytes):
    """A ratio is one of what is kept without a checkpoint."""
    plan = make_plan(layers(), budget)
    assert plan.budget == nbytes
    assert plan.peak <= nbytes
    assert (plan.ms == 0) == (budget == 1.0)


def test_a_budget_that_is_too_small():
    """The error tells what would do, and that does."""
    with pytest.raises(BudgetError) as caught:
        make_plan(layers(), 20 * MIB)
    smallest, largest = caught.value.smallest, caught.value.largest
    assert make_plan(layers(), smallest).peak == smallest
    assert make_plan(layers(), largest).ms == 0
    with pytest.raises(BudgetError):
        make_plan(layers(), smallest - 1)


def test_as_much_as_without_a_checkpoint():
    """That is always enough, also where nothing that is kept can spare what passes by."""
    ops = (op(0, savable=False, packed=True), op(1, 0, nbytes=50), op(2, 1, effect=True))
    plan = make_plan([Block("b", ops)], 1.0)
    assert plan.unchecked_bytes == 4
    assert plan.peak == plan.budget > 4


def test_actions_for_the_runtime():
    """What is kept is named by the operator, and by how often it ran before."""
    plan = make_plan(layers(1), 1.0)
    assert plan.actions("layers.0") == {
        ("aten.mm.default", 0): SAVE,
        ("aten.silu.default", 0): SAVE,
        ("aten.mul.Tensor", 0): SAVE,
    }
    with pytest.raises(KeyError, match=r"no block 'layers.9'. It has layers.0"):
        plan.actions("layers.9")


def test_reasons():
    """Each operator has a reason that is true of it."""
    plan = make_plan(layers(1), 1.0)
    said = [plan.why("layers.0", index) for index in range(8)]
    assert said[0] == "saved: 8 MiB spare 4 ms of aten.mm.default"
    assert said[1].startswith("view")
    assert said[4] == "saved: 2 MiB spare 2.5 ms of aten.mul.Tensor and 1 operator before it"
    assert said[3] == said[7] == "skipped: nothing that the backward needs depends on it"
    assert said[5].startswith("as aten.mul.Tensor (4), on whose result it works in place: saved: ")
    assert said[6].startswith("kept: it returns no tensor")
    with pytest.raises(IndexError, match="operators 0 to 7"):
        plan.why("layers.0", 8)


def test_reasons_to_run_again():
    """What runs again says for what it does."""
    ops = (
        op(0, name="rand", random=True, ms=1, nbytes=MIB),
        op(1, name="gather", effect=True, ms=2, nbytes=MIB),
        op(2, name="odd", savable=False, why="it is odd", ms=1, nbytes=MIB, packed=True),
        op(3, name="arange", factory=True, savable=False, ms=1, nbytes=MIB, packed=True),
        op(4, name="drop", random=True, ms=1, nbytes=MIB, packed=True),
        op(5, 4, name="mm", ms=0.01, nbytes=128 * MIB, packed=True),
        op(6, name="held", random=True, ms=1, nbytes=MIB, packed=True),
        op(7, name="last", random=True, ms=1, nbytes=MIB, packed=True),
    )
    blocks = [Block("b", ops, frozenset({6})), Block("c", ops, frozenset({6}))]
    plan = make_plan(blocks, least(blocks))
    said = [plan.why("b", index) for index in range(8)]
    assert said[0] == "runs again: 1 ms for 1 MiB, for the random numbers of those after it"
    assert said[1] == "runs again: 2 ms for 1 MiB, and because it does more than return a result"
    assert said[2] == "never saved: it is odd"
    assert said[3] == "never saved: makes its result from no tensor"
    assert said[4] == "runs again: 1 ms for 1 MiB"
    assert said[5] == "runs again: 0.01 ms for 128 MiB"


def test_reasons_of_what_is_kept_otherwise():
    """What is held, or goes to the CPU, says so."""
    ops = (
        op(0, name="drop", random=True, ms=1, nbytes=MIB, packed=True),
        op(1, 0, name="mul_", owner=0, ms=2, nbytes=0, savable=False),
        op(2, name="big", ms=90, nbytes=64 * MIB, packed=True),
        op(3, name="odd", random=True, savable=False, ms=1, nbytes=MIB, packed=True),
    )
    blocks = [Block("b", ops, frozenset({0})), Block("c", ops, frozenset({0}))]
    plan = make_plan(blocks, 0.55, offload_ms=lambda nbytes: nbytes / MIB)
    assert plan.actions("b") == {("drop", 0): SAVE, ("big", 0): OFFLOAD}
    assert plan.offloaded_bytes == 2 * 64 * MIB
    assert plan.cost == plan.ms + 2 * 64
    assert plan.why("b", 2) == "offloaded: 64 MiB on the CPU spare 90 ms of big"
    assert plan.why("b", 0) == (
        "saved: it is there anyway, and spares 2 ms of drop; "
        "it runs again even so, for the random numbers of those after it"
    )


def test_a_plan_as_text(plan):
    """A plan read from its text is the same plan, and is of the same version."""
    text = plan.to_json()
    assert json.loads(text)["version"] == 1
    again = Plan.from_json(text)
    assert again == plan
    assert again.to_json() == text
    assert again.actions("layers.0") == plan.actions("layers.0")
    assert again.adjusted(again.peak).peak == plan.peak


@pytest.mark.parametrize("text", ["{}", "[]", '{"version": 2}', "nothing", '{"version": 1}'])
def test_what_is_no_plan(text):
    """Another version, and what is no plan, is refused."""
    with pytest.raises(ValueError, match=r"no plan of version 1|not whole|Expecting value"):
        Plan.from_json(text)


def test_after_a_measurement(plan):
    """What the peak was over the prediction is taken off the budget."""
    over = plan.adjusted(plan.peak + 6 * MIB)
    assert over.offset == 6 * MIB
    assert over.peak <= over.budget == plan.budget
    assert over.ms > plan.ms
    # Of the new plan the offset is known, so that as much as it predicts changes nothing.
    assert over.adjusted(over.peak) == over
    under = plan.adjusted(plan.peak - 6 * MIB)
    assert under.offset == -6 * MIB
    assert under.ms < plan.ms
    with pytest.raises(BudgetError) as caught:
        plan.adjusted(plan.peak + 40 * MIB)
    assert caught.value.smallest > plan.budget


def test_the_report(plan):
    """The tables have each group once, what it saves and why, and the totals."""
    rich = pytest.importorskip("rich.console")
    console = rich.Console(file=io.StringIO(), width=200)
    plan.report(console)
    said = console.file.getvalue()
    for group in plan.groups:
        assert said.count(f"│ {group.label} ") == 1
    assert "layers.3" in said
    assert "attn" in said
    assert "saved: 2 MiB spare 2.5 ms of aten.mul.Tensor and 1 operator before it" in said
    assert "Longest to run again: 0 aten.mm.default: runs again: 4 ms for 8 MiB" in said
    assert "Budget 48 MiB" in said
    assert "estimated times of H100" in said
    assert "No checkpointing: keeps 88 MiB" in said
    assert f"Full checkpointing: peak {plan.full_bytes // MIB} MiB, recomputes 30 ms" in said


def test_the_report_of_many_kinds():
    """Of many kinds of blocks the first have reasons, and the others are counted."""
    rich = pytest.importorskip("rich.console")
    console = rich.Console(file=io.StringIO(), width=200)
    model = [Block(f"stages.{at}", layer(at + 1)) for at in range(6)]
    make_plan(model, 0.5).report(console)
    said = console.file.getvalue()
    assert said.count("What is worth the most in") == 4
    assert "Plan.why() tells of the blocks of 2 more kinds" in said
    assert all(f"stages.{at} " in said for at in range(6))


def test_the_report_of_one_group():
    """Blocks with the same choice are one row."""
    rich = pytest.importorskip("rich.console")
    console = rich.Console(file=io.StringIO(), width=200)
    plan = make_plan(layers(32), 1.0)
    plan.report(console)
    assert "layers.0 … layers.31 (32)" in console.file.getvalue()
    assert "Nothing runs again." in console.file.getvalue()


@pytest.mark.parametrize("ending", ["svg", "png", "pdf"])
def test_the_picture(plan, tmp_path, ending):
    """It is drawn into a file of each kind."""
    pytest.importorskip("matplotlib")
    path = tmp_path / f"pareto.{ending}"
    plan.plot(path)
    starts = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}
    assert path.read_bytes().startswith(starts[ending])


def test_a_picture_of_no_kind(plan, tmp_path):
    """Another ending is refused, with those that there are."""
    with pytest.raises(ValueError, match=r"Endings are \.svg, \.png, \.pdf"):
        plan.plot(tmp_path / "pareto.txt")


@pytest.mark.parametrize("missing", ["rich", "matplotlib"])
def test_a_missing_extra(plan, monkeypatch, tmp_path, missing):
    """The error names what to install."""
    monkeypatch.setitem(sys.modules, missing, None)
    for name in [name for name in sys.modules if name.startswith(f"{missing}.")]:
        monkeypatch.delitem(sys.modules, name)
    use = plan.report if missing == "rich" else lambda: plan.plot(tmp_path / "pareto.svg")
    with pytest.raises(ImportError, match=rf'{missing}.*pip install "ctxcarry\[checkpoint\]"'):
        use()


def test_the_pareto_points(plan):
    """More bytes take less time, from the least that is possible to none at all."""
    for (fewer, longer), (more, shorter) in itertools.pairwise(plan.pareto):
        assert fewer < more
        assert longer > shorter
    assert plan.pareto[-1][1] == 0
    assert plan.pareto[0][1] == plan.full_ms
