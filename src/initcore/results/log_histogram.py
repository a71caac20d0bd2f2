# SPDX-License-Identifier: BSD-3-Clause
"""Where logarithms fell over trials: quantiles, and standard errors of these and of variances."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from initcore.results.arithmetic import square_root
from initcore.results.exact_sum import ExactSum

BINS_PER_UNIT = 32
# The ratio of two doubles is at most 2^1024 / 2^-1074.
LAST_BIN = math.floor(2098 * math.log(2) * BINS_PER_UNIT)


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

    @property
    def finite(self) -> int:
        """The number of finite values."""
        return sum(count for _, count in self.bins)

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
            found.append((k + (rank - (ends[at] - count)) / count) / BINS_PER_UNIT)
        return found

    def quantile_errors(self, fractions: Sequence[float]) -> list[float]:
        """Their standard errors, of whatever law the values are: half the distance of the quantiles
        at p ± √(p(1 − p)/n), the standard deviation of the share of n values that lie below the
        law's p-quantile (Woodruff 1952). NaN where that reaches 0 or 1: of a single value, and in
        tails of few."""
        n = self.finite
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
        if n != self.finite:
            raise ValueError(f"bins {self.bins} of {n} logarithms")
        # Of n values the matrix of the moments of 1, x and x² has no negative eigenvalue.
        determinant = n * (b * d - c * c) - a * (a * d - b * c) + b * (a * c - b * b)
        if n * d < b * b or determinant < 0:
            raise ValueError("sums of powers that the other sums rule out")
