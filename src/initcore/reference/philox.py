# SPDX-License-Identifier: BSD-3-Clause
"""Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011)."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["blocks", "counter_of"]

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)  # the golden ratio, and sqrt(3) - 1, in 32 bits
MASK = 0xFFFFFFFF


def _round_keys(key: int) -> list[tuple[int, int]]:
    low, high = key & MASK, key >> 32
    return [((low + r * WEYL[0]) & MASK, (high + r * WEYL[1]) & MASK) for r in range(ROUNDS)]


def blocks(
    first: int | NDArray[np.uint64], stream: int, key: int, n: int = 1
) -> NDArray[np.uint32]:
    """The four words of `n` successive blocks, or of the blocks whose numbers are given.

    first: the 64-bit number of the first block (words 0 and 1 of the counter), or an array of
    block numbers; stream: 64 bits, words 2 and 3; key: 64 bits. The block number wraps at 2**64
    and never carries into the stream. Returns uint32 (n, 4).
    """
    if isinstance(first, int):
        with np.errstate(over="ignore"):
            first = np.uint64(first) + np.arange(n, dtype=np.uint64)
    mask = np.uint64(MASK)
    half = np.uint64(32)
    c0, c1 = first & mask, first >> half
    c2 = np.full_like(first, stream & MASK)
    c3 = np.full_like(first, stream >> 32)
    for k0, k1 in _round_keys(key):
        product0 = np.uint64(MULTIPLIERS[0]) * c0
        product1 = np.uint64(MULTIPLIERS[1]) * c2
        c0, c1, c2, c3 = (
            (product1 >> half) ^ c1 ^ np.uint64(k0),
            product1 & mask,
            (product0 >> half) ^ c3 ^ np.uint64(k1),
            product0 & mask,
        )
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def counter_of(words: tuple[int, int, int, int], key: int) -> tuple[int, int]:
    """The (block, stream) whose four output words under `key` are `words`.

    Philox is a bijection of the counter for each key; running it backwards lets a test put any
    words in front of a kernel.
    """
    inverse0, inverse1 = (pow(m, -1, 2**32) for m in MULTIPLIERS)
    c0, c1, c2, c3 = words
    for k0, k1 in reversed(_round_keys(key)):
        before0 = c3 * inverse0 & MASK
        before2 = c1 * inverse1 & MASK
        before1 = c0 ^ k0 ^ (before2 * MULTIPLIERS[1] >> 32)
        before3 = c2 ^ k1 ^ (before0 * MULTIPLIERS[0] >> 32)
        c0, c1, c2, c3 = before0, before1, before2, before3
    return c0 | c1 << 32, c2 | c3 << 32
