# SPDX-License-Identifier: BSD-3-Clause
"""Norms and residual branches in chains: the reference, autograd, cuts, threads, special rows."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chains import drawn_by_hand, drawn_spec, operands
from initcore import _core
from initcore.reference import backward, sampling
from initcore.reference import chain as forward
from initcore.reference.norm import norm
from initcore.reference.sampling import NORMAL
from kernel_calls import (
    INFINITE,
    architecture,
    chain,
    chain_backward,
    gradient_arrays,
    run_backward,
    run_backward_columns,
    run_chain,
    run_columns,
    same_bits,
)

EXACT = ["relu", "linear", "hardtanh"]  # φ and φ′ have no rounding
KINDS = [None, "rms", "layer"]


def all_same(a, b):
    """Equal bits of (dx, [dW], [db], …, states)."""
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(all_same, a, b))
    return same_bits(a, b)


@cache
def small_case(n, batch, dtype):
    """Four layers n wide and one to n + 1, of all kinds; forward and backward of the reference."""
    rng = np.random.default_rng(n * 100 + batch)
    x, weights, biases = operands(rng, batch, [n] * 5 + [n + 1], dtype)
    dy = rng.normal(size=(batch, n + 1)).astype(dtype)
    biases[2] = None
    turn = n + batch
    names = [EXACT[(turn + i) % 3] for i in range(5)]
    norms = [KINDS[(turn + i) % 3] for i in range(5)]
    residuals = [(1.0, None, 0.3, 0.0)[(turn // 3 + i) % 4] for i in range(4)] + [None]
    pairs, shape = [(name, None) for name in names], {"norms": norms, "residuals": residuals}
    return (
        ((x, weights, biases, names, [0.05] * 5), shape),
        forward.chain(x, weights, biases, pairs, [0.05] * 5, **shape),
        ((x, weights, dy, biases, names), shape),
        backward.chain_backward(x, weights, dy, biases, pairs, **shape),
    )


@pytest.mark.parametrize(
    ("n", "batch"), [(1, 1), (1, 17), (7, 15), (15, 7), (16, 1), (17, 65), (33, 16), (65, 31)]
)
def test_both_passes_are_the_reference_bit_for_bit(every_isa, n, batch, dtype):
    """n and batch around a vector and a block, every kind of layer above every other."""
    (given, shape), expected, (given_back, _), gradients = small_case(n, batch, dtype.name)
    for kernels in every_isa:
        assert all_same(chain(kernels, *given, **shape), expected)
        assert all_same(chain_backward(kernels, *given_back, **shape), gradients)


@settings(max_examples=15)
@given(
    batch=st.integers(1, 40),
    layers=st.lists(
        st.tuples(st.integers(1, 30), st.sampled_from(KINDS), st.floats(-2, 2) | st.none()),
        min_size=1, max_size=4,
    ),
    seed=st.integers(0, 2**32),
    dtype=st.sampled_from(["float32", "float64"]),
)  # fmt: skip
def test_layers_of_any_kind(kernels, batch, layers, seed, dtype):
    widths, residuals = [5], []
    for width, _, m in layers:  # a residual layer is as wide as its input
        widths.append(width if m is None else widths[-1])
        residuals.append(m)
    norms = [kind for _, kind, _ in layers]
    rng = np.random.default_rng(seed)
    x, weights, biases = operands(rng, batch, widths, dtype)
    dy = rng.normal(size=(batch, widths[-1])).astype(dtype)
    names = (EXACT * 2)[: len(weights)]
    pairs = [(name, None) for name in names]
    arguments = (x, weights, dy, biases)
    expected = backward.chain_backward(*arguments, pairs, norms, residuals)
    got = chain_backward(kernels, *arguments, names, norms, residuals)
    assert all_same(got, expected)


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_a_norm_is_what_its_name_says(rng, kind):
    """Rows of mean 0 (layer) and mean square 1, along the row that was."""
    x = rng.normal(2, 3, (7, 50))
    normed, inverse = norm(kind, x)
    mean = x.mean(axis=1, keepdims=True) if kind == "layer" else 0
    assert np.allclose((normed**2).mean(axis=1), 1, rtol=1e-14)
    assert np.allclose(normed, (x - mean) * inverse, rtol=1e-15)
    if kind == "layer":
        assert np.allclose(normed.mean(axis=1), 0, atol=1e-15)


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("m", [None, 0.5])
@pytest.mark.parametrize("name", ["relu", "tanh", "gelu"])
def test_gradients_against_autograd(kernels, rng, name, m, kind):
    """PyTorch's own norms (with an epsilon of 0) and its own gradients."""
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    x, weights, biases = operands(rng, 19, [24] * 4, np.float64)
    dy = rng.normal(size=(19, 24))
    leaves = [torch.tensor(array, requires_grad=True) for array in (x, *weights, *biases)]
    h, steps = leaves[0], zip(leaves[1:4], leaves[4:], strict=True)
    for weight, bias in steps:
        of = {"layer": functional.layer_norm, "rms": functional.rms_norm}[kind]
        seen = of(h, (24,), eps=0.0)
        phi = getattr(torch if name == "tanh" else functional, name)(seen @ weight.T + bias)
        h = phi if m is None else h + m * phi
    h.backward(torch.tensor(dy))
    y, _ = chain(kernels, x, weights, biases, [name] * 3, None, [kind] * 3, [m] * 3)
    assert np.allclose(y, h.detach().numpy(), rtol=1e-12, atol=1e-12)
    dx, dw, db, _ = chain_backward(kernels, x, weights, dy, biases, [name] * 3, [kind] * 3, [m] * 3)
    for got, leaf in zip((dx, *dw, *db), leaves, strict=True):
        assert np.allclose(got, leaf.grad.numpy(), rtol=1e-10, atol=1e-12)


def built_spec(dtype, batch, width, last):
    """Drawn chains of all kinds of layer, with the gradient of their output; trials of stream 7."""
    names, widths = ["tanh", "relu", "gelu", "relu"], [*[width] * 4, last]
    spec, sources = drawn_spec(dtype, 7, batch, widths, names)
    sources["dy"] = (sampling.stream_id("output_gradient"), NORMAL, 1.0, 0.0, *INFINITE)
    shape = architecture(["rms", None, "layer", "layer"], [0.5, 1.0, None, None])
    return (*spec, sources["dy"], *shape), sources, names


@pytest.mark.parametrize("cuts", [
    [(0, 1)], [(0, 0.5), (0.5, 1)], [(0.37, 1), (0, 0.05), (0.05, 0.05), (0.05, 0.37)],
])  # fmt: skip
@pytest.mark.parametrize(("batch", "width", "last"), [
    (1, 1, 1), (7, 15, 63), (50, 65, 33), (16, 700, 40),
])  # fmt: skip
def test_columns_add_up_to_the_trial(every_isa, batch, width, last, cuts, dtype):
    """Wherever a layer is cut, both ways, outputs, gradients and statistics keep their bits; and
    whether a backward pass follows changes nothing of the forward one."""
    spec, _, _ = built_spec(dtype, batch, width, last)
    alone = (*spec[:8], None, *spec[9:])
    results = []
    for kernels in every_isa:
        arrays, pieces = (gradient_arrays(dtype, batch, spec[3]) for _ in range(2))
        whole = run_backward(kernels, spec, 3, out=_core.Gradients(dtype.name, *arrays))
        out = _core.Gradients(dtype.name, *pieces)
        in_pieces = run_backward_columns(kernels, spec, cuts, 3, out)
        assert all_same(arrays, pieces)
        assert all_same(in_pieces, [states[0] for states in whole])
        states, y = run_chain(kernels, alone, 3, y_shape=(batch, last))
        assert same_bits(states, whole[0])
        assert all_same(run_columns(kernels, alone, cuts, 3, (batch, last)), (states[0], y))
        results.append((arrays, whole, y))
    assert all(all_same(results[0], other) for other in results)


def test_what_is_drawn_again_is_what_was_stored(kernels, dtype):
    """Drawn weights have the gradients of the same arrays, stored."""
    batch, width, last = 9, 33, 20
    spec, sources, names = built_spec(dtype, batch, width, last)
    _, gradients = run_backward(kernels, spec, trial=6)

    def hand(key, shape):
        return drawn_by_hand(kernels, sources[key], shape, 7, 6, dtype)

    pairs = [*[(width, width)] * 3, (last, width)]
    weights = [hand(f"w{i}", pair) for i, pair in enumerate(pairs)]
    biases = [hand(f"b{i}", pair[:1]) for i, pair in enumerate(pairs)]
    arguments = (hand("input", (batch, width)), weights, hand("dy", (batch, last)), biases, names)
    kinds = ["rms", None, "layer", "layer"], [0.5, 1.0, None, None]
    assert same_bits(gradients[0], chain_backward(kernels, *arguments, *kinds)[3])


def test_a_branch_of_zero_is_not_there(every_isa, rng, dtype):
    """ReZero and SkipInit at their start: what comes in goes out, bit for bit and both ways, and
    whatever the branch computes; so does the sign of a zero."""
    x = rng.normal(size=(17, 20)).astype(dtype)
    x[3, 5] = -0.0
    weights = [np.full((20, 20), np.inf, dtype), rng.normal(size=(20, 20)).astype(dtype)]
    for kernels in every_isa:
        y, states = chain(
            kernels, x, weights, [None] * 2, ["linear", "tanh"], None, ["layer", None], [0.0] * 2
        )
        assert same_bits(y, x)
        assert same_bits(states[0, 1], states[1, 1])
        dy = rng.normal(size=(17, 20)).astype(dtype)
        dx, dw, _, _ = chain_backward(kernels, x, weights[1:], dy, [None], ["tanh"], ["rms"], [0.0])
        assert same_bits(dx, dy)
        assert not dw[0].any()


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_rows_without_a_length_are_zeros(every_isa, rng, kind, dtype):
    """A row of zeros (layer: of equal values) norms to zeros and takes no gradient back; a row that
    is not finite is NaN and leaves the others alone; a subnormal row has a direction."""
    x = rng.normal(size=(19, 24)).astype(dtype)
    value = 0.0 if kind == "rms" else 7.25
    x[2], x[5, 3], x[18, 0] = value, np.inf, np.nan
    x[7] = x[8] * np.finfo(np.float32).tiny / 64
    identity, dy = [np.eye(24, dtype=dtype)], rng.normal(size=(19, 24)).astype(dtype)
    bad = np.isin(np.arange(19), [5, 18])
    for kernels in every_isa:
        y, _ = chain(kernels, x, identity, [None], ["linear"], None, [kind], None)
        assert not y[2].any()
        assert np.isnan(y[bad]).all()
        assert np.isfinite(y[~bad]).all()
        assert np.allclose((y[~bad].astype(np.float64) ** 2).mean(axis=1)[[3, 6]], 1, atol=1e-6)
        dx, *_ = chain_backward(kernels, x, identity, dy, [None], ["linear"], [kind], None)
        assert not dx[2].any()
        assert np.isnan(dx[bad]).all()
        assert np.isfinite(dx[~bad & (np.arange(19) != 7)]).all()


def test_equal_values_are_a_layer_norms_zeros(every_isa, dtype):
    """Their mean is that value, however many rounded values are summed: no noise, no gradient."""
    values = np.array([[0.1], [1 / 3], [1e-3], [-3.7], [1e30], [1e-30]], dtype)
    for n in (*range(1, 71), 513):
        x, dy = np.tile(values, n), np.tile(values, n)[::-1].copy()
        weights = [np.eye(n, dtype=dtype)]
        normed, inverse = norm("layer", x)
        assert not normed.any()
        assert not inverse.any()
        for kernels in every_isa:
            y, _ = chain(kernels, x, weights, [None], ["linear"], None, ["layer"])
            assert not y.any()
            dx, *_ = chain_backward(kernels, x, weights, dy, [None], ["linear"], ["layer"])
            assert not dx.any()


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_squares_stay_in_the_range_of_float64(every_isa, kind):
    """From the smallest subnormal number to the largest finite one a row has its direction, and
    where that is a normal number a gradient."""
    row, dy = np.array([1.0, -2.0, 5.0, 0.0, 3.0]), np.array([[1.0, 2.0, -1.0, 0.5, 3.0]])
    exponents = [0, -1074, -1021, -565, -512, 511, 512, 531, 1021]
    x = np.ldexp(row, np.array(exponents)[:, None])
    normed, _ = norm(kind, x)
    arguments = [np.eye(5)], np.tile(dy, (len(x), 1)), [None], ["linear"]
    for kernels in every_isa:
        y, _ = chain(kernels, x, arguments[0], [None], ["linear"], None, [kind])
        assert same_bits(y, normed)
        assert all(same_bits(one, y[0]) for one in y)
        dx, *_ = chain_backward(kernels, x, *arguments, [kind])
        for exponent, one in list(zip(exponents, dx, strict=True))[2:-1]:
            assert same_bits(one, np.ldexp(dx[0], -exponent))


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_a_norm_knows_no_scale(kernels, rng, kind, dtype):
    """A power of two times the input, from 2^-100 to 2^100 (float64: 2^-900 to 2^900), has the same
    outputs bit for bit, and its gradient is divided by it."""
    x, weights, biases = operands(rng, 9, [40, 30], dtype)
    dy = rng.normal(size=(9, 30)).astype(dtype)
    one = chain_backward(kernels, x, weights, dy, biases, ["relu"], [kind])
    power = 100 if dtype == np.float32 else 900
    for factor in (2.0**-power, 2.0**power):
        scaled = (x * dtype.type(factor), weights, dy, biases, ["relu"], [kind])
        got = chain_backward(kernels, *scaled)
        assert all_same(got[1:], one[1:])
        assert same_bits(got[0], one[0] * dtype.type(1 / factor))


def test_one_feature(kernels, dtype):
    """Of one feature an RMS norm leaves the sign and a layer norm nothing."""
    x = np.array([[3.0], [-0.25], [0.0]], dtype)
    identity = [np.ones((1, 1), dtype)]
    for kind, expected in (("rms", [1, -1, 0]), ("layer", [0, 0, 0])):
        y, _ = chain(kernels, x, identity, [None], ["linear"], None, [kind])
        assert y[:, 0].tolist() == expected


def test_saturated_units_of_a_residual_relu_are_its_own(kernels, rng, dtype):
    """What a residual layer gives out is not zero where its relu is."""
    x, weights, biases = operands(rng, 33, [20, 20], dtype)
    _, states = chain(kernels, x, weights, biases, ["relu"], [0.05], None, [1.0])
    _, plain = chain(kernels, x, weights, biases, ["relu"], [0.05])
    assert states[0, 0, 5] == plain[0, 0, 5] > 0
    assert states[0, 1, 4] == 0
