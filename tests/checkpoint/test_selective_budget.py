"""A budget for the blocks of a model: the plan that is made, and what is really kept."""

import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("scipy")
pytest.importorskip("rich")

import torch
from ctxcarry_checkpoint import Action, BudgetError, Plan, SelectiveCheckpoint
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).parent))
from _models import SIZE, Counting, Plain, batches, fresh, same, steps
from blocks import Mixture

NAMES = ("layers.0", "layers.1", "layers.2")
EXAMPLE = torch.empty(2, 5, SIZE)


def planned(budget, example=EXAMPLE, *, kind=Plain, **options):
    """Return a plan that is made of example inputs."""
    engine = SelectiveCheckpoint(budget=budget, **options)
    return engine.plan(fresh(kind), example, blocks="layers.*")


def followed(engine):
    """Return the plan that an engine follows."""
    return engine._planner.current


@pytest.fixture(scope="module")
def expected():
    """Return what training gives without a checkpoint."""
    return steps(fresh(Plain), batches(4))


@pytest.fixture(scope="module")
def known():
    """Return the plan for a part of the memory that keeps some things and not others."""
    return planned(0.7)


def products_again(model, batch):
    """Return how many products the backward of a step runs again."""
    counts = []
    for each in (model, fresh(type(model))):
        loss = each(batch).sum()
        with Counting() as mode:
            loss.backward()
        each.zero_grad()
        counts.append(mode.of("mm"))
    return counts[0] - counts[1]


class Live(TorchDispatchMode):
    """Note the memory that is taken while the blocks of a model run."""

    def __init__(self, model, names=NAMES):
        super().__init__()
        self.found = {}
        self.within = 0
        # Which an operator may be asked to return.
        self.before = {t.untyped_storage()._cdata for t in model.parameters()}
        self.hooks = []
        for name in names:
            block = model.get_submodule(name)
            self.hooks += [
                block.register_forward_pre_hook(lambda *_: self.enter(1)),
                block.register_forward_hook(lambda *_: self.enter(-1)),
            ]

    def enter(self, step):
        self.within += step

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        for tensor in args if self.within else ():
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self.found:
                    self.before.add(storage._cdata)
        for tensor in output if isinstance(output, (list, tuple)) else [output]:
            if self.within and isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self.before:
                    self.found[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        return output

    def nbytes(self):
        """Return the bytes that are still there."""
        return sum(nbytes for ref, nbytes in self.found.values() if not ref.expired())


def held(model, batch, names=NAMES):
    """Return the bytes of what blocks made that are there between forward and backward."""
    mode = Live(model, names)
    with mode:
        loss = model(batch).sum()
    found = mode.nbytes()
    loss.backward()
    model.zero_grad()
    for hook in mode.hooks:
        hook.remove()
    return found


def test_recorded_in_the_first_step(expected):
    """The first step keeps nothing, and is recorded; the plan holds from the second on."""
    model = fresh(Plain)
    engine = SelectiveCheckpoint(budget=0.9)
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


def test_forms_of_a_budget(known):
    """A part, text and bytes mean the same."""
    nbytes = int(known.unchecked_bytes * 0.7)
    for budget in ("70%", nbytes, f"{nbytes / 1024:.6f} KiB"):
        plan = planned(budget)
        assert abs(plan.budget - known.budget) <= 1
        assert [plan.actions(n) for n in NAMES] == [known.actions(n) for n in NAMES]


def test_two_forwards_before_the_backward(expected):
    """Forwards before the first backward, as with a pipeline, are recorded and then followed."""
    model = fresh(Plain)
    SelectiveCheckpoint(budget=0.5).apply(model, "layers.*")
    reference = fresh(Plain)
    for each in (model, reference):
        several = pytest.warns(UserWarning, match="called several times before a backward")
        with several if each is model else nullcontext():
            losses = [each(batch).square().sum() for batch in batches()]
        for loss in losses:
            loss.backward()
    assert same([p.grad for p in model.parameters()], [p.grad for p in reference.parameters()])


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


def test_plan_ahead_is_what_is_recorded(known):
    """A plan of fake tensors is the one that a recorded step leads to."""
    model = fresh(Plain)
    engine = SelectiveCheckpoint(budget=0.7)
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


def test_other_shapes():
    """Batches of other sizes follow the plan of the first."""
    given = [b for rows in (5, 3, 8, 5) for b in batches(1, rows)]
    expected = steps(fresh(Plain), given)
    model = fresh(Plain)
    engine = SelectiveCheckpoint(budget=0.9)
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
    """A block that a step calls twice keeps its results twice: the plan says that it counts once."""

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
    with pytest.warns(UserWarning, match="'layers.0' is called several times before a backward"):
        assert same(expected, steps(model, batches(4)))
    assert followed(engine) is not None


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
    engine = SelectiveCheckpoint(budget=0.9)
    engine.apply(model, "layers.*")
    steps(model, batches(2))
    plan = followed(engine)
    engine.remove(model)
    engine.apply(model, "layers.*")
    assert products_again(model, batches()[0]) == 0
    assert followed(engine) is plan
