# SPDX-License-Identifier: BSD-3-Clause
"""Derive the constants of the built-in activations from their formulas, with mpmath at 40 digits.

    python tools/derive_gains.py            print the tables
    python tools/derive_gains.py --check    exit 1 if the committed tables differ
    python tools/derive_gains.py --write    put the tables into src/initcore

The gains of linear, relu and leaky_relu are closed forms in gains.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from mpmath import mp, mpf

mp.dps = 40

SOURCE = Path(__file__).resolve().parent.parent / "src" / "initcore"
BEGIN, END = "# tools/derive_gains.py: begin\n", "# tools/derive_gains.py: end\n"

Function = Callable[[Any], Any]


def sigmoid(x: Any) -> Any:
    return 1 / (1 + mp.exp(-x))


def selu_constants() -> tuple[Any, Any]:
    """(λ, λα): the E φ(z) = 0 and E φ(z)² = 1 of selu, solved."""
    # E max(z, 0) = 1/√(2π), E max(z, 0)² = 1/2; c₁ and c₂ are E (eᶻ − 1)ᵏ over z < 0.
    half = mpf(1) / 2
    e1, e2 = mp.exp(half) * mp.ncdf(-1), mp.exp(2) * mp.ncdf(-2)
    c1, c2 = e1 - half, e2 - 2 * e1 + half
    alpha = -1 / (mp.sqrt(2 * mp.pi) * c1)
    scale = 1 / mp.sqrt(half + alpha**2 * c2)
    return scale, scale * alpha


SELU_SCALE, SELU_NEGATIVE = selu_constants()
GELU_TANH_SCALE, GELU_TANH_CUBE = mp.sqrt(2 / mp.pi), mpf("0.044715")


def gelu_tanh(x: Any) -> Any:
    return x / 2 * (1 + mp.tanh(GELU_TANH_SCALE * (x + GELU_TANH_CUBE * x**3)))


def gelu_tanh_slope(x: Any) -> Any:
    t = mp.tanh(GELU_TANH_SCALE * (x + GELU_TANH_CUBE * x**3))
    return (1 + t) / 2 + x / 2 * (1 - t**2) * GELU_TANH_SCALE * (1 + 3 * GELU_TANH_CUBE * x**2)


def mish_slope(x: Any) -> Any:
    t = mp.tanh(mp.log1p(mp.exp(x)))
    return t + x * sigmoid(x) * (1 - t**2)


class Formula(NamedTuple):
    value: Function
    slope: Function
    kinks: tuple[int, ...] = ()
    bounded: bool = False  # by 1: E φ² is below 1 everywhere, there is no fixed point


FORMULAS: dict[str, Formula] = {
    "tanh": Formula(mp.tanh, lambda x: mp.sech(x) ** 2, bounded=True),
    "sigmoid": Formula(sigmoid, lambda x: sigmoid(x) * sigmoid(-x), bounded=True),
    "elu": Formula(lambda x: x if x > 0 else mp.expm1(x), lambda x: mp.exp(min(x, 0)), (0,)),
    "selu": Formula(
        lambda x: SELU_SCALE * x if x > 0 else SELU_NEGATIVE * mp.expm1(x),
        lambda x: SELU_SCALE if x > 0 else SELU_NEGATIVE * mp.exp(x),
        (0,),
    ),
    "gelu": Formula(lambda x: x * mp.ncdf(x), lambda x: mp.ncdf(x) + x * mp.npdf(x)),
    "gelu_tanh": Formula(gelu_tanh, gelu_tanh_slope),
    "silu": Formula(lambda x: x * sigmoid(x), lambda x: sigmoid(x) * (1 + x * sigmoid(-x))),
    "mish": Formula(lambda x: x * mp.tanh(mp.log1p(mp.exp(x))), mish_slope),
    "softplus": Formula(lambda x: mp.log1p(mp.exp(x)), sigmoid),
    "softsign": Formula(
        lambda x: x / (1 + abs(x)), lambda x: 1 / (1 + abs(x)) ** 2, (0,), bounded=True
    ),
    "erf": Formula(mp.erf, lambda x: 2 / mp.sqrt(mp.pi) * mp.exp(-(x**2)), bounded=True),
    "sin": Formula(mp.sin, mp.cos, bounded=True),
    "hardtanh": Formula(
        lambda x: max(-1, min(1, x)), lambda x: int(abs(x) < 1), (-1, 1), bounded=True
    ),
    "hardswish": Formula(
        lambda x: x * max(0, min(6, x + 3)) / 6,
        lambda x: (2 * x + 3) / 6 if abs(x) < 3 else int(x > 0),
        (-3, 3),
    ),
    "relu2": Formula(lambda x: max(0, x) ** 2, lambda x: 2 * max(0, x), (0,)),
}

# |φ′| is largest at the root of φ″ near here.
SLOPE_PEAKS = {"gelu": "1.4", "gelu_tanh": "1.4", "silu": "2.4", "mish": "1.5"}


def gaussian_mean(function: Function, kinks: tuple[int, ...], sigma: Any = 1) -> Any:
    """E f(σz), in pieces of length 1 out to where the density is 1e-46."""
    cuts = sorted({mpf(k) for k in range(-14, 15)} | {k / mpf(sigma) for k in kinks})
    return mp.quad(lambda z: function(sigma * z) * mp.npdf(z), cuts)


def fixed_point(formula: Formula) -> Any:
    """The σ with E φ(σz)² = 1."""

    def excess(sigma: Any) -> Any:
        return gaussian_mean(lambda x: formula.value(x) ** 2, formula.kinks, sigma) - 1

    return mp.findroot(excess, (mpf(1), mpf("1.5")), solver="secant", tol=mpf(10) ** -60)


def gains(formula: Formula) -> list[Any]:
    mean = gaussian_mean(formula.value, formula.kinks)
    second = gaussian_mean(lambda x: formula.value(x) ** 2, formula.kinks)
    variance = gaussian_mean(lambda x: (formula.value(x) - mean) ** 2, formula.kinks)
    slope = gaussian_mean(lambda x: formula.slope(x) ** 2, formula.kinks)
    point = None if formula.bounded else fixed_point(formula)
    return [1 / mp.sqrt(second), 1 / mp.sqrt(variance), 1 / mp.sqrt(slope), point]


def literal(value: Any) -> str:
    return "None" if value is None else repr(float(value))


def gains_table() -> str:
    rows = "".join(
        f'    "{name}": ({", ".join(map(literal, gains(formula)))}),\n'
        for name, formula in FORMULAS.items()
    )
    return f"_GAINS: dict[str, tuple[float, float, float, float | None]] = {{\n{rows}}}\n"


def slopes_table() -> str:
    largest = {}
    for name, near in SLOPE_PEAKS.items():
        slope = FORMULAS[name].slope
        largest[name] = slope(mp.findroot(lambda x, f=slope: mp.diff(f, x), mpf(near)))
    largest["selu"] = SELU_NEGATIVE  # below 0, next to it
    largest["erf"] = FORMULAS["erf"].slope(0)
    return "".join(f"_MAX_SLOPE_{name.upper()} = {literal(v)}\n" for name, v in largest.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the tables into src/initcore")
    parser.add_argument("--check", action="store_true", help="exit 1 if the committed ones differ")
    options = parser.parse_args()
    stale = False
    for file, table in (("activations.py", slopes_table()), ("gains.py", gains_table())):
        if not (options.write or options.check):
            print(table)
            continue
        path = SOURCE / file
        text = path.read_text(encoding="utf-8")
        head, rest = text.split(BEGIN)
        old, tail = rest.split(END)
        stale |= old != table
        if options.write:
            path.write_text(head + BEGIN + table + END + tail, encoding="utf-8")
    return int(stale and options.check)


if __name__ == "__main__":
    sys.exit(main())
