# SPDX-License-Identifier: BSD-3-Clause
"""The factor by which a chain multiplies its signal a layer, fitted, with its standard error."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from initcore.results.arithmetic import nth_root, square_root
from initcore.results.chain_record import Direction, middle, second_moment
from initcore.results.chain_spec import depth
from initcore.results.exact import ExactRecord
from initcore.results.exact_sum import ExactSum
from initcore.results.text import plus_minus

# Student's t at the level of three standard deviations of a normal, for 1 to 9 degrees of freedom.
_STUDENT = (235.8, 19.21, 9.219, 6.620, 5.507, 4.904, 4.530, 4.277, 4.094)


class Factor(NamedTuple):
    """The factor a layer from one layer (from 1) to another, and its standard error."""

    first: int
    last: int
    value: float
    se: float

    def __str__(self) -> str:
        return f"×{plus_minus(self.value, self.se)} a layer"


def fitted(spec: Mapping[str, Any], record: ExactRecord, direction: Direction) -> Factor | None:
    """The factor a layer of what is judged, over the later half of the layers where it can be.

    Those end where a trial overflows or the mean sinks to where the dtype loses its digits. The
    standard error is that of a ratio of means (delta method).
    """
    tiny = float(np.finfo(spec["dtype"]).tiny)
    floor = max(tiny * tiny, np.finfo(np.float64).tiny)
    n = depth(spec)
    path = direction.order(n)
    sums = [second_moment(record, n, direction.side, layer) for layer in path]
    last = 0
    for step, column in enumerate(sums, 1):
        if column.nonfinite or not column.mean() >= floor:
            break
        last = step
    if last < 2:
        return None
    first = middle(last)
    a, b = sums[first - 1], sums[last - 1]
    steps = last - first
    value = nth_root(b.total * a.finite, a.total * b.finite, steps)
    # The covariance is kept for the whole path only.
    products = record.cross[direction.down][1] if last == n else None
    se = value * _log_ratio_se(a, b, products) / steps
    return Factor(path[first - 1], path[last - 1], value, se)


def limit(trials: int) -> float:
    """How many standard errors from so many trials are as rare as three of a normal."""
    degrees = trials - 1
    if degrees <= len(_STUDENT):
        return _STUDENT[degrees - 1]
    # Cornish and Fisher's expansion about 3 (Abramowitz & Stegun 26.7.5)
    return 3 + 30 / (4 * degrees) + 1656 / (96 * degrees**2) + 11592 / (384 * degrees**3)


def _log_ratio_se(a: ExactSum, b: ExactSum, products: int | None) -> float:
    """The standard error of ln(mean b / mean a), whose trials are the same, given Σab."""
    n = a.finite
    if n < 2:
        return math.nan
    if products is None:
        # Without the covariance the error comes out too large rather than too small, since a
        # chain's layers are positively correlated.
        return math.hypot(a.standard_error() / a.mean(), b.standard_error() / b.mean())
    # The delta method's variance is n/(n−1) Σ(aᵢ/Σa − bᵢ/Σb)², here without rounding.
    spread = a.total_sq * b.total**2 + b.total_sq * a.total**2 - 2 * products * a.total * b.total
    return square_root(n * spread, (n - 1) * (a.total * b.total) ** 2)
