# SPDX-License-Identifier: BSD-3-Clause
"""Derive the polynomials of csrc/sampling.h: minimax fits (Remez; for the quotients, least squares
reweighted towards the largest error) rounded to the dtype.

Prints, for float32 and float64, the literals that stand in the header and the largest relative
error of each approximation with its rounded coefficients and exact arithmetic.

    log     -2 log(1 + f) = -2f + f^2 - s (f^2 + z P(z)),  s = f / (2 + f), z = s^2,
            for 1 + f in [sqrt(1/2), sqrt(2)]
    sine    sin(pi y / 4) = y (hi + Q(z)),  z = y^2, |y| <= 1, hi the nearest value to pi / 4
    cosine  cos(pi y / 4) = 1 + z C(z)
    centre  x = y A(v) / B(v),  y = Phi(x) - 1/2, v = end^2 - y^2, |y| <= end
    tail    x = C(v) / D(v),  v = sqrt(-2 log Q(x)) - start, Q the upper tail, from Q = 1/2 - end
            to x = 40

The quotients have positive coefficients in a positive variable, so Horner's rule loses nothing.

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
QUOTIENTS = {  # degrees above and below
    "centre": {"f32": (5, 5), "f64": (8, 8)},
    "tail": {"f32": (5, 4), "f64": (11, 10)},
}
# Where the centre ends: in float32 beyond a cut at 2.3 sigma, so that the usual cuts need no tail.
CENTRE_END = {"f32": 0.4893, "f64": 0.425}
FARTHEST = 40


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


def weighted_least_squares(rows: list[list[mp.mpf]], values: list[mp.mpf]) -> mp.matrix:
    columns = list(zip(*rows, strict=True))
    normal = mp.matrix(len(columns), len(columns))
    for i, a in enumerate(columns):
        for j, b in enumerate(columns[: i + 1]):
            normal[i, j] = normal[j, i] = mp.fdot(a, b)
    return mp.lu_solve(normal, mp.matrix([mp.fdot(column, values) for column in columns]))


def quotient(
    points: list[mp.mpf], values: list[mp.mpf], above: int, below: int
) -> tuple[list[mp.mpf], list[mp.mpf]]:
    """Numerator and denominator (it begins with 1) of the quotient of least relative error."""
    weights = [mp.mpf(1)] * len(points)
    bottoms = [mp.mpf(1)] * len(points)
    best: tuple[mp.mpf, list[mp.mpf], list[mp.mpf]] = (mp.inf, [], [])
    for step in range(12):
        rows, ones = [], []
        for x, f, weight, bottom in zip(points, values, weights, bottoms, strict=True):
            w = mp.sqrt(weight) / abs(f * bottom)
            rows.append(
                [w * x**i for i in range(above + 1)] + [-w * f * x**i for i in range(1, below + 1)]
            )
            ones.append(w * f)
        solution = list(weighted_least_squares(rows, ones))
        p, q = solution[: above + 1], [mp.mpf(1), *solution[above + 1 :]]
        bottoms = [evaluate(q, x) for x in points]
        errors = [
            abs(evaluate(p, x) / bottom / f - 1)
            for x, f, bottom in zip(points, values, bottoms, strict=True)
        ]
        largest = max(errors)
        if largest < best[0]:
            best = (largest, p, q)
        if step >= 2:
            weights = [
                w * (mp.mpf("0.05") + e / largest) for w, e in zip(weights, errors, strict=True)
            ]
            total = sum(weights) / len(weights)
            weights = [w / total for w in weights]
    return best[1], best[2]


def upper_tail(x: mp.mpf) -> mp.mpf:
    return mp.erfc(x / mp.sqrt(2)) / 2


def chebyshev(low: mp.mpf, high: mp.mpf, n: int) -> list[mp.mpf]:
    half = mp.mpf(1) / 2
    return [low + (high - low) * (1 - mp.cos(mp.pi * (i + half) / n)) / 2 for i in range(n)]


def centre_points(end: mp.mpf, square: mp.mpf, n: int) -> tuple[list[mp.mpf], list[mp.mpf]]:
    """v = end^2 - y^2 and x / y."""
    xs = chebyshev(mp.mpf(0), mp.sqrt(2) * mp.erfinv(2 * end), n)
    ys = [mp.erf(x / mp.sqrt(2)) / 2 for x in xs]
    return [square - y * y for y in ys], [x / y for x, y in zip(xs, ys, strict=True)]


def tail_points(end: mp.mpf, start: mp.mpf, n: int) -> tuple[list[mp.mpf], list[mp.mpf]]:
    """v = sqrt(-2 log Q(x)) - start and x."""
    first = mp.sqrt(2) * mp.erfinv(2 * end)
    xs = [mp.exp(x) for x in chebyshev(mp.log(first), mp.log(FARTHEST), n)]
    return [mp.sqrt(-2 * mp.log(upper_tail(x))) - start for x in xs], xs


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
        end = mp.mpf(CENTRE_END[name])
        square = nearest(end**2, dtype)
        start = nearest(mp.sqrt(-2 * mp.log(mp.mpf(1) / 2 - end)), dtype)
        print(f"  end^2 = {literal(square, dtype)}, start = {literal(start, dtype)}")
        for part, points, constant in (
            ("centre", centre_points, square),
            ("tail", tail_points, start),
        ):
            fitted = quotient(*points(end, constant, 120), *QUOTIENTS[part][name])
            top, bottom = ([nearest(c, dtype) for c in side] for side in fitted)
            error = max(
                abs(evaluate(top, v) / evaluate(bottom, v) / x - 1)
                for v, x in zip(*points(end, constant, 700), strict=True)
            )
            print(f"  {part}, max relative error 2^{float(mp.log(error, 2)):.1f}:")
            for side in (top, bottom):
                print("    " + ", ".join(literal(c, dtype) for c in side))


if __name__ == "__main__":
    main()
