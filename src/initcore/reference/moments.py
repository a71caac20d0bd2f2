# SPDX-License-Identifier: BSD-3-Clause
"""Statistics of an array of units, in float64 and in the order the contract fixes.

A unit is one weight row's outputs over the batch. Its sums run in 16 lanes (entry b in lane
b % 16) that are folded by halves; units are merged in index order (Chan, Golub and LeVeque,
"Updating formulae and a pairwise algorithm for computing sample variances", 1979).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .matmul import fma

__all__ = ["FIELDS", "merge", "moments", "unit_states"]

FIELDS = ("count", "mean", "m2", "abs_max", "zeros", "saturated", "nonfinite")
LANES = 16

F64 = NDArray[np.float64]


def _fold(lanes: F64) -> F64:
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
    return _fold(lanes)


def _lane_sum_of_squares(x: F64) -> F64:
    lanes = np.zeros((x.shape[0], LANES))
    for b in range(x.shape[1]):
        lanes[:, b % LANES] = fma(x[:, b], x[:, b], lanes[:, b % LANES])
    return _fold(lanes)


def unit_states(x: NDArray[Any], slope: NDArray[Any] | None = None, threshold: float = 0.0) -> F64:
    """One state a unit: x (units, batch) → (units, 7), the columns being FIELDS.

    slope: φ′ of the entries where saturation (|φ′| < threshold) is counted; a NaN threshold
    makes the count NaN.
    """
    wide = x.astype(np.float64)
    state = np.zeros((x.shape[0], len(FIELDS)))
    with np.errstate(all="ignore"):
        mean = _lane_sum(wide) / x.shape[1]
        state[:, 0] = x.shape[1]
        state[:, 1] = mean
        state[:, 2] = _lane_sum_of_squares(wide - mean[:, None])
        state[:, 3] = np.max(np.where(np.isnan(wide), 0, np.abs(wide)), axis=1, initial=0)
        state[:, 4] = np.sum(wide == 0, axis=1)
        if slope is not None:
            state[:, 5] = np.sum(np.abs(slope) < threshold, axis=1)
            state[:, 5] += 0 * threshold
        state[:, 6] = np.sum(~np.isfinite(wide), axis=1)
    return state


def merge(a: F64, b: F64) -> F64:
    """The state of the entries of a and b together."""
    n = a[0] + b[0]
    with np.errstate(all="ignore"):
        delta = b[1] - a[1]
        mean = fma(delta, b[0] / n, a[1])
        m2 = a[2] + fma(delta * delta, a[0] * b[0] / n, b[2])
    return np.array(
        [n, mean, m2, max(a[3], b[3]), a[4] + b[4], a[5] + b[5], a[6] + b[6]], dtype=np.float64
    )


def moments(x: NDArray[Any], slope: NDArray[Any] | None = None, threshold: float = 0.0) -> F64:
    """The state (7,) of all units of x (units, batch), merged in index order."""
    state = np.zeros(len(FIELDS))
    for unit in unit_states(x, slope, threshold):
        state = merge(state, unit)
    return state
