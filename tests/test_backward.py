# SPDX-License-Identifier: BSD-3-Clause
"""The gradients of chains: against the reference, autograd and stored weights; threads, cuts."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import initcore as ic
from chains import drawn_by_hand, drawn_spec, operands
from initcore import _core
from initcore.reference import backward as reference
from initcore.reference import sampling
from initcore.reference.matmul import matmul
from initcore.reference.moments import layer_moments
from initcore.reference.sampling import NORMAL
from kernel_calls import (
    ACTIVATION_IDS,
    INFINITE,
    SMALL,
    activate,
    chain_backward,
    gradient_arrays,
    layer_codes,
    run_backward,
    run_backward_columns,
    run_chain,
    same_bits,
)


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_threads_that_share_a_backward_pass_change_no_bit(always_shared, rng, threads, dtype):
    x, weights, biases = operands(rng, 19, [11, 40, 5, 23], dtype)
    dy = rng.normal(size=(19, 23)).astype(dtype)
    for arguments in (
        (x, weights, dy, biases),
        (np.stack([x, x[::-1]]), weights, dy, biases),
        (x, weights, dy),
    ):
        one = ic.chain_backward(*arguments, activation="tanh", threads=1)
        again = ic.chain_backward(*arguments, activation="tanh", threads=threads)
        assert all_same(again[:2], one[:2])
        assert one[2] is again[2] is None or all_same(again[2], one[2])


def all_same(a, b):
    """Equal bits of (dx, [dW], [db], …, states)."""
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(all_same, a, b))
    return same_bits(a, b)


EXACT = ["relu", "linear", "hardtanh"]  # φ and φ′ have no rounding


@cache
def small_backward_case(n, batch, dtype):
    """Three layers about n wide, and the gradients of the reference."""
    rng = np.random.default_rng(n * 100 + batch)
    x, weights, biases = operands(rng, batch, [n, n + 2, n, n], dtype)
    biases[1] = None
    names = [EXACT[(n + batch + i) % 3] for i in range(3)]
    dy = rng.normal(size=(batch, n)).astype(dtype)
    arguments = (x, weights, dy, biases)
    return (*arguments, names), reference.chain_backward(*arguments, [(v, None) for v in names])


@pytest.mark.parametrize("batch", SMALL)
@pytest.mark.parametrize("n", SMALL)
def test_gradients_are_the_reference_bit_for_bit(every_isa, n, batch, dtype):
    arguments, expected = small_backward_case(n, batch, dtype.name)
    for kernels in every_isa:
        assert all_same(chain_backward(kernels, *arguments), expected)


@given(
    batch=st.integers(1, 40),
    widths=st.lists(st.integers(1, 30), min_size=2, max_size=5),
    seed=st.integers(0, 2**32),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_gradients_of_any_widths(kernels, batch, widths, seed, dtype):
    rng = np.random.default_rng(seed)
    x, weights, biases = operands(rng, batch, widths, dtype)
    dy = rng.normal(size=(batch, widths[-1])).astype(dtype)
    names = (EXACT * 2)[: len(weights)]
    expected = reference.chain_backward(x, weights, dy, biases, [(v, None) for v in names])
    assert all_same(chain_backward(kernels, x, weights, dy, biases, names), expected)


@pytest.mark.parametrize("name", ACTIVATION_IDS)
def test_every_activation_backward(every_isa, rng, name, dtype):
    """dh is dy times the derivative's kernel; one layer, so that its other gradients follow."""
    x, weights, biases = operands(rng, 17, [9, 31], dtype, gain=3)
    dy = rng.normal(size=(17, 31)).astype(dtype)
    h = np.ascontiguousarray(matmul(x, weights[0], biases[0]))
    for kernels in every_isa:
        slope = activate(kernels, h.ravel(), name, derivative=True).reshape(h.shape)
        expected = reference.chain_backward(x, weights, dy * slope, biases, [("linear", None)])
        dx, dw, db, states = chain_backward(kernels, x, weights, dy, biases, [name])
        assert all_same((dx, dw, db), expected[:3])
        assert same_bits(states[0, 1:], expected[3][0, 1:])
        assert same_bits(states[0, 0], layer_moments(dy.T))


def backward_spec(dtype, seed, batch, widths, names):
    """`drawn_spec` and a drawn gradient of the output."""
    spec, sources = drawn_spec(dtype, seed, batch, widths, names)
    sources["dy"] = (sampling.stream_id("output_gradient"), NORMAL, 1.0, 0.0, *INFINITE)
    return (*spec, sources["dy"]), sources


@pytest.mark.parametrize(("batch", "widths"), [
    (1, [1, 1, 1]), (7, [15, 17, 63]), (17, [65, 7, 33]), (16, [130, 600, 20]), (65, [16, 16, 16]),
    (3, [1024, 40, 1024]),
])  # fmt: skip
def test_backward_forgets_and_draws_again(every_isa, batch, widths, dtype):
    """What is drawn has the gradients of the same arrays, stored; the forward states are `chain`'s;
    whether a gradient is written, and whether statistics are taken, changes no other."""
    seed, names = 2**40 + 3, ["relu", "gelu"]
    spec, sources = backward_spec(dtype, seed, batch, widths, names)
    for kernels in every_isa:
        states, gradients = run_backward(kernels, spec, trial=5, n_trials=2)
        assert same_bits(states, run_chain(kernels, spec[:-1], trial=5, n_trials=2)[0])

        def hand(key, shape, kernels=kernels):
            return drawn_by_hand(kernels, sources[key], shape, seed, 6, dtype)

        dy = hand("dy", (batch, widths[-1]))
        weights = [hand(f"w{i}", (widths[i + 1], widths[i])) for i in range(2)]
        biases = [hand(f"b{i}", (widths[i + 1],)) for i in range(2)]
        arguments = (hand("input", (batch, widths[0])), weights, dy, biases, names)
        *by_hand, by_hand_states = chain_backward(kernels, *arguments)
        assert same_bits(gradients[1], by_hand_states)
        arrays = gradient_arrays(dtype, batch, widths)
        out = _core.Gradients(dtype.name, *arrays)
        run_backward(kernels, spec, trial=6, stats=False, out=out)
        assert all_same(arrays, tuple(by_hand))


def test_weights_beyond_what_is_kept_are_drawn_again(kernels):
    """A layer too large to keep, below one that is kept: the gradients of the stored weights."""
    widths, batch, dtype = [1030, 9000, 70], 2, np.dtype("float32")
    assert 4 * 9000 * 70 < 32 << 20 < 4 * 1030 * 9000
    names = ["relu", "tanh"]
    spec, sources = backward_spec(dtype, 1, batch, widths, names)
    _, gradients = run_backward(kernels, spec, trial=2)
    stored = [
        drawn_by_hand(kernels, sources[f"w{i}"], (widths[i + 1], widths[i]), 1, 2, dtype)
        for i in range(2)
    ]
    x = drawn_by_hand(kernels, sources["input"], (batch, widths[0]), 1, 2, dtype)
    dy = drawn_by_hand(kernels, sources["dy"], (batch, widths[-1]), 1, 2, dtype)
    biases = [
        drawn_by_hand(kernels, sources[f"b{i}"], widths[i + 1], 1, 2, dtype) for i in range(2)
    ]
    *_, expected = chain_backward(kernels, x, stored, dy, biases, names)
    assert same_bits(gradients[0], expected)


@pytest.mark.parametrize("cuts", [
    [(0, 1)], [(0, 0.5), (0.5, 1)], [(0.37, 1), (0, 0.05), (0.05, 0.05), (0.05, 0.37)],
])  # fmt: skip
@pytest.mark.parametrize(("batch", "widths"), [
    (1, [1, 1, 1]), (7, [15, 17, 63]), (50, [65, 121, 33]), (16, [700, 40, 300]),
    (50, [200, 150, 130]),
])  # fmt: skip
def test_backward_columns_add_up_to_the_trial(every_isa, batch, widths, cuts, dtype):
    """Wherever a layer's inputs are cut, gradients and statistics keep their bits."""
    spec, _ = backward_spec(dtype, 7, batch, widths, ["tanh", "relu"])
    for kernels in every_isa:
        arrays, pieces = (gradient_arrays(dtype, batch, widths) for _ in range(2))
        whole = run_backward(kernels, spec, 3, out=_core.Gradients(dtype.name, *arrays))
        out = _core.Gradients(dtype.name, *pieces)
        in_pieces = run_backward_columns(kernels, spec, cuts, 3, out)
        assert all_same(arrays, pieces)
        assert all_same(in_pieces, [states[0] for states in whole])


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize(("batch", "n_in", "n_out"), [(1, 40, 60), (40, 100, 101), (50, 150, 300)])
def test_squares_of_a_small_batch_are_float64(every_isa, rng, batch, n_in, n_out, cancelled, dtype):
    """Σ dW² = tr(dh dhᵀ x xᵀ) errs by roundings of ‖dh‖² ‖x‖², also where dW is small beside it:
    one input all over the batch, whose gradients nearly add up to zero."""
    x, weights, biases = operands(rng, batch, [n_in, n_out], dtype)
    dy = rng.normal(size=(batch, n_out)).astype(dtype)
    if cancelled:
        x = np.repeat(x[:1], batch, axis=0)
        dy = (dy - (1 - 1e-3) * dy.mean(axis=0)).astype(dtype)
    expected = reference.chain_backward(x, weights, dy, biases, [("linear", None)])
    dh, x_hat = dy.astype(np.float64), x.astype(np.float64)
    squares = np.sum((dh.T @ x_hat) ** 2)
    error = max(n_in, n_out) * 2.0**-52 * np.sum(dh * dh) * np.sum(x_hat * x_hat)
    for kernels in every_isa:
        got = chain_backward(kernels, x, weights, dy, biases, ["linear"])
        assert all_same(got, expected)
        count, _, m2, *_ = got[3][0, 2]
        assert count == n_in * n_out
        assert abs(m2 - squares) <= error


@pytest.mark.parametrize("batch", [3, 33])
def test_squares_of_nothing_are_not_negative(every_isa, batch, dtype):
    """One input all over the batch, whose gradients add up to zero: Σ dW² is 0 but for roundings of
    either sign."""
    n, signs = 130, set()
    for seed in range(12):
        rng = np.random.default_rng(seed)
        x, weights, _ = operands(rng, 1, [n, n], dtype)
        dy = rng.integers(-9, 10, size=(batch, n)).astype(dtype)
        dy[-1] = -dy[:-1].sum(axis=0)
        x = np.repeat(x, batch, axis=0)
        spec = (dtype.name, 0, batch, [n, n], layer_codes(["linear"]), x, weights, [None], dy)
        for kernels in every_isa:
            *_, m2 = run_backward(kernels, spec)[1][0, 0, 2, :3]
            assert m2 >= 0
            _, in_pieces = run_backward_columns(kernels, spec, [(0, 0.3), (0.3, 1)])
            assert in_pieces[0, 2, 2] == m2
        signs.add(np.sign(m2))
    assert signs == {0, 1}


def test_gradients_that_are_not_finite_are_counted(every_isa, rng, dtype):
    x, weights, biases = operands(rng, 19, [5, 40, 3], dtype)
    dy = rng.normal(size=(19, 3)).astype(dtype)
    dy[3, 1], dy[4, 2] = np.nan, np.inf
    names = [("linear", None)] * 2
    expected = reference.chain_backward(x, weights, dy, biases, names)
    for kernels in every_isa:
        got = chain_backward(kernels, x, weights, dy, biases, ["linear"] * 2)
        assert all_same(got, expected)
        assert got[3][1, 0, 6] == 2
        assert np.isnan(got[3][1, 2, 2])


def test_a_cancelled_backward_pass_says_so(kernels):
    spec, _ = backward_spec(np.dtype("float32"), 0, 16, [64, 64, 64], ["relu", "relu"])
    built = _core.Chain(*spec)
    workspace = np.empty(kernels.chain_workspace(built), np.uint8)
    cancelled = np.ones(1, np.int32)
    assert not kernels.chain_backward(built, 0, 9, None, None, None, workspace, cancelled)
    end = (None, None, None, None, workspace, workspace, cancelled)
    assert not kernels.chain_backward_columns(built, 0, 1, 0, 64, *end)


TORCH = {
    "linear": lambda f, h: h,
    "elu": lambda f, h: f.elu(h),
    "selu": lambda f, h: f.selu(h),
    "gelu": lambda f, h: f.gelu(h),
    "gelu_tanh": lambda f, h: f.gelu(h, approximate="tanh"),
    "silu": lambda f, h: f.silu(h),
    "mish": lambda f, h: f.mish(h),
    "softplus": lambda f, h: f.softplus(h),
    "softsign": lambda f, h: f.softsign(h),
    "hardtanh": lambda f, h: f.hardtanh(h),
    "hardswish": lambda f, h: f.hardswish(h),
    "leaky_relu": lambda f, h: f.leaky_relu(h, 0.01),
    "erf": lambda f, h: h.erf(),
    "sin": lambda f, h: h.sin(),
    "tanh": lambda f, h: h.tanh(),
    "sigmoid": lambda f, h: h.sigmoid(),
    "relu": lambda f, h: h.relu(),
    "relu2": lambda f, h: h.relu().square(),
}


@pytest.mark.parametrize("name", ACTIVATION_IDS)
def test_gradients_against_autograd(rng, name, dtype):
    """PyTorch's own, also of what is broadcast over trials."""
    torch = pytest.importorskip("torch")
    x = rng.normal(size=(3, 1, 9, 5)).astype(dtype)
    weights = [rng.normal(size=s).astype(dtype) / 2 for s in ((4, 7, 5), (1, 6, 7), (2, 6))]
    biases = [rng.normal(size=s).astype(dtype) for s in ((7,), (4, 6), (3, 1, 2))]
    dy = rng.normal(size=(4, 9, 2)).astype(dtype)
    dx, dw, db = ic.chain_backward(x, weights, dy, biases, activation=name, last="linear")
    leaves = [torch.tensor(a, requires_grad=True) for a in (x, *weights, *biases)]
    y = leaves[0]
    for layer, (w, b) in enumerate(zip(leaves[1:4], leaves[4:], strict=True)):
        y = y @ w.mT + b[..., None, :]
        y = TORCH[name](torch.nn.functional, y) if layer < 2 else y
    (y * torch.tensor(dy)).sum().backward()
    for got, leaf in zip([dx, *dw, *db], leaves, strict=True):
        expected = leaf.grad.numpy()
        assert got.shape == expected.shape
        assert got.dtype == dtype
        assert np.max(np.abs(got - expected)) <= 1e-5 * np.max(np.abs(expected))


def test_public_gradients_against_the_reference(rng, dtype):
    x, weights, biases = operands(rng, 11, [8, 20, 6], dtype)
    biases[1] = None
    dy = rng.normal(size=(11, 6)).astype(dtype)
    dx, dw, db = ic.chain_backward(x, weights, dy, biases, activation="relu", last="linear")
    names = [("relu", None), ("linear", None)]
    expected = reference.chain_backward(x, weights, dy, biases, names)
    assert all_same((dx, dw, db[0]), (*expected[:2], expected[2][0]))
    assert db[1] is None
    assert ic.chain_backward(x, weights, dy, activation="relu")[2] is None


def test_gradients_of_what_is_broadcast_are_summed(rng):
    """As autograd has it: trial by trial, in index order, whatever the threads."""
    x = rng.normal(size=(5, 9, 4)).astype(np.float32)
    w = rng.normal(size=(6, 4)).astype(np.float32)
    dy = rng.normal(size=(9, 6)).astype(np.float32)
    trials = [ic.chain_backward(one, [w], dy, activation="tanh") for one in x]
    total = np.zeros_like(w)
    for _, (dw,), _ in trials:
        total += dw
    for threads in (1, 2, 3, 16):
        dx, (dw,), _ = ic.chain_backward(x, [w], dy, activation="tanh", threads=threads)
        assert same_bits(dw, total)
        assert same_bits(dx, np.stack([one for one, _, _ in trials]))


def test_gradients_of_halves_and_mixed_dtypes(rng):
    x, weights, _ = operands(rng, 6, [10, 12], np.float16)
    dy = rng.normal(size=(6, 12))
    wide = [a.astype(np.float32) for a in (x, weights[0], dy)]
    dx, (dw,), _ = ic.chain_backward(x, weights, dy.astype(np.float16), activation="relu")
    assert dx.dtype == dw.dtype == np.float32
    rounded = wide[2].astype(np.float16).astype(np.float32)
    expected = ic.chain_backward(wide[0], [wide[1]], rounded, activation="relu")
    assert all_same((dx, [dw]), expected[:2])
    assert ic.chain_backward(x, weights, dy, activation="relu")[0].dtype == np.float64


def test_gradients_of_empty_arrays():
    """An empty sum is 0: an empty batch has no weight gradient, an output of width 0 no dx."""
    dx, dw, db = ic.chain_backward(
        np.ones((0, 3)), [np.ones((4, 3))], np.ones((0, 4)), [np.ones(4)], activation="relu"
    )
    assert dx.shape == (0, 3)
    assert dw[0].tolist() == np.zeros((4, 3)).tolist()
    assert db[0].tolist() == [0] * 4
    dx, dw, _ = ic.chain_backward(
        np.ones((2, 3)), [np.ones((0, 3))], np.ones((2, 0)), activation="relu"
    )
    assert dx.tolist() == np.zeros((2, 3)).tolist()
    assert dw[0].shape == (0, 3)


@pytest.mark.parametrize(
    ("dy", "error", "named"),
    [
        (np.ones((2, 3)), ValueError, r"dy has shape \(2, 3\).*\(2, 4\)"),
        (np.ones(4), ValueError, "dy has shape"),
        (np.ones((5, 2, 4)), ValueError, "dy has shape"),
        (np.ones((2, 4)) * 1j, TypeError, "dy has dtype"),
        (np.ma.ones((2, 4)), TypeError, "dy is a masked array"),
    ],
)
def test_a_bad_output_gradient_is_named(dy, error, named):
    with pytest.raises(error, match=named):
        ic.chain_backward(np.ones((2, 3)), [np.ones((4, 3))], dy, activation="relu")
    with pytest.raises(ValueError, match=r"weights\[0\]"):
        ic.chain_backward(np.ones((2, 3)), [np.ones((4, 5))], np.ones((2, 4)), activation="relu")
