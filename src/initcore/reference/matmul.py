# SPDX-License-Identifier: BSD-3-Clause
"""The product h = x Wᵀ + b as one chain of fused multiply-adds an output, and the exact fma.

Both roundings of a double rounding are avoided by rounding the intermediate sum to odd: the
even one of the two neighbouring floats is never chosen when the sum is inexact, so that the last
rounding sees on which side of a tie it stands (Boldo and Melquiond, "Emulation of FMA and
correctly rounded sums: proved algorithms using rounding to odd", IEEE Trans. Comp. 57, 2008).
"""

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["fma", "matmul"]

F64 = NDArray[np.float64]


def _two_sum(a: F64, b: F64) -> tuple[F64, F64]:
    """a + b rounded, and its exact error (Knuth)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def _split(a: F64) -> tuple[F64, F64]:
    """a as a sum of two floats of 26 bits (Veltkamp)."""
    c = a * 134217729.0
    high = c - (c - a)
    return high, a - high


def _two_product(a: F64, b: F64) -> tuple[F64, F64]:
    """a·b rounded, and its exact error (Dekker)."""
    p = a * b
    a1, a0 = _split(a)
    b1, b0 = _split(b)
    return p, a0 * b0 - (((p - a1 * b1) - a0 * b1) - a1 * b0)


def _sum_to_odd(a: F64, b: F64) -> F64:
    s, error = _two_sum(a, b)
    even = s.view(np.uint64) & np.uint64(1) == 0
    inexact = np.isfinite(s) & (error != 0)
    return np.where(even & inexact, np.nextafter(s, np.copysign(np.inf, error)), s)


def _fma_exactly(a: float, b: float, c: float) -> float:
    """fma of three Python floats by rational arithmetic."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return a * b + c
    if not math.isfinite(c):
        return c
    if a == 0 or b == 0:
        return a * b + c
    value = Fraction(a) * Fraction(b) + Fraction(c)
    try:
        return value.numerator / value.denominator  # int / int is rounded once
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _fma_float64(a: F64, b: F64, c: F64) -> F64:
    high, low = _two_product(a, b)
    s, s_error = _two_sum(c, low)
    v, v_error = _two_sum(high, s)
    result = np.where((a == 0) | (b == 0), a * b + c, v + _sum_to_odd(s_error, v_error))
    # Error-free transformations hold where nothing comes near overflow or underflow.
    safe = np.ones(result.shape, dtype=bool)
    for x in (a, b, c):
        size = np.abs(x)
        safe &= (size == 0) | ((size > 2.0**-400) & (size < 2.0**400))
    for i in np.argwhere(~safe):
        at = tuple(i)
        result[at] = _fma_exactly(float(a[at]), float(b[at]), float(c[at]))
    return result


def fma(a: ArrayLike, b: ArrayLike, c: ArrayLike, dtype: Any = np.float64) -> NDArray[Any]:
    """a·b + c rounded once to `dtype` (float32 or float64), whose values a, b and c must be.

    Elementwise with broadcasting. Exact for every input, infinities, subnormals and the sign of
    a zero included.
    """
    with np.errstate(all="ignore"):
        x, y, z = np.broadcast_arrays(
            *(np.asarray(v, dtype=dtype).astype(np.float64) for v in (a, b, c))
        )
        if np.dtype(dtype) == np.float32:  # the product of two float32 is exact in float64
            return _sum_to_odd(x * y, z).astype(np.float32)
        return _fma_float64(x, y, z)


def matmul(x: NDArray[Any], weight: NDArray[Any], bias: NDArray[Any] | None = None) -> NDArray[Any]:
    """x (batch, n_in), weight (n_out, n_in), bias (n_out,) → (batch, n_out), in x's dtype.

    Each output starts at +0, takes k = 0, 1, … by fma in that order, then the bias.
    """
    h = np.zeros((x.shape[0], weight.shape[0]), dtype=x.dtype)
    for k in range(x.shape[1]):
        h = fma(x[:, k, None], weight[None, :, k], h, x.dtype)
    if bias is not None:
        with np.errstate(all="ignore"):
            h = h + bias
    return h
