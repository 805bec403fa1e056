"""Plans for the blocks of a model: made ahead of training, written down, followed, shown."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("scipy")
pytest.importorskip("rich")

import torch
from ctxcarry_checkpoint import Action, Plan, SelectiveCheckpoint
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))
from _budgets import CARD, EXAMPLE, followed, held, planned, products_again
from _models import NAMES, SIZE, Plain, batches, fresh, same, steps
from blocks import Mixture


@pytest.fixture(scope="module")
def expected():
    """Return what training gives without a checkpoint."""
    return steps(fresh(Plain), batches(4))


@pytest.fixture(scope="module")
def known():
    """Return the plan for a part of the memory that keeps some things and not others."""
    return planned(0.7)


def test_forms_of_a_budget(known):
    """A part, text and bytes mean the same."""
    nbytes = int(known.unchecked_bytes * 0.7)
    for budget in ("70%", nbytes, f"{nbytes / 1024:.6f} KiB"):
        plan = planned(budget)
        assert abs(plan.budget - known.budget) <= 1
        assert [plan.actions(n) for n in NAMES] == [known.actions(n) for n in NAMES]


def test_plan_ahead_is_what_is_recorded():
    """A plan of fake tensors is the one that a recorded step leads to."""
    known = planned(0.7, roofline=CARD)
    model = fresh(Plain)
    engine = SelectiveCheckpoint(budget=0.7, roofline=CARD)
    engine.apply(model, "layers.*")
    steps(model, batches(2))
    recorded = followed(engine)
    assert recorded.blocks == known.blocks
    assert [recorded.actions(n) for n in NAMES] == [known.actions(n) for n in NAMES]
    assert (recorded.peak, recorded.kept_bytes) == (known.peak, known.kept_bytes)
    # Times are those of the roofline, of tensors that are there as of fake ones.
    assert recorded.ms == known.ms
    assert any(Action.SAVE in known.actions(n).values() for n in NAMES)


def test_plan_before_apply(expected):
    """A plan that was made is followed from the first step on."""
    engine = SelectiveCheckpoint(budget=0.9)
    model = fresh(Plain)
    plan = engine.plan(model, EXAMPLE, blocks="layers.*")
    assert all("forward" not in m.__dict__ for m in model.modules())
    engine.apply(model, "layers.*")
    assert products_again(model, batches()[0]) == 0
    assert followed(engine) is plan
    assert same(expected, steps(model, batches(4)))


def test_plan_after_apply(expected):
    """It is also made of a model that has its checkpoints already, and they stay."""
    engine = SelectiveCheckpoint(budget=0.9)
    model = fresh(Plain)
    engine.apply(model, "layers.*")
    plan = engine.plan(model, (EXAMPLE,))
    assert products_again(model, batches()[0]) == 0
    assert followed(engine) is plan
    assert same(expected, steps(model, batches(4)))


@pytest.mark.parametrize("given", [EXAMPLE, (EXAMPLE,), [EXAMPLE], {"x": EXAMPLE}])
def test_example_inputs(given, known):
    """Inputs are given as a tensor, as positional arguments or by name."""
    plan = planned(0.7, given)
    assert [plan.actions(n) for n in NAMES] == [known.actions(n) for n in NAMES]


def test_plan_changes_nothing():
    """A plan leaves parameters, gradients, buffers, modes and random numbers as they are."""

    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.norm = nn.Linear(SIZE, SIZE), nn.BatchNorm1d(SIZE)

        def forward(self, x):
            x = nn.functional.dropout(self.layer(x))
            return self.norm(x.flatten(0, 1)).view_as(x)

    model = fresh(Plain, 3, Normed)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    torch.manual_seed(2)
    state = torch.get_rng_state()
    SelectiveCheckpoint(budget=0.8).plan(model, EXAMPLE)
    assert torch.equal(torch.get_rng_state(), state)
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(p.grad is None and type(p) is nn.Parameter for p in model.parameters())
    assert all(m.training for m in model.modules())


def test_plan_without_memory():
    """A model on the meta device gets a plan, for a card that is named."""
    engines = [SelectiveCheckpoint(budget=0.5, roofline=name) for name in ("H100", "B200")]
    found = []
    for engine in engines:
        with torch.device("meta"):
            model = Plain(64)
            example = torch.empty(8, 512, SIZE)
        found.append(engine.plan(model, example, blocks="layers.*"))
    plan, other = found
    assert "H100" in plan.roofline
    assert len(plan.blocks) == 64
    assert 0 < plan.peak <= plan.budget == int(plan.unchecked_bytes * 0.5)
    assert plan.forward_ms > other.forward_ms > 0
    assert SelectiveCheckpoint(plan=plan).apply(model, "layers.*") == plan.blocks


def test_no_plan_without_a_budget():
    """Where there is a policy there is nothing to solve."""
    with pytest.raises(ValueError, match=r"SelectiveCheckpoint\(budget=...\)"):
        SelectiveCheckpoint().plan(fresh(Plain), EXAMPLE)


def experts():
    """Return a mixture of experts of the size of the model."""
    return Mixture(SIZE)


class Sparse(Plain):
    """A model of mixtures of experts."""

    def __init__(self):
        super().__init__(3, experts)

    def forward(self, x):
        """Run on rows."""
        return super().forward(x.flatten(0, 1))


@pytest.fixture(scope="module")
def sparse():
    """Return what training gives of a mixture of experts."""
    return steps(fresh(Sparse), batches(4))


def test_what_depends_on_values(sparse):
    """Experts with as many rows as they happen to get are planned with real tensors."""
    engine = SelectiveCheckpoint(budget=0.7)
    model = fresh(Sparse)
    plan = engine.plan(model, batches()[0], blocks="layers.*")
    assert plan.blocks == NAMES
    assert {"aten.nonzero.default"} <= {op.name for op in plan.groups[0].kind.ops}
    engine.apply(model, "layers.*")
    assert same(sparse, steps(model, batches(4)))


def test_what_depends_on_values_is_recorded(sparse):
    """So it is where the first step is recorded."""
    model = fresh(Sparse)
    SelectiveCheckpoint(budget=0.7).apply(model, "layers.*")
    assert same(sparse, steps(model, batches(4)))


def test_what_depends_on_values_without_memory():
    """A model on the meta device has no values, which is said."""
    with torch.device("meta"):
        model, example = Sparse(), torch.empty(2, 5, SIZE)
    engine = SelectiveCheckpoint(budget=0.7, roofline="H100")
    with pytest.raises(
        ValueError, match=r"Sparse calls aten\.nonzero\.default.* on the meta device"
    ):
        engine.plan(model, example, blocks="layers.*")


def test_random_numbers_of_a_plan_with_real_tensors():
    """Nor does such a plan take random numbers, or leave buffers changed."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts, self.norm = experts(), nn.BatchNorm1d(SIZE)

        def forward(self, x):
            return self.norm(nn.functional.dropout(self.experts(x)))

    class Random(Plain):
        def forward(self, x):
            return super().forward(x.flatten(0, 1))

    model = fresh(Random, 2, Block)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    state = torch.get_rng_state()
    SelectiveCheckpoint(budget=0.8).plan(model, batches()[0], blocks="layers.*")
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], each) for name, each in model.state_dict().items())


def test_follow_a_plan(known, expected):
    """A plan that was written down is followed, from the first step on, as it is."""
    plan = Plan.from_json(known.to_json())
    model = fresh(Plain)
    engine = SelectiveCheckpoint(plan=plan)
    assert engine.apply(model, "layers.*") == NAMES
    found = held(model, batches()[0])
    model.zero_grad()
    assert found == known.kept_bytes
    assert same(expected, steps(model, batches(4)))
    assert followed(engine) is plan


def test_blocks_that_a_plan_does_not_have(known):
    """Blocks without a place in the plan are refused, and have no checkpoint afterwards."""
    model = fresh(Plain, 5)
    engine = SelectiveCheckpoint(plan=known)
    with pytest.raises(ValueError, match=r"no block 'layers.3'. It has layers.0, layers.1, layers"):
        engine.apply(model, "layers.*")
    assert all("forward" not in m.__dict__ for m in model.modules())
    # Some of those that it has are fine.
    assert engine.apply(model, ["layers.0", "layers.2"]) == ("layers.0", "layers.2")


def test_report(capsys, known):
    """A plan of a model is printed with its blocks and its totals."""
    known.report()
    shown = capsys.readouterr().out
    for part in ("What each block keeps", "What is worth the most", "No checkpointing", "Budget"):
        assert part in shown
    assert "aten." in shown
    assert "layers" in shown


def test_plot(tmp_path, known):
    """And drawn."""
    pytest.importorskip("matplotlib")
    known.plot(tmp_path / "pareto.svg")
    assert "<svg" in (tmp_path / "pareto.svg").read_text()
