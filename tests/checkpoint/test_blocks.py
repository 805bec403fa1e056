"""Which modules of a model are found as its blocks."""

import re

import pytest

pytest.importorskip("torch")
pytest.importorskip("hypothesis")

from ctxcarry_checkpoint._blocks import find_blocks
from hypothesis import given
from hypothesis import strategies as st
from torch import nn


class Block(nn.Module):
    """A block."""

    def __init__(self, size=4):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, size))


class Other(nn.Module):
    """Another kind of block."""

    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(4, 4)


def holding(**children):
    """Make a module with these children."""
    module = nn.Module()
    for name, child in children.items():
        setattr(module, name, child)
    return module


def blocks(count, kind=Block):
    """Make a list of blocks."""
    return nn.ModuleList(kind() for _ in range(count))


def names(found):
    """Return the names of what was found."""
    return list(found)


def test_pattern_at_the_top():
    """A pattern finds the children of the container, and no more."""
    model = holding(layers=blocks(2), norm=nn.LayerNorm(4))
    found = find_blocks(model, "layers.*")
    assert found == {"layers.0": model.layers[0], "layers.1": model.layers[1]}


def test_pattern_within():
    """The last parts of a name are enough, as in a model within a model."""
    model = holding(model=holding(layers=blocks(2)))
    assert names(find_blocks(model, "layers.*")) == ["model.layers.0", "model.layers.1"]


@given(st.lists(st.sampled_from(["model", "layers", "text"]), max_size=4))
def test_pattern_at_any_depth(path):
    """However deep the blocks are, the same pattern finds them, under their names."""
    model = holding(layers=blocks(1))
    for name in path:
        model = holding(**{name: model})
    prefix = ".".join([*reversed(path), "layers", "0"])
    assert names(find_blocks(model, "layers.0")) == [prefix]


def test_several_patterns():
    """Several patterns find what each of them does, in the order of the model."""
    model = holding(encoder=blocks(1), head=Other(), decoder=blocks(1))
    found = find_blocks(model, ["decoder.*", "encoder.*", "decoder.0"])
    assert names(found) == ["encoder.0", "decoder.0"]


def test_any_number_of_parts():
    """Two asterisks stand for any number of parts, also none."""
    model = holding(a=holding(b=holding(mlp=Other())), c=holding(mlp=Other()))
    assert names(find_blocks(model, "a.**.mlp")) == ["a.b.mlp"]
    assert names(find_blocks(model, "c.**.mlp")) == ["c.mlp"]


def test_wrappers():
    """Parts that wrappers of torch add are looked through, and the wrapper is the block."""
    wrapped = holding(_checkpoint_wrapped_module=holding(mlp=Other()))
    model = holding(layers=nn.ModuleList([wrapped]))
    assert names(find_blocks(model, "layers.*")) == ["layers.0"]
    assert names(find_blocks(model, "layers.0.mlp")) == ["layers.0._checkpoint_wrapped_module.mlp"]


def test_shared_modules():
    """A module with two names is found once, under the first name that the pattern has."""
    block = Block()
    model = holding(first=block, layers=nn.ModuleList([block, block, Block()]))
    assert names(find_blocks(model, "layers.*")) == ["layers.0", "layers.2"]
    assert names(find_blocks(model)) == ["layers.0", "layers.2"]
    towers = holding(a=nn.ModuleList([block, Block()]), b=nn.ModuleList([Block(), block]))
    assert names(find_blocks(towers)) == ["a.0", "a.1", "b.0"]


def test_nested():
    """A block within a block is refused, with both names."""
    model = holding(layers=nn.ModuleList([holding(inner=holding(layers=blocks(1)))]))
    message = "'layers.0.inner.layers.0' is within the block 'layers.0'"
    with pytest.raises(ValueError, match=re.escape(message)):
        find_blocks(model, "layers.*")


def test_nested_under_another_name():
    """A block that another one has within, under a name that does not match, is refused too."""
    block = Block()
    model = holding(layers=nn.ModuleList([block, holding(inner=block)]))
    with pytest.raises(ValueError, match=r"'layers.0' is within the block 'layers.1'"):
        find_blocks(model, "layers.*")


@pytest.mark.parametrize("pattern", ["layer.*", ["layers.*", "layer.*"]])
def test_pattern_that_finds_nothing(pattern):
    """A pattern that finds nothing is refused, with what is like it, and the containers."""
    model = holding(layers=blocks(2), head=nn.Sequential(nn.Linear(4, 4)))
    message = (
        r"matches 'layer.\*'. Closest: 'layers.0'.*Its containers: "
        r"'layers' \(ModuleList of 2: Block\), .*'head' \(Sequential of 1: Linear\)"
    )
    with pytest.raises(ValueError, match=message):
        find_blocks(model, pattern)


def test_container_itself():
    """A list is never called, so it is refused with the pattern of its members."""
    with pytest.raises(ValueError, match=r"'layers' is a ModuleList, .*'layers.\*' finds"):
        find_blocks(holding(layers=blocks(2)), "layers")


@pytest.mark.parametrize("pattern", ["", [], ["layers.*", ""]])
def test_empty_patterns(pattern):
    """A pattern without a name is refused."""
    with pytest.raises(ValueError, match="names modules"):
        find_blocks(holding(layers=blocks(2)), pattern)


@pytest.mark.parametrize("pattern", [3, ["layers.*", 3]])
def test_pattern_of_the_wrong_type(pattern):
    """A pattern that is no text is refused."""
    with pytest.raises(TypeError, match="given 3"):
        find_blocks(holding(layers=blocks(2)), pattern)


@pytest.mark.parametrize(
    "layers",
    [
        blocks(3),
        nn.ModuleDict({str(i): Block() for i in range(3)}),
        nn.Sequential(*blocks(3)),
        nn.ModuleList(nn.TransformerEncoderLayer(4, 1, 4) for _ in range(3)),
    ],
)
def test_repeated_blocks(layers):
    """The members of a container of blocks are found, and not what is within or beside them."""
    head = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model = holding(embedding=nn.Embedding(100, 4), model=holding(layers=layers), head=head)
    expected = ["model.layers.0", "model.layers.1", "model.layers.2"]
    assert names(find_blocks(model)) == expected


def test_model_that_is_the_container():
    """A model that is a sequence of blocks has these."""
    assert names(find_blocks(nn.Sequential(Block(), Block()))) == ["0", "1"]


def test_towers():
    """The blocks of several towers are found, of whatever kind and depth."""
    model = holding(vision=holding(layers=blocks(2)), text=holding(layers=blocks(3, Other)))
    expected = [*(f"vision.layers.{i}" for i in range(2)), *(f"text.layers.{i}" for i in range(3))]
    assert names(find_blocks(model)) == expected


def test_small_container_beside_the_blocks():
    """A container of another kind with next to no parameters has no blocks of the model."""
    model = holding(layers=nn.ModuleList(Block(64) for _ in range(4)), heads=blocks(2, Other))
    assert names(find_blocks(model)) == [f"layers.{i}" for i in range(4)]


def test_experts_within_blocks():
    """The experts within a block are no blocks, though they have most of its parameters."""
    layers = nn.ModuleList(holding(experts=blocks(8), gate=Other()) for _ in range(2))
    assert names(find_blocks(holding(layers=layers))) == ["layers.0", "layers.1"]


def test_blocks_of_several_kinds():
    """Blocks of two kinds with a base class of their own are blocks of one container."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = blocks(2)

    class Attention(Layer):
        pass

    class StateSpace(Layer):
        pass

    model = holding(layers=nn.ModuleList([Attention(), StateSpace()]))
    assert names(find_blocks(model)) == ["layers.0", "layers.1"]


def test_base_class_of_every_module():
    """A base class that the model has too says nothing about what is repeated."""

    class Module(nn.Module):
        pass

    class Norm(Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Linear(64, 64)

    class Head(Module):
        pass

    model = Module()
    model.layers = blocks(2)
    model.head = nn.Sequential(Norm(), Head())
    assert names(find_blocks(model)) == ["layers.0", "layers.1"]


def test_parameters_that_are_not_there_yet():
    """A lazy layer has no size yet, and does not matter."""
    lazy = nn.ModuleList(holding(proj=nn.LazyLinear(4)) for _ in range(2))
    assert names(find_blocks(holding(layers=blocks(2), lazy=lazy)))[:2] == ["layers.0", "layers.1"]


def test_no_repeated_blocks():
    """A model without repeated blocks is refused, with its containers and what to do."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    message = r"itself \(Sequential of 2: Linear, ReLU\).*blocks='layers.\*'"
    with pytest.raises(ValueError, match=message):
        find_blocks(model)
    with pytest.raises(ValueError, match="It has no ModuleList, ModuleDict or Sequential"):
        find_blocks(nn.Linear(4, 4))
