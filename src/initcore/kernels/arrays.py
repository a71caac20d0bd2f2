# SPDX-License-Identifier: BSD-3-Clause
"""The gate for input arrays: what is accepted, and the dtype the kernels compute in."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


def check_array(argument: str, value: object) -> npt.NDArray[Any]:
    """`value` as an array of real numbers (float16/32/64, bfloat16, integers, booleans)."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{argument} is a masked array: a plain array is accepted")
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{argument} is no rectangular array: {error}") from None
    if not _is_accepted(array.dtype):
        raise TypeError(
            f"{argument} has dtype {array.dtype}: "
            "float16, bfloat16, float32, float64, integers and booleans are accepted"
        )
    return array


def _is_accepted(dtype: np.dtype[Any]) -> bool:
    kinds = dtype.kind in "iub" or (dtype.kind == "f" and dtype.itemsize <= 8)
    return kinds or dtype.name == "bfloat16"


def compute_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """What an accepted dtype is computed in: float64 for float64, integers and booleans, float32
    for float32 and the half precisions."""
    wide = dtype.kind in "iub" or dtype.itemsize == 8
    return FLOAT64 if wide else FLOAT32


def native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype a result has for this input dtype: native-endian; float64 for integers."""
    if dtype.kind in "iub":
        return FLOAT64
    return dtype if dtype.isnative else dtype.newbyteorder("=")


def contiguous(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The array as the kernels read it: this dtype, C-contiguous, aligned; copied only if not."""
    flags = array.flags
    if array.dtype == dtype and flags.c_contiguous and flags.aligned:
        return array
    with np.errstate(over="ignore"):  # what float32 cannot hold is infinite in it
        result = np.ascontiguousarray(array, dtype)
    return result if result.flags.aligned else result.copy()
