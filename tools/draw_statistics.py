# SPDX-License-Identifier: BSD-3-Clause
"""Whether draws are independent and follow their law: the statistics of tests/test_statistics.py
and of tools/randomness.py.

Every statistic comes from integer counts of cells, whose probabilities follow from the exact CDF at
the rounding boundaries of the dtype, or from products of standardised draws. Memory is bounded
however many draws are fed. A check's `score` is standard normal if the draws are right: beyond
`LIMIT` they are not (5.7e-7 a check).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from initcore import _core
from initcore.reference.sampling import bfloat16
from initcore.truncation import truncation

LIMIT = 5.0
TILE = 64  # of the stream contract (float64 has two in it)
BLOCK = 1 << 20  # draws at a time
FIRSTS = 1 << 17  # seeds, or streams, from 0 on whose first draws are looked at
CELLS, COARSE = 4096, 16  # as equal in probability as the dtype's values allow
LAGS = (1, 2, 4, 8, 16, 32, 64)  # of pairs that share no draw; 16 are a normal's cosine and sine
TAILS = (4.0, 5.0, 6.0)  # standard deviations
DIGITS = 6  # bits of the significand, behind those that tell the cell
# How uneven these bits of a float32 truncated normal may be, root mean square, relative: rounding
# errors of up to 8 units in the last place shift the ends of cells of 64 units.
UNEVEN = 1e-3

Floats = NDArray[np.float64]


# --- laws -----------------------------------------------------------------------------------------


def normal_tail(x: Floats) -> Floats:
    """Q(x) = 1 - Phi(x), to a few units in the last place."""
    return 0.5 * np.array([math.erfc(v) for v in (x / math.sqrt(2)).tolist()])


@dataclass(frozen=True)
class Law:
    """A unit law on the open interval (low, high)."""

    name: str
    kind: int
    low: float = -math.inf
    high: float = math.inf

    def beyond(self, x: Floats, sign: int) -> Floats:
        """P(sign X > x), x >= 0."""
        low, high = (self.low, self.high) if sign > 0 else (-self.high, -self.low)
        x = np.clip(x, low, high)
        if self.kind == _core.UNIFORM:
            return (high - x) / (high - low)
        above, below = normal_tail(np.array([high, low]))
        return (normal_tail(x) - above) / (below - above)


LAWS = (
    Law("uniform", _core.UNIFORM, -1, 1),
    Law("normal", _core.NORMAL),
    Law("truncated normal, 2 sigma", _core.TRUNCATED_NORMAL, -2, 2),
    Law("truncated normal, beyond 4 sigma", _core.TRUNCATED_NORMAL, 4),
)
DTYPES = ("float32", "float64", "float16", "bfloat16")
HALVES = {"float16": _core.FLOAT16, "bfloat16": _core.BFLOAT16}


# --- values and cells of a dtype ------------------------------------------------------------------


def keys(x: NDArray[Any]) -> NDArray[Any]:
    """The cell of each draw: a half's bits; else sign, exponent and eleven leading digits of the
    float32 nearest to it."""
    if x.dtype == np.uint16:
        return x
    return x.astype(np.float32, copy=False).view(np.uint32) >> 12


def half(x: NDArray[np.float32], dtype: str) -> NDArray[np.uint16]:
    return bfloat16(x) if dtype == "bfloat16" else x.astype(np.float16).view(np.uint16)


def magnitudes(dtype: str) -> Floats:
    """The finite cells' least values >= 0, in the order of their keys."""
    if dtype == "float16":
        return np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    step, end = (16, 0x7F80) if dtype == "bfloat16" else (12, 0x7F800)
    return (np.arange(end, dtype=np.uint32) << step).view(np.float32).astype(np.float64)


def rounding_boundaries(dtype: str) -> Floats:
    """Where numbers >= 0 begin to be rounded into each of those cells."""
    value = magnitudes(dtype)
    if dtype not in HALVES:
        below = np.nextafter(value[1:].astype(np.float32), np.float32(0)).astype(np.float64)
        return np.append(0.0, (below + value[1:]) / 2)
    # A float32 on the boundary between two halves goes to the even one, and so does all that was
    # rounded to that float32.
    between = (value[:-1] + value[1:]) / 2
    reach = np.spacing(between.astype(np.float32)).astype(np.float64) / 2
    even = np.arange(1, len(value)) % 2 == 0
    return np.append(0.0, np.where(even, between - reach, between + reach))


def nearest_inside(bound: float, towards: float, dtype: str) -> float:
    """The value of the dtype next to an excluded bound; infinite bounds are no bounds."""
    if math.isinf(bound):
        return bound
    if dtype == "bfloat16":
        step = 1 if abs(towards) > abs(bound) else -1
        bits = np.array([int(half(np.array([bound], np.float32), dtype)[0]) + step], np.uint32)
        return float((bits << 16).view(np.float32)[0])
    kind = np.dtype(dtype).type
    return float(np.nextafter(kind(bound), kind(towards)))


def group(probability: Floats, n: int) -> NDArray[np.intp]:
    """The number of each cell's group: up to n groups of neighbours, nearly equally probable."""
    middle = np.cumsum(probability) - probability / 2
    number = np.minimum((middle * n).astype(np.intp), n - 1)
    share = np.bincount(number, probability, n)
    # what is less than half of an equal share joins the next one, or at the end the one before
    closes, total = np.zeros(n, bool), 0.0
    for i in range(n):
        total += share[i]
        if total >= 0.5 / n:
            closes[i], total = True, 0.0
    joined = np.cumsum(closes) - closes
    return np.minimum(joined, closes.sum() - 1)[number]


class Cells:
    """The exact probabilities of a law's cells in a dtype, and what follows from them."""

    def __init__(self, law: Law, dtype: str) -> None:
        self.law, self.dtype = law, dtype
        self.low = nearest_inside(law.low, law.high, dtype)
        self.high = nearest_inside(law.high, law.low, dtype)
        value = magnitudes(dtype)
        n = 1 << (16 if dtype in HALVES else 20)
        positive = np.arange(len(value))
        self.order = np.concatenate([positive[::-1] + n // 2, positive])  # of growing value
        self.value = np.zeros(n)
        if dtype not in HALVES:  # the cell's middle
            value = value + np.append(np.diff(value), 0) / 2
        self.value[positive], self.value[positive + n // 2] = value, -value
        self.probability = np.zeros(n)
        if law.kind == _core.UNIFORM and dtype != "float64":
            self._enumerate_uniform()
        else:
            self._integrate()

        p, x = self.probability, self.value
        self.mean = float(p @ x)
        self.std = math.sqrt(p @ (x - self.mean) ** 2)
        with np.errstate(over="ignore", invalid="ignore"):
            score = np.where(p > 0, (x - self.mean) / self.std, 0.0)
            self.score = score
            # moments of the standardised law; three times eight are needed for the skewness
            self.moments = [float(p @ np.where(p > 1e-300, score**k, 0.0)) for k in range(25)]
        self.digits = self._next_digits() if dtype not in HALVES else None  # halves have none
        rounded = law.kind == _core.TRUNCATED_NORMAL and dtype == "float32"
        self.uneven = UNEVEN if rounded else 0.0
        self.groups = self._grouping(CELLS)
        self.coarse = self._grouping(COARSE)

    def _enumerate_uniform(self) -> None:
        """All 2^24 numbers (k + 1/2) 2^-23 are equally probable."""
        for first in range(-(2**23), 2**23, BLOCK):
            x = ((np.arange(first, first + BLOCK) + 0.5) * 2.0**-23).astype(np.float32)
            x = np.clip(x, np.float32(self.low), np.float32(self.high))
            key = keys(half(x, self.dtype) if self.dtype in HALVES else x)
            self.probability += np.bincount(key, minlength=len(self.probability))
        self.probability /= 2**24

    def _integrate(self) -> None:
        boundary = np.append(rounding_boundaries(self.dtype), math.inf)
        middle, n = len(boundary) - 1, len(self.probability)
        for sign, first in ((1, 0), (-1, n // 2)):
            self.probability[first : first + middle] = -np.diff(self.law.beyond(boundary, sign))
        # what would be rounded to an excluded bound is the value next to it
        p = self.probability[self.order]
        for bound, end in ((self.low, slice(0, None)), (self.high, slice(None, None, -1))):
            if math.isfinite(bound):
                x = np.array([bound], np.dtype("float32" if self.dtype in HALVES else self.dtype))
                key = keys(half(x, self.dtype) if self.dtype in HALVES else x)[0]
                side = p[end]
                at = int(np.flatnonzero(self.order[end] == key)[0])
                side[at] += side[:at].sum()
                side[:at] = 0
        self.probability[self.order] = p

    def _next_digits(self) -> Floats:
        """The density is taken as linear in a cell; an exponent has 2^11 cells."""
        slope = np.gradient(self.probability.reshape(-1, 1 << 11), axis=1).sum()
        digit = (np.arange(1 << DIGITS) + 0.5) * 0.5**DIGITS
        result: Floats = (1 + slope * (digit - 0.5)) * 0.5**DIGITS
        return result

    def _grouping(self, n: int) -> tuple[NDArray[np.intp], Floats]:
        """Group of each key, probability of each group."""
        number = group(self.probability[self.order], n)
        table = np.zeros(len(self.probability), np.intp)
        table[self.order] = number
        return table, np.bincount(table, self.probability)


@lru_cache(maxsize=2)
def cells(law: Law, dtype: str) -> Cells:
    return Cells(law, dtype)


# --- draws ----------------------------------------------------------------------------------------


def _draw(out: NDArray[Any], first: int, seed: int, stream: int, c: Cells) -> None:
    law = c.law
    extra = (truncation(law.low, law.high),) if law.kind == _core.TRUNCATED_NORMAL else ()
    _core.default().draw(
        out, first, seed, stream, law.kind, 1.0, 0.0, c.low, c.high, *extra,
        half=HALVES.get(c.dtype, 0),
    )  # fmt: skip


def number(law: Law, dtype: str) -> int:
    """The stream, or seed, of its own."""
    return 1 + len(DTYPES) * LAWS.index(law) + DTYPES.index(dtype)


def _buffer(dtype: str) -> NDArray[Any]:
    return np.empty(BLOCK, np.uint16 if dtype in HALVES else dtype)


def stream_draws(law: Law, dtype: str, n: int) -> Iterator[NDArray[Any]]:
    """The first n draws (up to a whole block) of a stream, in blocks that reuse one array."""
    out, c = _buffer(dtype), cells(law, dtype)
    for first in range(0, n, BLOCK):
        _draw(out, first, 0, number(law, dtype), c)
        yield out


def first_draws(law: Law, dtype: str, of: str) -> Iterator[NDArray[Any]]:
    """The first tile of the seeds 0, 1, …, or of the streams 0, 1, …, one behind the other."""
    out, c = _buffer(dtype), cells(law, dtype)
    tiles = out.reshape(-1, TILE)
    for first in range(0, FIRSTS, len(tiles)):
        for i, tile in enumerate(tiles):
            seed, stream = number(law, dtype), first + i
            if of == "seeds":
                seed, stream = stream, seed
            _draw(tile, 0, seed, stream, c)
        yield out


# --- scores ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Check:
    """What was counted or measured, what the law says, and how many standard deviations that is."""

    test: str
    what: str
    observed: float
    expected: float
    score: float

    @property
    def passed(self) -> bool:
        return abs(self.score) < LIMIT


def normal_score(z: float, skewness: float) -> float:
    """A standardised variable of that skewness as a standard normal one (Wilson and Hilferty's
    cube root, good where the skewness is small)."""
    if abs(skewness) < 1e-9:
        return z
    inside = 1 + skewness * z / 2
    root = math.copysign(abs(inside) ** (1 / 3), inside)
    return 6 / skewness * (root - 1) + skewness / 6


def chi_square_score(chi2: float, freedom: int) -> float:
    return normal_score((chi2 - freedom) / math.sqrt(2 * freedom), math.sqrt(8 / freedom))


def _upper_score(p: float) -> float:
    """The standard normal number with the probability p above it."""
    return -NormalDist().inv_cdf(min(p, 1 - 1e-16)) if p > 0 else math.inf


def largest_score(scores: Floats) -> float:
    """The score of the largest |score| of many."""
    p = math.erfc(float(np.max(np.abs(scores))) / math.sqrt(2))
    return _upper_score(-math.expm1(len(scores) * math.log1p(-p))) if p < 1 else -math.inf


def count_score(count: int, n: int, probability: float) -> float:
    """Of a count of n: exact limits of Poisson's law where it is rare."""
    mean = n * probability
    if mean > 1e4:
        deviation = math.sqrt(mean * (1 - probability))
        return normal_score((count - mean) / deviation, (1 - 2 * probability) / deviation)
    k = np.arange(1, count + 1)
    terms = np.exp(np.append(0.0, np.cumsum(np.log(mean / k))) - mean)
    at_most, less = float(terms.sum()), float(terms[:-1].sum())
    if at_most < 0.5:
        return -_upper_score(at_most)
    return max(_upper_score(1 - less), 0.0)


# --- statistics -----------------------------------------------------------------------------------


class Statistics:
    """Counts and sums over the draws of one law and dtype, fed in blocks of whole pairs of tiles.

    Positions and lags are those in the blocks: fed a stream, they are its lanes, words and lags;
    fed a tile of each of many seeds, a lag of 64 leads to the same draw of the next seed.
    """

    def __init__(self, law: Law, dtype: str) -> None:
        self.cells = c = cells(law, dtype)
        self.draws = self.tiles = self.adjacent = 0
        self.counts = np.zeros(len(c.probability), np.int64)
        self.digits = np.zeros(1 << DIGITS, np.int64)
        self.n_coarse = len(c.coarse[1])
        self.coarse = c.coarse[0].astype(np.uint8)
        self.positions = np.zeros(TILE * self.n_coarse, np.int64)
        self.pairs = np.zeros((len(LAGS), self.n_coarse**2), np.int64)
        # of the standardised draw and of its standardised square
        self.square_std = math.sqrt(c.moments[4] - 1)
        self.within = np.zeros((2 * TILE, 2 * TILE))
        self.between = np.zeros((2 * TILE, 2 * TILE))

    def update(self, x: NDArray[Any]) -> None:
        """x: a whole number of pairs of tiles; halves as their bits."""
        c, key = self.cells, keys(x)
        self.draws += x.size
        self.counts += np.bincount(key, minlength=len(self.counts))
        if c.digits is not None:
            bits, shift = x.view(f"u{x.itemsize}"), 12 if x.itemsize == 4 else 41
            digits = (bits >> (shift - DIGITS)).astype(np.uint8) & ((1 << DIGITS) - 1)
            self.digits += np.bincount(digits, minlength=len(self.digits))

        cell = self.coarse[key]
        start = (np.arange(TILE) * self.n_coarse).astype(np.uint16)
        self.positions += np.bincount(
            (cell.reshape(-1, TILE) + start).reshape(-1), minlength=len(self.positions)
        )
        for table, lag in zip(self.pairs, LAGS, strict=True):
            pair = cell.reshape(-1, 2, lag)
            code = pair[:, 0] * np.uint8(self.n_coarse) + pair[:, 1]
            table += np.bincount(code.reshape(-1), minlength=len(table))

        score = np.empty((x.size // TILE, 2, TILE), np.float32)
        if x.dtype == np.uint16:
            score[:, 0] = c.score.astype(np.float32)[key].reshape(-1, TILE)
        else:
            score[:, 0] = x.reshape(-1, TILE)
            score[:, 0] -= np.float32(c.mean)
            score[:, 0] *= np.float32(1 / c.std)
        np.square(score[:, 0], out=score[:, 1])
        score[:, 1] -= np.float32(1)
        score[:, 1] *= np.float32(1 / self.square_std)
        score = score.reshape(-1, 2 * TILE)
        self.within += score.T @ score
        self.between += score[:-1].T @ score[1:]
        self.tiles += len(score)
        self.adjacent += len(score) - 1

    def checks(self) -> list[Check]:
        return [
            *self._law(), *self._moments(), *self._tails(), *self._tables(), *self._correlations()
        ]  # fmt: skip

    def _chi_square(self, test: str, what: str, counts: NDArray[Any], p: Floats) -> Check:
        expected = counts.sum() * p
        chi2 = float(((counts - expected) ** 2 / expected).sum())
        return Check(test, what, chi2, len(p) - 1, chi_square_score(chi2, len(p) - 1))

    def _law(self) -> Iterator[Check]:
        c = self.cells
        outside = int(self.counts[c.probability == 0].sum())
        yield Check("support", "impossible values", outside, 0, math.inf if outside else 0.0)
        table, p = c.groups
        counts = np.bincount(table, self.counts, len(p))
        yield self._chi_square("law", f"{len(p)} cells", counts, p)
        if c.digits is not None:
            yield self._digits(c.digits, c.uneven)

    def _digits(self, p: Floats, uneven: float) -> Check:
        """χ²; or where some unevenness is allowed, how much there is, and whether it is more."""
        what = f"bits 12 to {11 + DIGITS}"
        check = self._chi_square("digits", what, self.digits, p)
        if not uneven:
            return check
        excess, allowed = check.observed - check.expected, self.draws * uneven**2
        score = (excess - allowed) / math.sqrt(2 * (check.expected + 2 * allowed))
        found = math.sqrt(max(excess, 0.0) / self.draws)
        return Check("unevenness", what, found, uneven, max(score, 0.0))

    def _moments(self) -> Iterator[Check]:
        m, n = self.cells.moments, self.draws
        for k in range(1, 9):
            observed = float(self.counts @ self.cells.score**k) / n
            variance = m[2 * k] - m[k] ** 2
            skewness = (m[3 * k] - 3 * m[k] * m[2 * k] + 2 * m[k] ** 3) / variance**1.5
            z = (observed - m[k]) / math.sqrt(variance / n)
            score = normal_score(z, skewness / math.sqrt(n))
            yield Check("moments", f"order {k}", observed, m[k], score)

    def _tails(self) -> Iterator[Check]:
        c = self.cells
        if c.law.kind == _core.UNIFORM:
            return
        n = len(c.probability) // 2
        for x in TAILS:
            if c.law.low < x < c.law.high:
                key = int(np.searchsorted(magnitudes(c.dtype), x))
                above, below = slice(key, n), slice(n + key, None)
                sides = [("x >=", above)]
                if c.law.low < 0:
                    sides += [("x <= -", below)]
                p = [float(c.probability[side].sum()) for _, side in sides]
                counts = [int(self.counts[side].sum()) for _, side in sides]
                if len(sides) == 2:
                    sides.append(("|x| >=", slice(0)))
                    p.append(sum(p))
                    counts.append(sum(counts))
                for (name, _), q, count in zip(sides, p, counts, strict=True):
                    score = count_score(count, self.draws, q)
                    what = f"{name} {x:g}".replace("- ", "-")
                    yield Check("tails", what, count, self.draws * q, score)

    def _tables(self) -> Iterator[Check]:
        p = self.cells.coarse[1]
        at = [
            self._chi_square("", "", counts, p) for counts in self.positions.reshape(TILE, len(p))
        ]
        chi2, freedom = sum(c.observed for c in at), TILE * (len(p) - 1)
        yield Check("positions", "all 64 of a tile", chi2, freedom, chi_square_score(chi2, freedom))
        yield Check("positions", "first", at[0].observed, at[0].expected, at[0].score)
        worst = max(at, key=lambda c: abs(c.score))
        score = largest_score(np.array([c.score for c in at]))
        yield Check("positions", "worst", worst.observed, worst.expected, score)
        for counts, lag in zip(self.pairs, LAGS, strict=True):
            yield self._chi_square("pairs", f"lag {lag}", counts, np.outer(p, p).reshape(-1))

    def _correlations(self) -> Iterator[Check]:
        names = ("x", "x^2")
        within = self.within.reshape(2, TILE, 2, TILE).transpose(0, 2, 1, 3)
        between = self.between.reshape(2, TILE, 2, TILE).transpose(0, 2, 1, 3)
        upper, off = np.triu_indices(TILE, 1), ~np.eye(TILE, dtype=bool)
        scores = {
            "one tile": np.concatenate(
                [within[0, 0][upper], within[1, 1][upper], within[0, 1][off]]
            )
            / math.sqrt(self.tiles),
            "tiles side by side": between.reshape(-1) / math.sqrt(self.adjacent),
        }
        for a in range(2):
            for b in range(2):
                sums = [
                    (np.trace(within[a, b], lag) + np.trace(between[a, b], lag - TILE))
                    / math.sqrt(
                        self.tiles * max(TILE - lag, 0) + self.adjacent * min(lag, 2 * TILE - lag)
                    )
                    for lag in range(1, 2 * TILE)
                ]
                scores[f"{names[a]} and later {names[b]}, lags to 127"] = np.array(sums)
        for what, z in scores.items():
            chi2 = float(z @ z)
            yield Check("correlation", f"{what}: sum", chi2, len(z), chi_square_score(chi2, len(z)))
            worst = float(np.max(np.abs(z)))
            yield Check("correlation", f"{what}: largest", worst, 0, largest_score(z))


def measure(law: Law, dtype: str, blocks: Iterator[NDArray[Any]]) -> list[Check]:
    statistics = Statistics(law, dtype)
    for block in blocks:
        statistics.update(block)
    return statistics.checks()
