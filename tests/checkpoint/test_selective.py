"""The checkpoints of a model's blocks: put on, taken off, copied; gradients bit by bit the same."""

import copy
import functools
import inspect
import pickle
import sys
import threading
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from ctxcarry_checkpoint import Action, Policy, SelectiveCheckpoint, policies
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))
from _models import Block, Counting, Model, Plain, batches, fresh, same, steps

aten = torch.ops.aten
NAMES = ("layers.0", "layers.1", "layers.2")
AGAIN = 6
"""Products that a recompute of a block needs: all but the last of the seven."""


@pytest.fixture(scope="module")
def expected():
    """Return what training gives without a checkpoint."""
    return steps(fresh(), batches())


@pytest.fixture
def model():
    """Return a model."""
    return fresh()


def ran_again(model, batch=None):
    """Return how many products more than without a checkpoint the backward of a step runs."""
    counts = []
    for each in (model, fresh(type(model))):
        loss = each(batches(1)[0] if batch is None else batch).sum()
        with Counting() as mode:
            loss.backward()
        each.zero_grad()
        counts.append(mode.of("mm"))
    return counts[0] - counts[1]


POLICIES = {
    "nothing kept": None,
    "products kept": policies.save(aten.mm),
    "everything kept": policies.none(),
    "offloaded": policies.others(Action.OFFLOAD),
    "as TorchTitan": policies.torchtitan(),
    "a list": [aten.mm, aten.bmm],
}


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_gradients(policy, model, expected):
    """Outputs, gradients and parameters are the same in the first step and in later ones."""
    engine = SelectiveCheckpoint(policy)
    assert engine.apply(model, "layers.*") == NAMES
    assert same(expected, steps(model, batches()))


def test_there_is_a_checkpoint(model):
    """All products of all blocks run again in the backward of each step."""
    SelectiveCheckpoint().apply(model, "layers.*")
    # But for what each block does last, which nothing within it needs.
    assert [ran_again(model) for _ in range(3)] == [AGAIN * 3] * 3


def test_a_policy_decides(model):
    """What is kept does not run again."""
    SelectiveCheckpoint(policies.save(aten.mm)).apply(model, "layers.*")
    assert [ran_again(model) for _ in range(2)] == [0, 0]


def test_a_policy_for_each_engine(model, expected):
    """Blocks of one model may have checkpoints of several engines, each with its policy."""
    SelectiveCheckpoint(policies.save(aten.mm)).apply(model, "layers.0")
    other = SelectiveCheckpoint()
    other.apply(model, ["layers.1", "layers.2"])
    assert same(expected, steps(model, batches()))
    assert ran_again(model) == 2 * AGAIN
    other.remove(model)
    assert ran_again(model) == 0


def test_the_repeated_blocks(model, expected):
    """Without a pattern the repeated blocks are found."""
    assert SelectiveCheckpoint().apply(model) == NAMES
    assert same(expected, steps(model, batches()))
    assert ran_again(model)


@pytest.mark.parametrize("training", [True, False])
def test_without_gradients(training, model):
    """Where no gradients are taken there is no checkpoint."""

    class Asked(Policy):
        def decide(self, call):
            raise AssertionError(call)

    reference = fresh().train(training)
    model.train(training)
    SelectiveCheckpoint(Asked()).apply(model, "layers.*")
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            assert torch.equal(model(batches()[0]), reference(batches()[0]))


def test_gradients_in_evaluation():
    """A model in evaluation may be trained all the same, with its dropout off."""

    def block():
        return nn.Sequential(nn.Linear(16, 16), nn.Dropout(), nn.Linear(16, 16))

    found = []
    for engine in (None, SelectiveCheckpoint()):
        model = fresh(Plain, 2, block).eval()
        if engine is not None:
            engine.apply(model, "layers.*")
        found.append(steps(model, batches()))
    assert same(*found)


def test_dropout():
    """The recompute draws the random numbers of the forward."""

    def block():
        return nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.3), nn.Linear(16, 16), nn.Dropout())

    found = []
    for engine in (None, SelectiveCheckpoint()):
        model = fresh(Plain, 3, block)
        if engine is not None:
            engine.apply(model, "layers.*")
        found.append([*steps(model, batches(4)), torch.get_rng_state()])
    assert same(*found)


def test_what_a_model_is_stays(model):
    """Names, parameters, state, classes and signatures are what they were."""
    reference = fresh()
    before = [id(p) for p in model.parameters()]
    kinds = [type(m) for m in model.modules()]
    SelectiveCheckpoint().apply(model, "layers.*")
    assert [n for n, _ in model.named_modules()] == [n for n, _ in reference.named_modules()]
    assert [n for n, _ in model.named_parameters()] == [n for n, _ in reference.named_parameters()]
    assert [id(p) for p in model.parameters()] == before
    assert [type(m) for m in model.modules()] == kinds
    state, other = model.state_dict(), reference.state_dict()
    assert list(state) == list(other)
    assert same(list(state.values()), list(other.values()))
    fresh().load_state_dict(state)
    block, plain = model.layers[0], reference.layers[0]
    assert inspect.signature(block.forward) == inspect.signature(plain.forward)
    assert block.forward.__doc__ == plain.forward.__doc__
    assert block.forward.__name__ == "forward"
    assert str(model) == str(reference)


def test_hooks_run_once(model):
    """Hooks of a block run in the forward and the backward, and not in the recompute."""
    seen = []
    block = model.layers[1]
    block.register_forward_pre_hook(lambda *_: seen.append("before"))
    SelectiveCheckpoint().apply(model, "layers.*")
    block.register_forward_hook(lambda *_: seen.append("after"))
    block.register_full_backward_hook(lambda *_: seen.append("backward"))
    for _ in range(2):
        model(batches()[0]).sum().backward()
    assert seen == ["before", "after", "backward"] * 2


def test_hooks_that_change_things(model, expected):
    """What hooks make of arguments and results counts, as it does without a checkpoint."""
    found = []
    for each in (fresh(), model):
        block = each.layers[1]
        block.register_forward_pre_hook(lambda _, args: (args[0] * 2,))
        block.register_forward_hook(lambda _, args, output: output.sin() + args[0])
        if each is model:
            SelectiveCheckpoint().apply(model, "layers.*")
        found.append(steps(each, batches()))
    assert same(*found)
    assert not same(found[0], expected)


def test_remove(model):
    """Taken off, nothing is left of it."""
    engine = SelectiveCheckpoint()
    engine.apply(model, "layers.*")
    assert ran_again(model)
    engine.remove(model)
    assert ran_again(model) == 0
    assert all("forward" not in m.__dict__ for m in model.modules())
    engine.apply(model, "layers.0")
    assert ran_again(model) == AGAIN


def test_a_forward_of_its_own(model):
    """A block whose forward somebody replaced has that one called, and again afterwards."""
    block = model.layers[1]
    replaced = functools.partial(Block().forward, scale=3.0)
    block.forward = replaced
    expected = model(batches()[0])
    engine = SelectiveCheckpoint()
    engine.apply(model, "layers.*")
    assert torch.equal(model(batches()[0]), expected)
    engine.remove(model)
    assert block.forward is replaced


def test_taken_off_between_forward_and_backward(model):
    """A backward has what its forward had."""
    reference = fresh()
    engine = SelectiveCheckpoint()
    engine.apply(model, "layers.*")
    loss = model(batches()[0]).sum()
    engine.remove(model)
    loss.backward()
    reference(batches()[0]).sum().backward()
    assert same([p.grad for p in model.parameters()], [p.grad for p in reference.parameters()])


def copies():
    """Return ways to copy a model."""
    return {"deepcopy": copy.deepcopy, "pickle": lambda m: pickle.loads(pickle.dumps(m))}  # noqa: S301


@pytest.mark.parametrize("how", copies())
@pytest.mark.parametrize("called", [False, True])
def test_copies(how, called, model, expected):
    """A copy has a checkpoint too, with its own parameters, and leaves the model alone."""
    engine = SelectiveCheckpoint(policies.save(aten.silu))
    engine.apply(model, "layers.*")
    if called:
        model(batches()[0])
    made = copies()[how](model)
    assert not {id(p) for p in made.parameters()} & {id(p) for p in model.parameters()}
    assert same(expected, steps(made, batches()))
    assert all(p.grad is None for p in model.parameters())
    assert same([*model.parameters()], [*fresh().parameters()])
    assert ran_again(made)
    assert ran_again(model)


@pytest.mark.parametrize("how", copies())
def test_a_copy_with_a_budget(how):
    """So has a copy of a model whose checkpoints have a plan."""
    model = fresh(Plain)
    expected = steps(fresh(Plain), batches())
    SelectiveCheckpoint(budget=0.5).apply(model, "layers.*")
    for _ in range(2):
        model(batches()[0]).sum().backward()
    model.zero_grad()
    before = ran_again(model)
    made = copies()[how](model)
    assert same(expected, steps(made, batches()))
    assert ran_again(made) == before


@pytest.mark.parametrize("how", copies())
def test_a_copy_can_be_rid_of_it(how, model):
    """The checkpoints of a copy are taken off alone, by the engine that it has."""
    engine = SelectiveCheckpoint()
    engine.apply(model, "layers.*")
    made = copies()[how](model)
    made.layers[0].forward.engine.remove(made)
    assert ran_again(made) == 0
    assert ran_again(model) == 3 * AGAIN


def test_what_is_taken_off_a_copy_stays_on_the_model(model):
    """A copy has the same engine and the same names, and other blocks."""
    engine = SelectiveCheckpoint(budget=0.9)
    engine.apply(model, "layers.*")
    engine.remove(copy.deepcopy(model))
    assert tuple(engine._names) == NAMES


def test_saved_and_loaded(tmp_path, model, expected):
    """A whole model may be saved to a file, with its checkpoints."""
    SelectiveCheckpoint(policies.save(aten.mm)).apply(model, "layers.*")
    torch.save(model, tmp_path / "model.pt")
    made = torch.load(tmp_path / "model.pt", weights_only=False)
    assert same(expected, steps(made, batches()))


def test_applied_twice(model):
    """A block has one checkpoint at most; those that were put on meanwhile are taken off."""
    first, second = SelectiveCheckpoint(), SelectiveCheckpoint()
    first.apply(model, "layers.1")
    with pytest.raises(ValueError, match=r"'layers.1' already has a checkpoint of this engine"):
        first.apply(model, "layers.*")
    with pytest.raises(ValueError, match="of another engine; take it off with"):
        second.apply(model, "layers.*")
    assert ran_again(model) == AGAIN
    with pytest.raises(ValueError, match="this Model has no checkpoint of this engine"):
        second.remove(model)


def test_removed_without_apply(model):
    """There is nothing to take off."""
    engine = SelectiveCheckpoint()
    with pytest.raises(ValueError, match="has no checkpoint of this engine"):
        engine.remove(model)
    engine.apply(model)
    engine.remove(model)
    with pytest.raises(ValueError, match="has no checkpoint of this engine"):
        engine.remove(model)


def test_no_such_block(model):
    """A pattern that finds nothing is refused, and the model stays as it is."""
    with pytest.raises(ValueError, match=r"matches 'blocks.\*'"):
        SelectiveCheckpoint().apply(model, "blocks.*")
    assert ran_again(model) == 0


def test_a_block_in_a_block(model):
    """A checkpoint within another one is refused, where one engine would make both."""
    with pytest.raises(ValueError, match=r"'layers.0.norm1' is within the block 'layers.0'"):
        SelectiveCheckpoint().apply(model, ["layers.0", "layers.0.norm1"])
    assert ran_again(model) == 0


def test_engines_within_one_another(model, expected):
    """Where several engines make them, they work."""
    SelectiveCheckpoint().apply(model, ["layers.*.norm1", "layers.*.w1"])
    SelectiveCheckpoint(policies.save(aten.mm)).apply(model, "layers.*")
    assert same(expected, steps(model, batches()))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"policy": policies.full(), "budget": 0.5}, "was given policy and budget"),
        ({"budget": 2.0}, "no ratio"),
        ({"budget": "4 bananas"}, "no unit 'bananas'"),
        ({"budget": True}, "no budget"),
    ],
)
def test_refused(given, message):
    """What contradicts itself or is no budget is refused at once."""
    with pytest.raises(ValueError, match=message):
        SelectiveCheckpoint(**given)


def test_no_policy():
    """So is what is no policy."""
    with pytest.raises(TypeError):
        SelectiveCheckpoint(policy=3)


def test_keyword_arguments():
    """A block is called with the keyword arguments that the model gives it."""

    class Scaling(Plain):
        def forward(self, x):
            for number, layer in enumerate(self.layers):
                x = layer(x=x, scale=0.5 + number)
            return x

    found = []
    for engine in (None, SelectiveCheckpoint(policies.save(aten.addmm))):
        model = fresh(Scaling)
        model.first = model.last = None
        if engine is not None:
            engine.apply(model, "layers.*")
        found.append(steps(model, batches()))
    assert same(*found)


def test_a_block_that_is_called_twice(expected):
    """A block that a model has twice, or calls twice, is right each time."""

    class Twice(Model):
        def forward(self, x):
            for layer in [*self.layers, self.layers[0]]:
                x = layer(x)
            return self.last(x).sin()

    found = []
    for engine in (None, SelectiveCheckpoint(policies.save(aten.mm)), SelectiveCheckpoint()):
        model = fresh(Twice)
        del model.first
        model.layers.append(model.layers[1])
        if engine is not None:
            engine.apply(model, "layers.*")
        found.append(steps(model, batches()))
    assert same(found[0], found[1])
    assert same(found[0], found[2])
    assert not same(found[0], expected)


def test_gradients_add_up():
    """Several forwards before their backwards, in any order, and gradients that add up."""
    found = []
    for engine in (None, SelectiveCheckpoint(policies.save(aten.mm))):
        model = fresh()
        if engine is not None:
            engine.apply(model, "layers.*")
        for order in ((0, 1), (1, 0), (2, 0)):
            losses = [model(batch).square().sum() for batch in batches()]
            for at in order:
                losses[at].backward()
        found.append([p.grad for p in model.parameters()])
    assert same(*found)


def test_a_graph_that_is_kept(model):
    """A backward may be done twice where the graph is kept."""
    SelectiveCheckpoint(policies.save(aten.mm)).apply(model, "layers.*")
    for _ in range(2):
        loss = model(batches()[0]).square().sum()
        parameters = list(model.parameters())
        first = torch.autograd.grad(loss, parameters, retain_graph=True)
        assert same(first, torch.autograd.grad(loss, parameters))


def test_two_models_in_two_threads(expected):
    """Engines know nothing of each other, on whichever thread they run."""
    found = {}
    barrier = threading.Barrier(2, timeout=60)

    def train(number, policy):
        model = fresh_in_thread[number]
        SelectiveCheckpoint(policy).apply(model, "layers.*")
        barrier.wait()
        found[number] = steps(model, batches())

    fresh_in_thread = [fresh(), fresh()]
    threads = [
        threading.Thread(target=train, args=(number, policy))
        for number, policy in enumerate([policies.save(aten.mm), None])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert same(expected, found[0])
    assert same(expected, found[1])


def test_one_engine_on_two_threads(expected):
    """So it is with one engine for two models, as replicas have."""
    engine = SelectiveCheckpoint(policies.save(aten.mm))
    models, found = [fresh(), fresh()], [None, None]
    for each in models:
        engine.apply(each, "layers.*")
    barrier = threading.Barrier(2, timeout=60)

    def train(number):
        barrier.wait()
        found[number] = steps(models[number], batches())

    threads = [threading.Thread(target=train, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert same(expected, found[0])
    assert same(expected, found[1])


@pytest.mark.parametrize("options", [{"early_stop": False}, {"debug": True}])
def test_options(options, expected):
    """The options of a checkpoint are those of the engine's, too."""
    model = fresh()
    SelectiveCheckpoint(policies.save(aten.mm), **options).apply(model, "layers.*")
    assert same(expected, steps(model, batches()))


def test_debug_reaches_the_blocks(model):
    """With debug, a block that gives other values the second time is found."""
    block = model.layers[1]
    times = []

    def differs(_, args):
        times.append(1)
        return (args[0] + len(times),)

    block.q.register_forward_pre_hook(differs)
    SelectiveCheckpoint(debug=True).apply(model, "layers.*")
    loss = model(batches()[0]).sum()
    with pytest.raises(RuntimeError, match=r"add"):
        loss.backward()


def test_unmatched_rules_are_told(model):
    """A rule that matches nothing in the blocks warns once."""
    SelectiveCheckpoint(policies.save(aten.convolution)).apply(model, "layers.*")
    with pytest.warns(UserWarning, match="convolution") as record:
        steps(model, batches())
    assert len(record) == 1
