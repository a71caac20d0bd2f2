# SPDX-License-Identifier: BSD-3-Clause
"""Chains: layers and statistics against the reference, drawn sources, and the public function."""

import subprocess
import sys
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import initcore as ic
from chains import drawn_by_hand, drawn_spec, operands
from initcore import _core
from initcore.reference import chain as reference
from initcore.reference.matmul import matmul
from initcore.reference.moments import COSINE, layer_moments
from kernel_calls import (
    ACTIVATION_IDS,
    SMALL,
    activate,
    chain,
    layer_codes,
    moments,
    run_chain,
    run_columns,
    same_bits,
    unaligned,
)

INFINITE = (-np.inf, np.inf)


@cache
def small_case(n, batch, dtype):
    """Three relu and linear layers n wide, and the reference's answer."""
    x, weights, biases = operands(np.random.default_rng(n * 100 + batch), batch, [n] * 4, dtype)
    biases[1] = None
    names = ["relu", "linear", "relu"]
    answer = reference.chain(x, weights, biases, [(v, None) for v in names], [0.05] * 3)
    return (x, weights, biases, names, [0.05] * 3), answer


# --- exact chains ----------------------------------------------------------------------------


@pytest.mark.parametrize("batch", SMALL)
@pytest.mark.parametrize("n", SMALL)
def test_relu_chain_is_the_reference_bit_for_bit(every_isa, n, batch, dtype):
    """Every n and batch around a vector and a block, and every instruction set alike."""
    arguments, (y, states) = small_case(n, batch, dtype.name)
    for kernels in every_isa:
        got_y, got_states = chain(kernels, *arguments)
        assert same_bits(got_y, y)
        assert same_bits(got_states, states)


@given(
    batch=st.integers(1, 40),
    widths=st.lists(st.integers(1, 30), min_size=2, max_size=5),
    seed=st.integers(0, 2**32),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_chains_of_any_widths(kernels, batch, widths, seed, dtype):
    x, weights, biases = operands(np.random.default_rng(seed), batch, widths, dtype)
    names = (["relu", "linear"] * 3)[: len(weights)]
    y, states = chain(kernels, x, weights, biases, names, [0.05] * len(weights))
    pairs = [(name, None) for name in names]
    expected_y, expected = reference.chain(x, weights, biases, pairs, [0.05] * len(weights))
    assert same_bits(y, expected_y)
    assert same_bits(states, expected)


def test_post_statistics_are_those_of_the_output(kernels, rng, dtype):
    """The state of the last activation is `moments` of y, bit for bit."""
    x, weights, biases = operands(rng, 33, [20, 50, 30], dtype)
    y, states = chain(kernels, x, weights, biases, ["tanh", "gelu"])
    assert same_bits(moments(kernels, y.T)[:COSINE], states[-1, 1, :COSINE])


# --- every activation ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ACTIVATION_IDS)
def test_activation_in_a_chain(every_isa, rng, name, dtype):
    """One layer is the activation kernel on the fma product; the post state has no saturation."""
    x, weights, biases = operands(rng, 17, [9, 31], dtype, gain=3)
    h = matmul(x, weights[0], biases[0])
    results = []
    for kernels in every_isa:
        y, states = chain(kernels, x, weights, biases, [name], [0.05])
        expected = activate(kernels, np.ascontiguousarray(h).ravel(), name).reshape(h.shape)
        assert same_bits(y, expected)
        slope = activate(kernels, h.ravel(), name, derivative=True)
        assert states[0, 0, 5] == np.count_nonzero(np.abs(slope) < dtype.type(0.05))
        assert states[0, 1, 5] == 0
        results.append((y, states))
    for y, states in results:
        assert same_bits(y, results[0][0])
        assert same_bits(states, results[0][1])


@pytest.mark.parametrize("name", ACTIVATION_IDS)
def test_deep_chain_is_its_parts(kernels, rng, name, dtype):
    """Four layers are the activation kernel on the fma product, with the moments of both, to the
    bit."""
    x, weights, biases = operands(rng, 7, [15, 17, 16, 9, 5], dtype, gain=1.0)
    y, states = chain(kernels, x, weights, biases, [name] * 4, [0.05] * 4)
    for weight, bias, (pre, post) in zip(weights, biases, states, strict=True):
        h = np.ascontiguousarray(matmul(x, weight, bias))
        slope = activate(kernels, h.ravel(), name, derivative=True).reshape(h.shape)
        x = activate(kernels, h.ravel(), name).reshape(h.shape)
        threshold = dtype.type(0.05)
        assert same_bits(pre, layer_moments(h.T, slope.T, threshold))
        assert same_bits(post, layer_moments(x.T))
    assert same_bits(y, x)


def test_unknown_saturation_is_nan(kernels, rng):
    x, weights, biases = operands(rng, 5, [3, 4], np.float32)
    _, states = chain(kernels, x, weights, biases, ["relu2"], [np.nan])
    assert np.isnan(states[0, 0, 5])
    assert states[0, 1, 5] == 0


# --- values that are not finite, subnormals --------------------------------------------------


def test_special_values_are_counted(kernels, dtype):
    big = np.finfo(dtype).max
    x = np.array([[np.nan, 1], [np.inf, 1], [big, big], [0, 0]], dtype)
    w = np.array([[1, 1], [0, 1]], dtype)
    y, states = chain(kernels, x, [w], [None], ["relu"], [0.05])
    expected_y, expected = reference.chain(x, [w], [None], [("relu", None)], [0.05])
    assert same_bits(y, expected_y)
    assert same_bits(states, expected)
    assert states[0, 0, 6] == 5


def test_subnormal_signals_survive(kernels, dtype):
    tiny = np.finfo(dtype).smallest_subnormal
    x = np.array([[3 * tiny, -tiny]], dtype)
    y, states = chain(kernels, x, [np.eye(2, dtype=dtype)], [None], ["relu"])
    assert y.tolist() == [[3 * float(tiny), 0]]
    assert states[0, 1, 3] == 3 * float(tiny)


# --- drawn sources ---------------------------------------------------------------------------


@pytest.mark.parametrize(("batch", "widths"), [
    (1, [1, 1, 1]), (7, [15, 17, 63]), (17, [65, 7, 33]), (16, [130, 300, 20]), (65, [16, 16, 16]),
])  # fmt: skip
def test_drawn_weights_are_those_of_their_streams(every_isa, batch, widths, dtype):
    """A trial draws what `draw` gives for (seed, stream + trial), and no two trials agree."""
    seed, names = 2**40 + 3, ["relu", "gelu"]
    spec, sources = drawn_spec(dtype, seed, batch, widths, names)
    results = []
    for kernels in every_isa:
        states, y = run_chain(kernels, spec, trial=5, n_trials=3, y_shape=(batch, widths[-1]))
        for t in range(3):

            def hand(key, shape, t=t, kernels=kernels):
                return drawn_by_hand(kernels, sources[key], shape, seed, 5 + t, dtype)

            x = hand("input", (batch, widths[0]))
            weights = [hand(f"w{i}", (widths[i + 1], widths[i])) for i in range(2)]
            biases = [hand(f"b{i}", (widths[i + 1],)) for i in range(2)]
            by_hand_y, by_hand = chain(kernels, x, weights, biases, names, [0.05] * 2)
            assert same_bits(states[t], by_hand)
        assert same_bits(y, by_hand_y)
        assert len(set(states[:, 0, 0, 1])) == 3
        results.append(states)
    assert all(same_bits(results[0], other) for other in results)


def test_moments_of_the_input_are_those_of_its_stream(every_isa, dtype):
    spec, sources = drawn_spec(dtype, 3, 19, [37, 4], ["relu"])
    built = _core.Chain(*spec)
    for kernels in every_isa:
        workspace = np.empty(kernels.chain_workspace(built), np.uint8)
        inputs, whole = np.full((2, _core.MOMENTS), np.nan), np.full(_core.MOMENTS, np.nan)
        assert kernels.chain(built, 4, 2, None, None, workspace, np.zeros(1, np.int32), inputs)
        x = drawn_by_hand(kernels, sources["input"], (19, 37), 3, 5, dtype)
        kernels.chain_input(built, 5, workspace, whole)
        for state in (inputs[1], whole):
            assert same_bits(state, moments(kernels, x.T))


def test_trials_do_not_know_each_other(kernels, dtype):
    """Trials 0 … 5 in one call, in two, and one by one; the trial number wraps with the stream."""
    spec, _ = drawn_spec(dtype, 1, 9, [12, 12, 12], ["relu", "tanh"])
    whole, _ = run_chain(kernels, spec, 0, 6)
    parts = np.concatenate([run_chain(kernels, spec, 0, 2)[0], run_chain(kernels, spec, 2, 4)[0]])
    assert same_bits(whole, parts)
    for trial in range(6):
        assert same_bits(run_chain(kernels, spec, trial, 1)[0][0], whole[trial])


def test_workspace_may_lie_anywhere(kernels, rng):
    """C never allocates: it aligns what it is given, and what was in it does not matter."""
    x, weights, biases = operands(rng, 19, [21, 40, 11], np.float32)
    spec = ("float32", 0, 19, [21, 40, 11], layer_codes(["relu", "relu"]), x, weights, biases)
    built = _core.Chain(*spec)
    size = kernels.chain_workspace(built)
    expected, _ = run_chain(kernels, spec)
    for offset in (0, 1, 13, 40, 63):
        storage = np.full(size + 64, 255, np.uint8)
        states = np.empty((1, 2, 2, _core.MOMENTS))
        workspace, cancel = storage[offset : offset + size], np.zeros(1, np.int32)
        assert kernels.chain(built, 0, 1, states, None, workspace, cancel)
        assert same_bits(states, expected)
        assert np.all(storage[:offset] == 255)
        assert np.all(storage[offset + size :] == 255)


def test_a_cancelled_chain_says_so(kernels, rng):
    spec, _ = drawn_spec(np.dtype("float32"), 0, 16, [64, 64, 64], ["relu", "relu"])
    built = _core.Chain(*spec)
    workspace = np.empty(kernels.chain_workspace(built), np.uint8)
    states = np.empty((1000, 2, 2, _core.MOMENTS))
    assert not kernels.chain(built, 0, 1000, states, None, workspace, np.ones(1, np.int32))


# --- columns ---------------------------------------------------------------------------------


@pytest.mark.parametrize("cuts", [
    [(0, 1)], [(0, 0.5), (0.5, 1)], [(0.37, 1), (0, 0.05), (0.05, 0.05), (0.05, 0.37)],
    [(i / 7, (i + 1) / 7) for i in range(7)],
])  # fmt: skip
@pytest.mark.parametrize(("batch", "widths"), [
    (1, [1, 1, 1]), (7, [15, 17, 63]), (50, [65, 121, 33]), (16, [130, 1100, 20]), (65, [16] * 3),
])  # fmt: skip
def test_columns_add_up_to_the_trial(every_isa, batch, widths, cuts, dtype):
    """Wherever a layer's outputs are cut, the outputs and the statistics keep their bits."""
    for names in (["relu", "gelu"], ["tanh", "relu2"]):
        spec, _ = drawn_spec(dtype, 7, batch, widths, names)
        shape = (batch, widths[-1])
        for kernels in every_isa:
            states, y = run_chain(kernels, spec, 3, y_shape=shape)
            in_pieces, pieces_y = run_columns(kernels, spec, cuts, 3, y_shape=shape)
            assert same_bits(pieces_y, y)
            assert same_bits(in_pieces, states[0])


def test_columns_of_given_arrays_and_special_values(every_isa, dtype):
    """Stored sources are read in place; NaN and infinities are counted in their own part."""
    x, weights, biases = operands(np.random.default_rng(3), 33, [9, 50, 21], dtype)
    x[3, 4], weights[0][7] = np.nan, 0
    codes = layer_codes(["relu", "linear"], [0.05, np.nan])
    spec = (dtype.name, 0, 33, [9, 50, 21], codes, x, weights, [biases[0], None])
    for kernels in every_isa:
        states, y = run_chain(kernels, spec, y_shape=(33, 21))
        in_pieces, pieces_y = run_columns(kernels, spec, [(0.3, 1), (0, 0.3)], y_shape=(33, 21))
        assert same_bits(pieces_y, y)
        assert same_bits(in_pieces, states[0])


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_threads_that_share_a_trial_change_no_bit(always_shared, rng, threads, dtype):
    x, weights, biases = operands(rng, 19, [11, 40, 5, 23], dtype)
    for arguments in ((x, weights, biases), (np.stack([x, x[::-1]]), weights, biases)):
        y, layers = ic.chain(*arguments, activation="tanh", threads=1)
        again, shared = ic.chain(*arguments, activation="tanh", threads=threads)
        without, _ = ic.chain(*arguments, activation="tanh", threads=threads, stats=False)
        assert same_bits(again, y)
        assert same_bits(without, y)
        for one, other in ((layers.pre, shared.pre), (layers.post, shared.post)):
            assert one.equals(other)


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_threads_that_share_trials_of_an_experiment(always_shared, threads):
    spec = {"widths": [30, 50, 7], "bias": "normal(0.1)", "activation": ["gelu", "relu"], "seed": 4}
    one = ic.propagate(**spec, trials=range(5, 7), threads=1)
    assert ic.propagate(**spec, trials=range(5, 7), threads=threads).equals(one)
    one = ic.propagate(**spec, trials=range(5, 7), threads=1, backward=True)
    assert ic.propagate(**spec, trials=range(5, 7), threads=threads, backward=True).equals(one)


def test_a_shared_trial_can_be_cancelled(rng):
    from initcore.kernels.chain import run_shared

    spec, _ = drawn_spec(np.dtype("float32"), 0, 16, [64, 64, 64], ["relu", "relu"])
    kernels, built = _core.default(), _core.Chain(*spec)
    workspaces = [np.empty(kernels.chain_workspace(built), np.uint8) for _ in range(2)]
    cancel = np.ones(1, np.int32)
    arguments = (spec[3], 16, 0, np.zeros((2, 2, _core.MOMENTS)), None, workspaces, cancel)
    assert not run_shared(kernels, built, *arguments)


# --- the public function ---------------------------------------------------------------------


def test_zero_fraction_and_saturation():
    """arXiv 1903.06733: pre [[3,−3],[7,−7]], post half zero; relu is saturated where it is off."""
    x = np.array([[1.0, 2], [3, 4]])
    y, layers = ic.chain(x, [np.array([[1.0, 1], [-1, -1]])], activation="relu")
    assert y.tolist() == [[3, 0], [7, 0]]
    assert layers.pre.mean.tolist() == [0]
    assert layers.pre.second_moment.tolist() == [29]
    assert layers.pre.saturated_fraction.tolist() == [0.5]
    assert layers.post.zero_fraction.tolist() == [0.5]
    assert layers.post.abs_max.tolist() == [7]
    assert np.isnan(layers.post.saturated_fraction).all()


def test_public_chain_against_the_reference(rng, dtype):
    x, weights, biases = operands(rng, 11, [8, 20, 6], dtype)
    y, layers = ic.chain(x, weights, biases, activation="relu", last="linear")
    names = [("relu", None), ("linear", None)]
    expected_y, states = reference.chain(x, weights, biases, names, [0.05] * 2)
    assert same_bits(y, expected_y)
    for record, state in ((layers.pre, states[:, 0]), (layers.post, states[:, 1])):
        count, mean, m2, abs_max, zeros, _, nonfinite, *others = state.T
        _, m4, within, dead, overflows, cosine = others
        assert same_bits(record.mean, mean)
        assert np.array_equal(record.variance, m2 / count)
        assert np.allclose(record.second_moment, m2 / count + mean**2, rtol=1e-13, atol=0)
        assert np.array_equal(record.abs_max, abs_max)
        assert np.array_equal(record.zero_fraction, zeros / count)
        assert np.array_equal(record.nonfinite_fraction, nonfinite / count)
        assert np.allclose(record.kurtosis, count * m4 / m2**2, rtol=1e-13, atol=0)
        assert np.array_equal(record.batch_variance, within / count)
        assert np.array_equal(record.dead_fraction, dead / count)
        assert np.array_equal(record.cosine, cosine)
        assert np.array_equal(record.float16_overflow_fraction, overflows / count)


def test_cosine_of_known_rows():
    """Equal rows have 1, opposite ones −1, orthogonal ones 0; zero rows are left out."""
    identity = [np.eye(2)]
    for rows, expected in (
        ([[1, 2], [10, 20]], 1),
        ([[1, 2], [-3, -6]], -1),
        ([[3, 0], [0, 7]], 0),
        ([[3, 0], [0, 0], [5, 0]], 1),
        ([[1, 0], [0, 1], [-1, 0]], -1 / 3),
        ([[1, 2]], np.nan),
        ([[1, 2], [0, 0]], np.nan),
        ([[1, 2], [np.nan, 0]], np.nan),
    ):
        _, layers = ic.chain(np.array(rows, float), identity, activation="linear")
        for stats in (layers.pre, layers.post):
            assert stats.cosine[0] == pytest.approx(expected, rel=1e-15, abs=1e-15, nan_ok=True)


def test_cosine_is_the_mean_over_pairs(rng, dtype):
    """Of h and of φ(h), over a batch and units that fill no vector."""
    x, weights, biases = operands(rng, 37, [20, 33, 21], dtype)
    _, layers = ic.chain(x, weights, biases, activation="gelu")
    for layer, (w, b) in enumerate(zip(weights, biases, strict=True)):
        h = x.astype(np.float64) @ w.T.astype(np.float64) + b
        x = ic.activation("gelu")(h)
        for values, stats in ((h, layers.pre), (x, layers.post)):
            unit = values / np.linalg.norm(values, axis=1, keepdims=True)
            pairs = (unit @ unit.T)[np.triu_indices(37, 1)]
            assert stats.cosine[layer] == pytest.approx(pairs.mean(), abs=1e-6)


def test_leading_axes_are_trials(rng):
    """Leading axes broadcast: each trial is the chain of its own arrays, for any threads."""
    x = rng.normal(size=(3, 1, 9, 5)).astype(np.float32)
    weights = [
        rng.normal(size=(4, 7, 5)).astype(np.float32),
        rng.normal(size=(6, 7)).astype(np.float32),
    ]
    y, layers = ic.chain(x, weights, activation="relu")
    assert y.shape == (3, 4, 9, 6)
    assert layers.post.mean.shape == (3, 4, 2)
    for i in range(3):
        for j in range(4):
            one, stats = ic.chain(x[i, 0], [weights[0][j], weights[1]], activation="relu")
            assert same_bits(y[i, j], one)
            assert same_bits(layers.post.variance[i, j], stats.post.variance)
    for threads in (1, 2, 3, 7, 16):
        again, stats = ic.chain(x, weights, activation="relu", threads=threads)
        assert same_bits(again, y)
        assert same_bits(stats.pre.variance, layers.pre.variance)


def test_inputs_of_any_layout(rng, tmp_path):
    """F-ordered, strided, big-endian, unaligned and read-only inputs are read. (bottleneck #104,
    distributed #1978)"""
    x, weights, biases = operands(rng, 6, [10, 12], np.float32)
    y, _ = ic.chain(x, weights, biases, activation="gelu")
    w = weights[0]
    w.tofile(tmp_path / "w.bin")
    frozen = w.copy()
    frozen.flags.writeable = False
    for same in (
        np.asfortranarray(w),
        np.repeat(w, 2, axis=0)[::2],
        np.repeat(w, 2, axis=1)[:, ::2],
        w[::-1, ::-1].copy()[::-1, ::-1],
        w.astype(">f4"),
        unaligned(w),
        frozen,
        np.memmap(tmp_path / "w.bin", np.float32, mode="r", shape=w.shape),
        np.frombuffer(w.tobytes(), np.float32).reshape(w.shape),
    ):
        assert same_bits(ic.chain(x, [same], biases, activation="gelu")[0], y)
    for same in (np.asfortranarray(x), np.repeat(x, 3, axis=0)[::3], x.astype(">f4")):
        assert same_bits(ic.chain(same, weights, biases, activation="gelu")[0], y)


def test_halves_compute_in_float32(rng):
    x, weights, biases = operands(rng, 6, [10, 12], np.float16)
    y, _ = ic.chain(x, weights, biases, activation="relu")
    wide = [a.astype(np.float32) for a in (x, weights[0], biases[0])]
    expected, _ = ic.chain(wide[0], [wide[1]], [wide[2]], activation="relu")
    assert y.dtype == np.float32
    assert same_bits(y, expected)


def test_stats_may_be_left_out(rng):
    x, weights, _ = operands(rng, 6, [10, 12], np.float32)
    y, layers = ic.chain(x, weights, activation="relu", stats=False)
    assert layers is None
    assert same_bits(y, ic.chain(x, weights, activation="relu")[0])


@pytest.mark.parametrize(
    ("x", "weights", "biases", "keywords", "error", "named"),
    [
        (np.ones((2, 3)), [np.ones((4, 5))], None, {}, ValueError, r"weights\[0\].*\(4, 5\)"),
        (np.ones((2, 3)), [np.ones((4, 3))] * 2, None, {}, ValueError, r"weights\[1\]"),
        (np.ones((2, 3)), [np.ones((4, 3))], [np.ones(3)], {}, ValueError, r"biases\[0\]"),
        (np.ones((2, 3)), [np.ones((4, 3))], [], {}, ValueError, "biases"),
        (np.ones(3), [np.ones((4, 3))], None, {}, ValueError, "x"),
        (np.ones((2, 3)), [], None, {}, ValueError, "weights"),
        (np.ones((2, 3)), [np.ones((4, 3))], None, {"activation": "rleu"}, ValueError, "rleu"),
        (np.ones((2, 3)), [np.ones((4, 3))], None, {"activation": []}, ValueError, "activation"),
        (np.ones((2, 3)), [np.ones((4, 3))], None, {"last": "rleu"}, ValueError, "last: .*rleu"),
        (np.ones((2, 3)) * 1j, [np.ones((4, 3))], None, {}, TypeError, "x"),
        (np.ones((2, 3)), [np.ma.ones((4, 3))], None, {}, TypeError, "weights"),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(x, weights, biases, keywords, error, named):
    with pytest.raises(error, match=named):
        ic.chain(x, weights, biases, **({"activation": "relu"} | keywords))


def test_a_width_of_zero_leaves_the_bias():
    """An empty sum is 0: what follows is φ(b), and what has no entries has no statistics."""
    y, layers = ic.chain(
        np.zeros((2, 0)), [np.zeros((3, 0))], [np.ones(3)], activation="sigmoid"
    )  # fmt: skip
    assert np.allclose(y, 1 / (1 + np.exp(-1)), rtol=1e-15)
    assert layers.pre.mean[0] == 1
    y, layers = ic.chain(
        np.ones((2, 4)), [np.zeros((0, 4)), np.zeros((3, 0))], activation="sigmoid"
    )  # fmt: skip
    assert np.all(y == 0.5)
    assert np.isnan(layers.pre.mean[0])
    assert layers.post.mean[1] == 0.5


def test_ctrl_c_stops_a_chain_within_a_second():
    program = (
        "import numpy as np, initcore as ic, threading, os, signal, time\n"
        "w = np.full((1024, 1024), 1e-3, np.float32)\n"
        "x = np.ones((1024, 1024), np.float32)\n"
        "def strike():\n"
        "    global then\n"
        "    time.sleep(0.3)\n"
        "    then = time.monotonic()\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Thread(target=strike).start()\n"
        "try:\n"
        "    ic.chain(x, [w] * 2000, activation='gelu', threads=1)\n"
        "except KeyboardInterrupt:\n"
        "    print(time.monotonic() - then)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert float(ran.stdout) < 1, ran.stderr


# --- the public backward pass ----------------------------------------------------------------
