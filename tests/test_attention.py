# SPDX-License-Identifier: BSD-3-Clause
"""Attention by tiles, its statistics, output and gradients, against logits held in memory."""

import math
import pickle
import tracemalloc
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import initcore as ic
from initcore import _core
from initcore.reference import attention as reference
from initcore.reference.matmul import matmul
from initcore.reference.tolerances import ATTENTION_UNITS
from kernel_calls import SMALL, attention, same_bits, sha256, unaligned

FIELDS = reference.STATISTICS
COLUMN = {name: i for i, name in enumerate(FIELDS)}
BLOCK = 96  # keys summed at a time
# Key counts on both sides of a vector, of a block and of two.
KEYS = (1, 2, 15, 16, 17, 95, 96, 97, 191, 193, 300)
# of the statistics of test_the_block_is_part_of_the_contract
GOLDEN = {
    "float32": "c52dcf88decc4cca3b10737263359ddec626562a122e2c12a1bbcfc124474ba7",
    "float64": "dc97b9d100e4b9cd0cf1f33a15d7685380cd53c8815fc72fa8e8cff2082be3be",
}
QUADRATIC = ("entropy", "sum_sq", "jacobian_norm")


def compare(statistics, u, scale=1.0, softcap=None, keep=None, bias=None, causal=False):
    """statistics (queries, 9) of the products u (queries, keys), in the dtype of u."""
    t, part = reference.logits(u, scale, softcap, keep, bias, causal)
    _, exact = reference.attention_statistics(u, scale, softcap, keep, bias, causal)
    eps, tiny = float(np.finfo(u.dtype).eps), float(np.finfo(u.dtype).tiny)
    largest = np.max(np.where(part & np.isfinite(t), np.abs(t), 0), axis=1, initial=0)
    units = ATTENTION_UNITS * eps / 2 * (1 + largest.astype(np.float64))
    assert np.array_equal(np.isnan(statistics), np.isnan(exact))
    std = np.sqrt(exact[:, COLUMN["logit_var"]].astype(np.float64))
    for name, column in COLUMN.items():
        got, true = statistics[:, column], exact[:, column]
        size = np.abs(true) * (1 + (name in QUADRATIC)) + tiny
        if name in ("lse", "logit_mean", "logit_max"):
            size = 1 + np.abs(true)
        elif name == "logit_var":  # of logits that are themselves off by units
            size = 2 * (np.abs(true) + std) + units
        elif name == "keys":
            size = 0 * true
        with np.errstate(invalid="ignore"):
            right = (np.abs(got - true) <= units * size) | np.isnan(true) | (got == true)
        assert np.all(right), (name, got[~right], true[~right])


def within_a_millionth(statistics, exact):
    """Relative; absolute for logarithms and means of logits, which may be near 0."""
    floor = np.isin(FIELDS, ("lse", "logit_mean")).astype(float)
    return np.all(np.abs(statistics - exact) <= 1e-6 * np.maximum(np.abs(exact), floor))


def operands(seed, queries, keys, d, dtype, spread=1.0):
    random = np.random.default_rng(seed)
    q = (random.normal(size=(1, queries, d)) * spread).astype(dtype)
    return q, random.normal(size=(1, keys, d)).astype(dtype)


def rows_of(logits, dtype):
    """q and k of one query whose products are these very logits."""
    return np.ones((1, 1, 1), dtype), np.array(logits, dtype).reshape(1, -1, 1)


shapes = {
    "queries": st.integers(1, 40),
    "keys": st.integers(1, 210),
    "d": st.integers(1, 20),
    "seed": st.integers(0, 2**32),
    "dtype": st.sampled_from([np.float32, np.float64]),
}


# --- the kernel against the reference --------------------------------------------------------


@given(**shapes, spread=st.sampled_from([0.01, 1, 8]), scale=st.sampled_from([1, 0.125, 0, -2]))
def test_equals_the_reference(kernels, queries, keys, d, seed, dtype, spread, scale):
    q, k = operands(seed, queries, keys, d, dtype, spread)
    compare(attention(kernels, q, k, scale=scale), matmul(q[0], k[0]), scale)


@pytest.mark.parametrize("keys", KEYS)
def test_every_length(every_isa, keys, dtype):
    q, k = operands(keys, 17, keys, 5, dtype, 2)
    u = matmul(q[0], k[0])
    for causal in (False, True):
        found = [attention(kernels, q, k, causal=causal) for kernels in every_isa]
        compare(found[0], u, causal=causal)
        assert all(same_bits(found[0], other) for other in found)


@pytest.mark.parametrize("d", [1, 2, 15, 17, 64, 512])
def test_streaming_is_the_materialised_softmax_to_a_millionth(every_isa, d):
    """Of the same float32 logits, for heads of every size."""
    q, k = operands(d, 24, 300, d, np.float32)
    u, scale = matmul(q[0], k[0]), 1 / math.sqrt(d)
    _, exact = reference.attention_statistics(u, scale)
    for kernels in every_isa:
        assert within_a_millionth(attention(kernels, q, k, scale=scale), exact)


@given(**shapes)
def test_boolean_mask(kernels, queries, keys, d, seed, dtype):
    """Cells masked out are never looked at; rows that keep nothing are counted as masked."""
    q, k = operands(seed, queries, keys, d, dtype)
    random = np.random.default_rng(seed + 1)
    keep = random.random((queries, keys)) < random.choice([0.05, 0.6])
    lost = random.random(keys) < 0.2
    k[0, lost] = random.choice([np.nan, np.inf])
    keep[:, lost] = False
    mask = keep.astype(np.uint8)[None]
    with np.errstate(invalid="ignore"):
        compare(attention(kernels, q, k, mask=mask), matmul(q[0], k[0]), keep=keep)


@given(**shapes)
def test_additive_mask(kernels, queries, keys, d, seed, dtype):
    q, k = operands(seed, queries, keys, d, dtype)
    random = np.random.default_rng(seed + 1)
    bias = random.normal(size=(1, queries, keys)).astype(dtype)
    bias[random.random(bias.shape) < 0.3] = -np.inf
    found = attention(kernels, q, k, mask=bias, scale=0.5)
    compare(found, matmul(q[0], k[0]), 0.5, bias=bias[0])


@given(**shapes, softcap=st.sampled_from([0.5, 5.0, 50.0]))
def test_softcap(kernels, queries, keys, d, seed, dtype, softcap):
    q, k = operands(seed, queries, keys, d, dtype, 4)
    found = attention(kernels, q, k, softcap=softcap, scale=0.5)
    compare(found, matmul(q[0], k[0]), 0.5, softcap)


@pytest.mark.parametrize(("queries", "keys"), [
    (1, 1), (5, 5), (3, 8), (8, 3), (17, 16), (16, 17), (1, 99), (99, 1), (130, 97), (97, 130),
])  # fmt: skip
def test_causal(kernels, dtype, queries, keys):
    """The last query sees the last key; queries before the first key see nothing."""
    q, k = operands(queries, queries, keys, 3, dtype)
    found = attention(kernels, q, k, causal=True)
    compare(found, matmul(q[0], k[0]), causal=True)
    seen = np.arange(queries) + 1 + keys - queries
    assert np.array_equal(found[:, COLUMN["keys"]], np.maximum(seen, 0))


def test_a_row_depends_on_itself_alone(kernels, rng, dtype):
    """Not on the rows it is computed with, nor on where a task begins; of a causal row, not on
    the keys after it."""
    q, k = operands(5, 150, 250, 7, dtype, 2)
    mask = (rng.random((1, 150, 250)) < 0.7).astype(np.uint8)
    for options in ({}, {"causal": True}, {"mask": mask, "softcap": 3.0}):
        whole = attention(kernels, q, k, **options)
        for first, rows in [(0, 1), (1, 149), (16, 16), (37, 90), (149, 1)]:
            piece = attention(kernels, q, k, first=first, rows=rows, **options)
            assert same_bits(piece, whole[first : first + rows])
    last = attention(kernels, q, k[:, :200].copy(), causal=True)
    assert same_bits(last[-1:], attention(kernels, q, k, causal=True)[99:100]) is False
    alone = attention(kernels, q[:, 99:100].copy(), k[:, :200].copy())
    assert same_bits(alone, attention(kernels, q, k, causal=True)[99:100])


@pytest.mark.parametrize("n", SMALL)
def test_every_instruction_set_gives_the_same_bits(every_isa, rng, n, dtype):
    q, k = operands(n, n, 3 * n, n, dtype, 3)
    q[0, 0], k[0, n] = np.inf, np.nan
    keep = (rng.random((1, n, 3 * n)) < 0.7).astype(np.uint8)
    keep[0, n // 2] = 0
    keep[0, :, n] = 0
    bias = rng.normal(size=(1, 1, 3 * n)).astype(dtype)
    for options in (
        {"scale": 0.3}, {"softcap": 3.0}, {"mask": keep}, {"mask": bias}, {"causal": True},
        {"mask": keep, "softcap": 20.0, "causal": True, "scale": -1.0},
    ):  # fmt: skip
        found = [attention(kernels, q, k, **options) for kernels in every_isa]
        assert all(same_bits(found[0], other) for other in found)


def test_the_block_is_part_of_the_contract(every_isa):
    """These very bits, whatever a later version finds fast: more than three blocks of keys."""
    u = np.arange(17 * 300).reshape(1, 17, 300) % 97 / 16  # exact in either dtype
    q, k = np.eye(17)[None], np.ascontiguousarray(u.transpose(0, 2, 1))
    for dtype, expected in GOLDEN.items():
        rows = [attention(kernels, q.astype(dtype), k.astype(dtype)) for kernels in every_isa]
        assert {sha256(statistics) for statistics in rows} == {expected}


# --- rows of chosen logits -------------------------------------------------------------------


@pytest.mark.parametrize("gap", [0.0, 1e-6, 1.0, 10.0, 30.0, 60.0, 80.0])
def test_nearly_one_hot_rows_do_not_cancel(kernels, dtype, gap):
    """Entropy and ‖J‖_F to relative accuracy, wherever the largest logit stands."""
    for keys in (2, BLOCK, BLOCK + 1, 250):
        for top in {0, keys // 2, keys - 1}:
            logits = np.zeros(keys)
            logits[top] = gap
            q, k = rows_of(logits, dtype)
            compare(attention(kernels, q, k), matmul(q[0], k[0]))


@pytest.mark.parametrize("order", ["rising", "falling", "shuffled", "equal", "plateaus"])
@pytest.mark.parametrize("size", [1e-3, 1.0, 30.0, 1e4])
def test_logits_in_any_order(kernels, rng, dtype, order, size):
    """A largest logit that grows with every block, never, or is met again."""
    logits = np.linspace(-size, size, 1000)
    if order == "falling":
        logits = logits[::-1]
    elif order == "shuffled":
        logits = rng.permutation(logits)
    elif order == "equal":
        logits = np.full(1000, size)
    elif order == "plateaus":
        logits = np.repeat(np.linspace(-size, size, 10), 100)
    q, k = rows_of(logits, dtype)
    compare(attention(kernels, q, k), matmul(q[0], k[0]))


def test_sums_of_equal_terms_do_not_drift(kernels):
    """A row of one largest logit and many equal ones: every rounding of a sum goes one way."""
    for gap in np.linspace(0.1, 3, 30):
        q, k = rows_of(np.r_[np.zeros(4000), gap], np.float32)
        _, exact = reference.attention_statistics(matmul(q[0], k[0]))
        assert within_a_millionth(attention(kernels, q, k), exact)


def test_logits_of_any_magnitude(kernels, dtype):
    """No overflow between the largest and the smallest finite logits."""
    big = float(np.finfo(dtype).max)
    for logits, probability in [([big, -big, 0], 1), ([-big] * 3, 1 / 3), ([big, big, 0], 1 / 2)]:
        q, k = rows_of(logits, dtype)
        row = attention(kernels, q, k)[0]
        assert row[COLUMN["max_prob"]] == pytest.approx(probability, rel=1e-6)
        assert row[COLUMN["lse"]] == pytest.approx(max(logits), rel=1e-6)
        assert row[COLUMN["entropy"]] == pytest.approx(-math.log(probability), rel=1e-6)
        assert row[COLUMN["keys"]] == 3


def test_zero_times_log_zero_is_zero(dtype):
    """trl #7221, pytorch #40553: entropy 0 and ln 2."""
    for bias, entropy in [([0, -np.inf], 0), ([0, 0, -np.inf], math.log(2))]:
        q, k = rows_of([0] * len(bias), dtype)
        rows = ic.attention_stats(q[0], k[0], mask=np.array(bias))
        assert rows.entropy.item() == pytest.approx(entropy, rel=1e-6, abs=0)
        assert rows.keys.item() == len(bias) - 1


@pytest.mark.parametrize(("logits", "norm"), [
    ([0, 0], 0.5), ([7] * 4, 0.4330127019), ([1, 2, 3], 0.3893897747),
    ([2.1, 18.5, 1.3], 1.80196e-7),
])  # fmt: skip
def test_known_jacobians(dtype, logits, norm):
    rows = ic.attention_stats(*rows_of(logits, dtype))
    assert rows.jacobian_norm.item() == pytest.approx(norm, rel=1e-5)


def test_products_that_are_minus_infinity_have_probability_0(kernels, dtype):
    """An infinite key: −∞ is a logit like a masked one, +∞ makes its row NaN."""
    k = np.array([[[1.0], [np.inf], [2.0]]], dtype)
    q = np.array([[[-1.0], [1.0], [1.0]]], dtype)
    found = attention(kernels, q, k)
    q1, k1 = rows_of([-1, -2], dtype)
    assert same_bits(found[0], attention(kernels, q1, k1)[0])
    assert np.isnan(found[1:]).all()


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_bad_query_stays_in_its_row(bad, dtype):
    """scipy #23225, jax #21495: NaN in that row alone, and it is counted."""
    q, k = operands(3, 40, 130, 4, dtype)
    expected = ic.attention_stats(q[0], k[0])
    q[0, 7, 1] = bad
    rows = ic.attention_stats(q[0], k[0])
    others = np.arange(40) != 7
    for name in (*FIELDS, "effective_keys"):
        assert np.isnan(getattr(rows, name)[7])
        assert same_bits(getattr(rows, name)[others], getattr(expected, name)[others])
    summary = rows.summary()
    assert (summary.rows, summary.masked_rows, summary.nonfinite_rows) == (40, 0, 1)
    assert summary.logit_var == pytest.approx(np.mean(rows.logit_var[others]), rel=1e-12)


def test_fully_masked_rows(dtype):
    """pytorch #131060, burn #4694, mlx #2395: lse −∞, 0 keys, the rest NaN, left out of means."""
    q, k = operands(4, 20, 130, 4, dtype)
    boolean = np.ones((20, 130), bool)
    boolean[5] = False
    additive = np.where(boolean, 0.0, -np.inf)
    alone = ic.attention_stats(q[0], k[0])
    for mask in (boolean, additive):
        rows = ic.attention_stats(q[0], k[0], mask=mask)
        assert rows.lse[5] == -np.inf
        assert rows.keys[5] == 0
        for name in (*FIELDS[1:-1], "effective_keys", "entropy_share"):
            assert np.isnan(getattr(rows, name)[5])
            assert np.isfinite(np.delete(getattr(rows, name), 5)).all()
        assert not rows.saturated[5]
        summary = rows.summary()
        assert (summary.rows, summary.masked_rows, summary.nonfinite_rows) == (20, 1, 0)
        if mask is boolean:
            assert same_bits(np.delete(rows.entropy, 5), np.delete(alone.entropy, 5))


# --- the public function ---------------------------------------------------------------------


def by_softmax(q, k, **options):
    """Statistics of materialised logits, in float64."""
    z = np.asarray(q, np.float64) @ np.swapaxes(np.asarray(k, np.float64), -1, -2)
    return ic.softmax(z, **options)[1]


def close(rows, expected, rtol=1e-9):
    for name in FIELDS[:5]:
        got, true = getattr(rows, name), getattr(expected, name)
        assert got.shape == true.shape
        assert np.allclose(got, true, rtol=rtol, atol=rtol, equal_nan=True), name


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_grouped_heads(rng, kv_heads):
    """Heads h·n/kv … share the keys of kv-head h."""
    q, k = rng.normal(size=(3, 6, 20, 8)), rng.normal(size=(3, kv_heads, 30, 8))
    rows = ic.attention_stats(q, k, causal=True)
    shared = np.repeat(k, 6 // kv_heads, axis=1)
    assert rows.lse.shape == (3, 6, 20)
    close(rows, by_softmax(q, shared, scale=1 / math.sqrt(8), causal=True))
    if kv_heads == 1:
        assert rows.equals(ic.attention_stats(q, k[:1, 0] if len(k) == 1 else k, causal=True))


def test_leading_axes_broadcast(rng):
    q, k = rng.normal(size=(4, 1, 2, 9, 3)), rng.normal(size=(5, 2, 7, 3))
    rows = ic.attention_stats(q, k, scale=0.7)
    assert rows.lse.shape == (4, 5, 2, 9)
    close(rows, by_softmax(q, k, scale=0.7))
    two = ic.attention_stats(q[0, 0], k[0, 0])  # keys without an axis of heads
    close(two, by_softmax(q[0, 0], k[0, 0], scale=1 / math.sqrt(3)))


@pytest.mark.parametrize("shape", [
    (), (7,), (1, 7), (9, 1), (9, 7), (2, 1, 1), (2, 9, 7), (4, 1, 1, 7), (4, 2, 9, 7),
])  # fmt: skip
@pytest.mark.parametrize("kind", ["boolean", "additive"])
def test_masks_broadcast(rng, shape, kind):
    """Over leading axes and heads, of which they need not have any."""
    q, k = rng.normal(size=(4, 2, 9, 3)), rng.normal(size=(4, 1, 7, 3))
    mask = rng.random(shape) < 0.6 if kind == "boolean" else np.asarray(rng.normal(size=shape))
    rows = ic.attention_stats(q, k, mask=mask, scale=1.0)
    close(rows, by_softmax(q, k, mask=mask))


def test_scale():
    """None is 1/√d_k; 0.0 is a number: every key is as good."""
    q, k = operands(6, 5, 9, 16, np.float64)
    default, quarter = ic.attention_stats(q, k), ic.attention_stats(q, k, scale=0.25)
    assert default.equals(quarter)
    nothing = ic.attention_stats(q, k, scale=0.0)
    assert np.all(nothing.max_prob == 1 / 9)
    assert np.allclose(nothing.effective_keys, 9, rtol=1e-15)
    assert not np.any(nothing.logit_var)


def test_a_scale_multiplies_once():
    """x-transformers #190: unit q = k with d_k 64 and a learned scale of 10 give a logit of 10,
    and a zero vector gives 0."""
    unit = np.full((2, 64), 1 / 8)
    unit[1] = 0
    rows = ic.attention_stats(unit, unit[:1], scale=10.0)
    assert np.allclose(rows.logit_max, [10, 0], rtol=1e-15, atol=0)


@pytest.mark.parametrize(("d_k", "scale", "variance"), [
    (32, 1.0, 32), (128, 1.0, 128), (64, None, 1), (64, 1 / 64, 1 / 64), (64, 512**-0.5, 1 / 8),
])  # fmt: skip
def test_logit_variance_of_unit_queries_and_keys(rng, d_k, scale, variance):
    """scale²·d_k: of no scale, 1/√d_k, 1/d_k, 1/√d_model (512); within 5 σ."""
    q, k = rng.normal(size=(40, 50, d_k)), rng.normal(size=(40, 60, d_k))
    found = ic.attention_stats(q, k, scale=scale).logit_var * (60 / 59) / variance
    heads = found.mean(axis=1)  # keys are common to a head's rows
    assert abs(heads.mean() - 1) < 5 * heads.std(ddof=1) / math.sqrt(40)


@pytest.mark.parametrize(("std", "sum_sq", "entropy", "max_prob"), [
    (2.0, 0.109864, 3.193970, 0.239369), (4.0, 0.404426, 1.547036, 0.547449),
])  # fmt: skip
def test_independent_logits(rng, std, sum_sq, entropy, max_prob):
    """The exact expectations for 128 independent normal logits, within 5 σ."""
    k = rng.normal(size=(4000, 128, 1)).astype(np.float32) * np.float32(std)
    rows = ic.attention_stats(np.ones((4000, 1, 1), np.float32), k)
    for name, exact in (("sum_sq", sum_sq), ("entropy", entropy), ("max_prob", max_prob)):
        values = getattr(rows, name)
        error = values.std(ddof=1) / math.sqrt(values.size)
        assert abs(values.mean() - exact) < 5 * error, name


def test_what_a_row_chose_from():
    """Logits 0, 1, 2, 3: mean 1.5, variance 1.25 (ddof 0, pytorch #50010), largest 3."""
    q, k = rows_of([0, 1, 2, 3], np.float64)
    rows = ic.attention_stats(q, k, scale=2.0)
    p = np.exp([0, 2, 4, 6]) / np.exp([0, 2, 4, 6]).sum()
    exact = {
        "logit_mean": 3.0, "logit_var": 5.0, "logit_max": 6.0, "keys": 4.0,
        "effective_keys": 1 / np.sum(p**2),
        "entropy_share": -np.sum(p * np.log(p)) / math.log(4),
    }  # fmt: skip
    for name, value in exact.items():
        assert getattr(rows, name).item() == pytest.approx(value, rel=1e-14), name
    assert math.isnan(ic.attention_stats(q, k[:, :1]).entropy_share.item())


def test_saturated_rows_are_counted_above_the_threshold():
    q = np.array([[0.0], [5], [50]])
    k = np.array([[0.0], [1]])
    for saturation, expected in [(0.99, 2), (0.5, 3), (0.995, 1)]:
        rows = ic.attention_stats(q, k, saturation=saturation)
        assert rows.summary().saturated_rows == expected


def test_summary_by_head(rng):
    q, k = rng.normal(size=(3, 2, 10, 4)), rng.normal(size=(3, 2, 11, 4))
    q[:, 1] *= 20
    rows = ic.attention_stats(q, k)
    summary = rows.summary()
    assert [head.rows for head in summary.heads] == [30, 30]
    for h, head in enumerate(summary.heads):
        assert head.entropy == pytest.approx(rows.entropy[:, h].mean(), rel=1e-12)
        assert head.saturated_rows == np.count_nonzero(rows.saturated[:, h])
        assert head.heads == ()
    assert summary.keys == 11
    lines = str(summary).splitlines()
    assert lines[0].startswith("60 rows, 0 masked, 0 nonfinite")
    assert [line.split()[0] for line in lines[1:]] == ["head", "0", "1", "all"]
    assert ic.attention_stats(q[0, 0], k[0, 0]).summary().heads == ()


def test_rows_are_a_record(rng):
    q, k = rng.normal(size=(2, 2, 5, 4))
    rows = ic.attention_stats(q, k)
    assert pickle.loads(pickle.dumps(rows)).equals(rows)
    assert not rows.logit_var.flags.writeable
    assert np.array_equal(rows.to_dict()["logit_max"], rows.logit_max)
    assert pickle.loads(pickle.dumps(rows.summary())).equals(rows.summary())


def test_dtypes(rng):
    """Halves are computed in float32, integers in float64, a mix in the wider."""
    q, k = (rng.normal(size=(2, 9, 8)).astype(np.float16) for _ in range(2))
    single = ic.attention_stats(q.astype(np.float32), k.astype(np.float32))
    assert ic.attention_stats(q, k).equals(single)
    assert ic.attention_stats(q.astype(np.float32), k).equals(single)
    double = ic.attention_stats(q.astype(np.float64), k.astype(np.float64))
    assert ic.attention_stats(q.astype(np.float64), k).equals(double)
    integers = rng.integers(-3, 4, (2, 9, 8))
    assert ic.attention_stats(integers, integers).equals(
        ic.attention_stats(integers.astype(float), integers.astype(float))
    )


def test_bfloat16(rng):
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    q = rng.normal(size=(9, 8)).astype(bfloat16)
    single = ic.attention_stats(q.astype(np.float32), q.astype(np.float32))
    assert ic.attention_stats(q, q).equals(single)


def test_inputs_of_any_layout(rng, dtype):
    """F-ordered, strided, big-endian, unaligned and read-only inputs are read. (bottleneck #104,
    distributed #1978)"""
    q, k = (rng.normal(size=(3, 2, 6, 10)).astype(dtype) for _ in range(2))
    rows = ic.attention_stats(q, k)
    for change in (
        np.asfortranarray,
        lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
        lambda a: np.ascontiguousarray(a.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3),
        lambda a: a.astype(dtype.newbyteorder(">")),
        unaligned,
        lambda a: np.frombuffer(a.tobytes(), dtype).reshape(a.shape),
    ):
        assert ic.attention_stats(change(q), change(k)).equals(rows)


def test_threads_do_not_change_a_bit(rng):
    """numba #8957: more rows than one task has, 1, 2, 3, 7, 16 threads; heads by the task too."""
    for shape in ((1, 700), (40, 65)):
        q, k = (rng.normal(size=(*shape, 40)).astype(np.float32) for _ in range(2))
        k = np.repeat(k, 4, axis=-2) if shape[0] == 40 else np.repeat(k, 8, axis=-2)
        one = ic.attention_stats(q, k, causal=True, threads=1)
        for threads in (2, 3, 7, 16):
            assert ic.attention_stats(q, k, causal=True, threads=threads).equals(one)


def test_memory_does_not_grow_with_the_square():
    """Queries × keys in float32 would take 16 MiB here."""
    q = np.ones((2048, 1), np.float32)
    tracemalloc.start()
    ic.attention_stats(q, q, threads=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 << 20


@pytest.mark.parametrize("shape", [(1, 4096), (2048, 1), (1, 1)])
@pytest.mark.parametrize("kind", [bool, np.float32])
def test_a_broadcast_mask_is_read_where_it_lies(shape, kind):
    """Queries × keys would take 8 MiB of booleans here."""
    q, k = np.ones((2048, 1), np.float32), np.ones((4096, 1), np.float32)
    mask = np.arange(shape[0] * shape[1]).reshape(shape) % 2 == 1
    mask = mask if kind is bool else np.where(mask, 0, -np.inf).astype(kind)
    whole = ic.attention_stats(q, k, mask=mask, threads=1)
    tracemalloc.start()
    rows = ic.attention_stats(q, k, mask=np.broadcast_to(mask, (2048, 4096)), threads=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows.equals(whole)
    assert peak < 2 << 20


@pytest.mark.parametrize(("q", "k"), [
    ((0, 4), (3, 4)), ((3, 4), (0, 4)), ((0, 4), (0, 4)), ((2, 0, 4), (2, 3, 4)),
    ((0, 5, 4), (0, 3, 4)), ((0, 2, 5, 4), (0, 1, 3, 4)),
])  # fmt: skip
def test_shapes_without_elements(q, k):
    rows = ic.attention_stats(np.zeros(q, np.float32), np.zeros(k, np.float32))
    assert rows.lse.shape == q[:-1]
    assert k[-2] or np.all(rows.lse == -np.inf)
    assert rows.summary().rows == math.prod(q[:-1])


def test_heads_without_features():
    rows = ic.attention_stats(np.zeros((3, 0)), np.zeros((5, 0)), scale=1.0)
    assert np.all(rows.max_prob == 0.2)
    with pytest.raises(ValueError, match="scale=None with d_k 0"):
        ic.attention_stats(np.zeros((3, 0)), np.zeros((5, 0)))


def test_one_query_and_one_key():
    rows = ic.attention_stats(np.full((1, 1), 2.0), np.full((1, 1), 3.0), scale=0.5)
    assert (rows.lse.item(), rows.max_prob.item(), rows.entropy.item()) == (3, 1, 0)
    assert (rows.logit_mean.item(), rows.logit_var.item(), rows.keys.item()) == (3, 0, 1)
    assert rows.saturated.item()


@pytest.mark.parametrize(("arguments", "keywords", "error", "match"), [
    ((np.zeros(3), np.zeros((3, 3))), {}, ValueError, "q has shape"),
    ((np.zeros((3, 3)), np.zeros(3)), {}, ValueError, "k has shape"),
    ((np.zeros((3, 3)), np.zeros((3, 4))), {}, ValueError, "k has shape"),
    ((np.zeros((5, 3, 3)), np.zeros((2, 3, 3))), {}, ValueError, "5 heads and k has 2"),
    ((np.zeros((2, 3, 3)), np.zeros((4, 3, 3))), {}, ValueError, "2 heads and k has 4"),
    ((np.zeros((2, 4, 3, 3)), np.zeros((3, 4, 3, 3))), {}, ValueError, "k has shape"),
    ((np.zeros((3, 3), complex), np.zeros((3, 3))), {}, TypeError, "q has dtype"),
    ((np.zeros((3, 3)), np.ma.zeros((3, 3))), {}, TypeError, "k is a masked array"),
    ((np.zeros((3, 3)), np.zeros((3, 3))), {"scale": math.nan}, ValueError, "scale=nan"),
    ((np.zeros((3, 3)), np.zeros((3, 3))), {"scale": "1"}, TypeError, "scale='1'"),
    ((np.zeros((3, 3)), np.zeros((3, 3))), {"softcap": 0}, ValueError, "softcap=0"),
    ((np.zeros((3, 3)), np.zeros((3, 3))), {"saturation": 2}, ValueError, "saturation=2"),
    ((np.zeros((3, 3)), np.zeros((3, 3))), {"mask": np.ones(3, int)}, TypeError, "mask has dtype"),
    ((np.zeros((3, 3)), np.zeros((4, 3))), {"mask": np.ones((4, 3), bool)}, ValueError, "mask"),
    ((np.zeros((3, 3)), np.zeros((3, 3))), {"threads": 0}, ValueError, "threads=0"),
    ((np.zeros((3, 3), "f"), np.zeros((3, 3), "f")), {"scale": 1e39}, ValueError, "scale=1e"),
    ((np.zeros((3, 3)), np.zeros((3, 3))), {"mask": np.ma.ones((3, 3))}, TypeError, "mask is a m"),
    ((np.zeros((3, 3)), np.zeros((3, 3))), {"mask": [[1], [1, 2]]}, ValueError, "mask is no rect"),
    ((np.zeros((3, 3)), np.zeros((3, 3))), {"causal": "no"}, TypeError, "causal='no': True or F"),
    ((np.zeros((3, 3)), np.zeros((3, 3))), {"causal": 1}, TypeError, "causal=1: True or False"),
])  # fmt: skip
def test_bad_arguments_are_named(arguments, keywords, error, match):
    with pytest.raises(error, match=match):
        ic.attention_stats(*arguments, **keywords)


# --- the output ------------------------------------------------------------------------------


def using(kernels):
    """The public functions on these kernels."""
    return mock.patch.object(_core, "default", return_value=kernels)


def options_of(kind, rng, queries, keys):
    """(of the public function, of the reference)."""
    scale = {"scale": 0.5}
    if kind == "boolean":
        keep = rng.random((queries, keys)) < 0.6
        return {"mask": keep, **scale}, {"keep": keep, **scale}
    if kind == "additive":
        bias = np.where(rng.random((1, keys)) < 0.3, -np.inf, rng.normal(size=(queries, keys)))
        return {"mask": bias, **scale}, {"bias": bias, **scale}
    more = {"softcap": {"softcap": 2.0}, "causal": {"causal": True}, "all": {}}[kind]
    return {**more, **scale}, {**more, **scale}


KINDS = ["all", "boolean", "additive", "softcap", "causal"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("queries", "keys", "d_v"), [
    (1, 1, 1), (17, 95, 3), (40, 97, 16), (33, 250, 7), (150, 100, 17),
])  # fmt: skip
def test_output(kernels, rng, dtype, kind, queries, keys, d_v):
    """Given the products: the statistics' error, a fma a key of a block, two a block."""
    q, k = operands(queries, queries, keys, 5, dtype)
    v = rng.normal(size=(keys, d_v)).astype(dtype)
    given_options, options = options_of(kind, rng, queries, keys)
    if "mask" in given_options and kind == "additive":
        options["bias"] = options["bias"].astype(dtype)
    with using(kernels):
        output, rows = ic.attention(q[0], k[0], v, **given_options)
        assert rows.equals(ic.attention_stats(q[0], k[0], **given_options))
    u = matmul(q[0], k[0])
    t, part = reference.logits(u, **options)
    p, _ = reference.attention_statistics(u, **options)
    largest = np.max(np.where(part & np.isfinite(t), np.abs(t), 0), axis=1, keepdims=True)
    roundings = ATTENTION_UNITS * (1 + largest) + min(keys, BLOCK) + 2 * (keys // BLOCK + 1)
    bound = roundings * np.finfo(dtype).eps / 2 * reference.weigh(p, np.abs(v))
    assert np.all(np.abs(output - reference.weigh(p, v)) <= bound)
    assert not np.any(output[rows.lse == -np.inf])


@pytest.mark.parametrize("kind", KINDS)
def test_every_instruction_set_gives_the_same_output(every_isa, rng, dtype, kind):
    q, k = operands(1, 70, 210, 9, dtype, 3)
    v, dout = rng.normal(size=(210, 19)).astype(dtype), rng.normal(size=(70, 19)).astype(dtype)
    q[0, 3], v[7] = np.nan, np.inf
    options, _ = options_of(kind, rng, 70, 210)
    outputs, gradients = [], []
    for kernels in every_isa:
        with using(kernels):
            outputs.append(ic.attention(q[0], k[0], v, **options)[0])
            gradients.append(ic.attention_backward(q[0], k[0], v, dout, **options))
    assert all(same_bits(outputs[0], other) for other in outputs)
    for others in gradients:
        assert all(same_bits(a, b) for a, b in zip(gradients[0], others, strict=True))


def test_output_without_statistics(rng):
    q, k, v = rng.normal(size=(3, 2, 9, 4)).astype(np.float16)
    output, rows = ic.attention(q, k, v)
    bare, nothing = ic.attention(q, k, v, stats=False)
    assert nothing is None
    assert same_bits(bare, output)
    assert output.dtype == np.float32
    assert output.shape == (2, 9, 4)
    assert rows.lse.shape == (2, 9)


@pytest.mark.parametrize("code", ["float16", "float32"])
def test_weights_sum_to_1(code):
    """tenstorrent #52045, lmdeploy PR #1239: 8192 equal logits, 1/8192 each, a sum of 1."""
    k = np.zeros((8192, 4), code)
    output, rows = ic.attention(np.ones((3, 4), code), k, np.ones((8192, 1), code))
    assert np.all(rows.max_prob == 1 / 8192)
    assert np.all(np.abs(output - 1) <= 1e-6)


def test_a_value_of_probability_0_is_not_looked_at(kernels, rng, dtype):
    """NaN and infinities behind a mask stay there, forward and backward."""
    q, k = operands(2, 20, 150, 4, dtype)
    v, dout = rng.normal(size=(150, 6)).astype(dtype), rng.normal(size=(20, 6)).astype(dtype)
    lost = rng.random(150) < 0.3
    keep = np.ones((20, 150), bool)
    keep[:, lost] = False
    keep[11] = False
    with using(kernels):
        output, rows = ic.attention(q[0], k[0], v, mask=keep)
        gradients = ic.attention_backward(q[0], k[0], v, dout, mask=keep)
        k[0, lost], v[lost], q[0, 11], dout[11] = np.nan, np.inf, np.nan, np.nan
        again, rows_again = ic.attention(q[0], k[0], v, mask=keep)
        gradients_again = ic.attention_backward(q[0], k[0], v, dout, mask=keep)
    assert same_bits(again, output)
    assert not np.any(output[11])
    assert rows.equals(rows_again)
    for a, b in zip(gradients[:3], gradients_again[:3], strict=True):
        assert same_bits(a, b)
    assert math.isfinite(gradients[3])


def test_values_of_any_magnitude(kernels, dtype):
    big = float(np.finfo(dtype).max) / 4
    q, k = rows_of([0, 0, 0, -np.inf], dtype)
    v = np.array([[big, 1], [big, 2], [big, np.inf], [np.nan, np.nan]], dtype)
    with using(kernels):
        output, _ = ic.attention(q[0], k[0], v, mask=np.array([1, 1, 1, 0], bool))
    assert np.allclose(output[0, 0], big, rtol=1e-6)
    assert output[0, 1] == np.inf


# --- backward --------------------------------------------------------------------------------


TOLERANCES = {"float32": 1e-5, "float64": 1e-13}


def near(got, true, dtype, largest=1.0):
    """Relative to the largest of the array; p is off by the last place of its largest logit."""
    true = np.asarray(true, np.float64)
    size = np.max(np.abs(true), initial=0) * max(largest, 1.0)
    return np.all(np.abs(got - true) <= TOLERANCES[dtype.name] * size)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("queries", "keys", "d", "d_v"), [
    (1, 1, 1, 1), (17, 95, 5, 3), (97, 40, 64, 16), (130, 250, 3, 65),
])  # fmt: skip
def test_backward(kernels, rng, dtype, kind, queries, keys, d, d_v):
    q, k = operands(keys, queries, keys, d, dtype)
    v = rng.normal(size=(keys, d_v)).astype(dtype)
    dout = rng.normal(size=(queries, d_v)).astype(dtype)
    given_options, options = options_of(kind, rng, queries, keys)
    with using(kernels):
        found = ic.attention_backward(q[0], k[0], v, dout, **given_options)
    exact = reference.attention_backward(q[0], k[0], v, dout, **options)
    if (queries, keys) == (1, 1):  # nothing to choose from, so nothing depends on q, k, scale
        assert not any(np.any(a) for a in (*found[:2], found[3]))
        assert np.allclose(found[2], np.asarray(exact[2], np.float64), rtol=1e-6)
        return
    assert [a.shape for a in found[:3]] == [q[0].shape, k[0].shape, v.shape]
    for got, true, name in zip(found, exact, ("dq", "dk", "dv", "dscale"), strict=True):
        assert near(got, true, dtype), name


@pytest.mark.parametrize("causal", [False, True])
def test_backward_of_shared_heads(rng, causal):
    """dk and dv sum over the heads of a group and over axes along which k was broadcast, dq over
    those of q."""
    q, k = rng.normal(size=(2, 1, 4, 9, 3)), rng.normal(size=(3, 2, 11, 3))
    v, dout = rng.normal(size=(3, 2, 11, 5)), rng.normal(size=(2, 3, 4, 9, 5))
    dq, dk, dv, dscale = ic.attention_backward(q, k, v, dout, causal=causal, scale=0.6)
    exact = [np.zeros(a.shape) for a in (q, k, v)]
    total = 0.0
    for a, b, h in np.ndindex(2, 3, 4):
        at_q, at_k = (a, 0, h), (b, h // 2)
        parts = reference.attention_backward(
            q[at_q], k[at_k], v[at_k], dout[a, b, h], 0.6, causal=causal
        )
        exact[0][at_q] += parts[0]
        exact[1][at_k] += parts[1]
        exact[2][at_k] += parts[2]
        total += float(parts[3])
    for got, true in zip((dq, dk, dv), exact, strict=True):
        assert got.shape == true.shape
        assert near(got, true, np.dtype(float))
    assert dscale == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("spread", [1.0, 30.0])
@pytest.mark.parametrize("options", [
    {}, {"causal": True}, {"softcap": 3.0}, {"scale": 0.0}, {"scale": -0.2, "mask": "boolean"},
    {"mask": "additive"},
])  # fmt: skip
def test_backward_is_torch_autograd(rng, dtype, options, spread):
    torch = pytest.importorskip("torch")
    arrays = [rng.normal(size=shape).astype(dtype) for shape in
              ((2, 4, 37, 16), (2, 2, 110, 16), (2, 2, 110, 24), (2, 4, 37, 24))]  # fmt: skip
    arrays[0] *= dtype.type(spread)
    q, k, v, dout = (torch.tensor(a, dtype=torch.float64) for a in arrays)
    scale = torch.tensor(options.get("scale", 0.25), dtype=torch.float64)
    leaves = (q, k, v, scale)
    for leaf in leaves:
        leaf.requires_grad_()
    t = scale * q @ k.repeat_interleave(2, 1).transpose(-1, -2)
    if "softcap" in options:
        t = 3 * torch.tanh(t / 3)
    if options.get("mask") == "boolean":
        options = {**options, "mask": rng.random((2, 1, 37, 110)) < 0.5}
        t = t.masked_fill(~torch.tensor(options["mask"]), -math.inf)
    elif options.get("mask") == "additive":
        options = {**options, "mask": rng.normal(size=(37, 110)).astype(dtype)}
        t = t + torch.tensor(options["mask"])
    if options.get("causal"):  # torch's own is_causal aligns the first query with the first key
        t = t.masked_fill(~torch.ones(37, 110, dtype=torch.bool).tril(110 - 37), -math.inf)
    output = torch.softmax(t, -1) @ v.repeat_interleave(2, 1)
    (output * dout).sum().backward()
    largest = t[t > -math.inf].abs().max().item() if spread > 1 else 1.0
    assert near(ic.attention(*arrays[:3], **options)[0], output.detach().numpy(), dtype, largest)
    found = ic.attention_backward(*arrays, **options)
    for got, leaf in zip(found, leaves, strict=True):
        assert near(got, leaf.grad.numpy(), dtype, largest)


def test_backward_in_any_number_of_threads(rng):
    q, k, v = rng.normal(size=(3, 2, 2, 260, 64)).astype(np.float32)
    k, v = np.repeat(k, 3, axis=2), np.repeat(v, 3, axis=2)
    dout = rng.normal(size=q.shape).astype(np.float32)
    one = ic.attention_backward(q, k, v, dout, causal=True, threads=1)
    output, rows = ic.attention(q, k, v, causal=True, threads=1)
    for threads in (2, 3, 16):
        again, rows_again = ic.attention(q, k, v, causal=True, threads=threads)
        assert same_bits(again, output)
        assert rows_again.equals(rows)
        gradients = ic.attention_backward(q, k, v, dout, causal=True, threads=threads)
        assert all(same_bits(a, b) for a, b in zip(one, gradients, strict=True))


@pytest.mark.parametrize(("queries", "keys", "d", "d_v"), [
    (0, 3, 4, 2), (3, 0, 4, 2), (0, 0, 4, 2), (3, 5, 0, 2), (3, 5, 4, 0),
])  # fmt: skip
def test_gradients_without_elements(queries, keys, d, d_v):
    q, k, v = np.ones((queries, d)), np.ones((keys, d)), np.ones((keys, d_v))
    output, _ = ic.attention(q, k, v, scale=1.0)
    assert output.shape == (queries, d_v)
    assert np.all(output == (1 if keys else 0))
    dq, dk, dv, dscale = ic.attention_backward(q, k, v, output, scale=1.0)
    assert [a.shape for a in (dq, dk, dv)] == [q.shape, k.shape, v.shape]
    assert not any(np.any(a) for a in (dq, dk, dscale))


def test_memory_of_the_backward_pass_does_not_grow_with_the_square():
    q = np.ones((2048, 1), np.float32)
    tracemalloc.start()
    ic.attention_backward(q, q, q, q, threads=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 << 20


def test_bad_values_and_gradients_are_named():
    q, k = np.zeros((2, 3, 4)), np.zeros((1, 5, 4))
    with pytest.raises(TypeError, match="v has dtype object"):
        ic.attention(q, k, None)
    with pytest.raises(TypeError, match="stats='all': True or False"):
        ic.attention(q, k, k, stats="all")
    for v in (np.zeros(4), np.zeros((2, 5, 4)), np.zeros((1, 6, 4))):
        with pytest.raises(ValueError, match="v has shape"):
            ic.attention(q, k, v)
    for dout in (np.zeros((2, 3, 4)), np.zeros((3, 7))):
        with pytest.raises(ValueError, match="dout has shape"):
            ic.attention_backward(q, k, np.zeros((1, 5, 7)), dout)
