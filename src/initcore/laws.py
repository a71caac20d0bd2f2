# SPDX-License-Identifier: BSD-3-Clause
"""Laws: the distributions of numbers that the kernels draw.

Each has mean, std, bound (the largest |value|), scaled(f), and distribution(dtype): what the kernel
draws, its parameters rounded once to the dtype; ValueError where they overflow or vanish in it, or
its range has no values there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from initcore import _core
from initcore.dtypes import Dtype
from initcore.streams import Distribution
from initcore.truncation import moments, truncation

# The largest normals that the words of a stream give, in standard deviations, by a radius of 2^-33
# and of 2^-54.
_REACH = {
    "float32": math.sqrt(2.0 * 33.0 * math.log(2.0)),
    "float64": math.sqrt(2.0 * 54.0 * math.log(2.0)),
}
# The least number of values that the arithmetic must tell apart in a truncated normal's range.
_RESOLVED = 1024


def _finite(dtype: Dtype, what: str, value: float) -> float:
    result = dtype.round(value)
    if not math.isfinite(result):
        raise ValueError(f"{what} must be finite in {dtype.name}, got {value!r}")
    return result


def _standard_deviation(dtype: Dtype, what: str, value: float) -> float:
    """As :func:`_finite`, in the dtype of the arithmetic; values that all vanish are refused."""
    if value and not dtype.round(value):
        raise ValueError(f"{what} must not vanish in {dtype.name}, got {value!r}")
    return _finite(dtype.compute, what, value)


def _check_reach(dtype: Dtype, mean: float, std: float, reach: float) -> None:
    if not math.isfinite(dtype.round(abs(mean) + reach * std)):
        raise ValueError(
            f"the largest normals, {reach:.1f} standard deviations from the mean, must be finite "
            f"in {dtype.name}, got std {std!r} and mean {mean!r}"
        )


@dataclass(frozen=True)
class Constant:
    """One number."""

    value: float

    @property
    def mean(self) -> float:
        return self.value

    @property
    def std(self) -> float:
        return 0.0

    @property
    def bound(self) -> float:
        return abs(self.value)

    def scaled(self, factor: float) -> Constant:
        return Constant(self.value * factor + 0.0)  # -0 is 0

    def distribution(self, dtype: Dtype) -> Distribution:
        value = _finite(dtype, "the value", dtype.compute.round(self.value))
        return Distribution(_core.CONSTANT, shift=value)


@dataclass(frozen=True)
class Normal:
    """N(mean, std²)."""

    std: float
    mean: float = 0.0

    @property
    def bound(self) -> float:
        return math.inf if self.std else abs(self.mean)

    def scaled(self, factor: float) -> Normal:
        return Normal(self.std * factor, self.mean * factor + 0.0)

    def distribution(self, dtype: Dtype) -> Distribution:
        std = _standard_deviation(dtype, "the standard deviation", self.std)
        mean = _finite(dtype.compute, "the mean", self.mean)
        _check_reach(dtype, self.mean, self.std, _REACH[dtype.compute.name])
        return Distribution(_core.NORMAL, std, mean)


def _open_interval(dtype: Dtype, low: float, high: float) -> tuple[float, float]:
    """The first and last number strictly between, whether an end is compared with as it is or
    rounded to the dtype; ValueError if there is none."""
    first = max(dtype.above(dtype.round(low)), -dtype.last_below(-low))
    last = min(dtype.last_below(dtype.round(high)), dtype.last_below(high))
    if not first <= last:
        raise ValueError(f"the range ({low!r}, {high!r}) must have a value in {dtype.name}")
    return first, last


@dataclass(frozen=True)
class Uniform:
    """Uniform on [low, high), open if it is symmetric; a point if low = high (a factor of zero)."""

    low: float
    high: float

    # Halves first: high − low may overflow.
    @property
    def mean(self) -> float:
        return self.high / 2.0 + self.low / 2.0

    @property
    def half_range(self) -> float:
        return self.high / 2.0 - self.low / 2.0

    @property
    def std(self) -> float:
        return self.half_range / math.sqrt(3.0)

    @property
    def bound(self) -> float:
        return max(abs(self.low), abs(self.high))

    def scaled(self, factor: float) -> Uniform:
        return Uniform(self.low * factor, self.high * factor)

    def distribution(self, dtype: Dtype) -> Distribution:
        if self.low == self.high:
            return Constant(self.mean + 0.0).distribution(dtype)
        # Below both high and high rounded to the dtype, whichever a person compares with.
        last = dtype.last_below(min(self.high, _finite(dtype, "the upper end", self.high)))
        if self.low == -self.high:
            first = -last
        else:
            _finite(dtype, "the lower end", self.low)
            first = dtype.first_not_below(self.low)
        if first > last or (self.low < 0.0 and first == last):
            raise ValueError(
                f"the range [{self.low!r}, {self.high!r}) must have values in {dtype.name}"
            )
        return Distribution(
            _core.UNIFORM,
            _finite(dtype.compute, "the range", self.half_range),
            _finite(dtype.compute, "the middle", self.mean),
            first,
            last,
        )


@dataclass(frozen=True)
class TruncatedNormal:
    """N(parent_mean, parent_std²) given that it lies in (low, high); a and b are the two ends in
    parent standard deviations from the parent's mean."""

    parent_std: float
    parent_mean: float
    low: float
    high: float
    a: float
    b: float

    @property
    def mean(self) -> float:
        return self.parent_mean + self.parent_std * moments(self.a, self.b)[0]

    @property
    def std(self) -> float:
        return self.parent_std * moments(self.a, self.b)[1]

    @property
    def bound(self) -> float:
        return max(abs(self.low), abs(self.high))

    def scaled(self, factor: float) -> TruncatedNormal | Constant:
        if factor == 0.0:
            return Constant(0.0)
        return TruncatedNormal(
            self.parent_std * factor,
            self.parent_mean * factor + 0.0,
            self.low * factor,
            self.high * factor,
            self.a,
            self.b,
        )

    def distribution(self, dtype: Dtype) -> Distribution:
        first, last = _open_interval(dtype, self.low, self.high)
        distance = max(abs(self.a), abs(self.b)) * self.parent_std
        if self.high - self.low < _RESOLVED * math.ldexp(distance, -dtype.compute.precision):
            raise ValueError(
                f"the range ({self.low!r}, {self.high!r}) must be wider, so far from the mean "
                f"{self.parent_mean!r} of its parent, for {dtype.compute.name} to tell its values "
                "apart; it is as good as uniform"
            )
        # Beyond a cut-off at n, the words reach less far than √(n² + reach²).
        reach = math.hypot(_REACH[dtype.compute.name], max(self.a, -self.b, 0.0))
        farthest = min(reach, max(abs(self.a), abs(self.b)))
        _check_reach(dtype, self.parent_mean, self.parent_std, farthest)
        return Distribution(
            _core.TRUNCATED_NORMAL,
            _standard_deviation(dtype, "the parent's standard deviation", self.parent_std),
            _finite(dtype.compute, "the parent's mean", self.parent_mean),
            first,
            last,
            truncation(self.a, self.b),
        )


Law = Constant | Normal | Uniform | TruncatedNormal


@dataclass(frozen=True)
class Pieces:
    """A tensor whose entries are drawn one by one: from one law, or from several that take turns
    on an axis."""

    laws: tuple[Law, ...]
    axis: int = 0
    spans: tuple[tuple[int, int], ...] = ()  # where each of several laws begins and ends
