# SPDX-License-Identifier: BSD-3-Clause
"""The laws of single entries: mean, standard deviation and bound against closed forms at 50
digits, samples within 5 sigma, the dtypes' roundings, and what is refused."""

import itertools
import math
import pickle
import subprocess
import sys

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import initcore as ic
from draws import (
    DTYPE_NAMES,
    DTYPES,
    ELEMENTWISE,
    HALVES,
    OF_FANS,
    follows,
    moments_agree,
    needs_bfloat16,
    same,
    values_of,
    within_5_sigma,
)
from initcore.dtypes import find_dtype
from initcore.reference.sampling import bfloat16

INF = math.inf
# √(1 − 2kφ(k)/(2Φ(k) − 1)): what the cut at k leaves of the parent's standard deviation
LEFT = {
    1.0: 0.539560093754896973,
    2.0: 0.879625661034239780,
    2.5: 0.954597486344580699,
    3.0: 0.986578392558108621,
}


def draw(init, shape=(500, 400), **keywords):
    return init(shape, **{"seed": 11, "name": "w", **keywords})


def truncated_moments(mean, std, low, high):
    """(mean, std) of N(mean, std²) on (low, high), rounded from 50 digits."""
    with mpmath.workdps(50):
        if low + high < 2 * mean:  # the upper tail's functions, which do not cancel
            mirrored, deviation = truncated_moments(-mean, std, -high, -low)
            return -mirrored, deviation
        a, b = ((mpmath.mpf(x) - mean) / std for x in (low, high))
        mass = (mpmath.erfc(a / mpmath.sqrt(2)) - mpmath.erfc(b / mpmath.sqrt(2))) / 2
        centre = (mpmath.npdf(a) - mpmath.npdf(b)) / mass
        edges = sum(
            sign * x * mpmath.npdf(x) for sign, x in ((1, a), (-1, b)) if mpmath.isfinite(x)
        )
        variance = 1 + edges / mass - centre**2
        return float(mean + std * centre), float(std * mpmath.sqrt(variance))


def test_the_closed_form_itself():
    """By quadrature of the density; and the four constants."""
    for mean, std, low, high in [(0.3, 2, -1, 4), (0, 1, 5.25, 7), (1, 0.5, -3, 0)]:
        with mpmath.workdps(30):
            points = mpmath.linspace(low, high, 9)

            def moment(k, mean=mean, std=std, points=points):
                return mpmath.quad(lambda x: x**k * mpmath.npdf(x, mean, std), points)

            centre = moment(1) / moment(0)
            deviation = mpmath.sqrt(moment(2) / moment(0) - centre**2)
        expected = (float(centre), float(deviation))
        assert truncated_moments(mean, std, low, high) == pytest.approx(expected, rel=1e-14)
    for cut, left in LEFT.items():
        assert truncated_moments(0, 1, -cut, cut)[1] == pytest.approx(left, rel=1e-15)


# --- cuts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", LEFT)
def test_a_corrected_cut_has_the_deviation_asked_for(cut):
    """keras #8048, tensorflow #18706: the parent is widened by what the cut takes."""
    init = ic.truncated_normal(0.3, cut=cut)
    assert init.std((3,)) == pytest.approx(0.3, rel=1e-14)
    assert init.bound((3,)) == pytest.approx(0.3 * cut / LEFT[cut], rel=1e-14)
    assert init.law((3,)).mean == 0


@pytest.mark.parametrize("cut", LEFT)
def test_an_uncorrected_cut_has_less(cut):
    init = ic.truncated_normal(0.3, 0.25, cut=cut, corrected=False)
    assert init.std((3,)) == pytest.approx(0.3 * LEFT[cut], rel=1e-14)
    assert init.bound((3,)) == pytest.approx(0.25 + 0.3 * cut, rel=1e-14)
    assert init.law((3,)).mean == 0.25


@pytest.mark.parametrize("cut", [1e-3, 0.1, 0.7, 4.0, 8.0, 30.0])
def test_any_cut(cut):
    """Narrow, where the law is nearly uniform (σ = cut/√3), and wide, where nothing is cut."""
    left = truncated_moments(0, 1, -cut, cut)[1]
    assert ic.truncated_normal(cut=cut, corrected=False).std(()) == pytest.approx(left, rel=1e-12)
    init = ic.truncated_normal(cut=cut)
    assert init.std(()) == pytest.approx(1, rel=1e-12)
    assert init.bound(()) == pytest.approx(cut / left, rel=1e-12)


def test_the_two_readings_of_two_sigma():
    """torchtitan #3334, timm #1286: std 0.02 with ±2 of what?"""
    parent, corrected = ic.truncated_normal(0.02, corrected=False), ic.truncated_normal(0.02)
    assert parent.std((1,)) == pytest.approx(0.0175925, abs=5e-8)
    assert parent.bound((1,)) == pytest.approx(0.04, rel=1e-15)
    assert corrected.std((1,)) == pytest.approx(0.02, rel=1e-15)
    assert corrected.bound((1,)) == pytest.approx(0.0454739, abs=5e-8)
    for init, std, bound in ((parent, 0.0175925132, 0.04), (corrected, 0.02, 0.0454739)):
        x = draw(init)
        moments_agree(x, 0, std)
        assert 0.998 * bound < np.abs(x).max() < bound
    with pytest.warns(UserWarning, match="100"):
        useless = ic.truncated_normal(0.02, bounds=(-2, 2))
    assert useless.std((1,)) == pytest.approx(0.02, rel=1e-14)
    assert useless.bound((1,)) == 2
    moments_agree(draw(useless), 0, 0.02)


@pytest.mark.parametrize("bounds", [(-7, 7), (-INF, INF), (-6.5, INF)])
def test_bounds_that_truncate_nothing_are_reported(bounds):
    """torchtitan #3334: the reader believed in a truncation."""
    with pytest.warns(UserWarning, match="truncate"):
        ic.truncated_normal(bounds=bounds)


@pytest.mark.parametrize("bounds", [(-5.5, 5.5), (-INF, 5.5), (-5.5, INF), (0, INF), (7, INF)])
def test_bounds_that_truncate_are_not(bounds):
    """One bound within 6 σ is enough; warnings are errors here."""
    ic.truncated_normal(bounds=bounds)


def test_variance_scaling_truncated_keeps_its_variance():
    """keras #8048, tensorflow #18706: not 77 % of it."""
    init = ic.variance_scaling(1000, "fan_in", "truncated_normal")
    assert init.std((1000, 1000)) == pytest.approx(1, rel=1e-14)
    assert init.bound((1000, 1000)) == pytest.approx(2 / LEFT[2.0], rel=1e-14)
    x = draw(init, (1000, 1000))
    moments_agree(x, 0, 1)
    within_5_sigma(np.mean(x.astype(np.float64) ** 2), 1.0, 1.1e-3)


@pytest.mark.parametrize("name", ["xavier_normal", "kaiming_normal", "lecun_normal"])
def test_normals_of_fans_have_a_truncated_form(name):
    """As Keras and JAX have them: the same standard deviation, cut at 2 of the parent's."""
    plain = getattr(ic, name)()
    cut = getattr(ic, name)(distribution="truncated_normal")
    assert getattr(ic, name)(distribution="normal") == plain
    std = plain.std((40, 60))
    assert cut.std((40, 60)) == pytest.approx(std, rel=1e-14)
    assert cut.bound((40, 60)) == pytest.approx(2 * std / LEFT[2.0], rel=1e-14)
    assert plain.bound((40, 60)) == INF
    moments_agree(draw(cut, (600, 400)), 0, cut.std((600, 400)))


# --- absolute bounds ---------------------------------------------------------------------------

TAILS = [  # N(mean, std²) on (low, high); the last column as reported
    (0, 1, 10, 11, 10.0980684), (0, 1, -11, -10, -10.0980684), (0, 1, 9, INF, 9.1085231),
    (0, 1, -INF, -9, -9.1085231), (0, 1, 5.25, 1e6, 5.4286554), (0, 1, -1e6, -5.25, -5.4286554),
]  # fmt: skip
MIDDLES = [
    (0, 1, -2, 2), (0, 1, 0, INF), (0, 1, -INF, 0.5), (0.3, 2, -1, 4), (0, 0.02, -0.01, 0.05),
    (5, 2, -INF, 1), (1, 0.1, 1.2, 1.3), (0, 1, 1, 1.001), (0, 1, -1e-3, 2e-3), (0, 1, 30, INF),
    (0, 1, -INF, -36.5), (0, 1, 30, 30.001), (-2, 0.5, 4, 5),
]  # fmt: skip


@pytest.mark.parametrize(("mean", "std", "low", "high"), [*(t[:4] for t in TAILS), *MIDDLES])
def test_moments_between_absolute_bounds(mean, std, low, high):
    """scipy #2477, #13966, jax #10951: also in the tails, where naive formulas cancel."""
    init = ic.truncated_normal(std, mean, bounds=(low, high))
    expected_mean, expected_std = truncated_moments(mean, std, low, high)
    assert init.law(()).mean == pytest.approx(expected_mean, rel=1e-12)
    assert init.std(()) == pytest.approx(expected_std, rel=1e-9)
    assert init.bound(()) == max(abs(low), abs(high))
    # The parent's std is the one asked for: bounds are never corrected for.
    assert ic.truncated_normal(std, mean, bounds=(low, high), corrected=True) == init


@pytest.mark.parametrize(("mean", "std", "low", "high", "reported"), TAILS)
def test_reported_means_of_the_tails(mean, std, low, high, reported):
    """scipy #2477, #13966, jax #10951."""
    assert ic.truncated_normal(std, mean, bounds=(low, high)).law(()).mean == pytest.approx(
        reported, abs=6e-8
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("mean", "std", "low", "high"), [*(t[:4] for t in TAILS), *MIDDLES[:7], (0, 1, 30, INF)]
)
def test_samples_between_absolute_bounds(mean, std, low, high, dtype):
    """scipy #2477, #13966, jax #10951: finite, strictly inside, mean and deviation of the law."""
    x = draw(ic.truncated_normal(std, mean, bounds=(low, high)), dtype=dtype).astype(np.float64)
    assert np.all(np.isfinite(x))
    assert np.all((low < x) & (x < high))
    expected = truncated_moments(mean, std, low, high)
    # A half has a few values in a narrow interval: their spacing is a spread of its own.
    spacing = {"float16": 2.0**-11, "bfloat16": 2.0**-8}.get(dtype, 0) * np.abs(x).max()
    if spacing < 0.05 * expected[1]:
        moments_agree(x, *expected)
    else:
        assert abs(x.mean() - expected[0]) <= spacing


def test_both_tails_mirror():
    """scipy #13966, jax #10951: asymmetric tails. The laws of (a, b) and (−b, −a), by their
    quantiles, and their moments exactly."""
    for low, high in ((10, 11), (9, INF), (0.5, 2), (-1, 3)):
        right, left = (
            ic.truncated_normal(bounds=bounds) for bounds in ((low, high), (-high, -low))
        )
        assert right.std(()) == left.std(())
        assert right.law(()).mean == -left.law(()).mean
        x, y = draw(right), -draw(left)
        n = x.size
        for quantile in (0.001, 0.25, 0.5, 0.75, 0.999):
            cut = np.quantile(x, quantile)
            within_5_sigma(
                np.mean(y <= cut), quantile, math.sqrt(2 * quantile * (1 - quantile) / n)
            )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("low", "high"), [(-2, 2), (-1, 3), (0, INF), (5.25, INF), (-INF, -9), (10, 11)]
)
def test_a_truncated_normal_follows_its_distribution_function(low, high, dtype):
    """Kolmogorov-Smirnov at 5 sigma against (Q(low) − Q(x))/(Q(low) − Q(high))."""
    x = draw(ic.truncated_normal(bounds=(low, high)), (200, 100), dtype=dtype)

    def cdf(x):
        # the upper tail Q does not cancel above, nor the lower below
        side = 1 if low + high > 0 or low == 0 else -1
        tail = np.array([math.erfc(side * v / math.sqrt(2)) for v in x])
        at_low, at_high = (math.erfc(side * v / math.sqrt(2)) for v in (low, high))
        return (tail - at_low) / (at_high - at_low)

    follows(x, cdf)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_half_normal(dtype):
    """bounds=(0, ∞): mean √(2/π), variance 1 − 2/π, and no zero."""
    init = ic.truncated_normal(bounds=(0, INF))
    mean, std = math.sqrt(2 / math.pi), math.sqrt(1 - 2 / math.pi)
    assert init.law(()).mean == pytest.approx(mean, rel=1e-14)
    assert init.std(()) == pytest.approx(std, rel=1e-14)
    assert init.bound(()) == INF
    x = draw(init, dtype=dtype)
    moments_agree(x, mean, std)
    assert np.all(x.astype(np.float64) > 0)


# --- scaling -----------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ELEMENTWISE)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_factor_multiplies_every_value(spec, dtype):
    """By a power of two exactly, but for float16's numbers without an exponent of their own."""
    init, doubled = ic.initializer(spec), ic.initializer(spec).scaled(2)
    assert doubled.std((3,)) == pytest.approx(2 * init.std((3,)), rel=1e-14)
    assert doubled.bound((3,)) == pytest.approx(2 * init.bound((3,)), rel=1e-14)
    assert doubled.law((3,)).mean == pytest.approx(2 * init.law((3,)).mean, rel=1e-14)
    x, y = (draw(i, 1000, dtype=dtype).astype(np.float64) for i in (init, doubled))
    normal_numbers = (np.abs(x) >= 2.0**-14) | (dtype != "float16")
    np.testing.assert_array_equal(y[normal_numbers], 2 * x[normal_numbers])
    assert np.all(np.abs(y - 2 * x) <= 2.0**-24)


def test_a_factor_of_zero():
    """Zeros, and a law without spread."""
    for spec in ELEMENTWISE:
        init = ic.initializer(spec).scaled(0)
        assert (init.std((3,)), init.law((3,)).mean) == (0, 0)
        assert not np.any(draw(init, 50))


# --- dtypes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("spec", ["normal()", "normal(std=0.02, mean=1)", "kaiming_normal()"])
def test_a_half_is_the_float32_value_rounded_once(spec, half):
    """To the nearest, of two the even one."""
    init = ic.initializer(spec)
    wide, rounded = draw(init), draw(init, dtype=half)
    assert rounded.dtype == np.dtype(half)
    expected = wide.astype(np.float16).view(np.uint16) if half == "float16" else bfloat16(wide)
    assert np.array_equal(rounded.view(np.uint16), expected)


BOUNDED = [  # the initializer, its ends, and whether the lower one is taken
    ("uniform(-1, 1)", -1, 1, False),
    ("uniform(-0.1, 0.1)", -0.1, 0.1, False),
    ("uniform(0.1, 0.3)", 0.1, 0.3, True),
    ("uniform(1, 1.04)", 1, 1.04, True),
    ("truncated_normal(0.02, corrected=False)", -0.04, 0.04, False),
    ("truncated_normal(0.5, 1, cut=1, corrected=False)", 0.5, 1.5, False),
    ("truncated_normal(bounds=(1, 1.04))", 1, 1.04, False),
    ("truncated_normal(bounds=(-0.3, 0.1))", -0.3, 0.1, False),
    ("truncated_normal(bounds=(-1e999, -1))", -INF, -1, False),
    ("truncated_normal(bounds=(10, 11))", 10, 11, False),
]


def halves_inside(half, low, high, closed):
    """The halves that may come: an excluded bound excludes its rounding too, so that nobody sees it
    reached, whichever of the two the result is compared with."""
    values, rounded = values_of(half), np.array([low, high]).astype(half).astype(np.float64)
    above = values >= low if closed else (values > low) & (values > rounded[0])
    return values[above & (values < high) & (values < rounded[1])]


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize(("spec", "low", "high", "closed"), BOUNDED)
def test_a_half_between_bounds_is_the_nearest_inside(spec, low, high, closed, half):
    """Where rounding would reach an excluded bound, the next value inside."""
    init, inside = ic.initializer(spec), halves_inside(half, low, high, closed)
    wide = draw(init).astype(np.float64)
    nearest = (
        wide.astype(np.float16).astype(np.float64)
        if half == "float16"
        else (bfloat16(wide.astype(np.float32)).astype(np.uint32) << 16).view(np.float32)
    )
    x = draw(init, dtype=half).astype(np.float64)
    np.testing.assert_array_equal(x, np.clip(nearest, inside[0], inside[-1]))
    if high - low < 0.5:  # 200 000 draws of a few thousand values meet both ends
        assert {x.min(), x.max()} == {inside[0], inside[-1]}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("spec", "low", "high", "closed"), BOUNDED)
def test_no_value_at_or_beyond_a_bound(spec, low, high, closed, dtype):
    """Compared as real numbers: neither the bound nor its rounding to the dtype is reached."""
    x = draw(ic.initializer(spec), dtype=dtype)
    exact, ends = x.astype(np.float64), np.array([low, high]).astype(x.dtype).astype(np.float64)
    assert np.all((exact >= low) if closed else (exact > low) & (exact > ends[0]))
    assert np.all((exact < high) & (exact < ends[1]))


@given(
    dtype=st.sampled_from(DTYPE_NAMES),
    low=st.floats(-3, 3),
    width=st.floats(1e-4, 3),
    std=st.floats(0.5, 3),  # never so small that the bounds truncate nothing
)
def test_any_bounds_hold_in_any_dtype(dtype, low, width, std):
    """Where there is a value between them in the dtype; else the next test."""
    high = low + width
    for init in (ic.truncated_normal(std, bounds=(low, high)), ic.uniform(low, high)):
        half = dtype in ("float16", "bfloat16")
        if half and not halves_inside(dtype, low, high, closed=False).size:
            continue
        x = draw(init, 2000, dtype=dtype).astype(np.float64)
        assert np.all((low <= x) & (x < high))
        assert np.all((x > low) | (init == ic.uniform(low, high)))


@pytest.mark.parametrize(
    ("init", "dtype", "message"),
    [
        (lambda: ic.truncated_normal(bounds=(1, 1.005)), "bfloat16", "bfloat16"),
        (lambda: ic.truncated_normal(bounds=(1, 1.0005)), "float16", "float16"),
        (lambda: ic.truncated_normal(bounds=(1, 1 + 1e-9)), "float32", "float32"),
        (lambda: ic.uniform(1.001, 1.005), "bfloat16", "bfloat16"),
        (lambda: ic.uniform(1.0001, 1.0005), "float16", "float16"),
        (lambda: ic.uniform(-1e-60, 1e-60), "float16", "float16"),
        (lambda: ic.uniform(0, 1e5), "float16", "float16"),
        (lambda: ic.constant(7e4), "float16", "float16"),
        (lambda: ic.constant(1e39), "bfloat16", "bfloat16"),
        (lambda: ic.normal(1e4), "float16", "float16"),
        (lambda: ic.normal(10, 65500), "float16", "float16"),
        (lambda: ic.normal(1e38), "float32", "float32"),
        (lambda: ic.normal(1e38), "bfloat16", "bfloat16"),
        (lambda: ic.normal(3e307), "float64", "float64"),
        (lambda: ic.normal().scaled(1e38), "float32", "float32"),
    ],
)
def test_laws_that_a_dtype_cannot_hold(init, dtype, message):
    """An empty range or an overflow is an error, of which the output sees nothing."""
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    out = np.full((3, 3), 7, dtype)
    with pytest.raises(ValueError, match=message):
        init()((3, 3), seed=0, name="w", out=out)
    assert np.all(out == 7)


@pytest.mark.parametrize(
    ("std", "dtype"),
    [(9e3, "float16"), (4.5e37, "float32"), (4.5e37, "bfloat16"), (2e307, "float64")],
)
def test_the_largest_normals(std, dtype):
    """6.8 σ, in float64 8.6 σ, fit: not refused, and finite."""
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    x = draw(ic.normal(std), dtype=dtype).astype(np.float64)
    assert np.all(np.isfinite(x))
    moments_agree(x / std, 0, 1)


@pytest.mark.parametrize("value", [0.1, -2.0, 65504.0, 1e-7])
@pytest.mark.parametrize("half", HALVES)
def test_constants_in_half_precision(value, half):
    x = draw(ic.constant(value), (3, 2), dtype=half)
    assert same(x, np.full((3, 2), np.float32(value)).astype(half))


def test_every_spelling_of_a_dtype():
    spellings = {
        "float32": [None, "float32", "f4", np.float32, np.dtype("float32"), "single"],
        "float64": ["float64", "f8", float, np.float64, np.dtype("float64"), "double"],
        "float16": ["float16", "f2", np.float16, np.dtype("float16"), "half"],
    }
    for name, others in spellings.items():
        for dtype in others:
            x = draw(ic.normal(), 5, dtype=dtype)
            assert x.dtype == name
            assert same(x, draw(ic.normal(), 5, dtype=name))


@needs_bfloat16
def test_spellings_of_bfloat16():
    import ml_dtypes

    expected = draw(ic.normal(), 5, dtype="bfloat16")
    assert expected.dtype == ml_dtypes.bfloat16
    for dtype in (ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16)):
        assert same(draw(ic.normal(), 5, dtype=dtype), expected)
    out = np.zeros(5, ml_dtypes.bfloat16)
    assert draw(ic.normal(), 5, out=out) is out
    assert same(out, expected)


def test_bfloat16_without_ml_dtypes_says_what_to_install():
    """In a process of its own; "bfloat16" is the one dtype that needs a second package."""
    program = (
        "import sys; sys.modules['ml_dtypes'] = None\n"
        "import numpy as np, initcore as ic\n"
        "assert ic.normal()(3, seed=0, name='w', dtype='float16').dtype == np.float16\n"
        "try:\n"
        "    ic.normal()(3, seed=0, name='w', dtype='bfloat16')\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "pip install ml_dtypes" in ran.stdout


@pytest.mark.parametrize(
    "dtype", [np.int64, "int64", int, bool, "complex64", "S4", "nothing", ">f4", ">f2", object]
)
def test_other_dtypes_are_refused(dtype):
    """pytorch #180560: a TypeError that names what is accepted, from every kind of initializer."""
    for init in (
        ic.kaiming_normal(), ic.truncated_normal(), ic.orthogonal(), ic.sparse(0.5), ic.identity(),
        ic.embedding(), ic.zeros(),
    ):  # fmt: skip
        with pytest.raises(TypeError, match="dtype") as raised:
            init((2, 2), seed=0, name="w", dtype=dtype)
        message = str(raised.value)
        assert all(name in message for name in ("float32", "float64", "float16", "bfloat16"))
        assert repr(dtype) in message


@pytest.mark.parametrize("spec", [*ELEMENTWISE, *OF_FANS])
def test_half_and_single_agree(spec):
    """Every law in half precision is its float32 draw, to a half's rounding."""
    init = ic.initializer(spec)
    wide = draw(init, (64, 50)).astype(np.float64)
    for half in DTYPE_NAMES[2:]:
        x = draw(init, (64, 50), dtype=half).astype(np.float64)
        unit = 2.0**-11 if half == "float16" else 2.0**-8
        # at a bound half a step of rounding and a step inwards; and float16's smallest step
        np.testing.assert_allclose(x, wide, rtol=3 * unit, atol=6e-8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spec", [*ELEMENTWISE, *OF_FANS])
def test_draws_have_the_moments_of_their_law(spec, dtype):
    """Mean, standard deviation and bound that `law` states, in every dtype."""
    init = ic.initializer(spec)
    law = init.law((300, 200))
    assert (law.std, law.bound) == (init.std((300, 200)), init.bound((300, 200)))
    x = draw(init, (300, 200), dtype=dtype)
    if law.std:
        moments_agree(x, law.mean, law.std)
    else:
        single = law.mean if dtype == "float64" else np.float32(law.mean)
        assert np.all(x == np.array(single).astype(x.dtype))
    assert np.all(np.abs(x.astype(np.float64)) <= law.bound * (1 + 2.0**-8 * (law.std == 0)))


# --- constants for all: a standard deviation of zero -------------------------------------------


def test_a_deviation_of_zero_is_the_mean():
    for init in (ic.normal(0, 0.5), ic.truncated_normal(0, 0.5)):
        assert (init.std(()), init.law(()).mean) == (0, 0.5)
        assert np.all(draw(init, 9) == 0.5)


@pytest.mark.parametrize(
    ("arguments", "keywords", "error", "message"),
    [
        ((0, 0.5), {"bounds": (0, 1)}, ValueError, "std must be positive with bounds=, got 0"),
        ((), {"bounds": (1, 1)}, ValueError, r"bounds.*\(1, 1\)"),
        ((), {"bounds": (2, 1)}, ValueError, r"bounds.*\(2, 1\)"),
        ((), {"bounds": (math.nan, 1)}, ValueError, "bounds.*nan"),
        ((), {"bounds": (0, math.nan)}, ValueError, "bounds.*nan"),
        ((), {"bounds": (INF, INF)}, ValueError, "bounds.*inf"),
        ((), {"bounds": (37.5, 38)}, ValueError, "37"),
        ((), {"bounds": (-INF, -38)}, ValueError, "37"),
        ((0.02,), {"bounds": (1, 2)}, ValueError, "37"),
        ((1, 100), {"bounds": (-1, 1)}, ValueError, "37"),
        ((), {"bounds": (-1, 1), "cut": 1.5}, ValueError, "cut"),
        ((0, 5), {"bounds": (-2, 2)}, ValueError, "mean|std"),
        ((), {"bounds": 2}, (TypeError, ValueError), "bounds.*2"),
        ((), {"bounds": (1,)}, (TypeError, ValueError), "bounds"),
        ((), {"bounds": ("a", 1)}, TypeError, "bounds"),
        ((), {"bounds": (True, 2)}, TypeError, "bounds"),
        ((), {"cut": 0}, ValueError, "cut.*0"),
        ((), {"cut": -1}, ValueError, "cut.*-1"),
        ((), {"cut": math.nan}, ValueError, "cut.*nan"),
        ((), {"cut": True}, TypeError, "cut.*True"),
        ((), {"cut": "2"}, TypeError, "cut.*'2'"),
        ((-1,), {}, ValueError, "std.*-1"),
        ((math.nan,), {}, ValueError, "std.*nan"),
        ((INF,), {}, ValueError, "std.*inf"),
        ((1, math.nan), {}, ValueError, "mean.*nan"),
        ((True,), {}, TypeError, "std.*True"),
        ((), {"corrected": 1}, TypeError, "corrected.*1"),
    ],
)  # fmt: skip
def test_bad_truncations(arguments, keywords, error, message):
    with pytest.raises(error, match=message):
        ic.truncated_normal(*arguments, **keywords)


@pytest.mark.parametrize(
    "make_one",
    [
        lambda: ic.variance_scaling(1, "fan_in", "truncated"),
        lambda: ic.xavier_normal(distribution="uniform"),
        lambda: ic.kaiming_normal(distribution="gauss"),
        lambda: ic.lecun_normal(distribution="trunc_normal"),
    ],
)
def test_bad_distributions(make_one):
    with pytest.raises(ValueError, match=r"distribution.*truncated_normal"):
        make_one()


# --- values ------------------------------------------------------------------------------------

SPELLED = [
    "truncated_normal()", "truncated_normal(std=0.02)", "truncated_normal(cut=3)",
    "truncated_normal(std=0.02, corrected=False)", "truncated_normal(bounds=(-1, 2))",
    "truncated_normal(std=0.5, mean=0.1).scaled(3)", "kaiming_normal(groups=4)",
    "kaiming_normal(distribution='truncated_normal')", "xavier_uniform(parts=3)",
    "xavier_uniform(parts=(512, 128, 128))", "kaiming_normal(transposed=True)",
    "lecun_normal(in_axis=0, out_axis=2, batch_axis=1)", "identity()", "dirac()",
    "dirac(groups=2)", "orthogonal()", "orthogonal(gain=2)", "orthogonal(in_axis=0, out_axis=1)",
    "delta_orthogonal()", "delta_orthogonal(gain=0.5)", "sparse(sparsity=0.1)",
    "sparse(sparsity=0.5, std=1)", "embedding()", "embedding(std=0.02, padding_idx=0)",
    "embedding(padding_idx=-1)", "torch_linear()", "torch_rnn(hidden_size=128)",
    "torch_embedding()", "torch_embedding(padding_idx=3)",
]  # fmt: skip


@pytest.mark.parametrize("text", SPELLED)
def test_the_repr_pastes_back(text):
    """A specification is the initializer's repr, which makes an equal one again."""
    init = ic.initializer(text)
    assert isinstance(init, ic.Initializer)
    assert repr(init) == str(init) == text
    for other in (eval(text, vars(ic).copy()), pickle.loads(pickle.dumps(init))):
        assert other == init
        assert hash(other) == hash(init)
        assert repr(other) == text


def test_infinite_bounds_paste_back():
    """Whatever an infinity is spelled as, the grammar reads it."""
    init = ic.truncated_normal(bounds=(9, INF))
    assert ic.initializer(repr(init)) == init
    assert pickle.loads(pickle.dumps(init)) == init


def test_different_initializers_differ():
    inits = [ic.initializer(text) for text in SPELLED]
    for init, other in itertools.combinations(inits, 2):
        assert init != other or {str(init), str(other)} <= {"embedding()", "torch_embedding()"}


@pytest.mark.parametrize(
    "name", ["torch_conv", "torch_conv_transpose", "he_normal", "glorot_uniform"]
)
def test_another_name_of_a_law_pastes_back_too(name):
    """As whichever of its names."""
    init = getattr(ic, name)()
    assert init == ic.initializer(name) == ic.initializer(repr(init))


def test_the_public_names():
    names = [
        "fans", "gain", "normal", "uniform", "truncated_normal", "constant", "zeros", "ones",
        "variance_scaling", "xavier_normal", "xavier_uniform", "glorot_normal", "glorot_uniform",
        "kaiming_normal", "kaiming_uniform", "he_normal", "he_uniform", "lecun_normal",
        "lecun_uniform", "identity", "dirac", "orthogonal", "delta_orthogonal", "sparse",
        "embedding", "torch_linear", "torch_conv", "torch_conv_transpose", "torch_rnn",
        "torch_embedding", "initializer", "Initializer",
    ]  # fmt: skip
    assert {*names} <= {*ic.__all__}
    for name in names:
        assert getattr(ic, name).__doc__


# --- what a dtype cannot hold, and what it can ---


@pytest.mark.parametrize(
    ("init", "dtype", "message"),
    [
        (ic.normal(1e5), "float16", "largest normals.*finite in float16"),
        (ic.truncated_normal(1e6), "float16", "largest normals.*finite in float16"),
        (ic.truncated_normal(1e5, bounds=(0, INF)), "float16", "largest normals.*float16"),
        (ic.truncated_normal(1e308, cut=9), "float64", "finite in float64"),
        (ic.normal(1e-50), "float32", "must not vanish in float32"),
        (ic.normal(1e-10), "float16", "must not vanish in float16"),
        (ic.truncated_normal(1e-50), "float32", "float32"),
        (ic.uniform(-7e-8, 7e-8), "float16", "must have values in float16"),
    ],
)
def test_a_law_that_would_pile_up_or_vanish(init, dtype, message):
    """One value in the place of all that a dtype does not have would be a silent wrong number."""
    out = np.full(3, 7, dtype)
    with pytest.raises(ValueError, match=message):
        init((3,), seed=0, name="w", out=out)
    assert np.all(out == 7)


def test_bounds_beyond_the_dtype_that_nothing_reaches():
    x = ic.truncated_normal(1000, bounds=(0, 1e6))((1000,), seed=0, name="w", dtype="float16")
    assert 3000 < x.max() < 7000


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("spec", ["constant(value=1.0004882821813226)", "orthogonal(gain=3)"])
def test_halves_are_rounded_float32(half, spec):
    init, shape = ic.initializer(spec), (96, 96)
    half = find_dtype(half).numpy
    single = init(shape, seed=0, name="w")
    assert np.array_equal(init(shape, seed=0, name="w", dtype=half), single.astype(half))


def test_no_zero_has_a_sign():
    for init in (ic.constant(-1), ic.normal(1, -0.5), ic.truncated_normal(1, -1)):
        x = init.scaled(0)((100,), seed=0, name="w")
        assert not np.any(x)
        assert not np.any(np.signbit(x))


@pytest.mark.parametrize("cut", [1e-60, 1e-11])
def test_an_interval_without_digits_is_refused(cut):
    with pytest.raises(ValueError, match="narrower one is uniform"):
        ic.truncated_normal(cut=cut)


def test_a_narrow_interval_is_uniform():
    law = ic.truncated_normal(cut=1e-9).law((3,))
    assert law.std == pytest.approx(1, rel=1e-12)
    assert law.bound == pytest.approx(math.sqrt(3), rel=1e-12)
    x = ic.truncated_normal(cut=1e-9)((10**5,), seed=0, name="w", dtype="float64")
    follows(x, lambda v: (v / math.sqrt(3) + 1) / 2)


@pytest.mark.parametrize("half", HALVES)
def test_neighbours_in_a_dtype(half):
    dtype = find_dtype(half)
    numbers = values_of(dtype.numpy)
    for below, above in itertools.pairwise(numbers):
        assert dtype.above(below) == above
        assert dtype.last_below(above) == below
        assert dtype.first_not_below((below + above) / 2) == above
    assert dtype.above(numbers[-1]) == INF


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_neighbours_in_a_wide_dtype(dtype):
    real, found = np.dtype(dtype).type, find_dtype(dtype)
    tiny = np.finfo(dtype).smallest_subnormal
    random = np.random.default_rng(0).standard_normal(100).astype(dtype)
    for x in (*random, real(0), tiny, -tiny, real(1), real(-1), real(2**-126), np.finfo(dtype).max):
        with np.errstate(over="ignore"):
            assert found.above(float(x)) == np.nextafter(x, real(INF))
            assert found.last_below(float(x)) == np.nextafter(x, real(-INF))


def test_odd_dtypes_are_refused():
    for odd in ("f4, (", "float16, float32", None, [], {"a": 1}, "void", object):
        with pytest.raises(TypeError, match="dtype must be one of float32"):
            find_dtype(odd)


@pytest.mark.parametrize(
    ("mean", "width", "std"),
    [(-10, 1e-9, 1), (-1e6, 1e-3, 1e6), (-10, 1e-5, 1), (-1, 1e-6, 1), (-1000, 0.05, 100)],
)
def test_an_interval_that_float32_cannot_resolve(mean, width, std):
    """Far from its parent's mean an interval has few float32 numbers of parent deviations."""
    init = ic.truncated_normal(std, mean, bounds=(0, width))
    with pytest.raises(ValueError, match="must be wider"):
        init((3,), seed=0, name="w")
    law = init.law((3,))
    moments_agree(init((10**5,), seed=0, name="w", dtype="float64"), law.mean, law.std)
