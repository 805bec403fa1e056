"""Checkpoints put on a model's blocks, taken off and copied with it, and what is refused."""

import copy
import functools
import inspect
import pickle
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from ctxcarry_checkpoint import SelectiveCheckpoint, policies

sys.path.insert(0, str(Path(__file__).parent))
from _models import AGAIN, NAMES, Block, Plain, batches, fresh, ran_again, same, steps

aten = torch.ops.aten


@pytest.fixture(scope="module")
def expected():
    """Return what training gives without a checkpoint."""
    return steps(fresh(), batches())


@pytest.fixture
def model():
    """Return a model."""
    return fresh()


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
