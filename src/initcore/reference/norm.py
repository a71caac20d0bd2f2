# SPDX-License-Identifier: BSD-3-Clause
"""The norm of rows, without gain, bias or epsilon, and its derivative.

With means over the n features of a row, μ = mean x for "layer" and 0 for "rms":

    s = √mean (x − μ)²,    x̂ = (x − μ)/s,    dx = (g − mean g − x̂ mean(g x̂))/s

where mean g is left out for "rms". A row with s = 0 has x̂ = 0 and dx = 0. All is float64. Float64
rows are divided by a power of two near their largest |x|, so that squares stay in range, and to
their means is added the mean of x − μ, so that the mean of equal values is that value; what is
float32 needs neither.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .matmul import fma

__all__ = ["norm", "norm_backward"]

Float64 = NDArray[np.float64]


def _sums(rows: Float64, other: Float64 | None = None) -> Float64:
    """Σ x or, by fma, Σ x y over each row: even and odd features in ascending order, then both."""
    sums = []
    for first in (0, 1):
        total = np.zeros(len(rows))
        for i in range(first, rows.shape[1], 2):
            x = rows[:, i]
            total = total + x if other is None else fma(x, other[:, i], total)
        sums.append(total)
    total = sums[0] + sums[1]
    return total[:, None]


def _mean(kind: str, wide: Float64, dtype: np.dtype[Any]) -> Float64:
    """μ (batch, 1) of rows that were `dtype`."""
    n = wide.shape[1]
    if kind != "layer":
        return np.zeros((len(wide), 1))
    mean: Float64 = _sums(wide) / n
    return mean if dtype == np.float32 else mean + _sums(wide - mean) / n


def _scales(x: NDArray[Any]) -> Float64:
    """1 / the power of two, from 2^-1000 to 2^1000, at or next below each row's largest |x|."""
    if x.dtype == np.float32:
        return np.ones((len(x), 1))
    largest = np.clip(np.abs(x).max(axis=1, keepdims=True), 2.0**-1000, 2.0**1000)
    scales: Float64 = np.ldexp(1.0, 1 - np.frexp(largest)[1])
    return scales


def norm(kind: str | None, x: NDArray[Any]) -> tuple[NDArray[Any], Float64]:
    """x̂ (batch, n) in x's dtype, rounded once from float64, and 1/s (batch, 1), 0 where s is.

    kind: "rms", "layer" or None, which gives x itself. A row that is not finite is NaN.
    """
    if kind is None:
        return x, np.ones((len(x), 1))
    n = x.shape[1]
    with np.errstate(all="ignore"):
        scale = _scales(x)
        wide = x.astype(np.float64) * scale
        centred = wide - _mean(kind, wide, x.dtype)
        square = _sums(centred, centred) / n
        inverse = np.where(square == 0, 0.0, 1 / np.sqrt(square))
        inverse[~np.isfinite(square)] = np.nan
        return (centred * inverse).astype(x.dtype), inverse * scale


def norm_backward(
    kind: str | None, normed: NDArray[Any], inverse: Float64, g: NDArray[Any]
) -> NDArray[Any]:
    """dx from g, the gradient by x̂, in g's dtype, rounded once."""
    if kind is None:
        return g
    n = g.shape[1]
    with np.errstate(all="ignore"):
        wide, unit = g.astype(np.float64), normed.astype(np.float64)
        along = _sums(wide, unit) / n
        return (fma(-along, unit, wide - _mean(kind, wide, g.dtype)) * inverse).astype(g.dtype)
