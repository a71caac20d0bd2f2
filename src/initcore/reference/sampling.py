# SPDX-License-Identifier: BSD-3-Clause
"""The stream contract: what number stands at element i of the stream of a seed and a name.

Philox's block number is 16·tile + lane, and a tile holds 16 lanes times 4 words (32 bits) or 2
pairs of words (64 bits): element i is in tile i // 64 (32), row (i % 64) // 16, lane i % 16.
"""

import hashlib
import math
from decimal import Decimal, localcontext
from functools import lru_cache
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .matmul import fma
from .philox import blocks

__all__ = [
    "CONSTANT",
    "NORMAL",
    "TRUNCATED_NORMAL",
    "UNIFORM",
    "bfloat16",
    "draw",
    "normal",
    "stream_id",
    "truncated_normal",
    "uniform",
    "words",
]

CONSTANT, UNIFORM, NORMAL, TRUNCATED_NORMAL = 0, 1, 2, 3
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


@lru_cache
def _pi(digits: int) -> Decimal:
    """Machin: π/4 = 4 arctan(1/5) − arctan(1/239)."""
    one = 10 ** (digits + 10)

    def arctan(n: int) -> int:
        return sum((-1) ** k * one // (n ** (2 * k + 1) * (2 * k + 1)) for k in range(digits + 10))

    return Decimal(4 * (4 * arctan(5) - arctan(239))).scaleb(-(digits + 10))


@lru_cache(maxsize=64)
def _upper_tail(x: Decimal) -> tuple[Decimal, Decimal]:
    """Q(x) = 1 − Φ(x) and φ(x) for x >= 0, to 40 digits, by the Taylor series of Φ at 0.

    Its terms reach exp(x²/2) and Q is as small as the inverse of that: so many digits more. From
    60 on Q, below 1e-783, counts as 0.
    """
    if x > 60:
        return Decimal(0), Decimal(0)
    with localcontext() as context:
        context.prec = 45 + int(float(x) ** 2 / math.log(10))
        total, power, k = Decimal(0), x, 0
        while abs(power) > Decimal(10) ** -context.prec:
            total += power / (2 * k + 1)
            k += 1
            power *= -x * x / (2 * k)
        root = (2 * _pi(context.prec)).sqrt()
        return Decimal("0.5") - total / root, (-x * x / 2).exp() / root


def _upper_quantile(tail: Decimal) -> Decimal:
    """x >= 0 with Q(x) = tail <= ½, by Newton's method on ln Q."""
    if tail > Decimal("1e-290"):
        x = Decimal(-NormalDist().inv_cdf(float(tail)))
    else:
        x = (-2 * tail.ln()).sqrt()
    step = Decimal(1)
    while abs(step) > Decimal("1e-12"):  # the next one would be its square
        q, density = _upper_tail(abs(x))
        step = (q.ln() - tail.ln()) * q / density
        x = abs(x + step)
    return x


def _truncated(u: Decimal, a: float, b: float) -> Decimal:
    if b <= 0:  # the mirror image
        return -_truncated(1 - u, -b, -a)
    above = _upper_tail(Decimal(b))[0]
    if a >= 0:
        return _upper_quantile(above + (1 - u) * (_upper_tail(Decimal(a))[0] - above))
    below = _upper_tail(Decimal(-a))[0]
    inside = 1 - below - above
    if below + u * inside < Decimal("0.5"):
        return -_upper_quantile(below + u * inside)
    return _upper_quantile(above + (1 - u) * inside)


def truncated_normal(
    first: int, n: int, seed: int, stream: int, interval: tuple[float, float], dtype: Any
) -> Wide:
    """The standard normal truncated to an interval, by its inverse CDF, unrounded.

    u = (word + ½)·2^-32; in float64, (k + ½)·2^-53 with k the top 53 bits of two words.
    """
    w, row = words(first, n, seed, stream, dtype)
    pick = np.arange(n)
    if np.dtype(dtype) == np.float32:
        k, bits = w[pick, row].astype(np.uint64), 32
    else:
        k, bits = _pair(w[pick, 2 * row], w[pick, 2 * row + 1]) >> np.uint64(11), 53
    with localcontext() as context:
        context.prec = 60
        u = [(2 * Decimal(int(i)) + 1) / 2 ** (bits + 1) for i in k]
        return np.array([np.longdouble(str(_truncated(i, *interval))) for i in u], np.longdouble)


def bfloat16(x: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of the nearest bfloat16; of two, the one whose last bit is 0. Finite x only."""
    below = x.view(np.uint32) >> 16 << 16  # towards zero
    above = below + np.uint32(0x10000)
    value = np.abs(x.astype(np.float64))
    less = value - np.abs(below.view(np.float32).astype(np.float64))
    # above the largest bfloat16 stands 2^128, whatever infinity's bits say
    more = np.where(
        above & 0x7FFFFFFF == 0x7F800000, 2.0**128, np.abs(above.view(np.float32).astype(float))
    )
    more -= value
    even = below >> 16 & 1 == 0
    nearest = np.where((less < more) | ((less == more) & even), below, above)
    return (nearest >> 16).astype(np.uint16)


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
    interval: tuple[float, float] = (-math.inf, math.inf),
) -> NDArray[Any]:
    """Elements first … first + n − 1 of a stream: fma(unit, scale, shift) in the dtype.

    kind: CONSTANT (`shift`), UNIFORM, NORMAL, TRUNCATED_NORMAL (to `interval`, in standard
    deviations); UNIFORM and TRUNCATED_NORMAL are then clamped to [low, high], both inclusive.
    dtype: float32, float64, "float16" or "bfloat16"; the last two are float32 numbers rounded
    once, and come as their bits, uint16.
    """
    if dtype in ("float16", "bfloat16"):
        wide = draw(first, n, seed, stream, kind, scale, shift, low, high, np.float32, interval)
        if dtype == "bfloat16":
            return bfloat16(wide)
        with np.errstate(over="ignore"):
            return wide.astype(np.float16).view(np.uint16)
    real = np.dtype(dtype).type
    if kind == CONSTANT:
        return np.full(n, real(shift))
    if kind == NORMAL:
        z = normal(first, n, seed, stream, dtype).astype(dtype)
        return fma(z, real(scale), real(shift), dtype)
    if kind == UNIFORM:
        s = uniform(first, n, seed, stream, dtype)
    else:
        s = truncated_normal(first, n, seed, stream, interval, dtype).astype(dtype)
    value = fma(s, real(scale), real(shift), dtype)
    clamped: NDArray[Any] = np.minimum(np.maximum(value, real(low)), real(high))
    return clamped
