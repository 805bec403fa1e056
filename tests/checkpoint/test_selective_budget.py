"""Training with a budget for the blocks of a model: the plan it follows, what is really kept."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("scipy")
pytest.importorskip("rich")

import torch
from ctxcarry_checkpoint import BudgetError, Plan, SelectiveCheckpoint
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))
from _budgets import CARD, EXAMPLE, followed, held, planned, products_again
from _models import NAMES, SIZE, Counting, Plain, batches, fresh, same, steps


@pytest.fixture(scope="module")
def expected():
    """Return what training gives without a checkpoint."""
    return steps(fresh(Plain), batches(4))


@pytest.fixture(scope="module")
def known():
    """Return the plan for a part of the memory that keeps some things and not others."""
    return planned(0.7)


def test_recorded_in_the_first_step(expected):
    """The first step keeps nothing, and is recorded; the plan holds from the second on."""
    model = fresh(Plain)
    engine = SelectiveCheckpoint(budget=0.9, roofline=CARD)
    engine.apply(model, "layers.*")
    assert followed(engine) is None
    # The first of the two products of each block.
    assert products_again(model, batches()[0]) == 3
    assert followed(engine) is None
    assert products_again(model, batches()[1]) == 0
    plan = followed(engine)
    assert plan.blocks == NAMES
    assert products_again(model, batches()[2]) == 0
    assert followed(engine) is plan
    assert same(expected, steps(model, batches(4)))


@pytest.mark.parametrize("budget", [0.45, "70%", "19KiB", 20_000, 1.0, "1GiB"])
def test_gradients(budget, expected):
    """Whatever the budget is, nothing is different."""
    model = fresh(Plain)
    engine = SelectiveCheckpoint(budget=budget)
    engine.apply(model, "layers.*")
    assert same(expected, steps(model, batches(4)))
    plan = followed(engine)
    assert plan.peak <= plan.budget


def test_two_forwards_before_the_backward(known):
    """Forwards before the first backward, as with a pipeline, are counted in the first step."""
    model = fresh(Plain)
    engine = SelectiveCheckpoint(budget=0.5)
    engine.apply(model, "layers.*")
    reference = fresh(Plain)
    for each in (model, reference):
        losses = [each(batch).square().sum() for batch in batches()]
        for loss in losses:
            loss.backward()
    assert same([p.grad for p in model.parameters()], [p.grad for p in reference.parameters()])
    model(batches()[0]).sum().backward()
    plan = followed(engine)
    assert plan.unchecked_bytes == len(losses) * known.unchecked_bytes
    assert plan.peak <= plan.budget == plan.unchecked_bytes // 2


def test_forwards_without_a_backward(known):
    """What a forward kept that had no backward is gone, and does not count."""
    model = fresh(Plain)
    engine = SelectiveCheckpoint(budget=0.9)
    engine.apply(model, "layers.*")
    for _ in range(3):
        model(batches()[0])
    for _ in range(2):
        model(batches()[0]).sum().backward()
    assert followed(engine).unchecked_bytes == known.unchecked_bytes


@pytest.mark.parametrize("compiled", [False, True])
def test_several_in_flight(compiled):
    """A plan keeps the budget with so many forwards, of which one is in its backward."""
    plans = [
        SelectiveCheckpoint(budget=1.0).plan(
            fresh(Plain), EXAMPLE, blocks="layers.*", in_flight=count, compiled=compiled
        )
        for count in (1, 4)
    ]
    assert plans[1].kept_bytes == 4 * plans[0].kept_bytes
    one, four = (plan.groups[0].kind for plan in plans)
    assert four.working(four.front[0]) == one.working(one.front[0])
    budget = plans[1].full_bytes + (plans[1].unchecked_bytes - plans[1].full_bytes) // 2
    tight = SelectiveCheckpoint(budget=budget).plan(
        fresh(Plain), EXAMPLE, blocks="layers.*", in_flight=4, compiled=compiled
    )
    assert plans[1].full_bytes < tight.peak <= budget
    assert 0 < tight.ms < tight.full_ms
    assert Plan.from_json(tight.to_json()) == tight


def test_nothing_in_flight():
    """There is one at least."""
    with pytest.raises(ValueError, match="so 1 or more: 0"):
        SelectiveCheckpoint(budget=0.5).plan(fresh(Plain), EXAMPLE, in_flight=0)


def test_what_is_kept(known):
    """Between forward and backward there is what the plan says, to the byte."""
    found, again, predicted = [], [], []
    for budget in (0.45, 0.7, 0.85, 1.0):
        model = fresh(Plain)
        engine = SelectiveCheckpoint(budget=budget)
        plan = engine.plan(model, EXAMPLE, blocks="layers.*")
        engine.apply(model, "layers.*")
        model(batches()[0]).sum().backward()
        found.append(held(model, batches()[0]))
        loss = model(batches()[0]).sum()
        with Counting() as counting:
            loss.backward()
        again.append(counting.of("layer_norm.default", "gelu.default", "addmm"))
        predicted.append((plan.kept_bytes, plan.ms))
    assert found == [nbytes for nbytes, _ in predicted]
    assert found == sorted(set(found))
    assert again == sorted(set(again), reverse=True)
    assert [ms for _, ms in predicted] == sorted({ms for _, ms in predicted}, reverse=True)
    # And without checkpoints what it calls unchecked.
    assert held(fresh(Plain), batches()[0]) == known.unchecked_bytes == found[-1]


def test_no_more_kept_than_fits():
    """A budget that is too small is refused with the range of those that are not."""
    with pytest.raises(BudgetError, match="Give a budget between them") as error:
        planned("1KiB")
    least, most = error.value.smallest, error.value.largest
    assert 1024 == error.value.budget < least < most
    assert planned(least).peak <= least
    assert planned(most).ms == 0
    with pytest.raises(BudgetError):
        planned(least - 1)


def test_too_small_in_training(expected):
    """In training the error comes with the second step, before anything of it has run."""
    model = fresh(Plain)
    engine = SelectiveCheckpoint(budget="1KiB")
    engine.apply(model, "layers.*")
    steps(model, batches(1))
    with pytest.raises(BudgetError):
        model(batches()[0])
    engine.remove(model)
    model(batches()[0]).sum().backward()


def test_other_shapes():
    """Batches of other sizes follow the plan of the first."""
    given = [b for rows in (5, 3, 8, 5) for b in batches(1, rows)]
    expected = steps(fresh(Plain), given)
    model = fresh(Plain)
    engine = SelectiveCheckpoint(budget=0.9, roofline=CARD)
    engine.apply(model, "layers.*")
    assert same(expected, steps(model, given))
    assert [products_again(model, batch) for batch in given] == [0] * 4


def test_blocks_of_several_kinds():
    """Blocks that differ get choices of their own."""

    class Mixed(Plain):
        def __init__(self):
            super().__init__(2)
            self.layers.append(nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh(), nn.Softmax(-1)))

    expected = steps(fresh(Mixed), batches(4))
    model = fresh(Mixed)
    engine = SelectiveCheckpoint(budget=0.7)
    engine.apply(model, "layers.*")
    assert same(expected, steps(model, batches(4)))
    assert len({id(group.kind) for group in followed(engine).groups}) == 2
    assert held(model, batches()[0]) == followed(engine).kept_bytes


def test_a_block_that_is_never_called():
    """A tower that the data has no use for does not keep a plan from being made."""

    class Towers(Plain):
        def __init__(self):
            super().__init__(2)
            self.images = Plain(2)

        def forward(self, x):
            return super().forward(x)

    model = fresh(Towers)
    engine = SelectiveCheckpoint(budget=0.9)
    engine.apply(model, "layers.*")
    for _ in range(2):
        model(batches()[0]).sum().backward()
    assert followed(engine) is not None
    assert held(model, batches()[0], NAMES[:2]) > 0


def test_a_block_that_is_called_twice():
    """A block that a step calls twice keeps its results twice, which the plan counts."""

    class Twice(Plain):
        def forward(self, x):
            x = self.first(x)
            for layer in [*self.layers, *self.layers]:
                x = layer(x)
            return self.last(x)

    expected = steps(fresh(Twice, 2), batches(4))
    model = fresh(Twice, 2)
    engine = SelectiveCheckpoint(budget=0.8)
    engine.apply(model, "layers.*")
    assert same(expected, steps(model, batches(4)))
    plan = followed(engine)
    assert [group.kind.calls for group in plan.groups] == [2] * len(plan.groups)
    assert plan.peak <= plan.budget
    assert held(model, batches()[0], NAMES[:2]) == plan.kept_bytes


def test_not_recorded_in_evaluation(expected):
    """An evaluation before the first step is no step."""
    model = fresh(Plain)
    engine = SelectiveCheckpoint(budget=0.9)
    engine.apply(model, "layers.*")
    with torch.no_grad():
        for _ in range(3):
            model.eval()(batches(1, 3)[0])
    assert followed(engine) is None
    model.train()
    assert same(expected, steps(model, batches(4)))
    assert followed(engine).blocks == NAMES


def test_other_parameters_in_the_same_engine(expected):
    """Taken off and put on again, the plan is still there; of other blocks there is none yet."""
    model = fresh(Plain)
    engine = SelectiveCheckpoint(budget=0.9, roofline=CARD)
    engine.apply(model, "layers.*")
    steps(model, batches(2))
    plan = followed(engine)
    engine.remove(model)
    engine.apply(model, "layers.*")
    assert products_again(model, batches()[0]) == 0
    assert followed(engine) is plan


def test_hooks_around_the_model():
    """A first step within saved-tensor hooks is recorded like any other."""
    expected = steps(fresh(Plain), batches())
    model = fresh(Plain)
    engine = SelectiveCheckpoint(budget=0.5)
    engine.apply(model, "layers.*")
    hooks = torch.autograd.graph.saved_tensors_hooks

    def call(batch):
        with hooks(lambda tensor: tensor.clone(), lambda tensor: tensor):
            return model(batch)

    assert same(expected, steps(model, batches(), call=call))
    assert followed(engine) is not None
