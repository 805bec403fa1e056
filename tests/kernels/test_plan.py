"""The plan: what is kept fits, and the pieces of the backward cover the words once."""

from ctxcarry_kernels import _plan
from hypothesis import given
from hypothesis import strategies as st

rows = st.integers(1, 1 << 20)
words = st.integers(1, 300_000)
sizes = st.sampled_from([2, 4])
room = st.integers(0, 1 << 34)


def kept_bytes(tokens, kept, size):
    """Return the bytes of E and of what it is relative to."""
    return tokens * (_plan.padded(kept) * size + _plan.tiles(kept) * 4)


@given(rows, words, sizes, room)
def test_kept_words(tokens, v, size, budget):
    """As many whole tiles as fit are kept, or all words, and never more."""
    kept = _plan.kept_words(tokens, v, size, budget)
    assert 0 <= kept <= v
    assert kept == v or kept % _plan.TILE_V == 0
    assert kept_bytes(tokens, kept, size) <= budget or kept == 0
    more = min(v, kept + _plan.TILE_V)
    if kept < v:
        assert kept_bytes(tokens, more, size) > budget or more == v


@given(words, sizes, room)
def test_nothing_is_kept_of_no_tokens(v, size, budget):
    """Without tokens there is no E."""
    assert _plan.kept_words(0, v, size, budget) == 0


@given(rows, words, sizes)
def test_all_is_kept_at_its_very_size(tokens, v, size):
    """The bytes of all words are a budget for all words; one byte less is not."""
    all_of_it = kept_bytes(tokens, v, size)
    assert _plan.kept_words(tokens, v, size, all_of_it) == v
    assert _plan.kept_words(tokens, v, size, all_of_it - 1) < v


@given(rows, words, room, sizes, st.integers(1, 200))
def test_chunk_words(tokens, v, scratch, size, processors):
    """A piece is of whole tiles within the room, at least one, and no wider than the words."""
    width = _plan.chunk_words(tokens, v, scratch, size, processors)
    assert width > 0
    assert width % _plan.TILE_V == 0
    assert width == _plan.TILE_V or tokens * width * size <= scratch
    assert width < v + _plan.TILE_V


@given(rows, words, st.integers(1 << 20, 1 << 34), sizes, st.integers(1, 200))
def test_chunk_words_use_the_room(tokens, v, scratch, size, processors):
    """A piece is more than half as wide as it may be."""
    width = _plan.chunk_words(tokens, v, scratch, size, processors)
    tile = tokens * _plan.TILE_V * size
    most = max(1, min(scratch // tile, _plan.tiles(v)))
    assert width // _plan.TILE_V > most // 2


def test_waste_at_the_measured_size():
    """8192 tokens in bf16 leave less than one processor in 100 of 132 without a tile."""
    width = _plan.chunk_words(8192, 128_256, _plan.scratch(8192, 4096), 2, 132)
    busy = width // _plan.TILE_V * (8192 // _plan.TILE_N)
    assert -busy % 132 < 0.01 * busy


@given(st.integers(0, 5000), st.integers(0, 5000), st.integers(1, 700))
def test_chunks(first, v, width):
    """The pieces follow one another from the first word to the last."""
    pieces = _plan.chunks(first, v, width)
    covered = [word for start, length in pieces for word in range(start, start + length)]
    assert covered == list(range(first, v))
    assert all(0 < length <= width for _, length in pieces)


@given(words)
def test_padded(v):
    """A row is padded to whole 16 bytes of two-byte elements, by less than that."""
    assert 0 <= _plan.padded(v) - v < 8
    assert _plan.padded(v) % 8 == 0
    assert 0 <= _plan.tiles(v) * _plan.TILE_V - v < _plan.TILE_V
