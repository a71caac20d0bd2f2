# SPDX-License-Identifier: BSD-3-Clause
"""The standard normal on an interval: its moments, and what the kernel needs to know of it.

Computed in decimal arithmetic, which unlike the C library's functions gives the same bits on every
machine.
"""

from __future__ import annotations

from decimal import Context, Decimal, localcontext
from functools import lru_cache

# The kernels' inverse CDF is right to 40; the rest is for the last word beyond the nearer bound.
FARTHEST = 37.0
# Narrower, the digits of its ends would be too few.
NARROWEST = 1e-10

_DIGITS = 50
_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
# Below, the series of the upper tail loses this square's half in digits; above, the continued
# fraction has converged to all digits after this many levels.
_NEAR, _LEVELS = 7, 160
# An interval this wide, where the density is flat or a wide one further out, has the standard
# deviation of a uniform to 12 digits.
_NARROW = Decimal("1e-6")


def _density(x: Decimal) -> Decimal:
    return (-x * x / 2).exp() / (2 * _PI).sqrt()


def _upper_tail(x: Decimal) -> Decimal:
    """Q(x) = 1 - Phi(x) for x >= 0, to 35 digits."""
    if x.is_infinite():
        return Decimal(0)
    if x > _NEAR:  # Laplace's continued fraction
        fraction = x
        for level in range(_LEVELS, 0, -1):
            fraction = x + level / fraction
        return _density(x) / fraction
    # Phi(x) - 1/2 = phi(x) (x + x^3/3 + x^5/(3 5) + ...)
    term, total, odd = x, x, 1
    while term > total.scaleb(-_DIGITS):
        odd += 2
        term *= x * x / odd
        total += term
    return Decimal("0.5") - _density(x) * total


# The user's precision, rounding and traps are not ours.
def _context() -> Context:
    return Context(prec=_DIGITS, Emin=-999_999, Emax=999_999, traps=[])


def check_interval(a: float, b: float) -> None:
    """ValueError unless a < b, not all too close, and the interval begins within 37 standard
    deviations of the mean.

    a, b: the bounds in standard deviations from the mean, either may be infinite.
    """
    if not a < b:
        raise ValueError(f"bounds of {a} and {b} standard deviations: lower < upper is accepted")
    if b - a < NARROWEST * max(1.0, min(abs(a), abs(b))):
        raise ValueError(
            f"the interval from {a} to {b} standard deviations: one of {NARROWEST:g} or wider, "
            "for its distance from the mean, is accepted; a narrower one is uniform"
        )
    if a > FARTHEST or b < -FARTHEST:
        raise ValueError(
            f"the interval from {a} to {b} standard deviations: one that begins within "
            f"{FARTHEST:g} of the mean is accepted"
        )


@lru_cache(maxsize=1024)
def truncation(a: float, b: float) -> tuple[float, ...]:
    """The standard normal on (a, b) as `ic_truncation` of csrc/initcore.h describes it.

    Returns the lower and upper `tail`, their `slope`, `spread`, `centre` and `offset`. ValueError
    as :func:`check_interval`.
    """
    check_interval(a, b)
    with localcontext(_context()):
        below, above = _upper_tail(abs(Decimal(a))), _upper_tail(abs(Decimal(b)))
        if a < 0 < b:
            spread = 1 - below - above
            tails, slopes, unit = (below, above), (spread, spread), Decimal(1)
            centre = (below - above) / 2
        else:
            # both on one side: tails in units of the larger, which may be tiny
            unit = below if a >= 0 else above
            ratio = (above if a >= 0 else below) / unit
            spread = unit * (1 - ratio)
            centre = (1 - unit * (1 + ratio)) / 2
            if a >= 0:
                tails, slopes = (Decimal(1), ratio), (ratio - 1, 1 - ratio)
            else:
                tails, slopes, centre = (ratio, Decimal(1)), (1 - ratio, ratio - 1), -centre
        offset = -2 * unit.ln()
        return tuple(float(x) for x in (*tails, *slopes, spread, centre, offset))


@lru_cache(maxsize=1024)
def moments(a: float, b: float) -> tuple[float, float]:
    """(mean, std) of the standard normal on (a, b), to 12 digits; ValueError as
    :func:`check_interval`.

    mean = (φ(a) − φ(b))/Z, variance = 1 + (a φ(a) − b φ(b))/Z − mean², Z = Φ(b) − Φ(a).
    """
    check_interval(a, b)
    if b <= 0.0:
        mean, std = moments(-b, -a)
        return -mean, std
    with localcontext(_context()):
        low, high = Decimal(a), Decimal(b)
        below, above = _upper_tail(abs(low)), _upper_tail(high)
        mass = below - above if a >= 0.0 else 1 - below - above
        at_low, at_high = (
            Decimal(0) if x.is_infinite() else _density(x) / mass for x in (low, high)
        )
        mean_ = at_low - at_high
        width = high - low
        if (
            width * max(abs(low), Decimal(1)) < _NARROW
        ):  # nearly uniform; the difference below has no digits
            return float(mean_), float(width / Decimal(12).sqrt())
        variance = 1 - mean_ * mean_
        variance += Decimal(0) if low.is_infinite() else low * at_low
        variance -= Decimal(0) if high.is_infinite() else high * at_high
        return float(mean_), float(variance.sqrt())
