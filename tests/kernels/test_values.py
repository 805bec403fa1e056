"""Logprob, entropy and gradients at sizes and places where a tile or a chunk ends."""

import pytest
import table
import torch
from ctxcarry_kernels._path import why_not_fused
from table import DEVICE, check, problem

SHAPES = [
    (1, 64, 256),  # one token, one whole tile
    (1, 8, 1),  # a vocabulary of one word
    (5, 64, 257),  # one word in the last tile
    (7, 1032, 40),  # the label's logit takes two steps over H
    (127, 200, 255),
    (128, 64, 512),  # nothing ragged
    (130, 72, 600),  # all of it ragged
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sizes(shape, way):
    """Any number of tokens, features and words gives the right answer."""
    check(problem(way, *shape))


def test_amounts_kept(every_way):
    """What the forward keeps changes nothing but the work of the backward."""
    check(problem(every_way, bias=True), temperature=0.7)


@pytest.mark.parametrize("keep", ["none", "all"])
def test_many_tiles(keep):
    """More tiles than a row pass takes in one step: 64 for the sums, 16 for E."""
    given = problem(table.WAYS[-1]._replace(keep=keep), 2, 8, 65 * 256 + 3)
    check(given)


@pytest.mark.parametrize("h", [61, 4])
def test_rows_that_tma_cannot_load(h, way):
    """Rows of no multiple of 16 bytes are served by plain torch."""
    given = problem(way, 5, h, 300)
    given.served = h * way.dtype.itemsize % 16 == 0
    check(given)


def test_memory_that_tma_cannot_load(way):
    """Memory that does not begin at a multiple of 16 bytes is served by plain torch."""
    given = problem(way)
    memory = torch.zeros(given.hidden.numel() + 1, dtype=way.dtype, device=DEVICE)
    given.hidden = memory[1:].view_as(given.hidden).copy_(given.hidden)
    given.served = False
    assert why_not_fused(given.hidden, given.weight) is not None
    check(given)


def test_labels_at_the_edges_of_tiles(way):
    """A label on the first or last word of a tile, which a chunk is here, is exact."""
    given = problem(way, 6)
    given.labels = torch.tensor([0, 255, 256, 511, 512, 599], device=DEVICE)
    # Gradients of one sign, so that the label's own is the largest of a row.
    given.dlogp = given.dlogp.abs() + 1
    check(given)


def test_no_tokens(way):
    """Without tokens the results are empty and the gradients zero."""
    given = problem(way, 0, bias=True)
    got = given.run()
    assert got.logprobs.shape == got.entropy.shape == (0,)
    assert got.dhidden.shape == (0, 40)
    assert torch.equal(got.dweight, torch.zeros_like(given.weight))
    assert torch.equal(got.dbias, torch.zeros_like(given.bias))


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 1, 2)], ids=str)
def test_leading_dimensions(lead, way):
    """Results and gradients have the shapes of labels and hidden."""
    count = torch.Size(lead).numel()
    given = problem(way, count)
    given.hidden = given.hidden.reshape(*lead, 40)
    for name in ("labels", "dlogp", "dentropy"):
        setattr(given, name, getattr(given, name).reshape(lead))
    check(given)


@pytest.mark.parametrize("which", ["hidden", "weight", "labels", "bias"])
def test_not_contiguous(which, way):
    """A tensor with gaps is as good as its copy."""
    given = problem(way, bias=True)
    dense = getattr(given, which)
    wide = torch.stack([dense, torch.full_like(dense, 7)], dim=-1)
    setattr(given, which, wide[..., 0])
    assert not getattr(given, which).is_contiguous()
    check(given)


def test_transposed(way):
    """Matrices stored by columns are as good as those by rows."""
    given = problem(way)
    given.hidden, given.weight = (
        given.hidden.t().contiguous().t(),
        given.weight.t().contiguous().t(),
    )
    check(given)


def test_alone_and_packed(way):
    """A token has the logprob that it has in a batch, so that ratios of policies are 1."""
    packed = problem(way, 130, v=300)
    with torch.no_grad():
        together = packed.call(packed.hidden, packed.weight, None).logprobs
    for token in (0, 127, 128, 129):
        one = problem(way, 130, v=300)
        one.hidden, one.labels = packed.hidden[token : token + 1], packed.labels[token : token + 1]
        alone = one.call(one.hidden, one.weight, None).logprobs
        assert abs(alone - together[token]) <= 1e-4
