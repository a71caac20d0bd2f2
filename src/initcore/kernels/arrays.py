# SPDX-License-Identifier: BSD-3-Clause
"""The gate for arguments: what is accepted, and the dtype the kernels compute in."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
# By dtype: what rounds to zero in it, and what rounds to infinity.
_LIMITS = {FLOAT32: (2.0**-150, (2.0 - 2.0**-24) * 2.0**127), FLOAT64: (0.0, inf)}
_NUMBERS = "float16, bfloat16, float32, float64, integers and booleans are accepted"
_MASKS = (
    "a boolean mask (True takes part) or a floating-point one (added to the logits) is accepted"
)


def check_array(
    argument: str, value: object, accepted: str = _NUMBERS, kinds: str = "iubf"
) -> npt.NDArray[Any]:
    """`value` as an array of real numbers (float16/32/64, bfloat16, integers, booleans), or of some
    of these kinds, in the words of `accepted`."""
    if type(value) is np.ndarray and value.dtype in _LIMITS:  # most are
        return value
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{argument} is a masked array: a plain array is accepted")
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{argument} is no rectangular array: {error}") from None
    dtype = array.dtype
    narrow = dtype.kind in kinds and (dtype.kind != "f" or dtype.itemsize <= 8)
    if not narrow and dtype.name != "bfloat16":
        raise TypeError(f"{argument} has dtype {dtype}: {accepted}")
    return array


def compute_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """What an accepted dtype is computed in: float64 for float64, integers and booleans, float32
    for float32 and the half precisions."""
    wide = dtype.kind in "iub" or dtype.itemsize == 8
    return FLOAT64 if wide else FLOAT32


def common_dtype(arrays: Sequence[npt.NDArray[Any]]) -> np.dtype[Any]:
    """What several are computed in: float64 if any floating-point one is, or all are integers."""
    floats = {dtype for dtype in {a.dtype for a in arrays} if dtype.kind not in "iub"}
    return compute_dtype(max(floats, key=lambda d: d.itemsize)) if floats else FLOAT64


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


def check_number(argument: str, value: object, rule: str) -> float:
    """A finite number as a float; `rule` says what is accepted."""
    if type(value) is float and isfinite(value):
        return value
    if isinstance(value, (bool, np.bool_, str, bytes)):
        raise TypeError(f"{argument}={value!r}: {rule} is accepted")
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise TypeError(f"{argument}={value!r}: {rule} is accepted") from None
    except OverflowError:
        number = inf
    if not isfinite(number):
        raise ValueError(f"{argument}={value!r}: {rule} is accepted")
    return number


def check_flag(argument: str, value: object) -> bool:
    """A bool: what is only true in a condition, as "no" is, is a mistake."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{argument}={value!r}: True or False is accepted")
    return bool(value)


def check_softcap(softcap: object) -> float:
    """What the kernels call softcap: 0 for None, else positive."""
    rule = "a positive number or None"
    cap = 0.0 if softcap is None else check_number("softcap", softcap, rule)
    if softcap is not None and cap <= 0:
        raise ValueError(f"softcap={softcap!r}: {rule} is accepted")
    return cap


def check_saturation(saturation: object) -> float:
    """The largest probability from which a row is called saturated."""
    rule = "a number from 0 to 1"
    threshold = check_number("saturation", saturation, rule)
    if not 0 <= threshold <= 1:
        raise ValueError(f"saturation={saturation!r}: {rule} is accepted")
    return threshold


def check_finite_in(real: np.dtype[Any], scale: float, softcap: float = 0.0) -> None:
    """Refuses what is not finite, or becomes 0, when it is rounded to the dtype."""
    if scale == 1.0 and not softcap:
        return
    smallest, largest = _LIMITS[real]
    parameters = {"scale": scale}
    if softcap:
        parameters |= {"softcap": softcap, "scale/softcap": scale / softcap}
    for argument, value in parameters.items():
        if value != 0 and not smallest < abs(value) < largest:
            raise ValueError(f"{argument}={value!r}: a number that {real} can hold is accepted")


def check_mask(mask: object, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """The mask, boolean or floating-point, with as many axes as the logits' `shape`, each of the
    same length or 1: 1 where it is the same all along (a view of `np.broadcast_to`)."""
    array = check_array("mask", mask, _MASKS, "bf")
    own = (1,) * (len(shape) - array.ndim) + array.shape
    if len(own) != len(shape) or any(m not in (1, n) for m, n in zip(own, shape, strict=True)):
        raise ValueError(
            f"mask has shape {array.shape}: one that broadcasts to {shape} is accepted"
        )
    once = tuple(slice(0, 1 if stride == 0 else None) for stride in array.strides)
    return array[once].reshape((1,) * (len(shape) - array.ndim) + array[once].shape)
