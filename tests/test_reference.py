# SPDX-License-Identifier: BSD-3-Clause
"""The reference against what is known without it: published answers, rationals, 50 digits."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from initcore.reference import ulps
from initcore.reference.activations import ACTIVATIONS, activate, erf, erfc
from initcore.reference.chain import chain
from initcore.reference.exact_sum import exact_sums
from initcore.reference.matmul import fma, matmul
from initcore.reference.moments import merge, moments, unit_states
from initcore.reference.philox import blocks, counter_of
from initcore.reference.sampling import normal, stream_id, uniform, words
from initcore.reference.softmax import logits, softmax, softmax_backward

WIDE_BITS = np.finfo(np.longdouble).nmant


def as_mpf(wide):
    """A longdouble as an exact mpf."""
    high = float(wide)
    rest = float(wide - np.longdouble(high)) if math.isfinite(high) and high else 0.0
    return mpmath.mpf(high) + mpmath.mpf(rest)


def relative_error(wide, exact):
    """In units of 2^-53."""
    return float(abs((as_mpf(wide) - exact) / exact) * 2**53)


def exactly_rounded(value, dtype):
    """A Fraction in the dtype, nearest even, from integers."""
    if value == 0:
        return dtype(0)
    bits, least = (24, -149) if dtype is np.float32 else (53, -1074)
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    ulp = Fraction(2) ** max(exponent - bits + 1, least)
    rounded = round(size / ulp) * ulp
    largest = Fraction(float(np.finfo(dtype).max))
    result = float(rounded) if rounded <= largest else math.inf
    return dtype(result if value > 0 else -result)


# --- Philox ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "stream", "key", "expected"),
    [
        (0, 0, 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (2**64 - 1, 2**64 - 1, 2**64 - 1, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            0x85A308D3243F6A88,
            0x0370734413198A2E,
            0x299F31D0A4093822,
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
        (0xFFFFFFFF, 0, 0, "c5b20a9d 4434ec4e 11bbe4fb 2a1ef7a5"),
        (0x100000000, 0, 0, "6ad0c5ec ea236249 73a459f5 074944b3"),
    ],
)
def test_philox_known_answers(block, stream, key, expected):
    assert " ".join(f"{word:08x}" for word in blocks(block, stream, key)[0]) == expected


def test_philox_runs_backwards(rng):
    for _ in range(20):
        block, stream, key = (int(v) for v in rng.integers(0, 2**64, 3, dtype=np.uint64))
        output = tuple(int(word) for word in blocks(block, stream, key)[0])
        assert counter_of(output, key) == (block, stream)


# --- fma and the product ---------------------------------------------------------------------


@pytest.mark.parametrize("real", [np.float32, np.float64])
def test_fma_is_rounded_once(rng, real):
    bits = 32 if real is np.float32 else 64
    half = bits // 2 - 3  # products of this many bits leave ties for c to break

    def any_float(n):
        raw = rng.integers(0, 2**bits, n, dtype=f"u{bits // 8}").view(real)
        return np.where(np.isfinite(raw), raw, real(1))

    tie_a, tie_b = (rng.integers(2 ** (half + 1), 2 ** (half + 2), 300) for _ in range(2))
    tie_c = rng.choice([0, 0.5, -0.5, 1, -1, 2.0**-60, -(2.0**-60), 2.0**-100], 300)
    near_a, near_b = rng.normal(size=(2, 300)).astype(real)
    a = np.concatenate([any_float(600), tie_a, near_a, any_float(100)]).astype(real)
    b = np.concatenate([any_float(600), tie_b, near_b, 1 / a[-100:]]).astype(real)
    c = np.concatenate([any_float(600), tie_c, -near_a * near_b, any_float(100)]).astype(real)
    for x, y, z, result in zip(a, b, c, fma(a, b, c, real), strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        assert result == exactly_rounded(exact, real), (x, y, z)


@pytest.mark.parametrize("real", [np.float32, np.float64])
def test_fma_of_zeros_and_infinities(real):
    inf, big = math.inf, float(np.finfo(real).max)
    cases = [
        (-0.0, 1.0, -0.0, -0.0), (-0.0, 1.0, 0.0, 0.0), (1.0, 1.0, -1.0, 0.0),
        (inf, 1.0, 1.0, inf), (inf, 0.0, 1.0, math.nan), (inf, 1.0, -inf, math.nan),
        (big, big, -inf, -inf), (big, 2.0, -big, big), (big, -2.0, 0.0, -inf),
    ]  # fmt: skip
    for a, b, c, expected in cases:
        result = fma(a, b, c, real)[()]
        assert result == expected or (math.isnan(result) and math.isnan(expected)), (a, b, c)
        assert math.isnan(expected) or np.signbit(result) == np.signbit(real(expected))


def test_matmul_of_integers_is_the_product(rng):
    x, w = rng.integers(-9, 9, (5, 11)), rng.integers(-9, 9, (3, 11))
    bias = rng.integers(-9, 9, 3)
    result = matmul(x.astype(np.float32), w.astype(np.float32), bias.astype(np.float32))
    assert np.array_equal(result, x @ w.T + bias)


# --- sampling --------------------------------------------------------------------------------


def test_stream_id():
    """An integer name is not the text of its digits, and trials count up modulo 2^64."""
    assert stream_id("input", 5) == (stream_id("input") + 5) % 2**64
    assert stream_id("input", 2**64 - 1) == (stream_id("input") - 1) % 2**64
    assert len({stream_id(name) for name in ("0", 0, "1", 1, "é", "")}) == 6


def test_tiles():
    """The stream contract: element i has tile i // 64, word (i % 64) // 16, lane i % 16."""
    w, row = words(0, 200, seed=3, stream=4, dtype=np.float32)
    for i in (0, 1, 15, 16, 17, 63, 64, 100, 199):
        tile, lane = i // 64, i % 16
        assert row[i] == i % 64 // 16
        assert np.array_equal(w[i], blocks(16 * tile + lane, 4, 3)[0])
    w, row = words(0, 100, seed=3, stream=4, dtype=np.float64)
    for i in (0, 15, 16, 31, 32, 99):
        assert row[i] == i % 32 // 16
        assert np.array_equal(w[i], blocks(16 * (i // 32) + i % 16, 4, 3)[0])


@pytest.mark.parametrize("real", [np.float32, np.float64])
def test_uniform_and_normal_from_their_words(real):
    first, n = 2**40 + 3, 130
    w, row = words(first, n, seed=5, stream=77, dtype=real)
    s = uniform(first, n, 5, 77, real)
    z = normal(first, n, 5, 77, real)
    with mpmath.workdps(50):
        for i in range(n):
            a, b, c, d = (int(word) for word in w[i])
            if real is np.float32:
                signed = int(w[i][row[i] : row[i] + 1].view(np.int32)[0])
                expected = (Fraction(signed >> 8) + Fraction(1, 2)) / 2**23
                pair = (a, b) if row[i] < 2 else (c, d)
                u, turn = Fraction(2 * pair[0] + 1, 2**33), Fraction(pair[1], 2**32)
            else:
                value = a << 32 | b if row[i] == 0 else c << 32 | d
                value -= 2**64 if value >= 2**63 else 0
                expected = (Fraction(value >> 11) + Fraction(1, 2)) / 2**52
                u = Fraction(2 * ((a << 32 | b) >> 11) + 1, 2**54)
                turn = Fraction((c << 32 | d) >> 11, 2**53)
            assert Fraction(float(s[i])) == expected
            radius = mpmath.sqrt(-2 * mpmath.log(mpmath.mpf(u.numerator) / u.denominator))
            theta = 2 * mpmath.pi * turn.numerator / turn.denominator
            exact = radius * (mpmath.cos(theta) if row[i] % 2 == 0 else mpmath.sin(theta))
            assert relative_error(z[i], exact) < 8 * 2.0 ** (52 - WIDE_BITS)


# --- activations -----------------------------------------------------------------------------


def logistic(x):
    return 1 / (1 + mpmath.exp(-x))


def phi(x):
    return mpmath.erfc(-x / mpmath.sqrt(2)) / 2


def selu(x):
    scale = mpmath.mpf("1.0507009873554804934193349852946")
    alpha = mpmath.mpf("1.6732632423543772848170429916717")
    return scale * (x if x > 0 else alpha * mpmath.expm1(x))


DEFINITIONS = {
    "linear": lambda x: x,
    "relu": lambda x: max(x, 0),
    "leaky_relu": lambda x: max(x, 0) + mpmath.mpf(0.01) * min(x, 0),
    "tanh": mpmath.tanh,
    "sigmoid": logistic,
    "elu": lambda x: x if x > 0 else mpmath.expm1(x),
    "selu": selu,
    "gelu": lambda x: x * phi(x),
    "gelu_tanh": lambda x: (
        x / 2 * (1 + mpmath.tanh(mpmath.sqrt(2 / mpmath.pi) * (x + mpmath.mpf("0.044715") * x**3)))
    ),
    "silu": lambda x: x * logistic(x),
    "mish": lambda x: x * mpmath.tanh(mpmath.log1p(mpmath.exp(x))),
    "softplus": lambda x: mpmath.log1p(mpmath.exp(x)),
    "softsign": lambda x: x / (1 + abs(x)),
    "erf": mpmath.erf,
    "sin": mpmath.sin,
    "hardtanh": lambda x: min(max(x, -1), 1),
    "hardswish": lambda x: x * min(max(x + 3, 0), 6) / 6,
    "relu2": lambda x: max(x, 0) ** 2,
}
# gelu_tanh's exponent, a cubic, is rounded in wide precision.
ALLOWANCE = {"gelu_tanh": 1.0}


def test_every_activation_has_a_definition():
    assert list(DEFINITIONS) == list(ACTIVATIONS)


@pytest.mark.parametrize("name", DEFINITIONS)
def test_activations_to_50_digits(rng, name):
    """φ is within its allowance (units of 2^-53, relative), φ′ is φ's difference quotient."""
    allowed = (ALLOWANCE.get(name, 0.0) + 0.05) * 2.0 ** max(0, 63 - WIDE_BITS)
    x = np.concatenate([rng.uniform(-6, 6, 25), rng.uniform(-20, 20, 10), [1e-20, -1e-9, 40.0]])
    value, slope = activate(x, name), activate(x, name, derivative=True)
    with mpmath.workdps(900):  # 1 + tanh u is computed as written
        for i, v in enumerate(x):
            exact = mpmath.mpf(DEFINITIONS[name](mpmath.mpf(float(v))))
            if exact != 0:
                assert relative_error(value[i], exact) <= allowed, v
            else:
                assert value[i] == 0
            step = mpmath.mpf(10) ** -300
            quotient = (DEFINITIONS[name](mpmath.mpf(float(v)) + step) - exact) / step
            error = abs(as_mpf(slope[i]) - quotient)
            assert error <= abs(quotient) * (allowed + 0.05) * 2.0**-53 + 1e-290, v


@pytest.mark.parametrize("name", DEFINITIONS)
def test_activation_limits(name):
    ends = {
        "linear": (-np.inf, np.inf), "leaky_relu": (-np.inf, np.inf), "tanh": (-1, 1),
        "sigmoid": (0, 1), "elu": (-1, np.inf), "selu": (-1.7580993408473768, np.inf),
        "softsign": (-1, 1), "erf": (-1, 1), "sin": (np.nan, np.nan), "hardtanh": (-1, 1),
    }  # fmt: skip
    value = activate(np.array([-np.inf, np.inf, np.nan]), name).astype(np.float64)
    assert np.array_equal(value[:2], ends.get(name, (0, np.inf)), equal_nan=True)
    assert np.isnan(value[2])
    assert np.isnan(activate(np.array([np.nan]), name, derivative=True))[0]


def test_error_functions_agree_with_the_standard_library(rng):
    x = rng.uniform(-6, 6, 300)
    assert np.max(ulps(np.array([math.erf(v) for v in x]), erf(x.astype(np.longdouble)))) <= 2
    # erfc of the C library is allowed a few ulps more
    assert np.max(ulps(np.array([math.erfc(v) for v in x]), erfc(x.astype(np.longdouble)))) <= 6


# --- moments, exact sums, chain --------------------------------------------------------------


def test_moments_against_rationals(rng):
    x = (rng.normal(size=(5, 37)) + 1000).astype(np.float32)
    count, mean, m2, abs_max, zeros, _, nonfinite, m3, m4, within, *_ = moments(x)
    entries = [Fraction(float(v)) for v in x.ravel()]
    exact_mean = sum(entries) / len(entries)
    exact_m2 = sum((v - exact_mean) ** 2 for v in entries)
    assert (count, zeros, nonfinite, abs_max) == (185, 0, 0, np.abs(x).max())
    assert abs(Fraction(mean) - exact_mean) <= exact_mean * Fraction(2, 2**52)
    assert abs(Fraction(m2) - exact_m2) <= exact_m2 * Fraction(1, 2**44)
    exact_m4 = sum((v - exact_mean) ** 4 for v in entries)
    assert abs(Fraction(m4) - exact_m4) <= exact_m4 * Fraction(1, 2**40)
    exact_m3 = sum((v - exact_mean) ** 3 for v in entries)
    assert abs(Fraction(m3) - exact_m3) <= exact_m4 * Fraction(1, 2**40)
    units = [np.array([Fraction(float(v)) for v in row]) for row in x]
    exact_within = sum(np.sum((unit - unit.mean()) ** 2) for unit in units)
    assert abs(Fraction(within) - exact_within) <= exact_m2 * Fraction(1, 2**44)


def test_moments_merge_and_count():
    """pytorch #50010 (variance with ddof 0), and what stands in the counts."""
    state = moments(np.array([[1.0, 2, 3, 4], [5, 6, 7, 10]]))
    assert state[2] / state[0] == 7.4375
    assert state[2] / (state[0] - 1) == 8.5
    rows = unit_states(np.array([[0.0, -0.0, np.nan, np.inf], [1, -9, 2, 0]]))
    assert rows[:, [0, 3, 4, 6]].tolist() == [[4, np.inf, 2, 2], [4, 9, 1, 0]]
    assert merge(np.zeros(rows.shape[1]), rows[1]).tolist() == rows[1].tolist()


def test_exact_sums():
    assert exact_sums([5e-324, -5e-324, 1.0, np.nan, -np.inf]) == (3, 2, 2**1074, 2**2148 + 2)
    assert exact_sums([1e300, 1e-300, -1e300])[2] == int(Fraction(1e-300) * 2**1074)


def test_chain_of_integers():
    """X = [[1,2],[3,4]], W rows [1,1], [−1,−1]: pre [[3,−3],[7,−7]], half are zero. (arXiv
    1903.06733)"""
    x = np.array([[1, 2], [3, 4]], dtype=np.float32)
    w = np.array([[1, 1], [-1, -1]], dtype=np.float32)
    y, states = chain(x, [w], [None], [("relu", None)], thresholds=[0.05])
    assert y.tolist() == [[3, 0], [7, 0]]
    pre, post = states[0]
    assert pre[[0, 1, 3, 4, 5]].tolist() == [4, 0, 7, 0, 2]
    assert post[[0, 1, 3, 4, 5]].tolist() == [4, 2.5, 7, 2, 0]


# --- softmax ---------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", [0.1, 1, 10, 200])
def test_softmax_to_50_digits(rng, spread):
    t = rng.normal(size=(4, 9)) * spread
    p, statistics = softmax(t.astype(np.longdouble))
    allowed = 8 * 2.0 ** (52 - WIDE_BITS)
    for r in range(len(t)):
        with mpmath.workdps(800):  # the textbook forms, whose cancellation this swallows
            e = [mpmath.exp(mpmath.mpf(float(v))) for v in t[r]]
            q = [v / sum(e) for v in e]
            s2 = sum(v**2 for v in q)
            exact = [
                mpmath.log(sum(e)),
                max(q),
                -sum(v * mpmath.log(v) for v in q),
                s2,
                mpmath.sqrt(s2 - 2 * sum(v**3 for v in q) + s2**2),
            ]
            for got, expected in zip(statistics[r], exact, strict=True):
                assert relative_error(got, expected) < allowed
            for got, expected in zip(p[r], q, strict=True):
                if expected > 1e-280:
                    assert relative_error(got, expected) < allowed * (1 + 2 * spread)


@pytest.mark.parametrize(
    ("row", "p", "norm"),
    [
        ([1.2, 2.1, 0.5], [0.25276855, 0.62171031, 0.12552115], None),
        ([2.1, 18.5, 1.3], [7.5435e-8, 0.99999989, 3.3895e-8], 1.80196e-7),
        ([0.0, 0.0], [0.5, 0.5], 0.5),
        ([0.0] * 4, [0.25] * 4, 0.4330127019),
        ([1.0, 2.0, 3.0], None, 0.3893897747),
    ],
)
def test_softmax_known_answers(row, p, norm):
    got, statistics = softmax(np.array([row], dtype=np.longdouble))
    if p is not None:
        assert got[0].astype(float) == pytest.approx(p, rel=3e-5, abs=5e-9)
    if norm is not None:
        assert float(statistics[0, 4]) == pytest.approx(norm, rel=3e-6)


def test_softmax_masks():
    z = np.zeros((2, 3))
    t, part = logits(z, causal=True)
    assert part.tolist() == [[True, True, False], [True, True, True]]
    p, statistics = softmax(t, part)
    assert p[0].tolist() == [0.5, 0.5, 0]
    p, statistics = softmax(np.array([[-np.inf] * 3, [np.nan, 0, 0]], dtype=np.longdouble))
    assert p[0].tolist() == [0, 0, 0]
    assert statistics[0, 0] == -np.inf
    assert np.all(np.isnan(statistics[0, 1:]))
    assert np.all(np.isnan(p[1]))
    assert np.all(np.isnan(statistics[1]))


def test_softmax_backward_is_the_difference_quotient(rng):
    z, dp = rng.normal(size=(2, 6)), rng.normal(size=(2, 6))
    p, _ = softmax(logits(z, scale=0.7)[0])
    dz = softmax_backward(p, dp, scale=0.7)
    step = 1e-6
    for i in range(6):
        up, down = z.copy(), z.copy()
        up[:, i] += step
        down[:, i] -= step
        change = softmax(logits(up, scale=0.7)[0])[0] - softmax(logits(down, scale=0.7)[0])[0]
        quotient = np.sum(change * dp, axis=1) / (2 * step)
        assert np.allclose(dz[:, i].astype(float), quotient.astype(float), atol=1e-9)


# --- ulps ------------------------------------------------------------------------------------


def test_ulps():
    value = np.array([1.0, 1 + 2.0**-23, np.inf, np.nan, np.inf, 1e-45, 0.0], dtype=np.float32)
    exact = np.array([1.0, 1.0, np.inf, np.nan, 1.0, 0.0, 1e-4])
    assert ulps(value[:6], exact[:6]).tolist() == [0, 1, 0, 0, np.inf, 1]
    assert ulps(value[6:], exact[6:], floor=1.0)[0] == pytest.approx(1e-4 * 2**23)
