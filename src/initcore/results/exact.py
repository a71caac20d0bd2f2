# SPDX-License-Identifier: BSD-3-Clause
"""The record of an experiment's trials, exact and merged exactly, and what makes it of tables."""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from initcore import _core
from initcore.results.arithmetic import POWERS, cubes_and_fourths, from_hex, powers, to_hex, units
from initcore.results.exact_sum import ExactSum
from initcore.results.log_histogram import BINS_PER_UNIT, LAST_BIN, LogHistogram
from initcore.results.records import Array, Record, check_numbers, frozen, plain


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
            if places and not -LAST_BIN - 1 <= places[0] <= places[-1] <= LAST_BIN:
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
            counted.dead + counted.overflowed + counted.finite for counted in self.histograms
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
        self._pairs = pairs
        self._cross = [(0, 0)] * len(pairs)
        # Where a logarithm fell: the number of its bin, −∞ of 0, ∞ of what is not finite.
        self._counts: list[Counter[float]] = [Counter() for _ in range(n_histograms)]
        self._powers = np.zeros((POWERS, n_histograms, _core.EXACT_WORDS), np.int64)

    def count(self, logs: Array) -> None:
        """Add trials to the histograms: float64 (trials, histograms), logarithms of doubles or
        differences of such."""
        places = np.where(np.isnan(logs), np.inf, np.floor(logs * BINS_PER_UNIT))
        for counts, column in zip(self._counts, places.T, strict=True):
            counts.update(column.tolist())
        for sums, term in zip(
            self._powers, powers(np.where(np.isfinite(logs), logs, np.nan)), strict=True
        ):
            _core.default().exact_add(sums, term)

    def add(self, table: Array, maxima: Array) -> None:
        """Add trials: float64 (trials, columns) to average, (trials, maxima) to maximise."""
        _core.default().exact_add(self._sums, np.ascontiguousarray(table))
        self._maxima = np.fmax(self._maxima, np.fmax.reduce(maxima, initial=np.nan))
        for i, pair in enumerate(self._pairs):
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
    return LogHistogram(dead, overflowed, tuple(sorted(bins)), *cubes_and_fourths(powers))
