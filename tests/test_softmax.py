# SPDX-License-Identifier: BSD-3-Clause
"""Softmax, its row statistics and its gradient: the reference, the public reports, the masks."""

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import initcore as ic
from initcore.reference import softmax as reference
from initcore.reference.tolerances import BACKWARD_UNITS, SOFTMAX_UNITS
from kernel_calls import EDGES, SMALL, same_bits, softmax, softmax_backward, unaligned

FIELDS = reference.STATISTICS
# Below the smallest normal number a probability may be flushed or rounded to a few bits. Statistics
# that are quadratic in p have twice its error, lse has it relative to 1 + |lse|, and a softcap's
# argument is itself a tanh.
SOFTCAP_UNITS = SOFTMAX_UNITS + 6
QUADRATIC = ("entropy", "sum_sq", "jacobian_norm")
LEAST_NORM = 2.0**-510  # its square is a float64: a smaller norm may be 0


def allowed(t, part, dtype, error):
    finite = np.where(part & np.isfinite(t), np.abs(t), 0)
    largest = np.max(finite, axis=1, initial=0).astype(np.float64)
    return error * np.finfo(dtype).eps / 2 * (1 + largest)


def compare(p, statistics, t, part, error=SOFTMAX_UNITS):
    """p (rows, n) and statistics (rows, 5) of the logits t against the reference."""
    exact_p, exact = reference.softmax(t, part)
    dtype = p.dtype
    tolerance = allowed(t, part, dtype, error)
    tiny = float(np.finfo(dtype).tiny)
    assert np.array_equal(np.isnan(p), np.isnan(exact_p))
    assert np.array_equal(np.isnan(statistics), np.isnan(exact))
    assert not np.any(p[~part & ~np.isnan(exact_p)])
    with np.errstate(invalid="ignore"):
        bound = tolerance[:, None] * exact_p + tiny
        assert np.all((np.abs(p - exact_p) <= bound) | np.isnan(exact_p))
        for column, name in enumerate(FIELDS):
            got, true = statistics[:, column], exact[:, column]
            size = np.abs(true) + (name == "lse")
            least = LEAST_NORM if name == "jacobian_norm" else tiny
            bound = (1 + (name in QUADRATIC)) * tolerance * size + max(least, tiny) * t.shape[1]
            right = (np.abs(got - true) <= bound) | np.isnan(true) | (got == true)
            assert np.all(right), (name, got[~right], true[~right])


def arrays(rows, n, seed, spread, dtype):
    return (np.random.default_rng(seed).normal(size=(rows, n)) * spread).astype(dtype)


shapes = {
    "rows": st.integers(1, 12),
    "n": st.integers(1, 70),
    "seed": st.integers(0, 2**32),
    "dtype": st.sampled_from([np.float32, np.float64]),
}


# --- the kernel against the reference --------------------------------------------------------


@given(**shapes, spread=st.sampled_from([0.01, 1, 5, 30]), scale=st.sampled_from([1.0, 0.125, -2]))
def test_equals_the_reference(kernels, rows, n, seed, dtype, spread, scale):
    z = arrays(rows, n, seed, spread, dtype)
    compare(*softmax(kernels, z, scale=scale), *reference.logits(z, scale))


@given(**shapes)
def test_boolean_mask(kernels, rows, n, seed, dtype):
    """Cells masked out are never read: NaN and infinities there change nothing."""
    z = arrays(rows, n, seed, 3, dtype)
    keep = np.random.default_rng(seed + 1).random((rows, n)) < 0.6
    poisoned = np.where(keep, z, np.random.default_rng(seed).choice([np.nan, np.inf], (rows, n)))
    p, statistics = softmax(kernels, poisoned.astype(dtype), keep=keep)
    compare(p, statistics, *reference.logits(z, keep=keep))


@given(**shapes)
def test_additive_mask(kernels, rows, n, seed, dtype):
    z = arrays(rows, n, seed, 3, dtype)
    bias = arrays(rows, n, seed + 1, 2, dtype)
    bias[np.random.default_rng(seed + 2).random((rows, n)) < 0.3] = -np.inf
    p, statistics = softmax(kernels, z, bias=bias, scale=0.5)
    compare(p, statistics, *reference.logits(z, 0.5, bias=bias))


@given(**shapes, softcap=st.sampled_from([0.5, 5.0, 50.0]))
def test_softcap(kernels, rows, n, seed, dtype, softcap):
    """Scale, then softcap: the logits are within ±softcap."""
    z = arrays(rows, n, seed, 20, dtype)
    p, statistics = softmax(kernels, z, scale=0.5, softcap=softcap)
    compare(p, statistics, *reference.logits(z, 0.5, softcap), error=SOFTCAP_UNITS)


@pytest.mark.parametrize(("queries", "n"), [
    (1, 1), (5, 5), (3, 8), (8, 3), (17, 16), (16, 17), (1, 65), (65, 1),
])  # fmt: skip
def test_causal(kernels, rng, dtype, queries, n):
    """The last query sees the last key; queries before the first key see nothing."""
    z = rng.normal(size=(2, queries, n)).astype(dtype)
    t, part = reference.logits(z, causal=True)
    flat = z.reshape(-1, n)
    p, statistics = softmax(kernels, flat, queries=queries)
    compare(p, statistics, t.reshape(-1, n), part.reshape(-1, n))
    for cut in (1, queries, queries + 1):  # rows may be given in pieces
        below = softmax(kernels, flat[cut:].copy(), queries=queries, first_row=cut)
        assert same_bits(below[0], p[cut:])
        assert same_bits(below[1], statistics[cut:])


@pytest.mark.parametrize("n", [n for n in EDGES if n])
def test_every_length(every_isa, rng, n, dtype):
    z = (rng.normal(size=(5, n)) * 4).astype(dtype)
    results = [softmax(kernels, z) for kernels in every_isa]
    compare(*results[0], *reference.logits(z))
    for p, statistics in results:
        assert same_bits(p, results[0][0])
        assert same_bits(statistics, results[0][1])


@pytest.mark.parametrize("n", SMALL)
def test_every_instruction_set_gives_the_same_bits(every_isa, rng, n, dtype):
    z = (rng.normal(size=(9, n)) * 10).astype(dtype)
    z[1, 0], z[2, n // 2], z[3, :] = np.nan, -np.inf, -np.inf
    keep = rng.random((9, n)) < 0.7
    bias = rng.normal(size=(9, n)).astype(dtype)
    dp = rng.normal(size=(9, n)).astype(dtype)
    for options in (
        {"scale": 0.3}, {"softcap": 3.0}, {"keep": keep}, {"bias": bias}, {"queries": 9},
        {"keep": keep, "bias": None, "softcap": 20.0, "queries": 3},
    ):  # fmt: skip
        results = [softmax(kernels, z, **options) for kernels in every_isa]
        assert all(same_bits(results[0][0], p) for p, _ in results)
        assert all(same_bits(results[0][1], statistics) for _, statistics in results)
        p = results[0][0]
        gradients = [softmax_backward(kernels, p, dp, 0.3) for kernels in every_isa]
        assert all(same_bits(gradients[0], dz) for dz in gradients)


def test_rows_do_not_know_each_other(kernels, rng, dtype):
    """A row alone, and in place, has the bits it has among others."""
    z = (rng.normal(size=(6, 33)) * 3).astype(dtype)
    p, statistics = softmax(kernels, z)
    for r in range(6):
        alone = softmax(kernels, z[r : r + 1].copy())
        assert same_bits(alone[0][0], p[r])
        assert same_bits(alone[1][0], statistics[r])
    rows = z.copy()
    kernels.softmax(rows, rows, None, 0, 1.0, 0.0, None, None, None, 0)
    assert same_bits(rows, p)


def test_statistics_without_probabilities(kernels, rng, dtype):
    z = (rng.normal(size=(6, 33)) * 3).astype(dtype)
    statistics = np.empty((6, len(FIELDS)))
    kernels.softmax(z, None, statistics, 0, 1.0, 0.0, None, None, None, 0)
    assert same_bits(statistics, softmax(kernels, z)[1])


# --- nearly one-hot, huge and tiny logits ----------------------------------------------------


@pytest.mark.parametrize("gap", [0.0, 1e-6, 1.0, 10.0, 16.0, 30.0, 60.0, 80.0, "last"])
def test_nearly_one_hot_rows_do_not_cancel(kernels, dtype, gap):
    """Entropy and ‖J‖_F to relative accuracy, down to the last normal p."""
    gap = -np.log(np.finfo(dtype).tiny) - 2 if gap == "last" else gap
    for others in (1, 2, 16, 63):
        z = np.zeros((3, others + 1), dtype)
        z[0, 0], z[1, -1], z[2, others // 2] = gap, gap, gap
        compare(*softmax(kernels, z), *reference.logits(z))


def test_the_example_of_a_saturated_row():
    """Softmax([2.1, 18.5, 1.3]) and ‖J‖_F = 1.80196e−7, in float32 too."""
    for dtype in (np.float32, np.float64):
        p, rows = ic.softmax(np.array([2.1, 18.5, 1.3], dtype))
        assert p == pytest.approx([7.5435e-8, 0.99999989, 3.3895e-8], rel=3e-5)
        assert rows.jacobian_norm.item() == pytest.approx(1.80196e-7, rel=1e-5)
        assert rows.saturated.item()


def test_known_rows(dtype):
    """A tutorial's softmax, and ‖J‖_F of four known rows."""
    p, _ = ic.softmax(np.array([1.2, 2.1, 0.5], dtype))
    assert p == pytest.approx([0.25276855, 0.62171031, 0.12552115], rel=1e-6)
    for z, norm in [([0, 0], 0.5), ([7] * 4, 0.4330127019), ([1, 2, 3], 0.3893897747)]:
        _, rows = ic.softmax(np.array(z, dtype))
        assert rows.jacobian_norm.item() == pytest.approx(norm, rel=1e-6)
    _, rows = ic.softmax(np.array([0, -np.inf], dtype))
    assert rows.jacobian_norm.item() == 0


@pytest.mark.parametrize(
    ("z", "p"),
    [
        ([[800, 1, 1]], [[1, 0, 0]]),
        ([[-1000, -1001]], [[0.7310585786, 0.2689414214]]),
        ([[1000, 1001], [0, 1]], [[0.2689414214, 0.7310585786]] * 2),
    ],
)
def test_each_row_has_its_own_shift(dtype, z, p):
    """dwave-optimization #555, uTensor #176."""
    got, rows = ic.softmax(np.array(z, dtype))
    assert np.allclose(got, p, rtol=1e-6, atol=1e-30)
    assert np.allclose(rows.lse, np.logaddexp.reduce(np.array(z, float), axis=-1), rtol=1e-6)


def test_logits_of_any_magnitude(kernels, dtype):
    """No overflow between the largest and the smallest finite logits."""
    big = np.finfo(dtype).max
    z = np.array([[big, -big, 0], [-big, -big, -big], [big, big, 0]], dtype)
    p, statistics = softmax(kernels, z)
    assert np.allclose(p, [[1, 0, 0], [1 / 3] * 3, [0.5, 0.5, 0]], rtol=1e-6, atol=0)
    assert np.allclose(statistics[:, 0], z.max(axis=1).astype(float), rtol=1e-6)
    assert np.allclose(statistics[:, 2], [0, math.log(3), math.log(2)], rtol=1e-6)


def test_subnormal_logits(kernels, dtype):
    tiny = np.finfo(dtype).smallest_subnormal
    p, _ = softmax(kernels, np.array([[tiny, 0, -tiny]], dtype))
    assert np.allclose(p, 1 / 3, rtol=1e-6)


# --- masked, infinite and NaN rows -----------------------------------------------------------


def is_masked(p, rows, index):
    assert not np.any(p[index])
    assert rows.lse[index] == -np.inf
    for name in FIELDS[1:]:
        assert np.isnan(getattr(rows, name)[index])


def test_a_fully_masked_row_is_zeros(dtype):
    """pytorch #131060: beside it a row as if alone; it is counted and left out of every mean."""
    z = np.array([[-np.inf] * 4, [0, 1, 2, 3]], dtype)
    p, rows = ic.softmax(z)
    alone, alone_rows = ic.softmax(z[1])
    is_masked(p, rows, 0)
    assert same_bits(p[1], alone)
    for name in FIELDS:
        assert getattr(rows, name)[1] == getattr(alone_rows, name).item()
    summary = rows.summary()
    assert (summary.rows, summary.masked_rows, summary.nonfinite_rows) == (2, 1, 0)
    assert summary.entropy == rows.entropy[1]
    assert summary.lse == rows.lse[1]


@pytest.mark.parametrize("mask", [
    np.array([[False] * 3, [True] * 3]),
    np.array([[-np.inf] * 3, [0.0] * 3], np.float32),
])  # fmt: skip
def test_rows_masked_by_either_mask(mask):
    z = np.array([[1, 2, 3], [1, 2, 3]], np.float32)
    p, rows = ic.softmax(z, mask=mask)
    is_masked(p, rows, 0)
    assert same_bits(p[1], ic.softmax(z[1])[0])


def test_zero_times_log_zero_is_zero(dtype):
    """trl #7221, pytorch #40553: entropy 0 and ln 2."""
    for z, entropy in [([0, -np.inf], 0), ([0, 0, -np.inf], 0.6931471806)]:
        p, rows = ic.softmax(np.array(z, dtype))
        assert p[-1] == 0
        assert rows.entropy.item() == pytest.approx(entropy, rel=1e-6, abs=0)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_bad_logit_stays_in_its_row(dtype, bad):
    """scipy #23225, jax #21495: NaN in that row alone, and it is counted."""
    z = np.array([[bad, 0], [0, 1]], dtype)
    p, rows = ic.softmax(z)
    assert np.isnan(p[0]).all()
    assert all(np.isnan(getattr(rows, name)[0]) for name in FIELDS)
    assert same_bits(p[1], ic.softmax(z[1])[0])
    summary = rows.summary()
    assert (summary.rows, summary.masked_rows, summary.nonfinite_rows) == (2, 0, 1)
    assert summary.max_prob == rows.max_prob[1]


def test_saturated_rows_are_counted_above_the_threshold():
    z = np.array([[0.0, 10], [0, 1], [-np.inf, -np.inf], [0, -np.inf]])
    for saturation, expected in [(0.99, 2), (0.5, 3), (0.99999, 1)]:
        _, rows = ic.softmax(z, saturation=saturation)
        assert rows.summary().saturated_rows == expected
        assert np.count_nonzero(rows.saturated) == expected


# --- axis, masks that broadcast, causal ------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
def test_axis(rng, axis, dtype):
    """pytorch #3238: every axis is the last one after moveaxis."""
    z = rng.normal(size=(2, 3, 4)).astype(dtype)
    p, rows = ic.softmax(z, axis=axis)
    expected, expected_rows = ic.softmax(np.ascontiguousarray(np.moveaxis(z, axis, -1)))
    assert p.shape == z.shape
    assert same_bits(np.moveaxis(p, axis, -1), expected)
    assert rows.lse.shape == expected.shape[:-1]
    for name in FIELDS:
        assert same_bits(getattr(rows, name), getattr(expected_rows, name))
    dp = rng.normal(size=z.shape).astype(dtype)
    dz = ic.softmax_backward(p, dp, axis=axis)
    moved = [np.ascontiguousarray(np.moveaxis(a, axis, -1)) for a in (p, dp)]
    assert same_bits(np.moveaxis(dz, axis, -1), ic.softmax_backward(*moved))


def test_axis_out_of_range_and_scalars():
    """pytorch #3238: AxisError; a 0-d array is a row of one."""
    for axis in (3, -4):
        with pytest.raises(np.exceptions.AxisError):
            ic.softmax(np.zeros((2, 3, 4)), axis=axis)
    p, rows = ic.softmax(np.float32(3.5))
    assert p.shape == rows.lse.shape == ()
    assert (p.item(), rows.lse.item(), rows.entropy.item()) == (1.0, 3.5, 0.0)
    with pytest.raises(np.exceptions.AxisError):
        ic.softmax(np.float32(3.5), axis=1)


@pytest.mark.parametrize("shape", [(4,), (3, 1), (1, 4), (2, 1, 1), (3, 4), (2, 3, 4), ()])
@pytest.mark.parametrize("kind", ["boolean", "additive"])
def test_masks_broadcast(rng, shape, kind):
    z = rng.normal(size=(2, 3, 4)).astype(np.float32)
    mask = rng.random(shape) < 0.6 if kind == "boolean" else np.asarray(rng.normal(size=shape))
    p, rows = ic.softmax(z, mask=mask)
    whole = np.ascontiguousarray(np.broadcast_to(mask, z.shape))
    expected, expected_rows = ic.softmax(z, mask=whole)
    assert same_bits(p, expected)
    assert same_bits(rows.entropy, expected_rows.entropy)
    options = {"keep": whole} if kind == "boolean" else {"bias": whole.astype(np.float32)}
    t, part = reference.logits(z, **options)
    statistics = np.stack([getattr(rows, name) for name in FIELDS], axis=-1)
    compare(p.reshape(-1, 4), statistics.reshape(-1, 5), t.reshape(-1, 4), part.reshape(-1, 4))


def test_masks_follow_the_axis(rng):
    z = rng.normal(size=(4, 3)).astype(np.float32)
    mask = rng.random((4, 1)) < 0.6
    expected, _ = ic.softmax(z.T.copy(), mask=mask.T.copy())
    assert same_bits(ic.softmax(z, axis=0, mask=mask)[0].T, expected)


def test_masks_that_are_neither():
    """An integer mask is a TypeError, one that does not broadcast a ValueError."""
    with pytest.raises(TypeError, match="mask"):
        ic.softmax(np.zeros((2, 3)), mask=np.ones((2, 3), np.int64))
    with pytest.raises(ValueError, match="mask"):
        ic.softmax(np.zeros((2, 3)), mask=np.ones((2, 2), bool))
    with pytest.raises(ValueError, match="mask"):
        ic.softmax(np.zeros((2, 3)), mask=np.ones((2, 2, 3), bool))


@pytest.mark.parametrize(("queries", "keys"), [(4, 4), (3, 5), (5, 3), (1, 6)])
def test_public_causal(rng, queries, keys, dtype):
    """The last query is aligned with the last key, in every leading index, with a mask too."""
    z = rng.normal(size=(2, 3, queries, keys)).astype(dtype)
    lower = np.arange(keys) <= np.arange(queries)[:, None] + keys - queries
    p, rows = ic.softmax(z, causal=True)
    expected, expected_rows = ic.softmax(z, mask=lower)
    assert same_bits(p, expected)
    assert same_bits(rows.jacobian_norm, expected_rows.jacobian_norm)
    assert rows.summary().masked_rows == 6 * max(0, queries - keys)
    keep = rng.random((queries, keys)) < 0.8
    assert same_bits(ic.softmax(z, causal=True, mask=keep)[0], ic.softmax(z, mask=keep & lower)[0])


def test_causal_needs_two_axes():
    with pytest.raises(ValueError, match="causal"):
        ic.softmax(np.zeros(3), causal=True)
    with pytest.raises(ValueError, match="causal"):
        ic.softmax(np.zeros((3, 3)), axis=0, causal=True)


# --- dtypes, layouts, out, threads -----------------------------------------------------------


def test_scale_zero_is_a_number():
    p, rows = ic.softmax(np.array([1.0, 50, -3, 4]), scale=0.0)
    assert p.tolist() == [0.25] * 4
    assert rows.entropy.item() == pytest.approx(math.log(4), rel=1e-15)


@pytest.mark.parametrize("code", ["f2", "f4"])
def test_rows_of_narrow_floats_sum_to_one(code):
    """tenstorrent #52045: 8192 zeros give 1/8192 each, and |Σ − 1| ≤ 1e−6."""
    p, rows = ic.softmax(np.zeros((2, 8192), code))
    assert p.dtype == np.dtype(code)
    assert np.all(p == 1 / 8192)
    assert np.all(np.abs(p.sum(axis=1, dtype=np.float64) - 1) <= 1e-6)
    assert np.allclose(rows.entropy, math.log(8192), rtol=1e-6)


def test_dtypes(rng):
    """Integers give float64, a half is the float32 result rounded once."""
    p, _ = ic.softmax(np.array([1, 2, 3]))
    assert p.dtype == np.float64
    z = rng.normal(size=(3, 9)).astype(np.float16)
    half, rows = ic.softmax(z)
    single, single_rows = ic.softmax(z.astype(np.float32))
    assert half.dtype == np.float16
    assert same_bits(half, single.astype(np.float16))
    assert same_bits(rows.entropy, single_rows.entropy)
    for bad in (np.zeros(3, complex), np.array(["a"]), np.ma.zeros(3)):
        with pytest.raises(TypeError, match="z"):
            ic.softmax(bad)


def test_inputs_of_any_layout(rng, tmp_path, dtype):
    """F-ordered, strided, big-endian, unaligned and read-only inputs are read. (bottleneck #104,
    distributed #1978)"""
    z = rng.normal(size=(6, 10)).astype(dtype)
    p, _ = ic.softmax(z)
    z.tofile(tmp_path / "z.bin")
    for same in (
        np.asfortranarray(z),
        np.repeat(z, 2, axis=1)[:, ::2],
        z[::-1, ::-1].copy()[::-1, ::-1],
        z.astype(dtype.newbyteorder(">")),
        unaligned(z),
        np.memmap(tmp_path / "z.bin", dtype, mode="r", shape=z.shape),
        np.frombuffer(z.tobytes(), dtype).reshape(z.shape),
    ):
        got, _ = ic.softmax(same)
        assert got.dtype == dtype
        assert same_bits(got, p)


def test_out(rng, dtype):
    """Any writable layout, the input itself, and nothing that overlaps otherwise. (numpy #18704,
    cupy #4903)"""
    z = rng.normal(size=(6, 10)).astype(dtype)
    p, _ = ic.softmax(z)
    for out in (
        np.empty((6, 10), dtype),
        np.empty((6, 10), dtype, order="F"),
        np.empty((12, 20), dtype)[::2, ::-2],
        z.copy(),
    ):
        got, _ = ic.softmax(z, out=out)
        assert got is out
        assert same_bits(np.ascontiguousarray(out), p)
    itself = z.copy()
    ic.softmax(itself, out=itself)
    assert same_bits(itself, p)
    storage = np.concatenate([z.ravel(), np.zeros(1, dtype)])
    with pytest.raises(ValueError, match="out"):
        ic.softmax(storage[:-1].reshape(6, 10), out=storage[1:].reshape(6, 10))
    assert same_bits(storage[:-1].reshape(6, 10), z)


def test_unusable_outputs_are_refused_untouched():
    """Wrong dtype, shape or byte order, read-only: refused before any write. (numpy #18704, cupy
    #4903)"""
    z = np.ones((2, 3), np.float32)
    frozen = np.zeros((2, 3), np.float32)
    frozen.flags.writeable = False
    for out, error in [
        (np.zeros((2, 3), np.float64), TypeError),
        (np.zeros((2, 3), np.int32), TypeError),
        (np.zeros((2, 3), np.dtype(np.float32).newbyteorder()), TypeError),
        (np.zeros((3, 2), np.float32), ValueError),
        (np.lib.stride_tricks.as_strided(np.zeros(4, np.float32), (2, 3), (4, 4)), ValueError),
        (frozen, ValueError),
    ]:
        with pytest.raises(error, match="out"):
            ic.softmax(z, out=out)
        assert not np.any(out)
        with pytest.raises(error, match="out"):
            ic.softmax_backward(z, z, out=out)
        assert not np.any(out)


def test_threads_do_not_change_a_bit(rng):
    """numba #8957 for softmax: more rows than one task, 1, 2, 3, 7, 16 threads."""
    z = rng.normal(size=(1200, 600)).astype(np.float32)
    p, rows = ic.softmax(z, causal=True, threads=1)
    for threads in (2, 3, 7, 16):
        got, got_rows = ic.softmax(z, causal=True, threads=threads)
        assert same_bits(got, p)
        assert same_bits(got_rows.entropy, rows.entropy)
    dz = ic.softmax_backward(p, z, threads=1)
    assert same_bits(ic.softmax_backward(p, z, threads=7), dz)


@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (2, 0, 3)])
def test_shapes_without_elements(shape):
    p, rows = ic.softmax(np.zeros(shape, np.float32))
    assert p.shape == shape
    assert rows.lse.shape == shape[:-1]
    assert np.all(rows.lse == -np.inf)
    assert ic.softmax_backward(p, p).shape == shape


@pytest.mark.parametrize(
    ("keywords", "error"),
    [
        ({"scale": math.nan}, ValueError), ({"scale": math.inf}, ValueError),
        ({"scale": "1"}, TypeError), ({"softcap": 0.0}, ValueError),
        ({"softcap": -1.0}, ValueError), ({"saturation": 1.5}, ValueError),
        ({"axis": 0.5}, TypeError),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(keywords, error):
    with pytest.raises(error, match=next(iter(keywords))):
        ic.softmax(np.zeros(3), **keywords)


# --- backward --------------------------------------------------------------------------------


@given(**shapes, scale=st.sampled_from([1.0, 0.125, -3.0]))
def test_backward_equals_the_reference(kernels, rows, n, seed, dtype, scale):
    """Error relative to |scale|·p·(|dp| + Σ|dp|p): the difference may cancel."""
    p, _ = softmax(kernels, arrays(rows, n, seed, 2, dtype))
    dp = arrays(rows, n, seed + 1, 1, dtype)
    exact = reference.softmax_backward(p, dp, scale)
    inner = np.sum(np.abs(dp) * p, axis=1, keepdims=True)
    bound = BACKWARD_UNITS * np.finfo(dtype).eps / 2 * abs(scale) * p * (np.abs(dp) + inner)
    error = np.abs(softmax_backward(kernels, p, dp, scale) - exact)
    assert np.all(error <= bound + np.finfo(dtype).tiny)


def test_backward_is_the_derivative(rng):
    """Against central differences of the public forward pass."""
    z, dp = rng.normal(size=(4, 7)), rng.normal(size=(4, 7))
    forward = partial(ic.softmax, scale=0.7)
    p, _ = forward(z)
    dz = ic.softmax_backward(p, dp, scale=0.7)
    for i in range(7):
        step = np.zeros(7)
        step[i] = 1e-6
        change = forward(z + step)[0] - forward(z - step)[0]
        assert np.allclose(dz[:, i], (change * dp).sum(axis=1) / 2e-6, rtol=0, atol=1e-9)
    assert np.allclose(dz.sum(axis=1), 0, atol=1e-15)


def test_backward_of_masked_and_one_hot_rows(kernels, dtype):
    """Rows of zeros and one-hot rows have no gradient."""
    p = np.array([[0, 0, 0], [0, 1, 0]], dtype)
    dp = np.array([[1, 2, 3], [4, 5, 6]], dtype)
    assert not np.any(softmax_backward(kernels, p, dp))


@pytest.mark.parametrize("n", EDGES)
def test_backward_at_every_length(kernels, rng, n, dtype):
    p, dp = rng.random((3, n)).astype(dtype), rng.normal(size=(3, n)).astype(dtype)
    exact = reference.softmax_backward(p, dp, 0.5)
    inner = np.sum(np.abs(dp) * p, axis=1, keepdims=True)
    bound = BACKWARD_UNITS * np.finfo(dtype).eps / 2 * 0.5 * p * (np.abs(dp) + inner)
    assert np.all(np.abs(softmax_backward(kernels, p, dp, 0.5) - exact) <= bound)


def test_backward_checks_its_arrays():
    p = np.ones((2, 3), np.float32) / 3
    with pytest.raises(ValueError, match="dp"):
        ic.softmax_backward(p, p[:, :2])
    with pytest.raises(TypeError, match="dp"):
        ic.softmax_backward(p, p.astype(np.float64))


@pytest.mark.parametrize(
    "options",
    [{"scale": 1e39}, {"scale": 1e-60}, {"scale": 10**400}, {"softcap": 1e39}, {"softcap": 1e-46},
     {"softcap": 1e-30, "scale": 1e30}],
)  # fmt: skip
def test_parameters_that_float32_cannot_hold_are_refused(options):
    with pytest.raises(ValueError, match=r"scale|softcap"):
        ic.softmax(np.ones(3, np.float32), **options)


def test_an_output_may_not_overlap_the_mask():
    big = np.zeros((5, 4), np.float32)
    z = np.arange(16, dtype=np.float32).reshape(4, 4)
    with pytest.raises(ValueError, match="overlaps mask"):
        ic.softmax(z, mask=big[:-1], out=big[1:])
    with pytest.raises(ValueError, match="overlaps mask"):
        ic.softmax(z, mask=big[0], out=big[:4])


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
def test_masks_without_elements(shape):
    p, rows = ic.softmax(np.zeros(shape), mask=np.zeros(shape, bool))
    assert p.shape == shape
    assert rows.lse.shape == shape[:1]


def test_a_float64_mask_beyond_float32_masks():
    p, _ = ic.softmax(np.zeros(2, np.float32), mask=np.array([0, -1e300]))
    assert p.tolist() == [1, 0]
