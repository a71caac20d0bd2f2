# SPDX-License-Identifier: BSD-3-Clause
"""The floating-point formats that tensors are drawn in."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _core


@dataclass(frozen=True)
class Dtype:
    """A binary format: `precision` bits of significand and a least positive number 2^`least`."""

    name: str
    precision: int
    least: int
    largest: float
    half: int = 0  # the number by which the kernels know a format of 16 bits

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        """Its NumPy dtype; ImportError for bfloat16 where ml_dtypes is not installed."""
        if self.name != "bfloat16":
            return np.dtype(self.name)
        try:
            bfloat16: np.dtype[Any] = np.dtype(import_module("ml_dtypes").bfloat16)
            return bfloat16
        except ImportError:
            raise ModuleNotFoundError(
                "dtype 'bfloat16' needs the ml_dtypes package: pip install ml_dtypes"
            ) from None

    @property
    def compute(self) -> Dtype:
        """The format of the arithmetic: halves are float32 numbers, rounded once."""
        return FLOAT32 if self.half else self

    def _spacing(self, magnitude: float) -> float:
        return math.ldexp(1.0, max(math.frexp(magnitude)[1] - self.precision, self.least))

    def round(self, value: float) -> float:
        """The nearest number, of two the even one; infinite beyond the largest."""
        if self.precision == 53 or not math.isfinite(value):
            return value
        spacing = self._spacing(value)
        result = math.copysign(round(value / spacing) * spacing, value)
        return result if abs(result) <= self.largest else math.copysign(math.inf, value)

    def above(self, number: float) -> float:
        """The number of the format that follows this one of its numbers."""
        if self.precision == 53:
            return math.nextafter(number, math.inf)
        if number < 0:
            magnitude = -number
            if math.isinf(magnitude):
                return -self.largest
            # just below a power of two the numbers lie twice as close
            return -(magnitude - self._spacing(math.nextafter(magnitude, 0.0)))
        return self.round(number + self._spacing(number)) if number else math.ldexp(1.0, self.least)

    def last_below(self, value: float) -> float:
        """The largest number that is less than `value`."""
        number = self.round(value)
        return number if number < value else -self.above(-number)

    def first_not_below(self, value: float) -> float:
        """The smallest number that is not less than `value`."""
        number = self.round(value)
        return number if number >= value else self.above(number)


FLOAT32 = Dtype("float32", 24, -149, float(np.finfo(np.float32).max))
FLOAT64 = Dtype("float64", 53, -1074, float(np.finfo(np.float64).max))
FLOAT16 = Dtype("float16", 11, -24, 65504.0, _core.FLOAT16)
BFLOAT16 = Dtype("bfloat16", 8, -133, math.ldexp(255.0, 120), _core.BFLOAT16)
DTYPES = {dtype.name: dtype for dtype in (FLOAT32, FLOAT64, FLOAT16, BFLOAT16)}


def find_dtype(dtype: npt.DTypeLike) -> Dtype:
    """The format that a name, a NumPy dtype or a scalar type stands for; TypeError for others."""
    try:
        return _find(dtype)  # type: ignore[arg-type]
    except TypeError:  # not even hashable, or no dtype
        raise TypeError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}") from None


@lru_cache(maxsize=64)
def _find(dtype: Any) -> Dtype:
    if isinstance(dtype, str) and dtype in DTYPES:
        return DTYPES[dtype]
    try:
        found: np.dtype[Any] = np.dtype(dtype)
    except Exception:  # of a string, whatever its parser happens to raise
        raise TypeError from None
    if dtype is None or not found.isnative or found.name not in DTYPES:  # NumPy's None is float64
        raise TypeError
    return DTYPES[found.name]
