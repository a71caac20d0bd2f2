# SPDX-License-Identifier: BSD-3-Clause
"""Arithmetic that is not rounded, on integers and pairs of floats, or rounded alike everywhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from initcore.results.records import Array


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


# The parts that `powers` makes of an array.
POWERS = 3


def powers(x: Array) -> tuple[Array, ...]:
    """POWERS arrays of numbers that x, (t, m), makes, below each other: with its squares p and what
    rounding took of them, r, the p and r; the products pr in two numbers each; and xp + xr in four.
    So Σx³ is the sum of the last, Σx⁴ that of the squares of the first and twice that of the
    second. Exact for 0 and for multiples of 2^-106 below 2^200."""
    of_x = _Split.of(x)
    square, rest = of_x.product(of_x)
    of_square, of_rest = _Split.of(square), _Split.of(rest)
    mixed, cubes = of_square.product(of_rest), (of_x.product(of_square), of_x.product(of_rest))
    terms = ((square, rest), mixed, (*cubes[0], *cubes[1]))
    return tuple(map(np.concatenate, terms))


def cubes_and_fourths(sums: Sequence[tuple[int, ...]]) -> tuple[int, int]:
    """Σx³ and Σx⁴ of the exact sums, and of squares, of what ``powers`` gives."""
    (_, _, _, squares), (_, _, mixed, _), (_, _, cubes, _) = sums
    return cubes, squares + (mixed << 1075)
