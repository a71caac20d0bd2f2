# SPDX-License-Identifier: BSD-3-Clause
"""Exact sums over trials: integers, so that merging is associative to the last bit."""

from __future__ import annotations

import math
import operator
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, Self

import numpy as np

from initcore import _core
from initcore.results.records import Array, Record, check_numbers, frozen, plain


class ExactSum(NamedTuple):
    """What is kept of a float64 statistic over trials: exact, so merging is integer addition.

    ``total`` is Σx in units of 2^-1074 and ``total_sq`` Σx² in units of 2^-2148, both over the
    ``finite`` trials; the ``nonfinite`` ones are counted and left out.
    """

    finite: int
    nonfinite: int
    total: int
    total_sq: int

    def mean(self) -> float:
        """Σx / n, correctly rounded; NaN where no trial was finite."""
        return self.total / (self.finite << 1074) if self.finite else math.nan

    @property
    def effective(self) -> float:
        """(Σx)²/Σx²: the number of trials that carry the mean of a positive statistic."""
        return self.total**2 / self.total_sq if self.total_sq else 0.0

    def standard_error(self) -> float:
        """√(Σ(x − mean)² / (n − 1) / n), correctly rounded; NaN below two finite trials."""
        n = self.finite
        if n < 2:
            return math.nan
        return square_root(n * self.total_sq - self.total**2, n * n * (n - 1) << 2148)

    def variance(self) -> float:
        """Σ(x − mean)² / (n − 1), correctly rounded; NaN below two finite trials."""
        n = self.finite
        if n < 2:
            return math.nan
        return (n * self.total_sq - self.total**2) / (n * (n - 1) << 2148)


class LogHistogram(NamedTuple):
    """How often a logarithm fell where, over trials, and its higher powers, of which an
    ``ExactSum`` has the lower: integers, so merging is addition.

    ``bins`` are pairs (k, count), ascending, of values from k/32 up to (k + 1)/32; ``dead`` trials
    had the logarithm of 0, ``overflowed`` ones that of no finite number. ``cubes`` is Σx³ in units
    of 2^-1074 and ``fourths`` Σx⁴ in units of 2^-2148, over the finite values.
    """

    dead: int
    overflowed: int
    bins: tuple[tuple[int, int], ...]
    cubes: int
    fourths: int

    def __add__(self, other: object) -> LogHistogram:
        if not isinstance(other, LogHistogram):
            return NotImplemented
        counts = Counter(dict(self.bins))
        counts.update(dict(other.bins))
        return LogHistogram(
            self.dead + other.dead,
            self.overflowed + other.overflowed,
            tuple(sorted(counts.items())),
            self.cubes + other.cubes,
            self.fourths + other.fourths,
        )

    def quantiles(self, fractions: Sequence[float]) -> list[float]:
        """Those of the finite values, as if the values of a bin were spread evenly over it; NaN
        where there are none."""
        if not self.bins:
            return [math.nan] * len(fractions)
        ends = list(accumulate(count for _, count in self.bins))
        found = []
        for fraction in fractions:
            rank = fraction * ends[-1]
            k, count = self.bins[at := bisect_left(ends, rank)]
            found.append((k + (rank - (ends[at] - count)) / count) / _BINS_PER_UNIT)
        return found

    def quantile_errors(self, fractions: Sequence[float]) -> list[float]:
        """Their standard errors, of whatever law the values are: half the distance of the quantiles
        at p ± √(p(1 − p)/n), the standard deviation of the share of n values that lie below the
        law's p-quantile (Woodruff 1952). NaN where that reaches 0 or 1: of a single value, and in
        tails of few."""
        n = sum(count for _, count in self.bins)
        steps = [math.sqrt(p * (1 - p) / n) if n else math.inf for p in fractions]
        ends = [
            (p - step, p + step) if step < min(p, 1 - p) else (math.nan, math.nan)
            for p, step in zip(fractions, steps, strict=True)
        ]
        lows, highs = map(self.quantiles, zip(*ends, strict=True))
        return [(high - low) / 2 for low, high in zip(lows, highs, strict=True)]

    def _power_sums(self, sums: ExactSum) -> tuple[int, int, int, int]:
        """Σx, Σx², Σx³ and Σx⁴ in units of 2^-1074 and its powers."""
        return sums.total, sums.total_sq, self.cubes << 2148, self.fourths << 2148

    def variance_error(self, sums: ExactSum) -> float:
        """The standard error of the variance s² (n − 1 below) of these values, whose sums are
        ``sums``: √((m₄ − (n − 3)/(n − 1) s⁴)/n), m₄ = Σ(x − mean)⁴/n, correctly rounded; NaN below
        two. With a law's own moments for m₄ and s⁴ that is exact (Cramér 1946, 27.4)."""
        n = sums.finite
        if n < 2:
            return math.nan
        a, b, c, d = self._power_sums(sums)
        fourth = n**3 * d - 4 * n * n * a * c + 6 * n * a * a * b - 3 * a**4
        spread = (n - 1) ** 3 * fourth - (n - 3) * n * n * (n * b - a * a) ** 2
        return square_root(spread, n**5 * (n - 1) ** 3 << 4 * 1074)

    def check(self, sums: ExactSum) -> None:
        """ValueError for numbers of other values than those whose sums are ``sums``, or of none."""
        n, (a, b, c, d) = sums.finite, self._power_sums(sums)
        if n != sum(count for _, count in self.bins):
            raise ValueError(f"bins {self.bins} of {n} logarithms")
        # Of n values the matrix of the moments of 1, x and x² has no negative eigenvalue.
        determinant = n * (b * d - c * c) - a * (a * d - b * c) + b * (a * c - b * b)
        if n * d < b * b or determinant < 0:
            raise ValueError("sums of powers that the other sums rule out")


_BINS_PER_UNIT = 32
# The ratio of two doubles is at most 2^1024 / 2^-1074.
_LAST_BIN = math.floor(2098 * math.log(2) * _BINS_PER_UNIT)


class _Split(NamedTuple):
    """A number in two of at most 26 bits, whose products are exact (Veltkamp)."""

    high: Array
    low: Array

    @classmethod
    def of(cls, x: Array) -> _Split:
        scaled = 134217729.0 * x  # 2^27 + 1
        high = scaled - (scaled - x)
        return cls(high, x - high)

    def product(self, other: _Split) -> tuple[Array, Array]:
        """The product, rounded, and what rounding took of it (Dekker 1971)."""
        product = (self.high + self.low) * (other.high + other.low)
        rest = self.high * other.high
        rest -= product
        rest += self.high * other.low
        rest += self.low * other.high
        rest += self.low * other.low
        return product, rest


# The terms that `_powers` makes of a number.
_POWERS = 8


def _powers(x: Array) -> tuple[Array, ...]:
    """_POWERS arrays of x's shape: the square p of x and what rounding took of it, r; the product
    pr in two; and xp + xr in four. So x³ is the sum of those four, x⁴ is p² + r² + 2pr. Exact for 0
    and for multiples of 2^-106 below 2^200."""
    of_x = _Split.of(x)
    square, rest = of_x.product(of_x)
    of_square, of_rest = _Split.of(square), _Split.of(rest)
    mixed, cubes = of_square.product(of_rest), (of_x.product(of_square), of_x.product(of_rest))
    return square, rest, *mixed, *cubes[0], *cubes[1]


def _cubes_and_fourths(sums: Sequence[tuple[int, ...]]) -> tuple[int, int]:
    """Σx³ and Σx⁴ of the exact sums of what ``_powers`` gives."""
    totals, (square, rest) = [total for _, _, total, _ in sums], (sums[0][3], sums[1][3])
    return sum(totals[4:]), square + rest + (sum(totals[2:4]) << 1075)


def portable_log(x: Array) -> Array:
    """ln x to a few ulp; the same bits on every machine, for nothing but +, −, × and ÷ is rounded.

    −∞ at 0, +∞ at ∞, NaN at NaN; x ≥ 0.
    """
    mantissa, exponent = np.frexp(x)
    low = mantissa < math.sqrt(0.5)
    mantissa, exponent = np.where(low, 2 * mantissa, mantissa), exponent - low
    # ln m = 2 artanh((m − 1)/(m + 1)) = 2 Σ z^(2k+1)/(2k + 1), |z| < 0.172
    with np.errstate(invalid="ignore"):
        z = (mantissa - 1) / (mantissa + 1)
    square, series = z * z, np.zeros_like(z)
    for k in range(10, 0, -1):
        series = square * (series + 1 / (2 * k + 1))
    log = exponent * 0.6931471805599453 + 2 * (z + z * series)
    return np.where(x > 0, np.where(np.isinf(x), np.inf, log), np.where(x == 0, -np.inf, np.nan))


def square_root(numerator: int, denominator: int) -> float:
    """√(numerator / denominator), correctly rounded."""
    # The quotient gets at least 130 bits, its root 65; a last bit stands for everything after them,
    # so that the division below, which rounds correctly, cannot take a near tie for a tie.
    shift = max(0, (denominator.bit_length() - numerator.bit_length()) // 2 + 66)
    quotient, rest = divmod(numerator << 2 * shift, denominator)
    root = math.isqrt(quotient)
    inexact = rest != 0 or root * root != quotient
    return (2 * root + inexact) / (2 << shift)


def nth_root(numerator: int, denominator: int, degree: int) -> float:
    """(numerator / denominator)^(1/degree) to 12 digits, for libraries differ in the last of a
    power; inf where that is too large for a float."""
    power = numerator.bit_length() - denominator.bit_length()
    ratio = (numerator << max(-power, 0)) / (denominator << max(power, 0))
    whole, rest = divmod(power, degree)
    try:
        return float(f"{math.ldexp(ratio ** (1 / degree) * 2.0 ** (rest / degree), whole):.12g}")
    except OverflowError:
        return math.inf


def units(x: float) -> int:
    """A finite float in units of 2^-1074."""
    numerator, denominator = x.as_integer_ratio()
    return numerator << (1075 - denominator.bit_length())


def to_hex(value: int, unit: int) -> str:
    """value · 2^unit as a hexadecimal number, ``-0x1a2bp-12``, as long as it needs to be."""
    twos = (value & -value).bit_length() - 1 if value else -unit
    return f"{value >> twos:#x}p{twos + unit}"


def from_hex(text: str, unit: int) -> int:
    """The inverse of ``to_hex``; ValueError for what no sum of doubles or of their squares is."""
    mantissa, _, exponent = text.partition("p")
    places = int(exponent) - unit
    if places > 3 * 2148:
        raise ValueError(f"2^{exponent} is too large")
    return int(mantissa, 16) << places


@dataclass(frozen=True, eq=False)
class ExactRecord(Record):
    """All that is kept of the trials of an experiment.

    columns
        an ``ExactSum`` for each averaged statistic.
    maxima
        float64, the largest values of the others.
    cross
        (count, Σxy in units of 2^-2148) of chosen pairs of statistics over the trials where both
        are finite: what the standard error of their ratio needs.
    histograms
        a ``LogHistogram`` of each logarithm whose quantiles are wanted.
    """

    columns: tuple[ExactSum, ...]
    maxima: Array
    cross: tuple[tuple[int, int], ...]
    histograms: tuple[LogHistogram, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "maxima", frozen(self.maxima))

    def __add__(self, other: ExactRecord) -> ExactRecord:
        """The record of both's trials; exact, hence associative and commutative bit for bit."""
        return ExactRecord(
            tuple(
                ExactSum._make(map(operator.add, a, b))
                for a, b in zip(self.columns, other.columns, strict=True)
            ),
            np.fmax(self.maxima, other.maxima),
            tuple(
                (mine[0] + others[0], mine[1] + others[1])
                for mine, others in zip(self.cross, other.cross, strict=True)
            ),
            tuple(a + b for a, b in zip(self.histograms, other.histograms, strict=True)),
        )

    def to_dict(self) -> dict[str, Any]:
        """Strict JSON; the sums as hexadecimal numbers in units of 1."""
        return {
            "columns": [
                [c.finite, c.nonfinite, to_hex(c.total, -1074), to_hex(c.total_sq, -2148)]
                for c in self.columns
            ],
            "maxima": plain(self.maxima),
            "cross": [[both, to_hex(products, -2148)] for both, products in self.cross],
            "histograms": [
                [*plain(kept), to_hex(cubes, -1074), to_hex(fourths, -2148)]
                for *kept, cubes, fourths in self.histograms
            ],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of ``to_dict``; ValueError where the numbers contradict each other."""
        columns = tuple(
            ExactSum(finite, nonfinite, from_hex(total, -1074), from_hex(total_sq, -2148))
            for finite, nonfinite, total, total_sq in data["columns"]
        )
        cross = tuple((both, from_hex(products, -2148)) for both, products in data["cross"])
        for finite, nonfinite, total, total_sq in columns:
            counts = (finite, nonfinite, *(both for both, _ in cross))
            if not all(type(n) is int and 0 <= n <= finite + nonfinite for n in counts):
                raise ValueError(f"counts {counts}")
            if finite * total_sq < total**2:
                raise ValueError("a sum of squares that is too small for its sum")
        histograms = tuple(
            LogHistogram(
                dead,
                overflowed,
                tuple((k, count) for k, count in bins),
                from_hex(cubes, -1074),
                from_hex(fourths, -2148),
            )
            for dead, overflowed, bins, cubes, fourths in data["histograms"]
        )
        for dead, overflowed, bins, *_ in histograms:
            counts = (dead, overflowed, *(count for _, count in bins))
            places = [k for k, _ in bins]
            if not all(type(n) is int for n in (*counts, *places)) or min(counts) < 0:
                raise ValueError(f"counts {counts} of bins {places}")
            if places != sorted(set(places)) or 0 in counts[2:]:
                raise ValueError(f"bins {bins}")
            if places and not -_LAST_BIN - 1 <= places[0] <= places[-1] <= _LAST_BIN:
                raise ValueError(f"bins {bins} of no logarithms")
        check_numbers(data["maxima"], "NaN", "Infinity")
        maxima = frozen(data["maxima"])
        if (maxima < 0).any():
            raise ValueError(f"maxima {maxima}")
        return cls(columns, maxima, cross, histograms)

    def check_cross(self, pairs: Sequence[tuple[int, int]]) -> None:
        """ValueError for sums of products that the sums of these pairs of columns rule out."""
        for pair, (both, products) in zip(pairs, self.cross, strict=True):
            a, b = (self.columns[column] for column in pair)
            least = a.finite - b.nonfinite  # as many as are finite at least, and at most
            possible = least <= both <= min(a.finite, b.finite)
            # Cauchy and Schwarz's inequality, and that about the means if all have the same trials
            possible &= products**2 <= a.total_sq * b.total_sq
            if both == a.finite == b.finite:
                deviations = both * products - a.total * b.total
                squares = [both * one.total_sq - one.total**2 for one in (a, b)]
                possible &= deviations**2 <= squares[0] * squares[1]
            if not possible:
                raise ValueError(f"a sum of {both} products that the sums of squares rule out")

    @property
    def n_trials(self) -> int:
        """The number of trials; ValueError where the columns disagree."""
        counts = {column.finite + column.nonfinite for column in self.columns}
        counts |= {
            dead + overflowed + sum(count for _, count in bins)
            for dead, overflowed, bins, *_ in self.histograms
        }
        if len(counts) != 1:
            raise ValueError(f"columns of {sorted(counts)} trials")
        return counts.pop()


class Accumulator:
    """Takes trials in, a table at a time, and gives their ``ExactRecord``. For one thread."""

    def __init__(
        self, n_columns: int, n_maxima: int, *pairs: tuple[int, int], n_histograms: int = 0
    ) -> None:
        """``pairs`` are those of columns whose products are summed."""
        self._sums = np.zeros((n_columns, _core.EXACT_WORDS), np.int64)
        self._maxima = np.full(n_maxima, np.nan)
        self.pairs = pairs
        self._cross = [(0, 0)] * len(pairs)
        # Where a logarithm fell: the number of its bin, −∞ of 0, ∞ of what is not finite.
        self._counts: list[Counter[float]] = [Counter() for _ in range(n_histograms)]
        self._powers = np.zeros((_POWERS, n_histograms, _core.EXACT_WORDS), np.int64)

    def count(self, logs: Array) -> None:
        """Add trials to the histograms: float64 (trials, histograms), logarithms of doubles or
        differences of such."""
        places = np.where(np.isnan(logs), np.inf, np.floor(logs * _BINS_PER_UNIT))
        for counts, column in zip(self._counts, places.T, strict=True):
            counts.update(column.tolist())
        for sums, term in zip(
            self._powers, _powers(np.where(np.isfinite(logs), logs, np.nan)), strict=True
        ):
            _core.default().exact_add(sums, term)

    def add(self, table: Array, maxima: Array) -> None:
        """Add trials: float64 (trials, columns) to average, (trials, maxima) to maximise."""
        _core.default().exact_add(self._sums, np.ascontiguousarray(table))
        self._maxima = np.fmax(self._maxima, np.fmax.reduce(maxima, initial=np.nan))
        for i, pair in enumerate(self.pairs):
            x, y = (table[:, column] for column in pair)
            both = np.isfinite(x) & np.isfinite(y)
            count, products = self._cross[i]
            # Squares of small second moments underflow in float64: integers do not.
            for a, b in zip(x[both].tolist(), y[both].tolist(), strict=True):
                products += units(a) * units(b)
            self._cross[i] = (count + int(both.sum()), products)

    def record(self) -> ExactRecord:
        """The record of all trials so far."""
        sums = tuple(map(ExactSum._make, _core.default().exact_values(self._sums)))
        powers = [_core.default().exact_values(terms) for terms in self._powers]
        histograms = tuple(map(_histogram, self._counts, zip(*powers, strict=True)))
        return ExactRecord(sums, self._maxima, tuple(self._cross), histograms)


def _histogram(counts: Counter[float], powers: Sequence[tuple[int, ...]]) -> LogHistogram:
    dead, overflowed = counts.get(-math.inf, 0), counts.get(math.inf, 0)
    bins = [(int(k), count) for k, count in counts.items() if -math.inf < k < math.inf]
    return LogHistogram(dead, overflowed, tuple(sorted(bins)), *_cubes_and_fourths(powers))
