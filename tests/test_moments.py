# SPDX-License-Identifier: BSD-3-Clause
"""Statistics of one array: against the reference, rationals, and the public reports."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import initcore as ic
from initcore.reference import moments as reference
from kernel_calls import EDGES, SMALL, moments, same_bits, unaligned

COUNTED = [0, 3, 4, 6]  # count, abs_max, zeros, nonfinite


def scalar(field):
    return np.asarray(field).item()


@given(
    units=st.integers(1, 20),
    batch=st.integers(1, 100),
    seed=st.integers(0, 2**32),
    offset=st.sampled_from([0.0, 3.0, 1e4]),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_equals_the_reference(kernels, units, batch, seed, offset, dtype):
    """Bit for bit: lanes, folds and merges have one order."""
    x = (np.random.default_rng(seed).normal(size=(units, batch)) + offset).astype(dtype)
    assert same_bits(moments(kernels, x), reference.moments(x))


@pytest.mark.parametrize("batch", [n for n in EDGES if n])
def test_every_batch_against_rationals(kernels, batch, rng, dtype):
    x = rng.normal(size=(3, batch)).astype(dtype)
    state = moments(kernels, x)
    entries = [Fraction(float(v)) for v in x.ravel()]
    mean = sum(entries) / len(entries)
    m2 = sum((v - mean) ** 2 for v in entries)
    spread = max(abs(v) for v in entries)
    assert abs(Fraction(state[1]) - mean) <= spread * Fraction(4 + batch // 16, 2**52)
    assert abs(Fraction(state[2]) - m2) <= (m2 + spread**2 / 2**52) * Fraction(64, 2**53)


@pytest.mark.parametrize("batch", SMALL)
@pytest.mark.parametrize("units", SMALL)
def test_every_instruction_set_gives_the_same_bits(every_isa, units, batch, rng, dtype):
    x = rng.normal(size=(units, batch)).astype(dtype)
    states = [moments(kernels, x) for kernels in every_isa]
    assert all(same_bits(states[0], other) for other in states)


def test_units_continue_a_state(kernels, rng, dtype):
    """Units given in two calls are merged as in one."""
    x = rng.normal(size=(9, 21)).astype(dtype)
    for cut in (1, 4, 8):
        assert same_bits(moments(kernels, x[cut:], moments(kernels, x[:cut])), moments(kernels, x))


@pytest.mark.parametrize(("units", "batch"), [(1, 1), (3, 5), (17, 33), (40, 16)])
def test_powers_of_deviations_against_rationals(kernels, units, batch, rng, dtype):
    """Σ(x − mean)³ and ⁴ over all entries, and Σ(x − mean of the unit)², merged or not."""
    x = (rng.normal(size=(units, batch)) * rng.uniform(0.1, 3, (units, 1)) + 0.5).astype(dtype)
    rows = [[Fraction(float(v)) for v in row] for row in x]
    entries = [v for row in rows for v in row]
    mean = sum(entries) / len(entries)
    state = dict(zip(reference.FIELDS, moments(kernels, x), strict=True))
    slack = Fraction(len(entries), 2**52)
    for name, power in (("m3", 3), ("m4", 4)):
        exact = sum((v - mean) ** power for v in entries)
        size = sum((abs(v) + abs(mean)) ** power for v in entries)
        assert abs(Fraction(state[name]) - exact) <= slack * size
    within = sum(sum((v - sum(row) / batch) ** 2 for v in row) for row in rows)
    size = sum(v**2 for v in entries)
    assert abs(Fraction(state["within"]) - within) <= slack * size


def test_dead_units_are_zero_for_the_whole_batch(kernels, dtype):
    """Counted by entries; −0 is zero, and squares that underflow or values that cancel are not."""
    tiny = np.finfo(dtype).smallest_subnormal
    for batch in (1, 15, 16, 17, 40):
        x = np.zeros((6, batch), dtype)
        x[1] = -0.0
        x[2, -1] = tiny
        x[3, 0], x[3, -1] = 1e-30, -1e-30 if batch > 1 else 1e-30
        x[4] = np.nan
        x[5] = 3
        assert moments(kernels, x)[reference.DEAD] == 2 * batch


def test_float16_overflows_from_half_way_to_the_next_power(kernels, dtype):
    """65519.996 rounds to 65504, 65520 to infinity, as NumPy has it; NaN is neither."""
    edge = np.array(65520, dtype)
    values = [edge, -edge, np.nextafter(edge, dtype.type(0)), 65504, np.inf, -np.inf, np.nan, 1, 0]
    with np.errstate(over="ignore"):
        for batch in (1, 16, 17, 33):
            x = np.resize(np.array(values, dtype), (9, batch))
            overflows = np.isinf(x.astype(np.float16)).sum()
            assert moments(kernels, x)[reference.OVERFLOWS] == overflows
            finite = np.where(np.isfinite(x), x, 1)
            overflows = np.isinf(finite.astype(np.float16)).sum()
            assert moments(kernels, finite)[reference.OVERFLOWS] == overflows


def test_no_cancellation(kernels):
    """The variance of numbers far from zero: exact here, lost by E[x²] − E[x]²."""
    x = np.array([[1e8 + 1, 1e8 + 2, 1e8 + 3]])
    state = moments(kernels, x)
    assert state[1] == 1e8 + 2
    assert state[2] == 2


def test_counts_and_special_values(kernels, dtype):
    """abs_max passes over NaN, a mean over +∞ is +∞, m2 then NaN."""
    tiny = np.finfo(dtype).smallest_subnormal
    state = moments(kernels, np.array([[0.0, -0.0, tiny, -5.0]], dtype))
    assert state[COUNTED].tolist() == [4, 5, 2, 0]
    state = moments(kernels, np.array([[np.nan, 1, -2, 0]], dtype))
    assert state[COUNTED].tolist() == [4, 2, 1, 1]
    assert np.isnan(state[1])
    assert np.isnan(state[2])
    state = moments(kernels, np.array([[np.inf, 1, -2, 0]], dtype))
    assert state[COUNTED].tolist() == [4, np.inf, 1, 1]
    assert state[1] == np.inf
    assert np.isnan(state[2])


# --- the public function ---------------------------------------------------------------------


def test_ddof_is_zero():
    """pytorch #50010: variance 7.4375, not 8.5."""
    stats = ic.moments(np.array([[1.0, 2, 3, 4], [5, 6, 7, 10]]))
    assert scalar(stats.variance) == pytest.approx(7.4375, rel=1e-15)
    assert scalar(stats.mean) == 4.75
    assert scalar(stats.second_moment) == 30.0
    assert scalar(stats.abs_max) == 10


def test_half_precision_does_not_overflow():
    """numpy #21941: float16 [40000]×3 has mean 40000 and variance 0."""
    stats = ic.moments(np.full(3, 40000, np.float16))
    assert scalar(stats.mean) == 40000
    assert scalar(stats.variance) == 0
    assert scalar(stats.second_moment) == 1.6e9


def test_big_endian_input():
    """bottleneck #104: ones(10, '>f4') has mean 1."""
    for code in (">f4", ">f8", "<f4", "<f8", ">f2"):
        stats = ic.moments(np.ones(10, code))
        assert (scalar(stats.mean), scalar(stats.variance)) == (1, 0)


def test_read_only_input(tmp_path, rng):
    """distributed #1978: frombuffer and memmap(mode='r')."""
    x = rng.normal(size=100).astype(np.float32)
    expected = scalar(ic.moments(x).variance)
    x.tofile(tmp_path / "x.bin")
    mapped = np.memmap(tmp_path / "x.bin", dtype=np.float32, mode="r")
    assert scalar(ic.moments(mapped).variance) == expected
    assert scalar(ic.moments(np.frombuffer(x.tobytes(), np.float32)).variance) == expected


def test_layout_does_not_matter(rng):
    x = rng.normal(size=(6, 10))
    expected = ic.moments(x)
    strided = np.repeat(x, 2, axis=1)[:, ::2]
    for same in (np.asfortranarray(x), strided, x[::-1].copy()[::-1], unaligned(x)):
        assert scalar(ic.moments(same).variance) == scalar(expected.variance)
        assert scalar(ic.moments(same).mean) == scalar(expected.mean)


@pytest.mark.parametrize("shape", [(2, 1), (7, 65), (16, 16), (65, 7), (33, 1), (3, 4, 5), (40,)])
def test_cosine_of_an_array(rng, shape, dtype):
    """The bits of the reference, and those that `chain` has of the same rows."""
    x = rng.normal(0.2, 1, size=shape).astype(dtype)
    rows = x.reshape(-1, 1) if x.ndim < 2 else x.reshape(-1, x.shape[-1])
    cosine = scalar(ic.moments(x).cosine)
    assert cosine == reference.mean_cosine(rows.T)
    n = rows.shape[1]
    _, layers = ic.chain(rows, [np.eye(n, dtype=dtype)], activation="linear")
    assert cosine == layers.pre.cosine[0]


def test_cosine_of_known_arrays():
    assert np.isnan(scalar(ic.moments(np.ones((1, 5))).cosine))
    assert np.isnan(scalar(ic.moments(np.ones((0, 5))).cosine))
    assert np.isnan(scalar(ic.moments([[1.0, np.inf], [1, 2]]).cosine))
    assert scalar(ic.moments([[3, 0], [0, 0], [5, 0]]).cosine) == 1
    assert scalar(ic.moments(np.array([[3, 0], [0, 4]], np.float16)).cosine) == 0


def test_fractions_of_an_array():
    stats = ic.moments(np.array([0.0, -0.0, np.nan, np.inf, 1, 2, 3, 4]))
    assert scalar(stats.zero_fraction) == 0.25
    assert scalar(stats.nonfinite_fraction) == 0.25
    assert np.isnan(scalar(stats.mean))
    assert np.isnan(scalar(stats.variance))


def test_kaiming_conserves_the_second_moment_not_the_variance():
    """√2·relu of N(0,1) has mean .56419, second moment 1, variance .68169. (stats.stackexchange
    138035)"""
    n = 1 << 20
    z = ic.normal()((n,), seed=22, name="z", dtype=np.float64)
    stats = ic.moments(np.sqrt(2) * np.maximum(z, 0))
    # s.e. from E x² = 1, E x⁴ = 6; the variance's is below that of x²
    assert abs(scalar(stats.mean) - 0.5641895835) <= 5 * np.sqrt(0.6816901138 / n)
    assert abs(scalar(stats.second_moment) - 1) <= 5 * np.sqrt(5 / n)
    assert abs(scalar(stats.variance) - 0.6816901138) <= 5 * np.sqrt(5 / n)
    assert abs(scalar(stats.zero_fraction) - 0.5) <= 5 * np.sqrt(0.25 / n)


def test_kurtosis_of_known_distributions():
    """3 of a normal, 9/5 of a uniform, 1 of two values, and of relu of a normal, whose moments are
    half the normal's."""
    n = 1 << 20
    z = ic.normal()((n,), seed=5, name="z", dtype=np.float64)
    assert abs(scalar(ic.moments(z).kurtosis) - 3) <= 5 * np.sqrt(24 / n)
    u = ic.uniform(-1, 1)((n,), seed=5, name="u", dtype=np.float64)
    assert abs(scalar(ic.moments(u).kurtosis) - 9 / 5) <= 0.005
    assert scalar(ic.moments(np.array([-1.0, 1, -1, 1])).kurtosis) == 1
    m1, m2, m3, m4 = 1 / np.sqrt(2 * np.pi), 1 / 2, np.sqrt(2 / np.pi), 3 / 2
    fourth = m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4
    measured = scalar(ic.moments(np.maximum(z, 0)).kurtosis)
    assert abs(measured - fourth / (m2 - m1**2) ** 2) <= 0.05


def test_kurtosis_is_known_where_float64_has_the_fourth_powers():
    assert scalar(ic.moments(np.array([1e-60, -1e-60])).kurtosis) == pytest.approx(1, rel=1e-13)
    assert scalar(ic.moments(np.array([1e70, -1e70])).kurtosis) == pytest.approx(1, rel=1e-13)
    for x in ([2.0, 2.0], [1e-90, -1e-90], [1e90, -1e90], [np.inf, 1.0], [np.nan]):
        assert np.isnan(scalar(ic.moments(np.array(x)).kurtosis))


def test_variance_within_units_and_between():
    """Columns of a batch are units: their means differ by 10, within them the variance is 1."""
    x = np.array([[-1.0, 9], [1, 11]])
    stats = ic.moments(x)
    assert scalar(stats.batch_variance) == 1
    assert scalar(stats.variance) == 26
    assert scalar(ic.moments(x.T).batch_variance) == 25
    assert scalar(ic.moments(np.array([[0.0, 1, 0], [0, 0, 0]])).dead_fraction) == 2 / 3


@pytest.mark.parametrize("x", [np.array([1, 2 + 3j]), np.array(["a"]), np.array([object()])])
def test_inputs_that_are_no_numbers_are_refused(x):
    with pytest.raises(TypeError, match="x"):
        ic.moments(x)


def test_masked_arrays_are_refused():
    with pytest.raises(TypeError, match="mask"):
        ic.moments(np.ma.masked_array([1.0, 2.0], mask=[0, 1]))


def test_what_has_no_entries_has_no_statistics():
    for shape in ((0,), (0, 3), (3, 0), (2, 0, 3)):
        stats = ic.moments(np.zeros(shape))
        assert np.isnan([stats.mean, stats.variance, stats.abs_max, stats.zero_fraction]).all()


def test_nan_is_no_largest_entry():
    assert np.isnan(ic.moments(np.full(5, np.nan)).abs_max)
    assert ic.moments(np.array([np.nan, 0.0, -2.0])).abs_max == 2
    assert ic.moments(np.array([np.nan, 0.0])).abs_max == 0


class TestCosineAtTheEdges:
    def test_rows_whose_squares_underflow_are_zero_rows(self):
        """Not vectors of some other length: equal rows would have a cosine beyond 1."""
        x = np.tile(np.linspace(-1, 1, 64), (4, 1))
        for scale, expected in ((1e-150, 1.0), (1e-162, np.nan), (1e-200, np.nan)):
            found = ic.moments(x * scale).cosine
            assert found == pytest.approx(expected, rel=1e-12, nan_ok=True)

    @pytest.mark.parametrize("batch", [3, 15, 16, 17])
    def test_what_fills_a_panel_up_is_not_looked_at(self, batch):
        """An input of zeros, as the lanes beyond the batch are, may overflow where no row does."""
        weights = [np.array([[-1e30]], np.float32), np.array([[1e10]], np.float32)]
        biases = [np.array([1.0000002e30], np.float32), None]
        x = np.ones((batch, 1), np.float32)
        _, layers = ic.chain(x, weights, biases, activation="linear")
        assert layers.post.nonfinite_fraction.tolist() == [0, 0]
        assert layers.post.cosine == pytest.approx([1, 1])
