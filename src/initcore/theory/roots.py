# SPDX-License-Identifier: BSD-3-Clause
"""A root between two points where a function has opposite signs."""

from __future__ import annotations

import math
from collections.abc import Callable


def bracketed_root(
    function: Callable[[float], float],
    low: float,
    high: float,
    f_low: float,
    f_high: float,
    relative: float = 4e-16,
) -> float:
    """x with function(x) = 0, to a relative error in x, by Chandrupatla's method (1997).

    low < high are of one sign; f_low and f_high, the values there, of opposite signs. Inverse
    quadratic interpolation where three points support it, bisection where they do not.
    """
    a, fa, b, fb = low, f_low, high, f_high
    c, fc = a, fa
    fraction = 0.5
    for _ in range(200):
        x = a + fraction * (b - a)
        fx = function(x)
        # b is the last point on the other side of the root, c the one before.
        if (fx > 0.0) == (fa > 0.0):
            c, fc = a, fa
        else:
            c, fc, b, fb = b, fb, a, fa
        a, fa = x, fx
        best = a if abs(fa) < abs(fb) else b
        tolerance = relative * abs(best) / abs(b - a) if a != b else 1.0
        if min(abs(fa), abs(fb)) == 0.0 or tolerance > 0.5:
            return best
        xi, phi = (a - b) / (c - b), (fa - fb) / (fc - fb) if fc != fb else math.inf
        if phi**2 < xi and (1.0 - phi) ** 2 < 1.0 - xi:
            fraction = fa / (fb - fa) * fc / (fb - fc) + (c - a) / (b - a) * fa / (fc - fa) * fb / (
                fc - fb
            )
            fraction = min(1.0 - tolerance, max(tolerance, fraction))
        else:
            fraction = 0.5
    return best
