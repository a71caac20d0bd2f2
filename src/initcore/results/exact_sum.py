# SPDX-License-Identifier: BSD-3-Clause
"""Σx and Σx² over trials as integers: exact, so that merging is associative to the last bit."""

from __future__ import annotations

import math
from typing import NamedTuple

from initcore.results.arithmetic import square_root


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
