"""Training with checkpoints of a model's blocks: gradients bit by bit the same, what runs again."""

import sys
import threading
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from ctxcarry_checkpoint import Action, Policy, SelectiveCheckpoint, policies
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))
from _models import AGAIN, NAMES, Model, Plain, batches, fresh, ran_again, same, steps

aten = torch.ops.aten


@pytest.fixture(scope="module")
def expected():
    """Return what training gives without a checkpoint."""
    return steps(fresh(), batches())


@pytest.fixture
def model():
    """Return a model."""
    return fresh()


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


def test_engines_within_one_another(model, expected):
    """Where several engines make them, they work."""
    SelectiveCheckpoint().apply(model, ["layers.*.norm1", "layers.*.w1"])
    SelectiveCheckpoint(policies.save(aten.mm)).apply(model, "layers.*")
    assert same(expected, steps(model, batches()))


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
