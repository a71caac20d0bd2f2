# SPDX-License-Identifier: BSD-3-Clause
"""The reference: every kernel once more, from its formula, slow and obvious.

NumPy and the standard library alone, and nothing else of the package: what is written here can
be wrong only in its own way. One module a kernel header: ``philox sampling activations matmul
moments exact_sum norm chain backward gram softmax attention``. Values that have no exact float are
returned as ``numpy.longdouble`` ("wide"), unrounded; :func:`ulps` says how far a kernel's value is
from one. Where ``longdouble`` is wider than float64 (x86: 64 bits of significand) wide values are
good to a few thousandths of a float64 ulp unless a function says otherwise; where it is not, to a
few ulps.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["ulps"]


def ulps(value: NDArray[Any], exact: ArrayLike, floor: ArrayLike = 0.0) -> NDArray[np.float64]:
    """Distance of `value` from `exact`, elementwise, in units in the last place.

    value: float32 or float64 array, whose dtype says what an ulp is; exact: the true values, in
    any wider precision; floor: an ulp is never taken smaller than that of a number this large
    (for values that come out of a cancellation). Two NaNs, and equal infinities, are 0 apart; a
    true value that overflows the dtype is the infinity it rounds to.
    """
    wide = np.asarray(exact, dtype=np.longdouble)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        rounded = wide.astype(value.dtype)
        size = np.maximum(np.abs(rounded), np.asarray(floor, dtype=value.dtype))
        distance = np.abs(value.astype(np.longdouble) - wide) / np.spacing(size)
    same = (value == rounded) | (np.isnan(value) & np.isnan(rounded))
    finite = np.isfinite(value) & np.isfinite(rounded)
    result = np.where(finite, distance, np.where(same, 0.0, np.inf))
    return np.asarray(result, dtype=np.float64)
