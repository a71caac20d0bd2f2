# SPDX-License-Identifier: BSD-3-Clause
"""Sums of float64 numbers and of their squares without any rounding, as Python integers."""

from collections.abc import Iterable
from fractions import Fraction
from math import isfinite

__all__ = ["exact_sums"]

UNIT = 2**1074  # the smallest subnormal is 2^-1074, and every float64 a multiple of it


def exact_sums(values: Iterable[float]) -> tuple[int, int, int, int]:
    """(finite values, non-finite values, Σx in units of 2^-1074, Σx² in units of 2^-2148).

    Values that are not finite are counted and left out of both sums.
    """
    numbers = [float(v) for v in values]
    finite = [int(Fraction(v) * UNIT) for v in numbers if isfinite(v)]
    return len(finite), len(numbers) - len(finite), sum(finite), sum(v * v for v in finite)
