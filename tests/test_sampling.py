# SPDX-License-Identifier: BSD-3-Clause
"""Draws: the stream contract bit for bit, the accuracy of normals, and their distribution."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import initcore as ic
from initcore import streams
from initcore.reference import sampling as reference
from initcore.reference import ulps
from initcore.reference.matmul import fma
from initcore.reference.philox import counter_of
from initcore.reference.sampling import CONSTANT, NORMAL, TRUNCATED_NORMAL, UNIFORM
from initcore.reference.tolerances import (
    NORMAL_FLOOR,
    NORMAL_ULPS,
    TRUNCATED_FLOOR,
    TRUNCATED_ULPS,
)
from initcore.truncation import FARTHEST, truncation
from kernel_calls import (
    EDGES,
    HALVES,
    constant,
    draw,
    normal,
    same_bits,
    sha256,
    truncated,
    unaligned,
    uniform,
)

# Elements where 32-bit indices or block counters would wrap, in either dtype, and far out.
FAR = (2**31 - 4, 2**32 - 4, 2**33 + 5, 2**34 - 4, 2**36 - 9, 2**37 - 9, 2**40 + 1, 2**62 + 3)
KINDS = (UNIFORM, NORMAL, TRUNCATED_NORMAL)

WORD64 = st.integers(0, 2**64 - 1)
DTYPES = st.sampled_from(["float32", "float64"])


def tile(dtype):
    return 64 if dtype == "float32" else 32


def place(words, dtype, element_row=0):
    """(first, seed, stream) of an element whose block's four output words are `words`."""
    for seed in range(100_000):
        block, stream = counter_of(words, seed)
        if block < 2**56:
            first = block // 16 * tile(dtype) + 16 * element_row + block % 16
            return {"first": first, "seed": seed, "stream": stream}
    raise AssertionError("no seed puts these words at an element below 2^58")


# --- uniforms: every bit ---------------------------------------------------------------------


@given(
    dtype=DTYPES,
    n=st.integers(0, 300),
    first=st.one_of(st.integers(0, 500), st.sampled_from(FAR)),
    seed=WORD64,
    stream=WORD64,
    low=st.floats(-1e6, 1e6),
    width=st.floats(1e-3, 1e6),
)
def test_uniform_is_the_contract(kernels, dtype, n, first, seed, stream, low, width):
    high = low + width
    parameters = (width / 2, low + width / 2, low, float(np.nextafter(np.array(high, dtype), low)))
    scale, shift, *bounds = parameters
    got = uniform(
        kernels, n, first=first, seed=seed, stream=stream, scale=scale, shift=shift,
        bounds=bounds, dtype=dtype,
    )  # fmt: skip
    assert same_bits(got, reference.draw(first, n, seed, stream, UNIFORM, *parameters, dtype=dtype))


@pytest.mark.parametrize("row", [0, 1, 2, 3])
@pytest.mark.parametrize("word", [0, 1, 255, 256, 2**31 - 1, 2**31, 2**31 + 256, 2**32 - 1])
def test_float32_uniform_of_a_word(kernels, word, row):
    """s = ((int32(word) >> 8) + ½)·2^-23: never ±1, never 0."""
    words = [123, 456, 789, 1011]
    words[row] = word
    s = uniform(kernels, 1, **place(tuple(words), "float32", row))[0]
    signed = word - 2**32 if word >= 2**31 else word
    assert float(s) == (signed // 256 + 0.5) * 2.0**-23
    assert 0 < abs(s) < 1


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("value", [0, 2047, 2048, 2**63 - 1, 2**63, 2**63 + 2048, 2**64 - 1])
def test_float64_uniform_of_two_words(kernels, value, row):
    """s = ((int64(first word, second word) >> 11) + ½)·2^-52."""
    pair, other = (value >> 32, value & 0xFFFFFFFF), (17, 18)
    words = pair + other if row == 0 else other + pair
    s = uniform(kernels, 1, dtype="float64", **place(words, "float64", row))[0]
    signed = value - 2**64 if value >= 2**63 else value
    assert float(s) == (2 * (signed // 2048) + 1) * 2.0**-53
    assert 0 < abs(s) < 1


def test_uniform_stays_inside_a_narrow_interval(dtype):
    """[1, 1 + 4 ulp) holds four numbers: all of them come, the bound never does."""
    ulp = float(np.spacing(dtype.type(1)))
    values = ic.uniform(1.0, 1.0 + 4 * ulp)((4096,), seed=1, name="narrow", dtype=dtype)
    assert set(np.unique((values - 1) / ulp)) == {0.0, 1.0, 2.0, 3.0}


def test_uniform_over_an_interval_empty_in_the_dtype_is_refused():
    with pytest.raises(ValueError, match="float32"):
        ic.uniform(1.0, 1.0 + 1e-9)((3,), seed=0, name="w", dtype="float32")
    assert np.all(ic.uniform(1.0, 1.0 + 1e-9)((3,), seed=0, name="w", dtype="float64") >= 1)


# --- normals ---------------------------------------------------------------------------------


@given(
    dtype=DTYPES,
    n=st.integers(1, 300),
    first=st.one_of(st.integers(0, 500), st.sampled_from(FAR)),
    seed=WORD64,
    stream=WORD64,
)
def test_normal_is_box_muller(kernels, dtype, n, first, seed, stream):
    z = normal(kernels, n, first=first, seed=seed, stream=stream, dtype=dtype)
    exact = reference.normal(first, n, seed, stream, dtype)
    assert np.max(ulps(z, exact, floor=NORMAL_FLOOR)) <= NORMAL_ULPS[dtype]


def test_normal_many(kernels, dtype):
    """A longer run than hypothesis draws, for the worst of the ulps."""
    n = 20_000
    z = normal(kernels, n, seed=11, stream=12, dtype=dtype)
    exact = reference.normal(0, n, 11, 12, dtype)
    assert np.max(ulps(z, exact, floor=NORMAL_FLOOR)) <= NORMAL_ULPS[dtype.name]


QUARTERS = [0, 1, 2**29 - 1, 2**29, 2**30 - 1, 2**30, 2**31 - 1, 2**31, 3 * 2**30, 2**32 - 1]


@pytest.mark.parametrize("b", QUARTERS)
@pytest.mark.parametrize("a", [0, 1, 2**16, 2**31 - 1, 2**31, 2**32 - 256, 2**32 - 2, 2**32 - 1])
def test_float32_normal_of_two_words(kernels, a, b):
    """Both ends of the radius, and every quarter of the angle: the full 32 bits count."""
    where = place((a, b, a, b), "float32")
    first, rest = where.pop("first"), where
    z = normal(kernels, 49, first=first, **rest)[::16]
    exact = reference.normal(first, 49, **rest, dtype="float32")[::16]
    assert np.max(ulps(z, exact, floor=NORMAL_FLOOR)) <= NORMAL_ULPS["float32"]
    radius = math.sqrt(-2 * math.log((a + 0.5) * 2.0**-32)) if a < 2**31 else None
    if radius is not None:
        assert math.hypot(*z[:2].astype(float)) == pytest.approx(radius, rel=1e-6)
    # what is small because the radius is small is no less precise
    largest = np.max(np.abs(exact))
    assert np.max(np.abs(z - exact)) <= NORMAL_ULPS["float32"] * largest * 2.0**-23


@pytest.mark.parametrize("b", [0, 2**61, 2**62, 2**63, 3 * 2**62, 2**64 - 1, 0x123456789ABCDEF0])
@pytest.mark.parametrize("a", [0, 2**11, 2**40, 2**63 - 1, 2**63, 2**64 - 2**12, 2**64 - 1])
def test_float64_normal_of_four_words(kernels, a, b):
    where = place((a >> 32, a & 0xFFFFFFFF, b >> 32, b & 0xFFFFFFFF), "float64")
    first, rest = where.pop("first"), where
    z = normal(kernels, 17, first=first, dtype="float64", **rest)[::16]
    exact = reference.normal(first, 17, **rest, dtype="float64")[::16]
    assert np.max(ulps(z, exact, floor=NORMAL_FLOOR)) <= NORMAL_ULPS["float64"]
    largest = np.max(np.abs(exact))
    assert np.max(np.abs(z - exact)) <= NORMAL_ULPS["float64"] * largest * 2.0**-52


def test_normal_tail_reaches_the_last_word(kernels):
    """The ends of Box–Muller: a = 0 is 6.76 σ in float32; in float64 it is 8.65 σ."""
    z32 = normal(kernels, 1, **place((0, 0, 5, 6), "float32"))[0]
    z64 = normal(kernels, 1, dtype="float64", **place((0, 0, 0, 0), "float64"))[0]
    assert float(z32) == pytest.approx(math.sqrt(66 * math.log(2)), rel=1e-6)
    assert float(z64) == pytest.approx(math.sqrt(108 * math.log(2)), rel=1e-14)


@given(dtype=DTYPES, scale=st.floats(1e-30, 1e30), shift=st.floats(-1e30, 1e30))
def test_normal_is_scaled_by_one_fma(kernels, dtype, scale, shift):
    """value = fma(z, std, mean), the parameters rounded once to the dtype."""
    real = np.dtype(dtype).type
    z = normal(kernels, 70, seed=3, stream=4, dtype=dtype)
    value = normal(kernels, 70, seed=3, stream=4, scale=scale, shift=shift, dtype=dtype)
    assert same_bits(value, fma(z, real(scale), real(shift), dtype))


# --- truncated normals -----------------------------------------------------------------------

INF = math.inf
INTERVALS = [
    (-1, 1), (-2, 2), (-2.3, 2.3), (-3, 3), (-8, 8), (-INF, INF), (0, INF), (-INF, 0), (-INF, 1),
    (-INF, -2), (-0.3, 4), (-4, 0.3), (1, 2), (1, 1.001), (-3, -2.5), (-1e-3, 2e-3), (5.25, 1e6),
    (9, INF), (10, 11), (-11, -10), (30, INF), (-INF, -FARTHEST),
]  # fmt: skip
# Every power of two and its neighbours: 0, 1, 2^31 ± 1 and 2^32 − 1 are among them.
WORDS = sorted({(2**k + d) % 2**32 for k in range(33) for d in (-1, 0, 1)})


def begins(interval):
    """How far from the mean: what the reference's time grows with."""
    a, b = interval
    return max(a, -b, 0.0)


def upper_tail(x):
    return math.erfc(x / math.sqrt(2)) / 2


def exact_moments(a, b):
    """Mean and variance of the standard normal on (a, b), by quadrature of 400 panels."""
    a, b = max(a, min(b, -5.0) - 4), min(b, max(a, 5.0) + 4)
    nodes, weights = np.polynomial.legendre.leggauss(16)
    edges = np.linspace(a, b, 401)
    half = (edges[1:] - edges[:-1])[:, None] / 2
    x = (edges[:-1, None] + half) + half * nodes
    nearest = min(abs(a), abs(b)) if a * b > 0 else 0.0
    density = weights * half * np.exp((nearest**2 - x * x) / 2)
    mean = np.sum(density * x) / np.sum(density)
    return mean, np.sum(density * (x - mean) ** 2) / np.sum(density)


@pytest.mark.parametrize("interval", INTERVALS)
def test_truncated_normal_is_the_inverse_cdf(kernels, interval, dtype):
    n = 4 if begins(interval) > 20 else 200
    x = truncated(kernels, n, interval, seed=21, stream=22, dtype=dtype)
    exact = reference.truncated_normal(0, n, 21, 22, interval, dtype)
    assert np.max(ulps(x, exact, floor=TRUNCATED_FLOOR)) <= TRUNCATED_ULPS[dtype.name]


@given(dtype=DTYPES, first=st.sampled_from(FAR), middle=st.floats(-8, 8), width=st.floats(1e-3, 9))
def test_truncated_normal_anywhere(kernels, dtype, first, middle, width):
    interval = (middle - width / 2, middle + width / 2)
    x = truncated(kernels, 20, interval, first=first, seed=5, dtype=dtype)
    exact = reference.truncated_normal(first, 20, 5, 0, interval, dtype)
    assert np.max(ulps(x, exact, floor=TRUNCATED_FLOOR)) <= TRUNCATED_ULPS[dtype]


@pytest.mark.parametrize("interval", INTERVALS)
def test_float32_truncated_normal_of_a_word(kernels, interval):
    """Right at every kind of word, rising with it, and never at or beyond a bound."""
    low = float(np.nextafter(np.float32(interval[0]), np.float32(np.inf)))
    high = float(np.nextafter(np.float32(interval[1]), np.float32(-np.inf)))
    values, exact = [], []
    for word in WORDS:
        where = place((word, 1, 2, 3), "float32")
        raw = truncated(kernels, 1, interval, **where)
        values.append(raw[0])
        if begins(interval) < 20:
            first, rest = where.pop("first"), where
            exact.append(
                reference.truncated_normal(first, 1, **rest, interval=interval, dtype="float32")[0]
            )
            clamped = truncated(kernels, 1, interval, first=first, **rest, bounds=(low, high))[0]
            assert interval[0] < clamped < interval[1]
    values = np.array(values)
    if exact:
        assert np.max(ulps(values, exact, floor=TRUNCATED_FLOOR)) <= TRUNCATED_ULPS["float32"]
    floor = np.spacing(np.maximum(np.abs(values), np.float32(TRUNCATED_FLOOR)))
    assert np.all(np.diff(values) >= -2 * TRUNCATED_ULPS["float32"] * floor[1:])
    assert np.all(np.diff(values[:: len(values) // 8]) >= 0)


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("value", [0, 2048, 2**63 - 2048, 2**63, 2**63 + 2048, 2**64 - 1])
@pytest.mark.parametrize("interval", [(-2, 2), (-8, 8), (-INF, INF), (9, INF), (-INF, 1)])
def test_float64_truncated_normal_of_two_words(kernels, interval, value, row):
    pair, other = (value >> 32, value & 0xFFFFFFFF), (17, 18)
    where = place(pair + other if row == 0 else other + pair, "float64", row)
    x = truncated(kernels, 1, interval, dtype="float64", **where)
    first, rest = where.pop("first"), where
    exact = reference.truncated_normal(first, 1, **rest, interval=interval, dtype="float64")
    assert np.max(ulps(x, exact, floor=TRUNCATED_FLOOR)) <= TRUNCATED_ULPS["float64"]


@pytest.mark.parametrize("interval", INTERVALS)
def test_truncated_normal_mirrors(kernels, interval, dtype):
    """(−b, −a) at the complements of the words is the mirror image (in float64 bit for bit)."""
    a, b = interval
    word = 0x12345678
    for w in (0, word, 2**31):
        quad = (w, w ^ 0x5555, 3, 4)
        mirror = tuple(2**32 - 1 - v for v in quad)
        x = truncated(kernels, 1, (a, b), dtype=dtype, **place(quad, dtype))
        y = truncated(kernels, 1, (-b, -a), dtype=dtype, **place(mirror, dtype))
        if dtype == np.float64:
            assert same_bits(x, -y)
        assert ulps(x, -y, TRUNCATED_FLOOR)[0] <= TRUNCATED_ULPS[dtype.name]


@pytest.mark.parametrize(
    ("interval", "mean"),
    [
        ((10, 11), 10.0980684), ((-11, -10), -10.0980684), ((9, INF), 9.1085231),
        ((5.25, 1e6), 5.4286554), ((-2, 2), 0.0), ((-INF, 0.5), None), ((-1, 3), None),
    ],
)  # fmt: skip
def test_truncated_moments(kernels, interval, mean, dtype):
    """scipy #2477, #13966, jax #10951: means of the far tails; and the variance."""
    n = 1 << 14 if kernels.isa == "portable" else 1 << 18
    x = truncated(kernels, n, interval, seed=8, dtype=dtype).astype(np.float64)
    expected, variance = exact_moments(*interval)
    if mean is not None:
        assert expected == pytest.approx(mean, abs=6e-8)
    within_5_sigma(np.mean(x), expected, math.sqrt(variance / n))
    fourth = np.mean((x - expected) ** 4)
    within_5_sigma(np.mean((x - expected) ** 2), variance, math.sqrt((fourth - variance**2) / n))


def test_truncated_standard_deviations(kernels, dtype):
    """keras #8048, torchtitan #3334, timm #1286: ±2 of the parent's σ leaves .87962566 of it."""
    n = 1 << 14 if kernels.isa == "portable" else 1 << 18
    for scale, std in [(0.02, 0.0175925), (0.02 / 0.87962566103423978, 0.02)]:
        x = truncated(kernels, n, (-2, 2), scale=scale, seed=9, dtype=dtype).astype(np.float64)
        assert np.max(np.abs(x)) <= 2 * scale * (1 + 1e-6)
        within_5_sigma(np.std(x), std, std / math.sqrt(2 * n))


@given(dtype=DTYPES, scale=st.floats(1e-30, 1e30), shift=st.floats(-1e30, 1e30))
def test_truncated_normal_is_scaled_by_one_fma(kernels, dtype, scale, shift):
    real = np.dtype(dtype).type
    x = truncated(kernels, 70, (-1, 2), seed=3, dtype=dtype)
    value = truncated(kernels, 70, (-1, 2), seed=3, scale=scale, shift=shift, dtype=dtype)
    assert same_bits(value, fma(x, real(scale), real(shift), dtype))


@pytest.mark.parametrize("interval", [(1, 1), (2, 1), (math.nan, 1), (0, math.nan), (INF, INF)])
def test_an_empty_interval_is_refused(interval):
    with pytest.raises(ValueError, match="lower < upper"):
        truncation(*interval)


@pytest.mark.parametrize("interval", [(37.5, 38), (-INF, -38), (1e9, INF)])
def test_an_interval_beyond_reach_is_refused(interval):
    with pytest.raises(ValueError, match="37"):
        truncation(*interval)


def test_truncation_is_that_of_the_normal():
    """tail, slope, spread, centre and offset from erfc, in the middle where that is enough."""
    low, high, *slopes, spread, centre, offset = truncation(-1.0, 3.0)
    below, above = upper_tail(1.0), upper_tail(3.0)
    assert (low, high) == pytest.approx((below, above), rel=1e-14)
    assert [*slopes, spread] == pytest.approx([1 - below - above] * 3, rel=1e-14)
    assert (centre, offset) == (pytest.approx((below - above) / 2, rel=1e-14), 0)


# --- halves ------------------------------------------------------------------------------------


def widened(bits, half):
    """The float32 numbers that bits of a half mean."""
    if half == "float16":
        return bits.astype(np.uint16).view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("kind", [CONSTANT, *KINDS])
@pytest.mark.parametrize("scale", [1.0, 3e-8, 1e-5, 2e4])
def test_a_half_is_the_float32_number_rounded_once(kernels, half, kind, scale):
    """Subnormal halves, ties to even and (here alone, for float16) overflow included."""
    words = {"kind": kind, "scale": scale, "shift": scale / 3, "seed": 4, "first": 5}
    for n in EDGES:
        wide = draw(kernels, n, **words)
        with np.errstate(over="ignore"):
            half_bits = wide.astype(np.float16).view(np.uint16)
        expected = half_bits if half == "float16" else reference.bfloat16(wide)
        got = draw(kernels, n, dtype=half, **words)
        assert got.dtype == np.uint16
        assert np.array_equal(got, expected)


@pytest.mark.parametrize("half", HALVES)
def test_every_kind_of_half(kernels, half):
    """Constants at, beside and halfway between halves, of every exponent and both signs."""
    infinity = {"float16": 0x7C00, "bfloat16": 0x7F80}[half]
    bits = np.arange(0, infinity, 29, dtype=np.uint16)
    bits = np.concatenate([bits, bits[-1:] + np.uint16(1), [0, 1, 2, 0x3FF, 0x400, infinity - 1]])
    for value, above in zip(widened(bits, half), widened(bits + 1, half), strict=True):
        middle = np.float32((float(value) + float(above)) / 2)
        middle = middle if np.isfinite(middle) else value
        for wide in (value, middle, *np.nextafter(middle, np.float32([0, np.inf]))):
            for signed in (wide, -wide):
                got = draw(kernels, 1, kind=CONSTANT, shift=float(signed), dtype=half)
                if half == "float16":
                    with np.errstate(over="ignore"):
                        expected = np.float16(signed).view(np.uint16)
                else:
                    expected = reference.bfloat16(np.array([signed], np.float32))[0]
                assert got[0] == expected


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("kind", [UNIFORM, TRUNCATED_NORMAL])
def test_a_half_stays_within_its_bounds(kernels, half, kind):
    """The bounds are halves: what rounding would carry out of them is the next value inside."""
    unit = 2.0**-10 if half == "float16" else 2.0**-7
    bounds = (1.0 + unit, 2.0 - unit)  # of the open interval (1, 2)
    bits = draw(
        kernels, 5000, kind=kind, scale=0.5, shift=1.5, bounds=bounds, interval=(-1, 1), dtype=half
    )
    wide = widened(bits, half)
    assert np.min(wide) == bounds[0]
    assert np.max(wide) == bounds[1]


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_instruction_set_draws_the_same_halves(every_isa, half, kind):
    words = {"kind": kind, "seed": 1, "scale": 0.3, "shift": 7, "dtype": half}
    for n in (*EDGES, 1000):
        draws = [draw(k, n, first=5, **words) for k in every_isa]
        assert all(np.array_equal(draws[0], other) for other in draws)


def test_a_half_equals_the_reference(kernels):
    for half in HALVES:
        got = draw(kernels, 100, kind=UNIFORM, seed=6, stream=7, dtype=half)
        expected = reference.draw(0, 100, 6, 7, UNIFORM, 1.0, 0.0, -INF, INF, half)
        assert np.array_equal(got, expected)


# --- rows --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [CONSTANT, *KINDS])
@pytest.mark.parametrize("dtype", ["float32", "float64", *HALVES])
@pytest.mark.parametrize("columns", [0, 1, 7, 63, 64, 65, 200])
def test_rows_are_runs_of_the_stream(kernels, kind, dtype, columns):
    """Row r begins at element first + r·stride, which may pass 2^32 blocks and wrap at 2^64."""
    for first, stride in [(3, 100), (2**38 - 70, 65), (5, 2**38 + 1), (2**64 - 9, 3), (7, 0)]:
        words = {"kind": kind, "seed": 2, "stream": 3, "dtype": dtype, "shift": 0.25}
        got = draw(kernels, (4, columns), first=first, stride=stride, **words)
        for r, row in enumerate(got):
            begin = (first + r * stride) % 2**64
            expected = draw(kernels, columns, first=begin, **words)
            assert np.array_equal(row.view(np.uint8), expected.view(np.uint8))


@pytest.mark.parametrize(
    "out",
    [
        np.empty(4, np.int32), np.empty(4, np.uint16), np.empty((2, 2, 2), np.float32),
        np.empty((4, 4), np.float32)[:, ::2], np.float32(0),
    ],
)  # fmt: skip
def test_the_binding_takes_one_kind_of_memory(kernels, out):
    with pytest.raises(TypeError, match="out"):
        kernels.draw(out, 0, 0, 0, NORMAL, 1.0, 0.0, 0.0, 0.0)
    frozen = np.zeros(4, np.float32)
    frozen.flags.writeable = False
    with pytest.raises(TypeError, match="out"):
        kernels.draw(frozen, 0, 0, 0, NORMAL, 1.0, 0.0, 0.0, 0.0)


def test_constant(kernels, dtype):
    for n in EDGES:
        assert same_bits(constant(kernels, n, 0.1, dtype=dtype), np.full(n, 0.1, dtype))


# --- the same numbers whatever the shape, the offset, the machine, the threads -----------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_shorter_draw_is_a_prefix(kernels, kind, dtype):
    """Draw(15) == draw(16)[:15], at every length around a vector and a tile. (pytorch #80202, jax
    #2155)"""
    whole = draw(kernels, max(EDGES) + 1, kind=kind, dtype=dtype)
    for n in EDGES:
        assert same_bits(draw(kernels, n, kind=kind, dtype=dtype), whole[:n])


def test_a_taller_array_has_the_same_leading_rows(dtype):
    """pytorch #80202, jax #2155: growing axis 0 changes nothing above."""
    short = ic.normal()((15, 3), seed=0, name="w", dtype=dtype)
    tall = ic.normal()((400, 3), seed=0, name="w", dtype=dtype)
    assert same_bits(short, tall[:15])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("base", [0, *FAR])
def test_a_draw_may_begin_anywhere(kernels, kind, base, dtype):
    """Elements from `base` on, cut at any offset; and they are not those 2^32 elements away."""
    base -= base % 64 if base > 100 else 0
    whole = draw(kernels, 200, first=base, kind=kind, dtype=dtype)
    for offset in (1, 3, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 127, 129):
        part = draw(kernels, 70, first=base + offset, kind=kind, dtype=dtype)
        assert same_bits(part, whole[offset : offset + 70])
    other = draw(kernels, 200, first=base + 2**32, kind=kind, dtype=dtype)
    assert not np.any(whole == other)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("element", FAR)
def test_elements_far_out(kernels, kind, element, dtype):
    """Where an index or the block counter passes 2^31 or 2^32, against the reference."""
    got = draw(kernels, 8, first=element, seed=9, stream=8, kind=kind, dtype=dtype)
    if kind == TRUNCATED_NORMAL:
        exact = reference.truncated_normal(element, 8, 9, 8, (-2.0, 2.0), dtype)
        assert np.max(ulps(got, exact, floor=TRUNCATED_FLOOR)) <= TRUNCATED_ULPS[dtype.name]
        return
    exact = (reference.uniform if kind == UNIFORM else reference.normal)(element, 8, 9, 8, dtype)
    allowed = 0 if kind == UNIFORM else NORMAL_ULPS[dtype.name]
    assert np.max(ulps(got, exact, floor=NORMAL_FLOOR)) <= allowed


@pytest.mark.parametrize("kind", KINDS)
def test_every_instruction_set_draws_the_same_bits(every_isa, kind, dtype):
    """pytorch #155552: one hash of 1000 numbers, and at every length."""
    hashes = {sha256(draw(k, 1000, kind=kind, seed=1, stream=2, dtype=dtype)) for k in every_isa}
    assert len(hashes) == 1
    for n in EDGES:
        draws = [draw(k, n, first=5, kind=kind, scale=0.3, shift=7, dtype=dtype) for k in every_isa]
        assert all(same_bits(draws[0], other) for other in draws)


@pytest.mark.parametrize("initializer", [ic.normal(std=0.5, mean=2.0), ic.uniform(-1.0, 3.0)])
def test_threads_do_not_change_a_draw(initializer, dtype):
    """numba #8957: 10^6 numbers and 1, 2, 3, 7, 16 threads."""
    hashes = {
        sha256(initializer((1000, 1000), seed=5, name="w", dtype=dtype, threads=threads))
        for threads in (1, 2, 3, 7, 16)
    }
    assert len(hashes) == 1


# --- seeds, names, trials ----------------------------------------------------------------------


def test_a_name_owns_its_numbers():
    """Neither a new tensor nor the order of drawing changes what a name gets. (AiDotNet #1523,
    allennlp #199)"""

    def init(names):
        return {name: ic.normal()((8, 8), seed=0, name=name) for name in names}

    before, after, shuffled = init("abc"), init("axbc"), init("cbxa")
    for name in "abc":
        assert same_bits(before[name], after[name])
        assert same_bits(before[name], shuffled[name])
    assert not np.any(before["a"] == before["b"])


def test_the_stream_of_a_name_is_the_contract(dtype):
    for name, trial in [("fc1.weight", 0), ("é", 3), ("", 0), (7, 0), (2**64 - 1, 2)]:
        assert streams.stream_id(name, trial) == reference.stream_id(name, trial)
        got = ic.uniform(-2.0, 6.0)((33,), seed=4, name=name, trial=trial, dtype=dtype)
        below = float(np.nextafter(dtype.type(6), dtype.type(0)))
        stream = reference.stream_id(name, trial)
        assert same_bits(
            got, reference.draw(0, 33, 4, stream, UNIFORM, 4.0, 2.0, -2.0, below, dtype)
        )


def test_seeds_trials_and_names_all_matter():
    draws = [
        ic.normal()((64,), seed=seed, name=name, trial=trial)
        for seed in (0, 1, 2**32, 2**63)
        for name in ("w", "v", 0, "0")
        for trial in (0, 1)
    ]
    for i, a in enumerate(draws):
        assert not any(np.any(a == b) for b in draws[:i])


@pytest.mark.parametrize("seed", [None, True, np.True_, 1.0, "1", -1, 2**64])
def test_a_seed_is_never_truncated(seed):
    error = ValueError if isinstance(seed, int) and not isinstance(seed, bool) else TypeError
    with pytest.raises(error, match="seed"):
        ic.normal()((3,), seed=seed, name="w")


@pytest.mark.parametrize("seed", [np.int8(5), np.uint64(5), np.int64(5)])
def test_numpy_integers_are_seeds(seed):
    assert same_bits(ic.normal()((3,), seed=seed, name="w"), ic.normal()((3,), seed=5, name="w"))


def test_seed_and_name_are_required():
    with pytest.raises(TypeError, match="name"):
        ic.normal()((3,), seed=0)
    with pytest.raises(TypeError, match="seed"):
        ic.normal()((3,), name="w")
    with pytest.raises(TypeError, match="name"):
        ic.normal()((3,), seed=0, name=1.5)


# --- dtypes and outputs --------------------------------------------------------------------------


def test_an_integer_dtype_is_refused():
    """pytorch #180560: a TypeError that names the dtypes accepted."""
    with pytest.raises(TypeError, match="dtype") as raised:
        ic.kaiming_normal()((2, 2), seed=0, name="w", dtype=np.int64)
    assert all(word in str(raised.value) for word in ("int64", "float32", "float64"))


@pytest.mark.parametrize("initializer", [ic.normal(), ic.uniform(-1.0, 1.0), ic.constant(3.0)])
def test_out_in_any_layout_gets_the_logical_order(initializer, dtype):
    """C, Fortran, strided, reversed and transposed outputs hold the same matrix. (numpy #18704,
    cupy #4903)"""
    expected = initializer((12, 17), seed=3, name="w", dtype=dtype)
    outs = [
        np.empty((12, 17), dtype),
        np.empty((12, 17), dtype, order="F"),
        np.empty((24, 34), dtype)[::2, ::2],
        np.empty((12, 17), dtype)[::-1, ::-1],
        np.empty((17, 12), dtype).T,
        unaligned(np.empty((12, 17), dtype)),
    ]
    for out in outs:
        assert initializer((12, 17), seed=3, name="w", out=out) is out
        assert same_bits(np.ascontiguousarray(out), expected)


def test_a_large_strided_out():
    """More than one scratch block, and the gaps between the elements are left alone."""
    storage = np.full((700, 2000), -7.0, np.float32)
    ic.normal()((700, 1000), seed=0, name="w", out=storage[:, ::2], threads=2)
    assert same_bits(
        np.ascontiguousarray(storage[:, ::2]), ic.normal()((700, 1000), seed=0, name="w")
    )
    assert np.all(storage[:, 1::2] == -7)


def outputs_to_refuse():
    read_only = np.zeros((4, 4), np.float32)
    read_only.flags.writeable = False
    overlapping = np.lib.stride_tricks.as_strided(np.zeros(8, np.float32), (4, 4), (4, 4))
    native = "<" if np.little_endian else ">"
    swapped = np.dtype(np.float32).newbyteorder(">" if native == "<" else "<")
    return {
        "integer": (np.zeros((4, 4), np.int32), TypeError),
        "swapped": (np.zeros((4, 4), swapped), TypeError),
        "list": ([[0.0] * 4] * 4, TypeError),
        "masked": (np.ma.zeros((4, 4), np.float32), TypeError),
        "read-only": (read_only, ValueError),
        "overlapping": (overlapping, ValueError),
        "shape": (np.zeros((4, 5), np.float32), ValueError),
    }


@pytest.mark.parametrize("kind", outputs_to_refuse())
def test_unusable_outputs_are_refused_untouched(kind):
    """numpy #18704, cupy #4903: refused before any write, by name."""
    out, error = outputs_to_refuse()[kind]
    with pytest.raises(error, match="out"):
        ic.normal()((4, 4), seed=0, name="w", out=out)
    assert not np.any(np.asarray(out))


def test_dtype_and_out_must_agree():
    out = np.zeros(3, np.float64)
    assert ic.normal()((3,), seed=0, name="w", out=out).dtype == np.float64
    out[:] = 0
    with pytest.raises(TypeError, match="dtype"):
        ic.normal()((3,), seed=0, name="w", out=out, dtype=np.float32)
    assert not np.any(out)
    assert ic.normal()((3,), seed=0, name="w").dtype == np.float32


@pytest.mark.parametrize("shape", [(), (0,), (0, 5), (5, 0), (3, 0, 2)])
def test_shapes_without_elements_and_scalars(shape, dtype):
    value = ic.normal()(shape, seed=0, name="w", dtype=dtype)
    assert (value.shape, value.dtype) == (shape, dtype)


@pytest.mark.parametrize("std", [-1.0, math.nan, math.inf])
def test_impossible_standard_deviations_are_refused(std):
    with pytest.raises(ValueError, match="std"):
        ic.normal(std=std)


# --- the distribution ----------------------------------------------------------------------------


N = 1 << 20


@pytest.fixture(scope="module", params=["float32", "float64"])
def large_normal(request):
    z = ic.normal()((N,), seed=2024, name="distribution", dtype=request.param)
    return z.astype(np.float64)


@pytest.fixture(scope="module", params=["float32", "float64"])
def large_uniform(request):
    u = ic.uniform(-1.0, 1.0)((N,), seed=2024, name="distribution", dtype=request.param)
    return u.astype(np.float64)


def within_5_sigma(value, expected, standard_error):
    assert abs(value - expected) <= 5 * standard_error


def test_normal_moments(large_normal):
    """Moments 1–4 (the variance of z^k is E z^2k − (E z^k)²)."""
    for power, mean, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]:
        within_5_sigma(np.mean(large_normal**power), mean, math.sqrt(variance / N))


def test_normal_tails(large_normal):
    for threshold in (1, 2, 3, 4, 4.5):
        share = math.erfc(threshold / math.sqrt(2)) / 2
        for side in (large_normal, -large_normal):
            count = np.count_nonzero(side > threshold)
            within_5_sigma(count, N * share, math.sqrt(N * share))


def cells_agree(counts, total):
    """χ² over equal cells, its normal limit at this many degrees of freedom."""
    expected = total / len(counts)
    chi2 = np.sum((counts - expected) ** 2) / expected
    freedom = len(counts) - 1
    within_5_sigma(chi2, freedom, math.sqrt(2 * freedom))


def test_normal_fills_equal_cells_equally(large_normal):
    share = np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in large_normal[: 1 << 18]])
    cells_agree(np.bincount((share * 1000).astype(int), minlength=1000), len(share))


def test_uniform_fills_equal_cells_equally(large_uniform):
    cells_agree(np.bincount(((large_uniform + 1) * 500).astype(int), minlength=1000), N)
    for power, mean in [(1, 0), (2, 1 / 3), (3, 0), (4, 1 / 5)]:
        variance = 1 / (2 * power + 1) - mean**2
        within_5_sigma(np.mean(large_uniform**power), mean, math.sqrt(variance / N))


@pytest.mark.parametrize("lag", [1, 15, 16, 17, 32, 48, 63, 64, 65, 1024])
def test_elements_are_uncorrelated(large_normal, large_uniform, lag):
    """At the lags of a vector, of a Box–Muller pair, of a word and of a tile; squares too."""
    a, b = large_normal[:-lag], large_normal[lag:]
    error = 1 / math.sqrt(len(a))
    within_5_sigma(np.mean(a * b), 0, error)
    within_5_sigma(np.mean((a**2 - 1) * (b**2 - 1)), 0, 2 * error)
    u, v = large_uniform[:-lag], large_uniform[lag:]
    within_5_sigma(np.mean(u * v), 0, error / 3)


@pytest.mark.parametrize("other", [{"seed": 2025}, {"trial": 1}, {"name": "distribution2"}])
def test_streams_are_uncorrelated(other):
    base = {"seed": 2024, "name": "distribution", "trial": 0}
    a = ic.normal()((N // 4,), **base)
    b = ic.normal()((N // 4,), **(base | other))
    within_5_sigma(float(np.mean(a * b, dtype=np.float64)), 0, 1 / math.sqrt(N // 4))


def test_standard_deviation_and_mean(dtype):
    w = ic.normal(std=0.02, mean=0.5)((N // 4,), seed=1, name="w", dtype=dtype).astype(float)
    within_5_sigma(np.mean(w), 0.5, 0.02 / math.sqrt(N // 4))
    within_5_sigma(np.std(w), 0.02, 0.02 / math.sqrt(N // 2))
