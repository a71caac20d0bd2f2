# SPDX-License-Identifier: BSD-3-Clause
"""Derive the polynomials of csrc/sampling.h: minimax fits (Remez) rounded to the dtype.

Prints, for float32 and float64, the literals that stand in the header and the largest relative
error of each approximation with its rounded coefficients and exact arithmetic.

    log     -2 log(1 + f) = -2f + f^2 - s (f^2 + z P(z)),  s = f / (2 + f), z = s^2,
            for 1 + f in [sqrt(1/2), sqrt(2)]
    sine    sin(pi y / 4) = y (hi + Q(z)),  z = y^2, |y| <= 1, hi the nearest value to pi / 4
    cosine  cos(pi y / 4) = 1 + z C(z)

Needs mpmath. Run: python tools/derive_sampling.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mpmath as mp
import numpy as np

mp.mp.dps = 60
Function = Callable[[mp.mpf], mp.mpf]
DTYPES: dict[str, type[np.floating]] = {"f32": np.float32, "f64": np.float64}
TERMS = {  # as many as keep the error of an approximation below 1/16 ulp
    "log": {"f32": 3, "f64": 7},
    "sine": {"f32": 4, "f64": 7},
    "cosine": {"f32": 4, "f64": 7},
}


def evaluate(coefficients: Sequence[mp.mpf], z: mp.mpf) -> mp.mpf:
    return mp.polyval(list(reversed(coefficients)), z)


def remez(target: Function, weight: Function, n: int, end: mp.mpf, low: int = 0) -> list[mp.mpf]:
    """Coefficients c of the n terms c[i] z^(low+i) with the least max |weight (target - p)|.

    `weight * z**low` may vanish at 0, where the error then is 0; the interval is [0, end].
    """
    nodes = [end * (1 - mp.cos(mp.pi * (i + mp.mpf(1) / 2) / (n + 1))) / 2 for i in range(n + 1)]
    grid = [end * (1 - mp.cos(mp.pi * i / 600)) / 2 for i in range(1, 601)]
    for _ in range(12):
        rows = [
            [weight(z) * z ** (low + k) for k in range(n)] + [mp.mpf((-1) ** i)]
            for i, z in enumerate(nodes)
        ]
        solution = mp.lu_solve(mp.matrix(rows), mp.matrix([weight(z) * target(z) for z in nodes]))
        coefficients = [solution[k] for k in range(n)]
        errors = [weight(z) * (target(z) - z**low * evaluate(coefficients, z)) for z in grid]
        extrema: list[int] = []  # the largest error of every run of one sign
        for i, error in enumerate(errors):
            if extrema and mp.sign(errors[extrema[-1]]) == mp.sign(error):
                if abs(error) > abs(errors[extrema[-1]]):
                    extrema[-1] = i
            else:
                extrema.append(i)
        while len(extrema) > n + 1:
            extrema.pop(0 if abs(errors[extrema[0]]) < abs(errors[extrema[-1]]) else -1)
        if len(extrema) < n + 1:
            break
        nodes = [grid[i] for i in extrema]
    return coefficients


def rounded_fit(
    target: Function, weight: Function, n: int, end: mp.mpf, dtype: type[np.floating]
) -> list[mp.mpf]:
    """Minimax coefficients representable in dtype: each is rounded, then the others refitted."""
    fixed: list[mp.mpf] = []

    def remainder(z: mp.mpf) -> mp.mpf:
        return target(z) - (evaluate(fixed, z) if fixed else 0)

    while len(fixed) < n:
        free = remez(remainder, weight, n - len(fixed), end, len(fixed))
        fixed.append(nearest(free[0], dtype))
    return fixed


def nearest(x: mp.mpf, dtype: type[np.floating]) -> mp.mpf:
    """x rounded once to dtype (by way of float() a float32 would be rounded twice)."""
    bits = 24 if dtype is np.float32 else 53
    mantissa, exponent = mp.frexp(x)
    return mp.ldexp(mp.nint(mp.ldexp(mantissa, bits)), exponent - bits)


def literal(x: mp.mpf, dtype: type[np.floating]) -> str:
    """A C hexadecimal literal, its trailing zeros cut."""
    mantissa, exponent = float(x).hex().split("p")
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return f"{mantissa}p{int(exponent)}{'f' if dtype is np.float32 else ''}"


def log_ratio(z: mp.mpf) -> mp.mpf:
    """2 (log(1 + f) / s - 2) / z = 4/3 + 4/5 z + 4/7 z^2 + ...; log(1 + f) = 2 artanh(s)."""
    s = mp.sqrt(z)
    return 4 * (mp.atanh(s) / s - 1) / z


def main() -> None:
    log_end = ((mp.sqrt(2) - 1) / (mp.sqrt(2) + 1)) ** 2
    quarter = mp.pi / 4

    def sine(z: mp.mpf) -> mp.mpf:
        return mp.sin(quarter * mp.sqrt(z)) / mp.sqrt(z)

    def cosine(z: mp.mpf) -> mp.mpf:
        return (mp.cos(quarter * mp.sqrt(z)) - 1) / z

    def log_weight(z: mp.mpf) -> mp.mpf:
        return z / (4 + z * log_ratio(z))

    def sine_weight(z: mp.mpf) -> mp.mpf:
        return 1 / sine(z)

    def cosine_weight(z: mp.mpf) -> mp.mpf:
        return z / (1 + z * cosine(z))

    for name, dtype in DTYPES.items():
        high = nearest(quarter, dtype)

        def sine_rest(z: mp.mpf, high: mp.mpf = high) -> mp.mpf:
            return sine(z) - high

        fits: dict[str, tuple[Function, Function, mp.mpf]] = {
            # weights turn the error of the polynomial into the relative error of the function
            "log": (log_ratio, log_weight, log_end),
            "sine": (sine_rest, sine_weight, mp.mpf(1)),
            "cosine": (cosine, cosine_weight, mp.mpf(1)),
        }
        print(f"{name}: pi/4 = {literal(high, dtype)}, 2 ln 2 = ", end="")
        print(literal(nearest(2 * mp.log(2), dtype), dtype))
        for function, (target, weight, end) in fits.items():
            coefficients = rounded_fit(target, weight, TERMS[function][name], end, dtype)
            error = max(
                abs(weight(z) * (target(z) - evaluate(coefficients, z)))
                for z in (end * i / 2000 for i in range(1, 2001))
            )
            print(f"  {function}, max relative error 2^{float(mp.log(error, 2)):.1f}:")
            print("    " + ", ".join(literal(c, dtype) for c in coefficients))


if __name__ == "__main__":
    main()
