# SPDX-License-Identifier: BSD-3-Clause
"""The stream contract: what number stands at element i of the stream of a seed and a name.

Philox's block number is 16·tile + lane, and a tile holds 16 lanes times 4 words (32 bits) or 2
pairs of words (64 bits): element i is in tile i // 64 (32), row (i % 64) // 16, lane i % 16.
"""

import hashlib
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .matmul import fma
from .philox import blocks

__all__ = ["CONSTANT", "NORMAL", "UNIFORM", "draw", "normal", "stream_id", "uniform", "words"]

CONSTANT, UNIFORM, NORMAL = 0, 1, 2
LANES = 16
Wide: TypeAlias = Any  # an array of numpy.longdouble, whose type differs between platforms
TWO_PI = 2 * np.longdouble("3.14159265358979323846264338327950288")


def stream_id(name: str | int, trial: int = 0) -> int:
    """The stream of a name: eight bytes of BLAKE2b, read little-endian, plus the trial."""
    if isinstance(name, str):
        digest = hashlib.blake2b(name.encode("utf-8"), digest_size=8)
    else:
        digest = hashlib.blake2b(name.to_bytes(8, "little"), digest_size=8, person=b"int")
    return (int.from_bytes(digest.digest(), "little") + trial) % 2**64


def words(
    first: int, n: int, seed: int, stream: int, dtype: Any
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """For elements first … first + n − 1: the four words of the block (n, 4), and the row j."""
    rows = 4 if np.dtype(dtype) == np.float32 else 2
    # Python integers: an element's number may have more than 64 bits.
    index = [first + i for i in range(n)]
    block = [i // (rows * LANES) * LANES + i % LANES for i in index]
    row = [i % (rows * LANES) // LANES for i in index]
    numbers = np.array([b % 2**64 for b in block], dtype=np.uint64)
    return blocks(numbers, stream, seed), np.array(row, dtype=np.int64)


def _pair(high: NDArray[np.uint32], low: NDArray[np.uint32]) -> NDArray[np.uint64]:
    return high.astype(np.uint64) << np.uint64(32) | low.astype(np.uint64)


def uniform(first: int, n: int, seed: int, stream: int, dtype: Any) -> NDArray[Any]:
    """The unit uniform s in (−1, 1), exactly: an odd multiple of 2^-24 (2^-53 in float64)."""
    w, row = words(first, n, seed, stream, dtype)
    pick = np.arange(n)
    if np.dtype(dtype) == np.float32:
        k = (w[pick, row].view(np.int32) >> 8).astype(np.float64)
        return ((k + 0.5) * 2.0**-23).astype(np.float32)
    k64 = _pair(w[pick, 2 * row], w[pick, 2 * row + 1]).view(np.int64) >> 11
    odd = 2 * k64 + 1  # 54 bits with the sign: exact in float64
    return odd.astype(np.float64) * 2.0**-53


def _minus_log(odd: NDArray[np.uint64], bits: int) -> Wide:
    """−ln(odd·2^-bits), for odd integers below 2^bits; relative accuracy also near 1.

    Where the number is above ½ the logarithm comes from its complement, which is exact.
    """
    one = np.uint64(1) << np.uint64(bits)
    near_one = odd > one // np.uint64(2)
    small = np.where(near_one, one - odd, odd).astype(np.longdouble)
    small *= np.longdouble(2) ** -bits
    return np.where(near_one, -np.log1p(-small), -np.log(small))


def _turn(k: NDArray[np.uint64], bits: int) -> tuple[Wide, Wide]:
    """cos and sin of k·2^-bits turns; the nearest quarter turn is taken off in integers."""
    quarter = np.uint64(1) << np.uint64(bits - 2)
    quadrant = (k + quarter // np.uint64(2)) // quarter
    rest = k.astype(np.int64) - (quadrant * quarter).astype(np.int64)
    angle = rest.astype(np.longdouble) * (TWO_PI * np.longdouble(2) ** -bits)
    c, s = np.cos(angle), np.sin(angle)
    quadrant %= np.uint64(4)
    cosine = np.select([quadrant == 0, quadrant == 1, quadrant == 2], [c, -s, -c], s)
    sine = np.select([quadrant == 0, quadrant == 1, quadrant == 2], [s, c, -s], -c)
    return cosine, sine


def normal(first: int, n: int, seed: int, stream: int, dtype: Any) -> Wide:
    """The standard normal z by Box–Muller, unrounded (relative error below 2^-60 on x86).

    dtype: which of the two contracts (float32: pairs of words; float64: pairs of 53 bits).
    """
    w, row = words(first, n, seed, stream, dtype)
    pick = np.arange(n)
    if np.dtype(dtype) == np.float32:
        pair = row // 2
        a = w[pick, 2 * pair].astype(np.uint64)
        b = w[pick, 2 * pair + 1].astype(np.uint64)
        bits = 32
    else:
        a = _pair(w[:, 0], w[:, 1]) >> np.uint64(11)
        b = _pair(w[:, 2], w[:, 3]) >> np.uint64(11)
        bits = 53
    radius = np.sqrt(2 * _minus_log(2 * a + np.uint64(1), bits + 1))
    cosine, sine = _turn(b, bits)
    return radius * np.where(row % 2 == 0, cosine, sine)


def draw(
    first: int,
    n: int,
    seed: int,
    stream: int,
    kind: int,
    scale: float,
    shift: float,
    low: float,
    high: float,
    dtype: Any,
) -> NDArray[Any]:
    """Elements first … first + n − 1 of a stream: fma(unit, scale, shift) in the dtype.

    kind: CONSTANT (`shift`), UNIFORM (then clamped to [low, high], both inclusive), NORMAL.
    """
    real = np.dtype(dtype).type
    if kind == CONSTANT:
        return np.full(n, real(shift))
    if kind == NORMAL:
        z = normal(first, n, seed, stream, dtype).astype(dtype)
        return fma(z, real(scale), real(shift), dtype)
    s = uniform(first, n, seed, stream, dtype)
    value = fma(s, real(scale), real(shift), dtype)
    clamped: NDArray[Any] = np.minimum(np.maximum(value, real(low)), real(high))
    return clamped
