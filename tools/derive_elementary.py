# SPDX-License-Identifier: BSD-3-Clause
"""Derives the polynomials and constants of csrc/simd/elementary.h.

    python tools/derive_elementary.py > csrc/simd/polynomials.h

Every polynomial is a weighted minimax fit (Remez exchange, mpmath at 60 digits), its coefficients
rounded to the dtype afterwards. The comment above each gives the largest relative error of the
*function* with the rounded coefficients in exact arithmetic, in units of the dtype's last place
at 1 (2^-23, 2^-52), so that what is left of a kernel's stated error is its own rounding.
Needs mpmath.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mpmath import mp, mpf

mp.dps = 60

DTYPES = {"f32": ("float", 24), "f64": ("double", 53)}  # C type, digits
GRID_POINTS = 1200  # Chebyshev's, even: no point at an end or in the middle


def round_to(x: mpf, bits: int) -> mpf:
    """x rounded to `bits` binary digits, nearest even (no coefficient here is near underflow)."""
    if x == 0:
        return mpf(0)
    mantissa, exponent = mp.frexp(x)
    return mp.ldexp(mp.nint(mp.ldexp(mantissa, bits)), exponent - bits)


def literal(x: mpf, dtype: str) -> str:
    """An exact C11 hexadecimal literal."""
    text = float(x).hex()
    head, exponent = text.split("p")
    head = head.rstrip("0").rstrip(".") if "." in head else head
    return f"{head}p{exponent}{'f' if dtype == 'f32' else ''}"


def horner(coefficients: list[mpf], x: mpf) -> mpf:
    total = mpf(0)
    for c in reversed(coefficients):
        total = total * x + c
    return total


@dataclass(frozen=True)
class Fit:
    """target(x) ~ p(variable(x)) for x in [low, high].

    An error e of p is a relative error weight(x)·e of the function that the kernel computes.
    """

    name: str
    comment: str
    target: Callable[[mpf], mpf]
    weight: Callable[[mpf], mpf]
    low: mpf
    high: mpf
    degree: int
    variable: Callable[[mpf], mpf] = lambda x: x

    def grid(self) -> list[mpf]:
        middle, half = (self.high + self.low) / 2, (self.high - self.low) / 2
        n = GRID_POINTS
        return [middle - half * mp.cos(mp.pi * (i + mpf(1) / 2) / n) for i in range(n)]

    def solve(self, bits: int) -> tuple[list[mpf], mpf]:
        """Coefficients, lowest first and rounded, and the largest weighted error with them."""
        grid = self.grid()
        u = [self.variable(x) for x in grid]
        f = [self.target(x) for x in grid]
        w = [self.weight(x) for x in grid]
        n, last = self.degree + 2, len(grid) - 1
        reference = [round(last * (i + 0.5) / n) for i in range(n)]
        for _ in range(30):
            system = mp.matrix(n, n)
            for row, i in enumerate(reference):
                for k in range(n - 1):
                    system[row, k] = u[i] ** k
                system[row, n - 1] = (-1) ** row / w[i]
            solution = mp.lu_solve(system, mp.matrix([f[i] for i in reference]))
            coefficients = [solution[k] for k in range(n - 1)]
            error = [w[i] * (horner(coefficients, u[i]) - f[i]) for i in range(last + 1)]
            exchanged = self.exchange(error, n)
            if exchanged == reference:
                break
            reference = exchanged
        rounded = [round_to(c, bits) for c in coefficients]
        return rounded, max(abs(w[i] * (horner(rounded, u[i]) - f[i])) for i in range(last + 1))

    @staticmethod
    def exchange(error: list[mpf], n: int) -> list[int]:
        """n grid points of alternating, locally largest error."""
        peaks: list[int] = []
        for i, e in enumerate(error):
            if not peaks or (e > 0) != (error[peaks[-1]] > 0):
                peaks.append(i)
            elif abs(e) > abs(error[peaks[-1]]):
                peaks[-1] = i
        while len(peaks) > n:
            peaks.pop(0 if abs(error[peaks[0]]) < abs(error[peaks[-1]]) else -1)
        if len(peaks) < n:
            raise ArithmeticError("too few alternations: the degree is more than the grid resolves")
        return peaks


HALF_LN2 = mp.log(2) / 2 * mpf("1.0001")  # the reduction's own rounding may pass the end
LOG_END = (mp.sqrt(2) - 1) / (mp.sqrt(2) + 1) * mpf("1.0001")
TAIL_CENTRE = {"f32": mpf(4), "f64": mpf(4)}
TAIL_END = {"f32": mpf(16), "f64": mpf(40)}

# Klambauer et al. 2017: the fixed point (mean 0, variance 1) of selu under unit-variance weights.
SELU_SCALE = mpf("1.0507009873554804934193349852946")
SELU_ALPHA = mpf("1.6732632423543772848170429916717")


def exp_q(r: mpf) -> mpf:
    if abs(r) < mpf("1e-12"):
        return mpf(1) / 2 + r / 6
    return (mp.expm1(r) - r) / r**2


def log_r(z: mpf) -> mpf:
    if z < mpf("1e-20"):
        return mpf(2) / 3 + 2 * z / 5
    s = mp.sqrt(z)
    return (2 * mp.atanh(s) - 2 * s) / (s * z)


def sin_q(z: mpf) -> mpf:
    if z < mpf("1e-20"):
        return -mpf(1) / 6 + z / 120
    r = mp.sqrt(z)
    return (mp.sin(r) - r) / (r * z)


def erf_q(z: mpf) -> mpf:
    if z == 0:
        return 2 / mp.sqrt(mp.pi) - 1
    x = mp.sqrt(z)
    return mp.erf(x) / x - 1


def upper_tail(a: mpf) -> mpf:
    """Q(a) exp(a²/2), Q the upper tail of the standard normal."""
    return mp.erfc(a / mp.sqrt(2)) * mp.exp(a * a / 2) / 2


def fits(dtype: str) -> list[Fit]:
    single = dtype == "f32"
    centre = TAIL_CENTRE[dtype]
    return [
        Fit(
            "exp_poly",
            "exp(r) = 1 + r + r^2 p(r), |r| <= ln(2)/2; the error is that of exp(r) - 1",
            exp_q,
            lambda r: r**2 / abs(mp.expm1(r)),
            -HALF_LN2,
            HALF_LN2,
            4 if single else 9,
        ),
        Fit(
            "log_poly",
            "log((1 + s)/(1 - s)) = 2 s + s z p(z), z = s^2 <= (3 - 2 sqrt(2))^2",
            log_r,
            lambda z: z * mp.sqrt(z) / (2 * mp.atanh(mp.sqrt(z))),
            mpf(0),
            LOG_END**2,
            2 if single else 6,
        ),
        Fit(
            "sin_poly",
            "sin(r) = r + r z p(z), z = r^2, |r| <= pi/2",
            sin_q,
            lambda z: z * mp.sqrt(z) / mp.sin(mp.sqrt(z)),
            mpf(0),
            (mp.pi / 2) ** 2,
            3 if single else 7,
        ),
        Fit(
            "erf_poly",
            "erf(x) = x + x p(x^2), |x| <= 1",
            erf_q,
            lambda z: 1 / (1 + erf_q(z)),
            mpf(0),
            mpf(1),
            6 if single else 12,
        ),
        Fit(
            "tail_poly",
            "Q(a) exp(a^2/2) = p(t)/(a + c), Q the normal upper tail, t = (a - c)/(a + c),\n"
            f" * c = {int(centre)}, 0 <= a <= {int(TAIL_END[dtype])}",
            lambda a: upper_tail(a) * (a + centre),
            lambda a: 1 / (upper_tail(a) * (a + centre)),
            mpf(0),
            TAIL_END[dtype],
            9 if single else 22,
            lambda a: (a - centre) / (a + centre),
        ),
    ]


def parts(x: mpf, n: int, bits: int) -> list[mpf]:
    """x as a sum of n numbers of the dtype, each the nearest to what is left."""
    result = []
    for _ in range(n):
        result.append(round_to(x, bits))
        x -= result[-1]
    return result


def constants() -> list[tuple[str, str, mpf, int]]:
    root = mp.sqrt(2 / mp.pi)
    return [
        ("log2_e", "", 1 / mp.log(2), 1),
        ("ln2", "", mp.log(2), 2),
        ("inverse_pi", "", 1 / mp.pi, 1),
        ("half_pi", "", mp.pi / 2, 3),
        ("sqrt_2", "", mp.sqrt(2), 1),
        ("density_0", "1/sqrt(2 pi)", 1 / mp.sqrt(2 * mp.pi), 1),
        ("erf_rise", "2/sqrt(pi)", 2 / mp.sqrt(mp.pi), 1),
        ("selu_lambda", "", SELU_SCALE, 1),
        ("selu_lambda_alpha", "", SELU_SCALE * SELU_ALPHA, 1),
        ("gelu_linear", "2 sqrt(2/pi)", 2 * root, 2),
        ("gelu_cubic", "2 sqrt(2/pi) 0.044715", 2 * root * mpf("0.044715"), 2),
    ]


def wrap(items: list[str], indent: str = "  ", width: int = 99) -> str:
    lines, line = [], indent
    for item in items:
        piece = item + ", "
        if len(line) + len(piece.rstrip()) > width:
            lines.append(line.rstrip())
            line = indent
        line += piece
    lines.append(line.rstrip().rstrip(","))
    return "\n".join(lines)


def main() -> None:
    print("/* SPDX-License-Identifier: BSD-3-Clause */")
    print("/* Written by tools/derive_elementary.py: do not edit. Polynomials, lowest degree")
    print(" * first, and constants, some as a sum of parts, leading part first; exact. */")
    print("#ifndef IC_POLYNOMIALS_H\n#define IC_POLYNOMIALS_H\n")
    print("#include <stdint.h>")
    for dtype, (ctype, bits) in DTYPES.items():
        print(f"\n/* float{dtype[1:]} */")
        for name, comment, value, n in constants():
            literals = [literal(p, dtype) for p in parts(value, n, bits)]
            if comment:
                print(f"/* {comment} */")
            if n == 1:
                print(f"static const {ctype} {name}_{dtype} = {literals[0]};")
            else:
                print(f"static const {ctype} {name}_{dtype}[{n}] = {{")
                print(wrap(literals) + "};")
        for fit in fits(dtype):
            coefficients, error = fit.solve(bits)
            print(f"/* {fit.comment};\n * error {mp.nstr(error * 2 ** (bits - 1), 2)} ulp */")
            print(f"static const {ctype} {fit.name}_{dtype}[{len(coefficients)}] = {{")
            print(wrap([literal(c, dtype) for c in coefficients]) + "};")
    words = 38
    scaled = two_over_pi_bits(32 * words)
    digits = ["0", "0"]
    digits += [f"0x{scaled >> 32 * i & 0xFFFFFFFF:08X}u" for i in reversed(range(words))]
    print("\n/* 64 zeros, then the first 1216 bits of 2/pi; most significant word first. */")
    print(f"static const uint32_t two_over_pi[{words + 2}] = {{")
    print(wrap(digits) + "};")
    print("\n#endif")


def two_over_pi_bits(bits: int) -> int:
    with mp.workprec(bits + 64):
        return int(mp.floor(mp.ldexp(2 / mp.pi, bits)))


if __name__ == "__main__":
    main()
