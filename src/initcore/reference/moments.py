# SPDX-License-Identifier: BSD-3-Clause
"""Statistics of an array of units, in float64 and in the order the contract fixes.

A unit is one weight row's outputs over the batch. Its sums run in 16 lanes (entry b in lane
b % 16) that are folded by halves; units are merged in index order (Chan, Golub and LeVeque,
"Updating formulae and a pairwise algorithm for computing sample variances", 1979; Pébay, "Formulas
for robust, one-pass parallel computation of covariances and arbitrary-order statistical moments",
2008, for the third and fourth powers).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .matmul import fma

__all__ = ["FIELDS", "layer_moments", "mean_cosine", "merge", "moments", "unit_states"]

FIELDS = (
    "count", "mean", "m2", "abs_max", "zeros", "saturated", "nonfinite", "m3", "m4", "within",
    "dead", "overflows", "cosine",
)  # fmt: skip
COUNT, MEAN, M2, ABS_MAX, ZEROS, SATURATED, NONFINITE, M3, M4, WITHIN, DEAD, OVERFLOWS = range(12)
COSINE = 12  # of whole layers alone: nothing merges it
LANES = 16

F64 = NDArray[np.float64]


def fold(lanes: F64) -> F64:
    """(units, 16) → (units,): lanes i and i + 8, then i and i + 4, i + 2, i + 1."""
    width = LANES // 2
    while width:
        lanes = lanes[:, :width] + lanes[:, width:]
        width //= 2
    return lanes[:, 0]


def _lane_sum(x: F64) -> F64:
    lanes = np.zeros((x.shape[0], LANES))
    for b in range(x.shape[1]):
        lanes[:, b % LANES] += x[:, b]
    return fold(lanes)


def _lane_sum_of_products(x: F64, y: F64) -> F64:
    lanes = np.zeros((x.shape[0], LANES))
    for b in range(x.shape[1]):
        lanes[:, b % LANES] = fma(x[:, b], y[:, b], lanes[:, b % LANES])
    return fold(lanes)


def unit_states(x: NDArray[Any], slope: NDArray[Any] | None = None, threshold: float = 0.0) -> F64:
    """One state a unit: x (units, batch) → (units, FIELDS).

    slope: φ′ of the entries where saturation (|φ′| < threshold) is counted; a NaN threshold
    makes the count NaN.
    """
    wide = x.astype(np.float64)
    state = np.zeros((x.shape[0], len(FIELDS)))
    with np.errstate(all="ignore"):
        mean = _lane_sum(wide) / x.shape[1]
        d = wide - mean[:, None]
        state[:, COUNT] = x.shape[1]
        state[:, MEAN] = mean
        state[:, M2] = state[:, WITHIN] = _lane_sum_of_products(d, d)
        state[:, M3] = _lane_sum_of_products(d * d, d)
        state[:, M4] = _lane_sum_of_products(d * d, d * d)
        state[:, ABS_MAX] = np.max(np.where(np.isnan(wide), 0, np.abs(wide)), axis=1, initial=0)
        state[:, ZEROS] = np.sum(wide == 0, axis=1)
        if slope is not None:
            state[:, SATURATED] = np.sum(np.abs(slope) < threshold, axis=1)
            state[:, SATURATED] += 0 * threshold
        state[:, NONFINITE] = np.sum(~np.isfinite(wide), axis=1)
        state[:, DEAD] = x.shape[1] * np.all(wide == 0, axis=1)
        state[:, OVERFLOWS] = np.sum(np.isinf(x.astype(np.float16)), axis=1)
    return state


def merge(a: F64, b: F64) -> F64:
    """The state of the entries of a and b together."""
    state = a + b  # what is not of the following is a count or a sum
    n = a[COUNT] + b[COUNT]
    with np.errstate(all="ignore"):
        p, s, w = a[COUNT] / n, b[COUNT] / n, a[COUNT] * b[COUNT] / n
        # nothing to differ from yet
        alone = a[COUNT] == 0 and np.isfinite(b[MEAN])
        d = 0.0 if alone else b[MEAN] - a[MEAN]
        state[MEAN] = b[MEAN] if alone else fma(d, s, a[MEAN])
        state[M2] = a[M2] + fma(d * d, w, b[M2])
        inner = fma(d * d * w, p - s, 3 * fma(p, b[M2], -(s * a[M2])))
        state[M3] = a[M3] + fma(d, inner, b[M3])
        q = fma(d * d * w, fma(-3.0, p * s, 1.0), 6 * fma(p * p, b[M2], s * s * a[M2]))
        inner = fma(d, q, 4 * fma(p, b[M3], -(s * a[M3])))
        state[M4] = a[M4] + fma(d, inner, b[M4])
    state[ABS_MAX] = max(a[ABS_MAX], b[ABS_MAX])
    return state


def moments(x: NDArray[Any], slope: NDArray[Any] | None = None, threshold: float = 0.0) -> F64:
    """The state (FIELDS,) of all units of x (units, batch), merged in index order."""
    state = np.zeros(len(FIELDS))
    for unit in unit_states(x, slope, threshold):
        state = merge(state, unit)
    return state


def layer_moments(
    x: NDArray[Any], slope: NDArray[Any] | None = None, threshold: float = 0.0
) -> F64:
    """`moments` of all units of a layer, x (units, batch), with their cosine."""
    state = moments(x, slope, threshold)
    state[COSINE] = mean_cosine(x)
    return state


def mean_cosine(x: NDArray[Any]) -> float:
    """(‖Σ_b x̂_b‖² − B) / (B(B − 1)) of x (units, batch): x̂ = x/‖x‖ of the B entries b of the batch
    that are not zero in all units, or below 2^-511; NaN below two of them or where a norm is not
    finite.

    ‖x‖² sums over even and over odd units, then both. Each unit's sum of x̂ has the lanes and the
    fold of `unit_states`, and their squares are summed in 16 lanes, that of unit u u % 16.
    """
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        squares = np.zeros((2, x.shape[1]))
        for u, row in enumerate(wide):
            squares[u % 2] = fma(row, row, squares[u % 2])
        norms = squares[0] + squares[1]
        alive = norms > np.finfo(np.float64).tiny  # squares that are not whole have no root
        rows = float(np.sum(alive))
        if rows < 2 or not np.isfinite(np.sum(norms)):
            return np.nan
        scales = np.where(alive, 1 / np.sqrt(norms), 0)
    sums = _lane_sum_of_products(wide, np.broadcast_to(scales, wide.shape))
    total = _lane_sum_of_products(sums[None], sums[None])[0]
    return float((total - rows) / (rows * (rows - 1)))
