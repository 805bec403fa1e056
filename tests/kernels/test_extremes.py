"""Logits far from 0, or not finite: nothing overflows, and what is not finite stays in its row."""

import pytest
import torch
from table import DEVICE, check, check_gradient, check_values, problem

INF = float("inf")


def with_logits(way, logits):
    """Return a problem with about these logits, [tokens, words], told by the first features."""
    n, v = logits.shape
    given = problem(way, n, 64, v)
    given.hidden[:, :n], given.weight[:, :n] = 0, logits.t() / 16
    given.hidden[range(n), range(n)] = 16
    return given


@pytest.mark.parametrize("low_and_high", [(-200, -200), (-300, 300), (300, 300)], ids=str)
def test_large_logits(low_and_high, way):
    """Logits that are all far from 0, or far from one another, leave no infinity."""
    low, high = low_and_high
    logits = torch.full((6, 600), float(low), device=DEVICE)
    logits[:, ::7] = high
    given = with_logits(way, logits)
    given.labels = torch.tensor([0, 7, 1, 255, 595, 599], device=DEVICE)
    got, want = given.run(), given.expected()
    check_values(got, want)
    assert (got.entropy >= 0).all()
    # Of the features that all words share the gradient is a difference of large numbers,
    # and a logit of 300 in fp32 is known to 1e-5 only.
    for mine, right in ((got.dhidden[:, 6:], want.dhidden[:, 6:]), (got.dweight, want.dweight)):
        assert (mine - right).norm() <= 5e-3 * right.norm()


@pytest.mark.parametrize("word", [0, 255, 300, 599])
def test_one_dominant_logit(word, way):
    """A word that has all of the probability leaves an entropy of 0 and no gradient."""
    logits = torch.zeros(4, 600, device=DEVICE)
    logits[:, word] = 300
    given = with_logits(way, logits)
    given.labels[:] = word
    got = given.run()
    assert got.logprobs.abs().max() <= 3e-3
    assert (got.entropy >= 0).all()
    assert got.entropy.max() <= 3e-3
    # No more than the error of the logprob, times the largest of weight and hidden.
    for gradient in (got.dhidden, got.dweight):
        assert gradient.abs().max() <= 3e-3 * 20


def test_e_underflows(way):
    """A word far below its tile's best has no E, and neither gradient nor NaN from it."""
    logits = torch.zeros(5, 600, device=DEVICE)
    logits[:, 1::2] = -60.0  # 2^-86, which no fp16 has
    given = with_logits(way, logits)
    given.hidden[:, 5:] = 0
    given.labels[:] = torch.tensor([0, 1, 256, 257, 599], device=DEVICE)
    check(given)


@pytest.mark.parametrize("value", [INF, -INF, float("nan")])
def test_one_row_that_is_not_finite(value, way):
    """What is not finite in a token's hidden state shows in its results, and in no other's."""
    given = problem(way, 5)
    given.hidden[3, 2] = value
    got = given.run()
    assert not got.logprobs[3].isfinite()
    assert not got.entropy[3].isfinite()
    assert not got.dhidden[3].isfinite().any()
    given.hidden[3] = 0
    want = given.expected()
    others = torch.tensor([0, 1, 2, 4], device=DEVICE)
    check_values([t[others] for t in got[:2]], want._replace(**_rows(want, others)))
    check_gradient(got.dhidden[others], want.dhidden[others], way.dtype)


def _rows(outcome, rows):
    return {"logprobs": outcome.logprobs[rows], "entropy": outcome.entropy[rows]}


@pytest.mark.parametrize("value", [INF, float("nan")])
def test_one_word_that_is_not_finite(value, way):
    """A broken word leaves no logprob that looks right."""
    given = problem(way, 3)
    given.weight[300] = value
    got = given.run()
    assert not got.logprobs.isfinite().any()
    assert not got.entropy.isfinite().any()


@pytest.mark.parametrize("tile", [0, 1, 2])
@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_banned_words(temperature, tile, way):
    """A bias of -inf rules words out, a whole tile of them too: no probability, no gradient."""
    given = problem(way, bias=True)
    given.bias[tile * 256 : tile * 256 + 256] = -INF
    given.bias[[5, 300, 515, 599]] = -INF
    allowed = given.bias.isfinite().nonzero()[:, 0]
    given.labels = allowed[given.labels % len(allowed)]
    got = check(given, temperature=temperature)
    assert (got.dbias[given.bias == -INF] == 0).all()
    assert (got.dweight[given.bias == -INF] == 0).all()


def test_all_words_but_one_banned(way):
    """The only word has all of the probability."""
    given = problem(way, bias=True)
    given.bias[:] = -INF
    given.bias[400] = 1.5
    given.labels[:] = 400
    got = given.run()
    assert got.logprobs.abs().max() <= 1e-5
    assert got.entropy.abs().max() <= 1e-5
    assert got.dhidden.abs().max() <= 1e-5


def test_a_label_that_is_banned(way):
    """It has a logprob of -inf, as in torch's log_softmax, and a finite gradient."""
    given = problem(way, bias=True)
    given.labels[:3] = torch.tensor([7, 300, 599], device=DEVICE)
    given.bias[[7, 300, 599]] = -INF
    got = check(given)
    assert (got.logprobs[:3] == -INF).all()
