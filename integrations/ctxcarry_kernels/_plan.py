"""
Sizes: what the forward keeps, and in which pieces the backward goes over the words.

Nothing here looks at a tensor, so that a plan can be made while a graph is traced.
"""

from __future__ import annotations

import functools

__all__ = (
    "TILE_N",
    "TILE_V",
    "chunk_words",
    "chunks",
    "kept_words",
    "padded",
    "scratch",
    "tiles",
)

TILE_N, TILE_V = 128, 256

_LEAST_SCRATCH = 368 << 20


def scratch(rows: int, features: int) -> int:
    """
    Return the bytes that the backward takes for a piece of the gradient of the logits.

    The forward may keep as much by default: the backward uses the same memory again, so
    the peak is the same. With the gradient of 8192 tokens of 4096 in fp32 it is 496 MiB.
    Of more tokens it is as much as that gradient, to which each piece adds: smaller
    pieces would have it read and written more often than they have work to do.

    Args:
        rows: Number of tokens.
        features: Size of a hidden state.
    """
    return max(_LEAST_SCRATCH, rows * features * 4)


def tiles(words: int) -> int:
    """Return the number of tiles that `words` columns take."""
    return -(-words // TILE_V)


def padded(words: int) -> int:
    """Return the row length of a buffer: TMA wants rows of whole 16 bytes."""
    return -(-words // 8) * 8


def kept_words(rows: int, words: int, itemsize: int, budget: int) -> int:
    """
    Return for how many words E is kept: all, or a number of whole tiles.

    Args:
        rows: Number of tokens.
        words: Number of words of this rank.
        itemsize: Bytes of an element of E.
        budget: Bytes that may be kept, with the fp32 maximum of each row of a tile.
    """
    if rows == 0:
        return 0
    if rows * (padded(words) * itemsize + tiles(words) * 4) <= budget:
        return words
    kept = budget // (rows * (TILE_V * itemsize + 4)) * TILE_V
    return min(kept, words // TILE_V * TILE_V)


@functools.lru_cache(maxsize=256)
def chunk_words(rows: int, words: int, room: int, itemsize: int, processors: int) -> int:
    """
    Return the width of a piece of at most `room` bytes that wastes the fewest processors.

    The tiles of a piece run in waves, one per processor; the last wave is the shorter
    the more are idle.
    """
    most = max(1, min(room // (max(rows, 1) * TILE_V * itemsize), tiles(words)))
    high = -(-rows // TILE_N)

    def busy(width: int) -> float:
        return width * high / (-(-width * high // processors) * processors)

    # A little waste is worth less than the wider piece.
    best = max(range(most // 2 + 1, most + 1), key=lambda width: (round(busy(width), 2), width))
    return best * TILE_V


def chunks(first: int, words: int, width: int) -> list[tuple[int, int]]:
    """Return start and length of each piece of ``[first, words)``, none wider than `width`."""
    return [(start, min(width, words - start)) for start in range(first, words, width)]
