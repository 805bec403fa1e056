"""Labels: those to ignore, those that no word has, and their types."""

import pytest
import torch
from table import DEVICE, check, problem


@pytest.mark.parametrize("ignore", [-100, 1, 599, 10_000, -1])
def test_ignored(ignore, way):
    """An ignored token has logprob and entropy 0, and a gradient of exactly 0."""
    given = problem(way, bias=True)
    given.labels[[0, 4, 8]] = ignore
    given.labels[5] = 2
    got = check(given, ignore_index=ignore)
    ignored = given.labels == ignore
    assert ignored.sum() >= 3
    assert (got.logprobs[ignored] == 0).all()
    assert (got.entropy[ignored] == 0).all()
    assert (got.dhidden[ignored] == 0).all()


def test_all_ignored(way):
    """With all tokens ignored every gradient is exactly 0."""
    given = problem(way, bias=True)
    given.labels[:] = -100
    got = given.run()
    for part in got[:5]:
        assert torch.equal(part, torch.zeros_like(part))


def test_ignored_with_a_bad_gradient(way):
    """Whatever comes from above for an ignored token, even NaN, it has no gradient."""
    given = problem(way)
    given.labels[[2, 6]] = -100
    want = given.expected()
    given.dlogp[2], given.dentropy[6] = torch.nan, torch.inf
    got = given.run()
    bound = 1e-5 if way.dtype is torch.float32 else 5e-3
    for mine, right in zip(got[2:4], want[2:4]):
        assert (mine - right).norm() <= bound * right.norm()


@pytest.mark.parametrize("label", [-1, 600, 767, 768, 2**31 - 1, -(2**31)])
def test_a_label_that_no_word_has(label, way):
    """It has a logprob of -inf and the entropy of its row; all other rows are right."""
    given = problem(way, bias=True)
    given.labels[4] = label
    got = check(given)
    assert got.logprobs[4] == -torch.inf
    assert got.entropy[4] > 0


def test_labels_beyond_int32(way):
    """An int64 label is not cut to 32 bits, in which these would be words."""
    given = problem(way)
    given.labels[[1, 2]] = torch.tensor([2**32 + 5, -(2**32) + 5], device=DEVICE)
    got = check(given)
    assert (got.logprobs[[1, 2]] == -torch.inf).all()


def test_int32(way):
    """int32 labels do what int64 labels do, to the bit."""
    given = problem(way)
    given.labels[3] = -100
    wide = given.run()
    given.labels = given.labels.int()
    for narrow, right in zip(given.run()[:4], wide[:4]):
        assert torch.equal(narrow, right)


def test_labels_are_checked_on_request(way, monkeypatch):
    """With CTXCARRY_CHECK_LABELS=1 a ValueError names the labels that no word has."""
    given = problem(way)
    given.labels[:4] = torch.tensor([600, -1, -100, 599], device=DEVICE)
    monkeypatch.setenv("CTXCARRY_CHECK_LABELS", "1")
    with pytest.raises(ValueError, match=r"from 0 to 599, or ignore_index -100; given \[-1, 600\]"):
        given.run()
    given.labels[:2] = 0
    given.run()


def test_words_that_begin_elsewhere(way):
    """With vocab_start the labels count from there."""
    given = problem(way)
    given.labels[2] = -100
    want = given.run()
    given.labels = torch.where(given.labels == -100, -100, given.labels + 5000)
    for mine, right in zip(given.run(vocab_start=5000)[:4], want[:4]):
        assert torch.equal(mine, right)
    given.labels[0] = 4999
    assert given.run(vocab_start=5000).logprobs[0] == -torch.inf
